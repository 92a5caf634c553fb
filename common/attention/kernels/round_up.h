// Arithmetic of layouts, for host and kernels. Includes no other headers, because kernels compile without a standard
// library.
#pragma once

/// Returns the least multiple of `to` that is at least n. n is not negative.
constexpr long long round_up(long long n, long long to) { return (n + to - 1) / to * to; }
