// Arithmetic of layouts, on the host and in kernels. This file includes no other headers, so that kernels compile
// without a standard library.
#pragma once

/// Returns the least multiple of `to` that is at least n. n must not be negative.
constexpr long long round_up(long long n, long long to) { return (n + to - 1) / to * to; }
