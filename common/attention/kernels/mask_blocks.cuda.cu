// Makes the lists of key blocks that kernels with a mask hook walk (mask_lists.h). One threadgroup makes one list. Each
// warp looks at one block of keys at a time, until it has found a pair that takes part and a pair that does not.
//
// Grid: (tiles, heads, sequences); 1 instead of heads, or sequences, that share lists. 1024 threads.
//
// Checked: mask_blocks[BLOCK_C=64,BLOCK_R=128,CAUSAL=1] without spills
#include "common/attention/kernels/keys.h"
#include "common/attention/kernels/mask.h"
#include "common/attention/kernels/mask_lists.h"
#include "common/kernel/cuda.h"

constexpr int WARPS = 32;

extern "C" __global__ void __launch_bounds__(WARPS* WARP) mask_blocks(const __grid_constant__ MaskBlocksParams p) {
  (void)CAUSAL;                 // counts as a use of CAUSAL; a keys hook need not use CAUSAL
  __shared__ int found[WARPS];  // the entry of each warp's block, or -1 if no pair of the block takes part
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const int head = blockIdx.y, batch = blockIdx.z;
  const ScoreContext context{batch, head, p.q_heads, p.q_len, p.kv_len, p.data};
  const int first_query = p.lists.first_query + static_cast<int>(blockIdx.x * BLOCK_R);
  const int first_row = max(first_query, 0), end_row = min(first_query + static_cast<int>(BLOCK_R), p.q_len);
  const int begin = max(visible_keys(first_row, context).begin, 0);
  const int end = min(visible_keys(end_row - 1, context).end, p.kv_len);
  const long long list = number_of_list(p.lists, batch, head, first_query);
  int* const entries = p.lists.entries + list * p.lists.capacity;
  int count = 0;
  if (threadIdx.x == 0) entries[0] = 1;
  for (int of_round = begin / BLOCK_C; of_round * BLOCK_C < end; of_round += WARPS) {
    const int block = of_round + warp, first_key = block * BLOCK_C, end_key = min(first_key + int{BLOCK_C}, p.kv_len);
    bool some = false, all = end_key - first_key == BLOCK_C;
    if (first_key < end) {
      for (int row = first_row; row < end_row; ++row) {
        const KeyRange range = visible_keys(row, context);
        for (int key = first_key + lane; key < end_key; key += WARP) {
          const bool seen = range.begin <= key && key < range.end && visible(row, key, context);
          some |= seen;
          all &= seen;
        }
        if (__any_sync(~0u, some) && !__all_sync(~0u, all)) break;
      }
    }
    some = __any_sync(~0u, some);
    all = __all_sync(~0u, all);
    __syncthreads();  // all threads have read found[] of the previous round
    if (lane == 0) found[warp] = some ? 2 * block + !all : -1;
    __syncthreads();
    const int entry = found[lane];
    const unsigned listed = __ballot_sync(~0u, entry >= 0);
    if (warp == 0 && entry >= 0) entries[count + __popc(listed & ((1u << lane) - 1))] = entry;
    count += __popc(listed);
  }
  if (threadIdx.x == 0) p.lists.counts[list] = count;
}
