// Hooks: the texts with which a caller replaces score.h, keys.h, mask.h, pages.h, rotate.h, sink.h and before.h of
// common/attention/kernels in a kernel, and the functions that do the same in the oracle, the reference in double.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/source/kernel_source.h"

namespace attn {

/// Changes the scaled scores of a row in place. scores[k] is the score of key k; keys that a causal mask hides are not
/// in the span. A score of -infinity hides the pair. Several threads call the function at once.
using ScoreFunction = std::function<void(std::span<double> scores, int64_t batch, int64_t head, int64_t q)>;

/// Returns the sink of a query head. A sink is a logit that adds one term to the softmax's divisor in each row of the
/// head: the exponential of the sink. -infinity: the head has no sink.
using SinkFunction = std::function<double(int64_t batch, int64_t head)>;

/// Makes a ScoreFunction from a function of one pair: double(score, batch, head, q, k).
template <typename Function>
ScoreFunction each_score(Function function) {
  return [function = std::move(function)](std::span<double> scores, int64_t batch, int64_t head, int64_t q) {
    for (size_t k = 0; k < scores.size(); ++k) {
      scores[k] = function(scores[k], batch, head, q, static_cast<int64_t>(k));
    }
  };
}

/// How a score hook, with the values of its constants, changes scores.
///   none    leaves scores as they are
///   linear  only adds slope * (k - (q + kv_len - q_len)); the text defines score_slope (kernels/score.h)
///   any     may change scores in any way
enum class ScoreChange { none, linear, any };

/// Which rows the rotate hook changes.
enum class Rotation { none, queries, all };

/// Which sequences and heads share lists of key blocks. With a mask hook, tiles can walk such lists
/// (kernels/mask_lists.h).
///   none      there are no lists: tiles walk the range of their rows' keys, and ask the hook about every pair
///   all       all sequences and heads share lists
///   sequence  each sequence has lists of its own: the mask depends on the sequence
///   head      each head of each sequence has lists of its own: the mask depends on the head
/// If a mask allows `all`, it also allows `sequence` and `head`. If it allows `sequence`, it also allows `head`.
enum class ListScope { none, all, sequence, head };

/// The hooks of one launch of attention: their texts for the kernel, the data and constants that these texts need, and
/// the functions that do the same in the oracle.
struct AttentionHooks {
  std::string text = {};                        // replaces common/attention/kernels/score.h; empty: the identity
  std::map<std::string, std::string> includes;  // path -> text: the other hooks, and headers that texts include
  std::vector<KernelSource> fragments;          // functions that the texts declare and do not define
  Linking linking = Linking::before_optimizer;
  std::vector<std::byte> data;        // ScoreContext::data points to these bytes
  ListScope lists = ListScope::none;  // the scope of the mask hook's lists
  ScoreFunction reference = {};  // changes scores as the score hook does, and hides pairs as the keys and mask hooks do
  SinkFunction sink = {};        // empty: there is no sink
  std::string name;              // hooks with the same name and the same inputs have the same reference
  FunctionConstants constants = {};       // the constants that the texts read
  ScoreChange change = ScoreChange::any;  // how the score hook changes scores; the other hooks do not count
  Rotation rotation = Rotation::none;
  double score_error = 0;  // relative error that the kernel's text adds to a score, as an approximate tanh does
  bool guarded = false;    // KernelSource::guarded; true if some text is a user's
};

/// Copies the hooks' texts, fragments, linking and `guarded` into the source of a kernel, and adds the hooks'
/// constants.
void add_hooks(KernelSource& source, const AttentionHooks& hooks);

/// Returns the bytes of a value. The bytes may serve as AttentionHooks::data.
template <typename T>
std::vector<std::byte> bytes_of(const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  return {bytes.begin(), bytes.end()};
}

}  // namespace attn
