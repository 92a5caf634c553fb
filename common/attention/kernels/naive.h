// A constant that host and kernel of the GPU's `naive` variant share. This file includes no other headers, so that
// kernels compile without a standard library.
#pragma once

#include "common/kernel/spaces.h"

/// Threads of a threadgroup.
constexpr CONSTANT int naive_threads = 128;
