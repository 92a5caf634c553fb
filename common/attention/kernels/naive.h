// A constant that host and kernel of the GPU's `naive` variant share. This file includes no other headers, so that
// kernels compile without a standard library.
#pragma once

/// Threads of a threadgroup.
constexpr int naive_threads = 128;
