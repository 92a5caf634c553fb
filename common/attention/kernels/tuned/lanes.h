// Operations on vectors, for the kernels of the family `tuned`. A kernel includes this file within its namespace.
#pragma once

using Quad = Vector<float, 4>;
INLINE void transpose(Quad (&rows)[4]) {
  const Quad a = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
  const Quad b = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
  const Quad c = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
  const Quad d = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
  rows[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
  rows[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
  rows[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
  rows[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }
