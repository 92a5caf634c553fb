// The rules by which findings in finding/1, the first format, were judged. kb verifies recorded findings in this format
// by these rules. common/records/claim.h has the newer rules.
#pragma once

#include <string>

#include "common/records/claim.h"

namespace attn::kb {

/// The figures of a finding/1 from which its verdict and its confidence follow.
struct FirstFigures {
  Estimate estimate;
  double aa_floor = 0;
  double cv = 0;
  bool correct = true;
};

/// Returns supported or refuted if all results are correct, the interval lies on one side of the threshold, and the
/// estimate is at least the noise floor away from the threshold; else inconclusive. Throws std::invalid_argument for an
/// unknown op.
Verdict first_judge(const Hypothesis& hypothesis, const FirstFigures& figures);
/// Returns 0 for an incorrect result, 0.5 for an inconclusive verdict, 0.6 for a CV that is not below 5 %, and
/// otherwise 0.95 if `replicated` (an independent run agrees), else 0.8.
double first_confidence(const Verdict& verdict, const FirstFigures& figures, bool replicated);
/// Returns "experiment/hypothesis/device/subject", without "/subject" if the subject is empty.
std::string first_claim_key(const std::string& experiment, const std::string& hypothesis, const std::string& device,
                            const std::string& subject);

}  // namespace attn::kb
