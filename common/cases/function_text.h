// What a text may not be that a compiler is to see as a user's function.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace attn {

/// Why the text is no function's, with the line: bytes that are no UTF-8 text, or what reaches out of the file
/// (#include and its like, `extern`, `asm`). Comments and literals do not count. Nothing where a compiler may have it.
std::optional<std::string> refused_text(std::string_view text);

}  // namespace attn
