// mask_blocks.cuda.cu in the Metal dialect, with simdgroups for warps. The kernel has not run on Apple hardware yet.
//
// Grid: (tiles, heads, sequences); 1 instead of heads, or sequences, that share lists. Threads: mask_blocks_threads.
// Accumulators of a lane: none.
#include "common/attention/kernels/keys.h"
#include "common/attention/kernels/mask.h"
#include "common/attention/kernels/mask_blocks_metal.h"
#include "common/attention/kernels/mask_lists.h"
#include "common/kernel/metal.h"

constexpr constant int SIMDGROUPS = mask_blocks_threads / SIMD;

INLINE long number_of_list(constant MaskLists& lists, int batch, int head, int first_query) {
  return static_cast<long>(batch) * lists.of_batch + static_cast<long>(head) * lists.of_head +
         (first_query - lists.first_query) / lists.rows;
}

kernel void mask_blocks(constant MaskBlocksParams& p [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                        uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  (void)CAUSAL;                       // counts as a use of CAUSAL; a keys hook need not use CAUSAL
  threadgroup int found[SIMDGROUPS];  // the entry of each simdgroup's block, or -1 if no pair of the block takes part
  const int head = static_cast<int>(group.y), batch = static_cast<int>(group.z);
  const ScoreContext context{batch, head, p.q_heads, p.q_len, p.kv_len, p.data};
  const int rows = BLOCK_R, keys = BLOCK_C;
  const int first_query = p.lists.first_query + static_cast<int>(group.x) * rows;
  const int first_row = max(first_query, 0), end_row = min(first_query + rows, p.q_len);
  const int begin = max(visible_keys(first_row, context).begin, 0);
  const int end = min(visible_keys(end_row - 1, context).end, p.kv_len);
  const long list = number_of_list(p.lists, batch, head, first_query);
  device int* const entries = p.lists.entries + list * p.lists.capacity;
  const bool writes = simdgroup == 0 && lane == 0;
  int count = 0;
  if (writes) entries[0] = 1;
  for (int of_round = begin / keys; of_round * keys < end; of_round += SIMDGROUPS) {
    const int block = of_round + static_cast<int>(simdgroup);
    const int first_key = block * keys, end_key = min(first_key + keys, p.kv_len);
    bool some = false, all = end_key - first_key == keys;
    for (int row = first_row; row < end_row && first_key < end; ++row) {
      const KeyRange range = visible_keys(row, context);
      for (int key = first_key + static_cast<int>(lane); key < end_key; key += SIMD) {
        const bool seen = range.begin <= key && key < range.end && visible(row, key, context);
        some = some || seen;
        all = all && seen;
      }
      if (simd_any(some) && !simd_all(all)) break;
    }
    some = simd_any(some);
    all = simd_all(all);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // all threads have read found[] of the previous round
    if (lane == 0) found[simdgroup] = some ? 2 * block + !all : -1;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = 0; i < SIMDGROUPS; ++i) {
      if (found[i] < 0) continue;
      if (writes) entries[count] = found[i];
      ++count;
    }
  }
  if (writes) p.lists.counts[list] = count;
}
