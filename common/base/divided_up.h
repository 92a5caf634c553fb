#pragma once

#include <cstdint>

namespace attn {

/// a / b, rounded up; a is not negative, b is positive.
constexpr int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace attn
