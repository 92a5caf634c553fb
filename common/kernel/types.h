// Element types as kernels of every dialect see them.
#pragma once

/// Value of the function constants that say which element type a tensor has.
enum ElementType { F32 = 0, F16 = 1, BF16 = 2, E4M3 = 3, INT8 = 4 };
constexpr int bytes_of_type(int type) { return type == F32 ? 4 : type == F16 || type == BF16 ? 2 : 1; }
