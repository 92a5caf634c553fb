// Searches for the length from which on linear attention is faster than softmax attention: by powers of two until it is
// clearly faster, then by bisection of the last crossing. At a few tokens both may take the time of a launch, so that a
// ratio below 1 there says nothing about longer lengths. Each probe of a length compares A B A' (softmax, linear,
// softmax again) on the same inputs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/experiment/experiment.h"
#include "common/records/timing.h"

namespace attn {

/// The id of the claim that the probes' comparisons belong to.
inline constexpr const char* crossover_hypothesis = "crossover_256";

/// The search over lengths. next() gives a length to probe; add() takes the ratio at this length: time of linear
/// attention / time of softmax attention. The faster side is the shortest probed length from which on all probed
/// lengths have ratios below 1. The slower side is the longest probed length below the faster side, or the longest of
/// all probed lengths if there is no faster side.
class Bracket {
 public:
  /// `first` is the shortest length that is probed, in tokens. The bisection probes multiples of `grain` tokens.
  static constexpr int64_t first = 16, grain = 8;
  static constexpr double clearly_faster = 0.8;  // the powers of two end at such a ratio, or at `last`

  explicit Bracket(int64_t last) : last_(last) {}
  /// Returns the next length to probe. Returns nothing once the two sides differ by at most `grain` or an eighth of the
  /// slower side, or once the intervals of both sides' ratios contain 1. Also returns nothing if linear attention is
  /// faster at all probed lengths, or at no probed length up to `last`.
  std::optional<int64_t> next() const;
  void add(int64_t tokens, const Estimate& ratio) { ratios_[tokens] = ratio; }

  bool begins_faster() const;
  bool ends_slower() const;
  /// Returns the length where the ratio is 1, interpolated between the two sides on logarithmic axes. The interval
  /// begins at the longest probed length below the faster side at which the ratio's whole interval is above 1, else at
  /// `first`. The interval ends at the shortest probed length above the slower side at which the ratio's whole interval
  /// is below 1, else at `last`. If one side is missing, the estimate and both ends of its interval are the length of
  /// the other side. Needs at least one probe.
  Estimate tokens() const;
  /// Returns the faster side, or the slower side if there is no faster side.
  int64_t nearest() const;

 private:
  std::optional<int64_t> faster_side() const;
  std::optional<int64_t> slower_side() const;

  int64_t last_;
  std::map<int64_t, Estimate> ratios_;
};

/// Returns the comparisons of each search. The linear cases of one search differ at most in q_len and chunk.
std::vector<std::vector<const Comparison*>> crossover_searches(const std::vector<Comparison>& comparisons);
Bracket bracket_of(const std::vector<const Comparison*>& comparisons);
/// Whether at one of the lengths linear attention is faster by more than the comparison's interval and noise floor.
bool faster_beyond_noise(const std::vector<const Comparison*>& comparisons);

/// Runs the searches if the run wants claims about the crossover: one search for each setting (shape, gate, feature map
/// and so on) of the linear cases that share a group with softmax attention. Then runs the cases that no search has
/// measured, as Experiment::run() does, and returns the exit status. A search ends when the budget is spent. A case
/// that has a record is not measured again.
int run_with_crossovers(Experiment& lab);

}  // namespace attn
