// Element types of 8 bits, for kernels of every dialect. Only caches have these types.
#pragma once

#include "common/kernel/spaces.h"
#include "common/kernel/types.h"

/// Element types in addition to the values of ElementType.
constexpr CONSTANT int E4M3 = 3, INT8 = 4;

constexpr int bytes_of_type(int type) { return type == F32 ? 4 : type == F16 || type == BF16 ? 2 : 1; }
