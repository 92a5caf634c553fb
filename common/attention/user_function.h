// A score function, mask function or feature map of a user: its text, as kernels include it. docs/score_functions.md
// says what a text may use.
#pragma once

#include <cstdint>
#include <string>

namespace attn {

/// A feature map is part of linear attention: float feature(float x), applied to each element of Q and K.
enum class FunctionKind { score, mask, feature };

/// Text and name of a function.
struct UserFunction {
  std::string name;  // a path, for messages
  std::string text;
  int64_t work = -1;  // the value of WORK in the text; negative: there is no WORK
  FunctionKind kind = FunctionKind::score;
  bool guarded = false;  // a user's file: functions may omit the context, and kernels are KernelSource::guarded

  /// Returns the text as kernels include it: math functions in float or in double, a #line that makes compilers report
  /// the line numbers of the user's text, and the user's text. Different functions have different headers.
  std::string header(bool in_double = false) const;
  /// Returns a name that only this text has: "file-" and the first 12 hex digits of the text's SHA-256.
  std::string text_name() const;
};

}  // namespace attn
