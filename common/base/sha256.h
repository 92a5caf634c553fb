// SHA-256 (FIPS 180-4), for cache keys and record ids. The project has its own code because some machines have
// neither LLVM nor OpenSSL.
#pragma once

#include <string>
#include <string_view>

namespace attn {

/// Returns the SHA-256 of `bytes` as 64 lower-case hex digits.
std::string sha256(std::string_view bytes);

}  // namespace attn
