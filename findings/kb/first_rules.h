// The rules by which findings of schema finding/1 were judged. Recorded findings are verified by these rules; new
// findings are judged by common/records/claim.h.
#pragma once

#include <string>

#include "common/records/claim.h"

namespace attn::kb {

/// The figures of a finding/1 that its verdict and its confidence follow from.
struct FirstFigures {
  Estimate estimate;
  double aa_floor = 0;
  double cv = 0;
  bool correct = true;
};

/// Supported or refuted where all results are correct, the interval lies on one side of the threshold, and the estimate
/// is at least the noise floor away from the threshold; else inconclusive. Throws std::invalid_argument for an unknown
/// op.
Verdict first_judge(const Hypothesis& hypothesis, const FirstFigures& figures);
/// 0: incorrect; 0.5: inconclusive; 0.6: a CV of 5 % or more; 0.8; 0.95: `replicated`.
double first_confidence(const Verdict& verdict, const FirstFigures& figures, bool replicated);
/// experiment/hypothesis/device/subject
std::string first_claim_key(const std::string& experiment, const std::string& hypothesis, const std::string& device,
                            const std::string& subject);

}  // namespace attn::kb
