// A build with AddressSanitizer or UndefinedBehaviorSanitizer also instruments its kernels.
#pragma once

#include <string_view>

namespace attn {

/// Whether the build has the sanitizer `name`, "address" or "undefined".
constexpr bool sanitizes(std::string_view name) {
  return std::string_view(ATTN_SANITIZE).find(name) != std::string_view::npos;
}

}  // namespace attn
