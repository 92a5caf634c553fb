// Makes the lists of key blocks and the bits of a caller's mask (mask_bits.h). A threadgroup makes the bits of one
// block of keys for the rows of one list. The last threadgroup of a list to finish makes the list.
//
// Grid: (lists of a head * blocks of a sequence, heads, sequences); 1 instead of heads, or sequences, that share lists.
// 256 threads.
//
// Checked: mask_bits[BLOCK_C=128,BLOCK_R=128,CAUSAL=0] without spills
// Checked: mask_bits[BLOCK_C=112,BLOCK_R=128,CAUSAL=1] without spills
// Checked: mask_bits[BLOCK_C=16,BLOCK_R=64,CAUSAL=0] without spills
#include "common/attention/kernels/keys.h"
#include "common/attention/kernels/mask.h"
#include "common/attention/kernels/mask_bits.h"
#include "common/kernel/cuda.h"

namespace {

constexpr int THREADS = 256;
constexpr bool RULES = CAUSAL || !KEYS_ARE_DEFAULT || !MASK_IS_NONE;  // whether a hook may hide pairs
constexpr int BITS = BLOCK_C / 4;                                     // of a word
constexpr int AT_ONCE = WARP / BITS;  // rows that a warp reads at once; BITS lanes read a row
constexpr int STEP = THREADS / WARP * AT_ONCE;
constexpr int AHEAD = RULES ? 1 : 4;  // rows that a lane reads before it uses the first of them
constexpr unsigned FULL = BITS == 32 ? ~0u : (1u << BITS % 32) - 1;
using MaskWord = MaskWordOf<mask_word_bytes(BLOCK_C)>::type;
static_assert(BLOCK_C % 16 == 0 && BLOCK_C <= 128);

/// Returns four bits: bit i says whether the mask's byte of key + 2 i is not 0. EIGHTS: the four keys exist, and the
/// function reads the eight aligned bytes around theirs at once.
template <bool EIGHTS>
DEVICE unsigned look(const MaskBitsParams& p, const unsigned char* row, int key) {
  unsigned seen = 0;
  if constexpr (EIGHTS) {
    const int odd = key % 2 * 8;
    const uint2 bytes = *reinterpret_cast<const uint2*>(row + (key & ~7));
    const unsigned low = bytes.x >> odd, high = bytes.y >> odd;
    seen =
        ((low & 0xff) != 0) | ((low & 0xff0000) != 0) << 1 | ((high & 0xff) != 0) << 2 | ((high & 0xff0000) != 0) << 3;
  } else {
    UNROLL for (int i = 0; i < 4; ++i) {
      const int k = key + 2 * i;
      if (k < p.kv_len && row[k * p.strides[3]] != 0) seen |= 1u << i;
    }
  }
  return seen;
}

/// Returns `seen`, a result of look(), without the bits of pairs that the hooks hide. The loop is not unrolled, because
/// the code of visible() may be long.
DEVICE unsigned without_hidden(unsigned seen, int query, int key, const ScoreContext& context) {
  const KeyRange range = visible_keys(query, context);
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    const int k = key + 2 * i;
    if ((seen >> i & 1) == 0) continue;
    if (k < range.begin || k >= range.end || !visible(query, k, context)) seen &= ~(1u << i);
  }
  return seen;
}

