// Hooks: what a caller puts in the place of common/attention/kernels/score.h, keys.h, mask.h, pages.h, rotate.h and
// sink.h, for the kernel and for the oracle.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/attention/reference.h"
#include "common/source/kernel_source.h"

namespace attn {

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

/// A value as a hook's data.
template <typename T>
std::vector<std::byte> bytes_of(const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  return {bytes.begin(), bytes.end()};
}

}  // namespace attn
