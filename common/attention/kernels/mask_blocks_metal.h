// A constant that host and kernel of Metal's `mask_blocks` share.
#pragma once

#include "common/kernel/spaces.h"

/// Threads of a threadgroup.
constexpr CONSTANT int mask_blocks_threads = 256;
