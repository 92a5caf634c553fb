// Reads texts of users' functions before a compiler sees them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attn {

/// Returns the reason why a text of a user's function is refused, with the line number; returns nothing if the text is
/// allowed. A text is refused if it has control characters below 0x20 that are no white space, or bytes that are not
/// UTF-8. Outside of comments and literals, a text is also refused for words and directives with which it could use
/// what is not in its file, or could change how the texts after it are compiled: `asm`, `extern`, `##`, raw
/// literals, and all directives except the conditions, #define, #undef, #error, #warning, #pragma unroll and #pragma
/// clang loop.
std::optional<std::string> refused_text(std::string_view text);

struct MacroName {
  std::string name;
  int line = 0;  // of the text
};
/// Returns the names that stand in the #define and #undef directives of an allowed text, each once.
std::vector<MacroName> macros_of(std::string_view text);

/// Returns the text with one newline character at the end of each line. Compilers differ in what they take for the end
/// of a line: a carriage return alone ends a line for clang, and so does no backslash that blanks follow.
std::string with_plain_lines(std::string_view text);

}  // namespace attn
