// Refuses texts of users' functions before a compiler sees them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace attn {

/// Returns the reason why a text of a user's function is refused, with the line number; returns nothing if the text is
/// allowed. A text must be UTF-8 without control characters other than white space. Outside comments and literals the
/// text must not have #include, #include_next, #import, #embed, `extern` or `asm`, because it must stand alone.
std::optional<std::string> refused_text(std::string_view text);

}  // namespace attn
