// Refuses texts of users' functions before a compiler sees them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace attn {

/// Returns the reason why a text of a user's function is refused, with the line number; returns nothing if the text is
/// allowed. A text is refused if it has control characters below 0x20 that are no white space, bytes that are not
/// UTF-8, or a word that lets the text use other files or symbols: #include, #include_next, #import, #embed, `extern`
/// or `asm`. These words are allowed in comments and literals.
std::optional<std::string> refused_text(std::string_view text);

}  // namespace attn
