// Refuses texts of users' functions before a compiler sees them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace attn {

/// Returns the reason why a text of a user's function is refused, with the line number; returns nothing if the text is
/// allowed. A text is refused if it has control characters below 0x20 that are no white space, or bytes that are not
/// UTF-8. A text is also refused if it has #include, #include_next, #import, #embed, `extern` or `asm`, except in
/// comments and literals. With these words a text could use what is not in its file.
std::optional<std::string> refused_text(std::string_view text);

}  // namespace attn
