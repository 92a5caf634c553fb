// From which length on linear attention is faster than softmax attention: by powers of two, then by bisection. Each
// probe is a comparison A B A' of the two on the same inputs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/experiment/experiment.h"
#include "common/records/timing.h"

namespace attn {

/// The id of the claim for which probes are compared.
inline constexpr const char* crossover_hypothesis = "crossover_256";

/// The search along lengths. It asks for a length at a time, and is told the time of linear attention over that of
/// softmax attention there.
class Bracket {
 public:
  static constexpr int64_t first = 16,
                           grain = 8;  // the shortest length, and the least distance of two that are told apart

  explicit Bracket(int64_t last) : last_(last) {}
  /// Nothing once both sides are as close as they can be told apart: by less than an eighth, by `grain`, or because
  /// the ratios of both may be 1; and where linear attention is faster at the shortest length, or at none.
  std::optional<int64_t> next() const;
  void add(int64_t tokens, const Estimate& ratio) { ratios_[tokens] = ratio; }

  bool begins_faster() const;
  /// Where the ratio is 1, between the two sides in proportion to logarithms; from the longest length that is certainly
  /// slower to the shortest that is certainly faster. At an end of the range: that end. Of at least one probe.
  Estimate tokens() const;
  /// The length that is nearest to tokens(), on the faster side where there is one.
  int64_t nearest() const;

 private:
  std::optional<int64_t> faster_side() const;
  std::optional<int64_t> slower_side() const;

  int64_t last_;
  std::map<int64_t, Estimate> ratios_;
};

/// The comparisons of one search, by the contender's case but for its length.
std::vector<std::vector<const Comparison*>> crossover_searches(const std::vector<Comparison>& comparisons);
Bracket bracket_of(const std::vector<const Comparison*>& comparisons);

/// Searches for each linear case of the selection that stands beside softmax attention, and then does what
/// Experiment::run() does with the cases that no search has measured. A search ends where the budget does; lengths that
/// were measured before are not measured again.
int run_with_crossovers(Experiment& lab);

}  // namespace attn
