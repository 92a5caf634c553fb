// Makes the lists of key blocks that kernels with a mask hook walk (mask_lists.h). One threadgroup makes one list.
//
// Grid: (tiles, heads, sequences); 1 instead of heads, or sequences, that share lists.
#include "common/attention/kernels/keys.h"
#include "common/attention/kernels/mask.h"
#include "common/attention/kernels/mask_lists.h"
#include "common/kernel/cpu.h"

namespace {

INLINE int min(int a, int b) { return a < b ? a : b; }
INLINE int max(int a, int b) { return a > b ? a : b; }

}  // namespace

extern "C" void mask_blocks(const MaskBlocksParams* params, const Threadgroup* group) {
  (void)CAUSAL;  // counts as a use of CAUSAL; a keys hook need not use CAUSAL
  const MaskBlocksParams& p = *params;
  const int head = static_cast<int>(group->index[1]), batch = static_cast<int>(group->index[2]);
  const ScoreContext context{batch, head, p.q_heads, p.q_len, p.kv_len, p.data};
  const int first_query = p.lists.first_query + static_cast<int>(group->index[0] * BLOCK_R);
  const int first_row = max(first_query, 0), end_row = min(first_query + BLOCK_R, p.q_len);
  const int begin = max(visible_keys(first_row, context).begin, 0);
  const int end = min(visible_keys(end_row - 1, context).end, p.kv_len);
  const long long list = number_of_list(p.lists, batch, head, first_query);
  int* const entries = p.lists.entries + list * p.lists.capacity;
  int count = 0;
  entries[0] = 1;
  for (int block = begin / BLOCK_C; block * BLOCK_C < end; ++block) {
    const int first_key = block * BLOCK_C, end_key = min(first_key + BLOCK_C, p.kv_len);
    bool some = false, all = end_key - first_key == BLOCK_C;
    for (int row = first_row; row < end_row && !(some && !all); ++row) {
      const KeyRange range = visible_keys(row, context);
      for (int key = first_key; key < end_key; ++key) {
        const bool seen = range.begin <= key && key < range.end && visible(row, key, context);
        some |= seen;
        all &= seen;
      }
    }
    if (some) entries[count++] = 2 * block + !all;
  }
  p.lists.counts[list] = count;
}
