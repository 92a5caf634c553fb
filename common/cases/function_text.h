// Which texts of users' functions are refused before a compiler sees them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace attn {

/// The reason why a text is refused, with the line number. A text is refused if it has bytes that are not UTF-8 text,
/// or reaches out of its file with #include, #include_next, #import, #embed, `extern` or `asm`. Comments and literals
/// do not count. Empty for a text that is not refused.
std::optional<std::string> refused_text(std::string_view text);

}  // namespace attn
