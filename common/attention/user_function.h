// A score function, mask function or feature map that somebody else wrote: its text, as kernels include it.
// docs/score_functions.md says what a text may use.
#pragma once

#include <cstdint>
#include <string>

namespace attn {

/// A feature map is linear attention's: float feature(float x), of each element of Q and K.
enum class FunctionKind { score, mask, feature };

/// Text and name of a function.
struct UserFunction {
  std::string name;  // what messages call it: a path
  std::string text;
  int64_t work = -1;  // WORK in the text; negative: there is none
  FunctionKind kind = FunctionKind::score;
  bool guarded = false;  // a user's file: it may leave the context out, and kernels with it run guarded

  /// The text as kernels include it, in float or in double, with line numbers of its own. Tells it from all others.
  std::string header(bool in_double = false) const;
  /// Tells its text from others: "file-" and the first 12 hex digits of the text's SHA-256.
  std::string text_name() const;
};

}  // namespace attn
