// The tokens of a text in C++, CUDA C++ or the Metal Shading Language.
#pragma once

#include <string>
#include <string_view>

namespace attn {

/// Returns the text with one blank between two tokens, and each directive of the preprocessor in a line of its own. So
/// two texts that differ only in blanks and line breaks give the same result. Literals stay as they are. Expects a text
/// without comments, in which no line ends with a backslash.
std::string tokens_of(std::string_view text);

}  // namespace attn
