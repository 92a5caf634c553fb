// Selects which advice to give: at most 5 % of the findings that give advice are expected to have a wrong verdict.
#pragma once

#include <string>
#include <vector>

#include "findings/kb/runs.h"

namespace attn::kb {

/// Selects the largest set of claims of which at most the share `share` is expected to be wrong, by Benjamini and
/// Hochberg's rule. `wrong` has, for each claim, the probability that the claim is wrong. Returns true for each claim
/// in the set.
std::vector<bool> discoveries(const std::vector<double>& wrong, double share = 0.05);

/// Returns the probability that the next run's figure lies on the other side of the threshold; 0 for an exact figure.
/// A confidence has an upper limit (0.8 with one session) for errors that the intervals do not show. This probability
/// has no such limit, because discoveries() would then select no finding. The figure of a finding/1 is taken as the
/// figure of one process.
double wrong_verdict(const Record& finding);

/// Returns the number of wrong verdicts to expect among the decided findings (supported or refuted): the sum of
/// 1 - confidence.
double expected_wrong(const std::vector<Record>& findings);

struct Advised {
  std::string text;
  Record finding;
  double wrong = 0;  // wrong_verdict()
};
struct Advices {
  std::vector<Advised> given;
  int64_t withheld = 0;  // number of findings with advice that discoveries() does not select
  double expected_wrong = 0;
};
/// Returns the advice of the latest finding of each claim, if the finding is decided and discoveries() selects it.
Advices advices(const std::vector<Record>& records);

}  // namespace attn::kb
