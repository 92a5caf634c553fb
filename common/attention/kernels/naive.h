// A constant that the host and the GPUs' `naive` kernels share.
#pragma once

#include "common/kernel/spaces.h"

/// Threads of a threadgroup.
constexpr CONSTANT int naive_threads = 128;
