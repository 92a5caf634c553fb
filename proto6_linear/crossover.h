// Searches the length from which on linear attention is faster than softmax attention, by powers of two, then by
// bisection. Each probe is a comparison A B A' of the two on the same inputs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/experiment/experiment.h"
#include "common/records/timing.h"

namespace attn {

/// The id of the claim that the comparisons of probes belong to.
inline constexpr const char* crossover_hypothesis = "crossover_256";

/// The search over lengths. next() asks for one length at a time. add() takes the time of linear attention divided by
/// the time of softmax attention at that length.
class Bracket {
 public:
  /// The shortest length, and the least distance between two lengths.
  static constexpr int64_t first = 16, grain = 8;

  explicit Bracket(int64_t last) : last_(last) {}
  /// The next length to probe. Nothing once the slower and the faster side differ by at most an eighth or by at most
  /// `grain`, or the ratios of both sides may be 1. Nothing either where linear attention is faster at the shortest
  /// length, or at no length.
  std::optional<int64_t> next() const;
  void add(int64_t tokens, const Estimate& ratio) { ratios_[tokens] = ratio; }

  bool begins_faster() const;
  /// The length where the ratio is 1, interpolated between the two sides in proportion to logarithms. Its interval goes
  /// from the longest length where linear attention is certainly slower to the shortest length where it is certainly
  /// faster. Where one side is missing, the length is that end of the range. Needs at least one probe.
  Estimate tokens() const;
  /// The probed length next to tokens(): the faster side, or the slower side where there is no faster one.
  int64_t nearest() const;

 private:
  std::optional<int64_t> faster_side() const;
  std::optional<int64_t> slower_side() const;

  int64_t last_;
  std::map<int64_t, Estimate> ratios_;
};

/// The comparisons of each search. Contenders of one search differ only in length and chunk.
std::vector<std::vector<const Comparison*>> crossover_searches(const std::vector<Comparison>& comparisons);
Bracket bracket_of(const std::vector<const Comparison*>& comparisons);

/// Runs a search for each linear case of the selection that has softmax attention in its group. Then runs the cases
/// that no search has measured, as Experiment::run() does. A search ends where the budget is spent. Lengths that were
/// measured before are not measured again.
int run_with_crossovers(Experiment& lab);

}  // namespace attn
