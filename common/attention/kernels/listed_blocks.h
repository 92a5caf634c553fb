// The walk of a tile's list of key blocks (mask_lists.h), for kernels of the cpu dialect.
#pragma once

#include "common/attention/kernels/mask.h"
#include "common/attention/kernels/mask_lists.h"
#include "common/kernel/cpu.h"

/// The blocks in the list of a tile. Without MASK_LISTS there is no list: kernels do not call next(), and `masked`
/// stays true.
struct ListedBlocks {
  MaskList list = {};
  int taken = 0;
  bool masked = true;  // whether the kernel must ask the mask hook about the block's pairs

  template <typename Params>
  INLINE ListedBlocks([[maybe_unused]] const Params& params, [[maybe_unused]] int batch, [[maybe_unused]] int head,
                      [[maybe_unused]] int first_query) {
    if constexpr (MASK_LISTS) list = list_of(lists_of(params), batch, head, first_query);
  }

  /// Moves to the next block, and sets first_key to its first key. Returns false at the end of the list.
  INLINE bool next(int& first_key) {
    if (taken == list.count) return false;
    const int entry = list.entries[taken++];
    masked = entry & 1;
    first_key = (entry >> 1) * BLOCK_C;
    return true;
  }
};
