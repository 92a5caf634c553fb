// Which advice to give: the share of wrong verdicts among the findings that give advice is held at 5 %.
#pragma once

#include <string>
#include <vector>

#include "findings/kb/runs.h"

namespace attn::kb {

/// The largest set of claims in which a share of at most `share` is expected to be wrong, by Benjamini and Hochberg's
/// rule: true for each claim in the set. `wrong` has the probability of each claim to be wrong.
std::vector<bool> discoveries(const std::vector<double>& wrong, double share = 0.05);

/// The probability that the next run's figure lies on the other side of the threshold. 0 for an exact figure. It has no
/// upper limit of a confidence: such a limit (0.8 with one session) stands for what the intervals do not know, and
/// would leave no finding to discoveries(). A finding/1 has the intervals that its figure has as one process's.
double wrong_verdict(const Record& finding);

/// The number of wrong verdicts to expect among decided findings: the sum of 1 - confidence.
double expected_wrong(const std::vector<Record>& findings);

struct Advised {
  std::string text;
  Record finding;
  double wrong = 0;  // wrong_verdict()
};
struct Advices {
  std::vector<Advised> given;
  int64_t withheld = 0;  // findings with advice outside of discoveries()
  double expected_wrong = 0;
};
/// The advice of the latest finding of each claim, where the finding is decided and among discoveries().
Advices advices(const std::vector<Record>& records);

}  // namespace attn::kb
