// The sums of a register tile, for the kernels of the family `tuned` on AArch64. A kernel includes this file within its
// namespace.
#pragma once

/// Returns how many columns of V the next register tile has if `left` columns are left: MAIN_ROWS once all others can
/// be so wide, else TAIL_ROWS. The last tile ends with the last column, because 4 divides HEAD_DIM.
INLINE int columns_of_tile(int left) { return left % MAIN_ROWS == 0 ? MAIN_ROWS : TAIL_ROWS; }

/// Sets acc[r][v] to rows[r][v] * factor[v], or to zeros if `factor` is null.
template <int ROWS>
INLINE void begin_sums(Floats (&acc)[ROWS][VECTORS], const float* rows, const Floats* factor) {
  UNROLL for (int r = 0; r < ROWS; ++r) {
    UNROLL for (int v = 0; v < VECTORS; ++v) {
      acc[r][v] = factor ? load<Floats>(rows + r * PANEL + v * VECTOR_WIDTH) * factor[v] : Floats{};
    }
  }
}

/// Stores the sums, and raises each lane of maximum[v], if `maximum` is not null, to the largest sum of this lane.
template <int ROWS>
INLINE void end_sums(const Floats (&acc)[ROWS][VECTORS], float* rows, Floats* maximum) {
  UNROLL for (int r = 0; r < ROWS; ++r) {
    UNROLL for (int v = 0; v < VECTORS; ++v) store(rows + r * PANEL + v * VECTOR_WIDTH, acc[r][v]);
  }
  if (maximum) {
    UNROLL for (int r = 0; r < ROWS; ++r) {
      UNROLL for (int v = 0; v < VECTORS; ++v) maximum[v] = larger(maximum[v], acc[r][v]);
    }
  }
}
