// A score function, mask function or feature map of a user: its text, as kernels include it. docs/score_functions.md
// says what a text may use.
#pragma once

#include <cstdint>
#include <map>
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
  /// A user's file: the function may omit the context, its text is compiled apart from the kernel's text, and kernels
  /// are KernelSource::guarded. Otherwise the text is the project's own score function, and kernels include it.
  bool guarded = false;

  /// Returns the text with the math functions in float or in double before it, and a #line that makes compilers report
  /// the line numbers of the text. Different functions have different headers.
  std::string header(bool in_double = false) const;
  /// Adds the function to the texts of a kernel that includes the file `place`, within a namespace, to call the
  /// function. The text of a user's file goes to `users_text`, and `place` only has the calls.
  void add_to(std::map<std::string, std::string>& includes, const std::string& place, bool in_double = false) const;
  /// Returns a name that only this text has: "file-" and the first 12 hex digits of the text's SHA-256.
  std::string text_name() const;
};

}  // namespace attn
