// Element types as kernels of every dialect see them.
#pragma once

/// Value of the function constants that say which element type a tensor has.
enum ElementType { F32 = 0, F16 = 1, BF16 = 2 };
