// Arithmetic of layouts, on the host and in kernels. It includes no other headers, so that kernels compile without a
// standard library.
#pragma once

/// The least multiple of `to` that is not below n >= 0.
constexpr long long round_up(long long n, long long to) { return (n + to - 1) / to * to; }
