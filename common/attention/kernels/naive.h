// A constant that host and kernel of the GPU's `naive` variant share. This file includes only headers of kernels.
#pragma once

#include "common/kernel/spaces.h"

/// Threads of a threadgroup.
constexpr CONSTANT int naive_threads = 128;
