// Hooks: what a caller puts in the place of common/attention/kernels/score.h, keys.h, mask.h, pages.h, rotate.h and
// sink.h, for the kernel and for the oracle.
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

/// Changes a row's scaled scores, that of key k at scores[k], keys that a causal mask hides left out; -infinity hides a
/// pair. Called from several threads at once.
using ScoreFunction = std::function<void(std::span<double> scores, int64_t batch, int64_t head, int64_t q)>;

/// A logit for each query head that takes part in the softmax of its rows as a key without a value would; -infinity:
/// none.
using SinkFunction = std::function<double(int64_t batch, int64_t head)>;

/// The same as a ScoreFunction from a function of one pair: double(score, batch, head, q, k).
template <typename Function>
ScoreFunction each_score(Function function) {
  return [function = std::move(function)](std::span<double> scores, int64_t batch, int64_t head, int64_t q) {
    for (size_t k = 0; k < scores.size(); ++k) {
      scores[k] = function(scores[k], batch, head, q, static_cast<int64_t>(k));
    }
  };
}

/// What a score hook does to scores with the constants that it has.
///   none    leaves them as they are
///   linear  adds a slope times the place of the key, and nothing else: the text defines score_slope (kernels/score.h)
///   any     anything
enum class ScoreChange { none, linear, any };

/// Which rows the rotate hook changes.
enum class Rotation { none, queries, all };

/// What has lists of key blocks of its own, where a mask hook's tiles walk lists (kernels/mask_lists.h): nothing, so
/// that tiles walk the range of their rows' keys and ask for every pair; or, as the mask depends on it, all sequences
/// together, each sequence, or each head. In order: what suits a scope suits those behind it.
enum class ListScope { none, all, sequence, head };

/// Changed attention: the hooks' texts for the kernel, what they need beside them, and the same for the oracle.
struct AttentionHooks {
  std::string text = {};                        // in place of common/attention/kernels/score.h; empty: the identity
  std::map<std::string, std::string> includes;  // in place of the other hooks' headers, and headers that texts name
  std::vector<KernelSource> fragments;          // what the text declares and does not define
  Linking linking = Linking::before_optimizer;
  std::vector<std::byte> data;            // what ScoreContext::data points to
  ListScope lists = ListScope::none;      // of the mask hook
  ScoreFunction reference = {};           // also of the keys hook and the mask hook, which mask what they leave out
  SinkFunction sink = {};                 // empty: there is none
  std::string name;                       // hooks of the same inputs with the same name have the same reference
  FunctionConstants constants = {};       // that the text reads
  ScoreChange change = ScoreChange::any;  // whatever the other hooks do
  Rotation rotation = Rotation::none;
  double score_error = 0;  // that the kernel's text adds to a score, as a share of it: of an approximate tanh
  bool guarded = false;    // KernelSource::guarded: a text is a user's
};

/// Makes a kernel's source the source of the changed kernel: texts, fragments, constants.
void add_hooks(KernelSource& source, const AttentionHooks& hooks);

/// A value as a hook's data.
template <typename T>
std::vector<std::byte> bytes_of(const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  return {bytes.begin(), bytes.end()};
}

}  // namespace attn