/// Writes the words of the block that begins at `first_key`, for the rows [first_row, end_row). Sets `some` if some
/// pair takes part, and clears `all` if some pair does not.
template <bool EIGHTS>
DEVICE void look_at_block(const MaskBitsParams& p, const ScoreContext& context, int first_key, int first_row,
                          int end_row, bool& some, bool& all) {
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, of_row = lane / BITS, place = lane % BITS;
  const int key = first_key + place / 2 * 8 + place % 2;
  const unsigned char* const mask = p.mask + context.batch * p.strides[0] + context.head * p.strides[1];
  auto* const words = static_cast<MaskWord*>(p.bits.words);
  for (int row = first_row + warp * AT_ONCE + of_row; row - of_row < end_row; row += AHEAD * STEP) {
    unsigned seen[AHEAD];
    UNROLL for (int i = 0; i < AHEAD; ++i) {
      const int query = row + i * STEP;
      const bool there = of_row < AT_ONCE && query < end_row;
      seen[i] = there ? look<EIGHTS>(p, mask + query * p.strides[2], key) : 0;
    }
    UNROLL for (int i = 0; i < AHEAD; ++i) {
      const int query = row + i * STEP;
      const bool there = of_row < AT_ONCE && query < end_row;
      if (RULES && there) seen[i] = without_hidden(seen[i], query, key, context);
      __syncwarp();
      unsigned word = 0;  // lane `place` of a row takes word `place`
      UNROLL for (int quarter = 0; quarter < 4; ++quarter) {
        const unsigned lanes = __ballot_sync(~0u, seen[i] >> quarter & 1);
        if (place == quarter) word = lanes >> of_row * BITS & FULL;
      }
      if (!there || place >= 4) continue;
      words[mask_word_index(p.bits, context.batch, context.head, query, first_key, p.kv_len, BLOCK_C) + place] =
          static_cast<MaskWord>(word);
      some |= word != 0;
      all &= word == FULL;
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS) mask_bits(const __grid_constant__ MaskBitsParams p) {
  __shared__ bool last;
  const int blocks = p.lists.capacity, block = blockIdx.x % blocks, tile = blockIdx.x / blocks;
  const int head = blockIdx.y, batch = blockIdx.z;
  const ScoreContext context{batch, head, p.q_heads, p.q_len, p.kv_len, p.data};
  const int first_query = p.lists.first_query + tile * int{BLOCK_R};
  const int first_row = max(first_query, 0), end_row = min(first_query + int{BLOCK_R}, p.q_len);
  const int first_key = block * int{BLOCK_C};
  bool some = false, all = true, outside = false;
  // Block 0 always gets its bits: `wgmma` reads them for a tile whose list is empty.
  if constexpr (CAUSAL || !KEYS_ARE_DEFAULT) {
    outside = block > 0 && (first_key >= visible_keys(end_row - 1, context).end ||
                            first_key + int{BLOCK_C} <= visible_keys(first_row, context).begin);
  }
  if (!outside) {
    if (p.in_eights && first_key + int{BLOCK_C} <= p.kv_len) {
      look_at_block<true>(p, context, first_key, first_row, end_row, some, all);
    } else {
      look_at_block<false>(p, context, first_key, first_row, end_row, some, all);
    }
  }
  some = __syncthreads_or(some);
  all = __syncthreads_and(all);

  // Until the last threadgroup makes the list, entry `block` says which pairs of the block take part: 0 none, 1 all, 2
  // some.
  const long long list = number_of_list(p.lists, batch, head, first_query);
  volatile int* const entries = p.lists.entries + list * p.lists.capacity;
  if (threadIdx.x == 0) {
    entries[block] = !some ? 0 : all ? 1 : 2;
    __threadfence();
    last = atomicAdd(p.finished + list, 1) == static_cast<unsigned>(blocks) - 1;
  }
  __syncthreads();
  if (!last || threadIdx.x >= WARP) return;
  __threadfence();
  int count = 0;
  for (int of_round = 0; of_round < blocks; of_round += WARP) {
    const int number = of_round + static_cast<int>(threadIdx.x);
    const int found = number < blocks ? entries[number] : 0;
    const unsigned listed = __ballot_sync(~0u, found != 0);
    if (found != 0) entries[count + __popc(listed & ((1u << threadIdx.x) - 1))] = 2 * number + (found == 2);
    count += __popc(listed);
  }
  if (threadIdx.x == 0) {
    if (count == 0) entries[0] = 1;
    p.lists.counts[list] = count;
    p.finished[list] = 0;
  }
}
