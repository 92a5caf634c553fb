// The rotate hook: what is multiplied in place of the rows of Q and K. This file leaves them as they are; an experiment
// puts another text in its place (KernelSource::includes["common/attention/kernels/rotate.h"]) for rotary positions.
//
// load(d) gives the element d of the row, as a float, or as many elements from d on as the kernel works on at once: 1,
// or 4 in `tuned` on the cpu and in `wgmma`, with d a multiple of it; they are floats, one after the other, whatever
// type has them. The result has the same type. load() gives the row as it was, also to the left of d.
//
// `tuned` on the cpu needs COPY_K, and no BF16_DOT, with another hook. `mma_sync` and `wgmma` round what the hook gives
// to the type of Q and K. `wgmma` takes hooks that leave keys as they are. amx.cpu.cpp takes no other hook.
#pragma once

#include "common/attention/kernels/attention.h"

/// False in every other hook.
#define ROTATE_IS_IDENTITY 1
/// Whether rotate_key gives what is there.
#define ROTATE_LEAVES_KEYS 1
/// For `wgmma`, which turns rows where they lie. What four columns from d on become depends on them and on four from
/// rotate_partner(d) on, which may be the same, and whose partners they are. So a row falls into rotate_units() units, of
/// which each begins at rotate_unit(number) and its partner.
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
