// Element types of 8 bits, which only caches have, as kernels of every dialect see them.
#pragma once

#include "common/kernel/types.h"

/// Beside ElementType.
constexpr int E4M3 = 3, INT8 = 4;

constexpr int bytes_of_type(int type) { return type == F32 ? 4 : type == F16 || type == BF16 ? 2 : 1; }
