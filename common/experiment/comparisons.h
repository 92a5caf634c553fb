// Comparisons of pairs of cases: which pairs are measured, in which processes, and what they give together. The
// Comparisons own the results.
#pragma once

#include <vector>

#include "common/experiment/experiment.h"
#include "common/experiment/record.h"
#include "common/experiment/selection.h"
#include "common/experiment/task.h"

namespace attn {

class Comparisons {
 public:
  Comparisons(const Given& given, const Selection& selection, Recorder& recorder, Tasks& tasks);

  /// Compares the pairs in the worker of the sweep, with at most `budget_s` seconds for all of them.
  void compare(const std::vector<Duel>& asked, double budget_s);
  /// Compares the pairs, and measures the cases of the claims again, each in several processes of their own. With one
  /// process: compares in the worker of the sweep, and measures no case again.
  void repeat(const std::vector<Claim>& claims, const std::vector<Duel>& asked);

  const std::vector<Comparison>& all() const { return comparisons_; }
  /// What the processes measured of the claims' cases.
  const Processes& processes() const { return processes_; }

 private:
  /// The pairs whose cases were both measured, and that have no comparison yet. Each pair comes once, also if several
  /// hypotheses ask for it. Keeps the comparisons that --resume has found.
  std::vector<Duel> left_of(const std::vector<Duel>& asked, bool of_processes);
  /// Keeps a comparison for each hypothesis that asked for its pair, in place of an earlier comparison.
  void keep(const Comparison& comparison, const std::vector<Duel>& asked);
  /// As keep(), and prints the figures.
  void keep_new(const Comparison& comparison, const std::vector<Duel>& asked);
  /// Pools the figures of each pair from all processes that measured the pair, and keeps the comparison.
  void pool_pairs(const std::vector<Tasks::Found>& parts, const std::vector<Duel>& pairs,
                  const std::vector<Duel>& asked);
  /// Does what repeat() does in `count` processes.
  void repeat_in(int count, const std::vector<Case>& cases, const std::vector<Duel>& asked);

  const Given given_;
  const Selection& selection_;
  Recorder& recorder_;
  Tasks& tasks_;
  std::vector<Comparison> comparisons_;
  Processes processes_;
};

}  // namespace attn
