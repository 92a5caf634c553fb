// SHA-256 (FIPS 180-4), for cache keys and record ids. Own code because neither LLVM nor OpenSSL is there on every
// machine the project builds on.
#pragma once

#include <string>
#include <string_view>

namespace attn {

/// 64 lower-case hex digits.
std::string sha256(std::string_view bytes);

}  // namespace attn
