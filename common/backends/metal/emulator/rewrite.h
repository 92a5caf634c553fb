// What a text in Metal's language needs so that clang reads it as C++. Lines stay lines.
#pragma once

#include <string>
#include <string_view>

namespace attn::msl {

/// Returns the text with two changes. An attribute becomes an annotation that clang keeps: [[buffer(0)]] becomes
/// [[clang::annotate("buffer", 0)]]. A variable of a function in threadgroup memory becomes static: all threads of a
/// threadgroup have one.
std::string as_cxx(std::string_view text);

}  // namespace attn::msl
