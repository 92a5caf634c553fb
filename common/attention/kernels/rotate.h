// The rotate hook changes the rows of Q and K before a kernel multiplies them. This file leaves the rows as they are.
// An experiment replaces this file by another text (KernelSource::includes["common/attention/kernels/rotate.h"]), for
// example by modifiers/rotate.h.
//
// load(d) gives the elements of the row from d on, as many as the kernel works on at once: 4 in the tiles of `tuned` on
// the cpu and of `wgmma`; 1 in other kernels, and for a row that is computed anew. d is a multiple of this number.
// load() and the hook return a float, or a type of 4 consecutive floats. Elements from load() are never rotated, not
// even elements before d.
//
// If another text replaces this file, `tuned` on the cpu must be compiled with COPY_K=1 and BF16_DOT=0. `mma_sync` and
// `wgmma` round the hook's results to the type of Q and K. `wgmma` takes only hooks that leave keys as they are.
// amx.cpu.cpp takes only the hook of this file.
#pragma once

#include "common/attention/kernels/attention.h"

/// Other rotate hooks define this macro as 0.
#define ROTATE_IS_IDENTITY 1
/// Whether rotate_key leaves keys as they are.
#define ROTATE_LEAVES_KEYS 1
/// For `wgmma`, which rotates rows in place, a row consists of rotate_units() units. Unit `number` has the four columns
/// from d = rotate_unit(number) on, and their partners, the four columns from rotate_partner(d) on. The results of a
/// unit depend only on its columns. The partners may be the same four columns; else rotate_partner() of the partner is
/// d.
static constexpr int rotate_units() { return HEAD_DIM / 4; }
static constexpr int rotate_unit(int number) { return 4 * number; }
static constexpr int rotate_partner(int d) { return d; }

/// q and key count from the start of their sequence.
template <typename Load>
static inline auto rotate_query(Load load, int /*q*/, int d, const ScoreContext& /*context*/) {
  return load(d);
}
template <typename Load>
static inline auto rotate_key(Load load, int /*key*/, int d, const ScoreContext& /*context*/) {
  return load(d);
}
