// Element types, for kernels of every dialect.
#pragma once

/// Values of the function constants that give the element type of a tensor.
enum ElementType { F32 = 0, F16 = 1, BF16 = 2 };
