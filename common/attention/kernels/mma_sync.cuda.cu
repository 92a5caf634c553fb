// Variant `mma_sync`: flash attention forward on the tensor cores of any GPU since Ampere (sm_80), after Dao 2023,
// FlashAttention-2. A warp keeps the outputs, scores and weights of its query rows in registers while it walks the
// keys. The four threads of a row exchange its maximum after each block, and its sum only after the last block. The
// shift of a row is subtracted from the row's scores before the exponential.
//
// K and V each pass through two buffers of BLOCK_C keys: while the warps work on one block, the next block is copied.
// The warps walk the blocks from the last key to the first, so that the blocks that need a causal mask come first.
//
// A number of f32 is split into two numbers of tf32, high + low, with 11 significant bits each. A product x y is
// computed as low(x) high(y) + high(x) low(y) + high(x) high(y) (Ootomo and Yokota 2022). Tensor cores round sums
// towards zero, and over thousands of keys these errors would add up. So for f32 inputs the tensor cores sum only one
// block's contribution to the outputs, and the kernel adds it to the outputs in f32.
//
// The kernel takes all hooks. A score hook may take scores by element, by row (a thread's scores of one query row) or
// by tile (a thread's scores of two query rows, 8 rows apart).
//
// Function constants: HEAD_DIM (multiple of 8, at most 256), BLOCK_R and BLOCK_C (multiples of 16), CAUSAL, IN_TYPE,
// OUT_TYPE, FOLD_SCALE (1: the scale is at least 1e-10; without a score hook the scale is then applied inside the
// exponential).
// Grid: (tiles of BLOCK_R rows, q_heads, batch); with CAUSAL the tiles start from the last rows. Threads and
// threadgroup memory: MmaSyncLayout.
//
// The tiles, BLOCK_R x BLOCK_C, that the host chooses for launches of many tiles, if their threadgroup memory fits:
//   16 bit  head_dim up to 64: 128 x 128, to 96: 128 x 96, to 256: 128 x 64
//   f32     head_dim up to 64: 128 x 32, to 128: 128 x 64, to 192: 128 x 32, to 256: 128 x 16
// The host does not choose 192 rows, because only one threadgroup would fit on a multiprocessor, which would be idle
// while the threadgroup waits.
//
// Checked: flash_forward[BLOCK_C=128,BLOCK_R=128,CAUSAL=0,FOLD_SCALE=1,HEAD_DIM=64,IN_TYPE=2,OUT_TYPE=2] without spills
// Checked: flash_forward[BLOCK_C=128,BLOCK_R=128,CAUSAL=1,FOLD_SCALE=1,HEAD_DIM=64,IN_TYPE=2,OUT_TYPE=2] without spills
// Checked: flash_forward[BLOCK_C=64,BLOCK_R=128,CAUSAL=0,FOLD_SCALE=1,HEAD_DIM=128,IN_TYPE=2,OUT_TYPE=2] without spills
// Checked: flash_forward[BLOCK_C=64,BLOCK_R=128,CAUSAL=1,FOLD_SCALE=1,HEAD_DIM=128,IN_TYPE=2,OUT_TYPE=2] without spills
// Checked: flash_forward[BLOCK_C=64,BLOCK_R=128,CAUSAL=1,FOLD_SCALE=1,HEAD_DIM=128,IN_TYPE=1,OUT_TYPE=1] without spills
// Checked: flash_forward[BLOCK_C=32,BLOCK_R=64,CAUSAL=1,FOLD_SCALE=0,HEAD_DIM=72,IN_TYPE=1,OUT_TYPE=2] without spills
// Checked: flash_forward[BLOCK_C=64,BLOCK_R=128,CAUSAL=1,FOLD_SCALE=1,HEAD_DIM=256,IN_TYPE=2,OUT_TYPE=0] without spills
// Checked: flash_forward[BLOCK_C=32,BLOCK_R=128,CAUSAL=1,FOLD_SCALE=1,HEAD_DIM=64,IN_TYPE=0,OUT_TYPE=0] without spills
// Checked: flash_forward[BLOCK_C=64,BLOCK_R=128,CAUSAL=0,FOLD_SCALE=1,HEAD_DIM=128,IN_TYPE=0,OUT_TYPE=0] without spills
// Checked: flash_forward[BLOCK_C=64,BLOCK_R=128,CAUSAL=1,FOLD_SCALE=1,HEAD_DIM=128,IN_TYPE=0,OUT_TYPE=0] without spills
// Checked: flash_forward[BLOCK_C=32,BLOCK_R=128,CAUSAL=1,FOLD_SCALE=1,HEAD_DIM=192,IN_TYPE=0,OUT_TYPE=1] without spills
// Checked: flash_forward[BLOCK_C=16,BLOCK_R=128,CAUSAL=0,FOLD_SCALE=1,HEAD_DIM=256,IN_TYPE=0,OUT_TYPE=0] without spills
#include "common/attention/kernels/attention.h"
#include "common/attention/kernels/attention_row.h"
#include "common/attention/kernels/before.h"
#include "common/attention/kernels/mask_lists.h"
#include "common/attention/kernels/mma_sync.h"
#include "common/attention/kernels/seen_pairs.h"
#include "common/kernel/ampere.h"
#include "common/kernel/base2.h"
#include "common/kernel/cuda.h"

#ifndef SCORE_GRAIN
#define SCORE_GRAIN SCORE_ELEMENT
#endif

#ifndef SCORE_IN
#define SCORE_IN 1.0f
#define SCORE_OUT 1.0f
#endif

namespace {

constexpr MmaSyncLayout layout(HEAD_DIM, BLOCK_R, BLOCK_C, IN_TYPE);
constexpr int DIM = layout.dim;  // columns beyond head_dim are zero
constexpr int ROW_BYTES = layout.row_bytes;
constexpr int KV_BYTES = layout.kv_bytes;
constexpr int THREADS = layout.threads;
constexpr int TILES = layout.warp_rows / 16;  // tiles of 16 query rows, per warp
constexpr int ELEMENT_BYTES = IN_TYPE == F32 ? 4 : 2;
constexpr int STEPS = DIM * ELEMENT_BYTES / 32;         // matrix products that cover all columns of Q and K
constexpr bool FOLD = FOLD_SCALE && SCORE_IS_IDENTITY;  // shifts are in base 2
using Params = ParamsWithLists<MASK_LISTS, AttentionParams>::type;

// For f32 a thread reads SPAN neighbouring columns of V at once, and computes SPAN products. Product i takes columns i,
// SPAN + i, 2 SPAN + i, ... of each group of 8 SPAN columns of V.
constexpr int SPAN = IN_TYPE == F32 && DIM % 16 == 0 && DIM <= 128 ? 2 : 1;

extern __shared__ __align__(16) unsigned char memory[];

/// N words; their address is a multiple of the size of N words.
template <int N>
struct alignas(4 * N) AlignedWords {
  unsigned word[N];
};

/// An operand of a product: 16-bit elements as they are, or f32 as the sum of two tf32.
template <int N>
struct Operand {
  unsigned high[N], low[IN_TYPE == F32 ? N : 1];

  DEVICE explicit Operand(const unsigned (&words)[N]) {
    UNROLL for (int i = 0; i < N; ++i) {
      if constexpr (IN_TYPE == F32) {
        high[i] = (words[i] + 0x1000u) & 0xffffe000u;  // rounded to nearest
        low[i] = __float_as_uint(__uint_as_float(words[i]) - __uint_as_float(high[i]));
      } else {
        high[i] = words[i];
      }
    }
  }
};

/// D += A B, where A is `a`, and B is the words `i` and `i + 1` of `b`.
template <int N>
DEVICE void accumulate(float (&d)[4], const Operand<4>& a, const Operand<N>& b, int i) {
  if constexpr (IN_TYPE == F32) {
    multiply_add<F32>(d, a.low, b.high[i], b.high[i + 1]);
    multiply_add<F32>(d, a.high, b.low[i], b.low[i + 1]);
  }
  multiply_add<IN_TYPE>(d, a.high, b.high[i], b.high[i + 1]);
}

/// Never inlined, because for 16 bits the kernel's loop needs all registers. For f32 write_row_anew() inlines
/// write_exact_row(): with a call, ptxas would reorder the loop's instructions, and the kernel would take 3 % longer.
__device__ __noinline__ void call_exact_row(const AttentionParams& p, int batch, int head, int query) {
  write_exact_row(AttentionRow(p, batch, head, query));
}
DEVICE void write_row_anew(const AttentionParams& p, int batch, int head, int query) {
  if constexpr (IN_TYPE == F32) {
    write_exact_row(AttentionRow(p, batch, head, query));
  } else {
    call_exact_row(p, batch, head, query);
  }
}

/// The work of one warp. In tile t of 16 query rows, a thread holds parts of rows `row + 16 t` and `row + 16 t + 8`. Of
/// a thread's four results of a matrix product, 0 and 1 belong to the first of these rows, 2 and 3 to the second.
struct Warp {
  const Params& p;
  const int batch = blockIdx.z, head = blockIdx.y;
  const int kv_head = head / (p.q_heads / p.kv_heads);
  const int first_query = (CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * BLOCK_R;  // of the threadgroup
  const int lane = threadIdx.x % WARP;
  const int first_row = threadIdx.x / WARP * (16 * TILES);  // within the threadgroup's rows
  const int row = first_query + first_row + lane / 4;
  const int quarter = lane % 4;
  const float scale_log2 = p.scale * log2_e;

  unsigned list;                // MASK_LISTS: index of the tile's first entry; a pointer takes more registers
  const char *k_rows, *v_rows;  // where this thread's next copies begin
  float o[TILES][DIM / 8][4];
  float s[TILES][BLOCK_C / 8][4];  // scores, then weights
  float shift[TILES][2], sum[TILES][2];
  SeenKeys<BLOCK_C> seen[TILES][2];  // with a mask hook, for the thread's rows

  DEVICE explicit Warp(const Params& params) : p(params) {}

  DEVICE ScoreContext sequence() const { return {batch, head, p.q_heads, p.q_len, p.kv_len, p.score_data}; }

  // With KEYS_END_EARLY the sequence may have fewer than kv_len keys.
  DEVICE int keys_there() const { return KEYS_END_EARLY ? min(p.kv_len, end_of_keys(sequence())) : p.kv_len; }

  // A row beyond the last query gets the range of the last query.
  DEVICE KeyRange keys_of(int query) const { return visible_keys(min(query, p.q_len - 1), sequence()); }

  // Returns the end of the keys that the rows up to `query` see.
  DEVICE int keys_seen(int query) const {
    if (KEYS_ARE_DEFAULT && !CAUSAL) return p.kv_len;
    return max(0, min(p.kv_len, keys_of(query).end));
  }
  // Returns the first key that the rows from `query` on see.
  DEVICE int keys_before(int query) const { return KEYS_BEGIN_AT_ZERO ? 0 : max(0, keys_of(query).begin); }

  // Returns the number of a block of keys. With lists, `block` is an index in the threadgroup's list of blocks.
  DEVICE int number_of(int block) const { return MASK_LISTS ? lists_of(p).entries[list + block] >> 1 : block; }

  // ---- copies, by all threads of the threadgroup

  // Eight threads copy a row. Returns the address of this thread's part of the first row that the thread copies.
  DEVICE const char* find_rows(const void* tensor, const TensorStrides& strides, int of_head, int first) const {
    const long long index = batch * strides.batch + of_head * strides.head + (first + threadIdx.x / 8) * strides.row;
    return static_cast<const char*>(tensor) + index * ELEMENT_BYTES + threadIdx.x % 8 * 16;
  }

  DEVICE void find_keys(int number) {
    k_rows = find_rows(p.k, p.k_strides, kv_head, number * BLOCK_C);
    v_rows = find_rows(p.v, p.v_strides, kv_head, number * BLOCK_C);
  }

  // Rows from `count` on do not exist and become zeros.
  template <int ROWS>
  DEVICE void copy_rows(long long place, const char* from, long long stride, int count) {
    constexpr int UNITS = DIM * ELEMENT_BYTES / 16;  // units of 16 bytes in a row
    constexpr int THERE = HEAD_DIM * ELEMENT_BYTES / 16;
    constexpr int AT_ONCE = THREADS / 8;  // rows
    const int begin = threadIdx.x / 8, unit = threadIdx.x % 8;
    unsigned to = shared_address(memory + place) + begin * ROW_BYTES + unit * 16;
#pragma unroll 4
    for (int row = 0; row < ROWS; row += AT_ONCE) {
      if (ROWS % AT_ONCE != 0 && row + begin >= ROWS) break;
      UNROLL for (int u = 0; u < UNITS; u += 8) {
        if (u + 8 <= UNITS || u + unit < UNITS) {
          copy_16(to + u * 16, from + u * 16, row + begin < count && (u + 8 <= THERE || u + unit < THERE));
        }
      }
      from += AT_ONCE * stride * ELEMENT_BYTES;
      to += AT_ONCE * ROW_BYTES;
    }
  }

  DEVICE void copy_q() {
    copy_rows<BLOCK_R>(layout.q, find_rows(p.q, p.q_strides, head, first_query), p.q_strides.row,
                       p.q_len - first_query);
  }

  // Copies a block of K and V, each key from its page. The scores of a key whose page does not exist become NaN.
  DEVICE void copy_pages(int buffer, int first_key) {
    constexpr int UNITS = DIM * ELEMENT_BYTES / 16, THERE = HEAD_DIM * ELEMENT_BYTES / 16;  // as in copy_rows
    const int unit = threadIdx.x % 8;
#pragma unroll 1  // for fewer registers
    for (int row = threadIdx.x / 8; row < BLOCK_C; row += THREADS / 8) {
      const int key = first_key + row;
      const KeyPlace at = place_of_key(max(0, min(key, keys_there() - 1)), kv_head, sequence());
      const bool there = key < keys_there(), lost = there && !is_place(p, at);
      const unsigned to = shared_address(memory + layout.k) + buffer + row * ROW_BYTES + unit * 16;
      const char* from = static_cast<const char*>(p.k) + index_of(p.k_strides, at) * ELEMENT_BYTES + unit * 16;
      for (int u = 0; u + unit < UNITS; u += 8) {
        if (lost) {  // without copy_16(): that copy might end after the store, and undo it
          store_ones(to + u * 16);
        } else {
          copy_16(to + u * 16, from + u * 16, there && u + unit < THERE);
        }
      }
      from = static_cast<const char*>(p.v) + index_of(p.v_strides, at) * ELEMENT_BYTES + unit * 16;
      for (int u = 0; u + unit < UNITS; u += 8) {
        copy_16(to + (layout.v - layout.k) + u * 16, from + u * 16, there && !lost && u + unit < THERE);
      }
    }
  }

  // Copies a block of K and V. Without a pages hook, this thread's copies begin at k_rows and v_rows. With lists, each
  // call first sets these pointers. Without lists, each call moves the pointers to the next block.
  DEVICE void copy_block(int block) {
    const int number = number_of(block);
    const int buffer = block % layout.stages * KV_BYTES, count = keys_there() - number * BLOCK_C;
    if constexpr (PAGES_ARE_DEFAULT) {
      if constexpr (MASK_LISTS) find_keys(number);
      copy_rows<BLOCK_C>(layout.k + buffer, k_rows, p.k_strides.row, count);
      copy_rows<BLOCK_C>(layout.v + buffer, v_rows, p.v_strides.row, count);
      k_rows -= BLOCK_C * ELEMENT_BYTES * p.k_strides.row;
      v_rows -= BLOCK_C * ELEMENT_BYTES * p.v_strides.row;
    } else {
      copy_pages(buffer, number * BLOCK_C);
    }
    commit_copies();
  }

  // Eight threads rotate a row in place: all eight read the row before any of them writes to it.
  template <int ROWS, typename Turn>
  DEVICE void turn_rows(long long place, Turn turn) {
    for (int row = threadIdx.x / 8; row < ROWS; row += THREADS / 8) {
      unsigned char* const elements = memory + place + row * ROW_BYTES;
      const auto load = [&](int d) { return load_float<IN_TYPE>(elements, d); };
      float values[HEAD_DIM / 8];
      UNROLL for (int i = 0; i < HEAD_DIM / 8; ++i) values[i] = turn(load, row, i * 8 + threadIdx.x % 8);
      __syncwarp();
      UNROLL for (int i = 0; i < HEAD_DIM / 8; ++i) {
        store_float<IN_TYPE>(elements, i * 8 + threadIdx.x % 8, values[i]);
      }
    }
  }

  DEVICE void turn_queries() {
    turn_rows<BLOCK_R>(layout.q, [&](auto load, int row, int d) {
      return rotate_query(load, min(first_query + row, p.q_len - 1), d, sequence());
    });
  }
  DEVICE void turn_keys(int block) {
    turn_rows<BLOCK_C>(layout.k + block % layout.stages * KV_BYTES, [&](auto load, int row, int d) {
      return rotate_key(load, min(number_of(block) * int{BLOCK_C} + row, p.kv_len - 1), d, sequence());
    });
  }

  // ---- products

  // S = Q K^T.
  DEVICE void multiply_scores(int block) {
    const unsigned q = shared_address(memory + layout.q) + (first_row + lane % 16) * ROW_BYTES + lane / 16 * 16;
    const unsigned k = shared_address(memory + layout.k) + block % layout.stages * KV_BYTES +
                       (lane % 8 + lane / 16 * 8) * ROW_BYTES + lane / 8 % 2 * 16;
    UNROLL for (int tile = 0; tile < TILES; ++tile) {
      UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) s[tile][i / 4][i % 4] = 0;
    }
#pragma unroll 8
    for (int step = 0; step < STEPS; ++step) {
      unsigned words[TILES][4];
      UNROLL for (int tile = 0; tile < TILES; ++tile) {
        load_blocks(words[tile], q + tile * 16 * ROW_BYTES + step * 32);
      }
      UNROLL for (int key = 0; key < BLOCK_C; key += 16) {
        unsigned key_words[4];
        load_blocks(key_words, k + key * ROW_BYTES + step * 32);
        const Operand<4> b(key_words);
        UNROLL for (int tile = 0; tile < TILES; ++tile) {
          const Operand<4> a(words[tile]);
          accumulate(s[tile][key / 8], a, b, 0);
          accumulate(s[tile][key / 8 + 1], a, b, 2);
        }
      }
    }
  }

  // O += P V, for 16 bits.
  DEVICE void multiply_outputs(int block) {
    const unsigned v =
        shared_address(memory + layout.v) + block % layout.stages * KV_BYTES + lane % 16 * ROW_BYTES + lane / 16 * 16;
    UNROLL for (int key = 0; key < BLOCK_C; key += 16) {
      unsigned weights[TILES][4];
      UNROLL for (int tile = 0; tile < TILES; ++tile) {
        UNROLL for (int i = 0; i < 4; ++i) {
          const float(&pair)[4] = s[tile][key / 8 + i / 2];
          weights[tile][i] = pack<IN_TYPE>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
        }
      }
      UNROLL for (int d = 0; d < DIM; d += 16) {
        unsigned words[4];
        load_blocks_transposed(words, v + key * ROW_BYTES + d * ELEMENT_BYTES);
        const Operand<4> b(words);
        UNROLL for (int tile = 0; tile < TILES; ++tile) {
          const Operand<4> a(weights[tile]);
          accumulate(o[tile][d / 8], a, b, 0);
          accumulate(o[tile][d / 8 + 1], a, b, 2);
        }
      }
    }
  }

  // O += P V, for f32. Of each eight keys, the instruction expects keys `quarter` and `quarter + 4` from this thread,
  // which has the weights of keys 2 quarter and 2 quarter + 1. So the thread passes the weights and the rows of V of
  // these keys instead. The order of the keys does not change the product.
  DEVICE void multiply_outputs_f32(int block) {
    const unsigned char* v =
        memory + layout.v + block % layout.stages * KV_BYTES + 2 * quarter * ROW_BYTES + lane / 4 * SPAN * 4;
    UNROLL for (int group = 0; group < DIM / 8; group += SPAN) {
      float added[TILES][SPAN][4] = {};
      UNROLL for (int key = 0; key < BLOCK_C; key += 8) {
        const unsigned char* from = v + key * ROW_BYTES + group * 32;
        const auto first = *reinterpret_cast<const AlignedWords<SPAN>*>(from);
        const auto second = *reinterpret_cast<const AlignedWords<SPAN>*>(from + ROW_BYTES);
        unsigned pairs[2 * SPAN];
        UNROLL for (int i = 0; i < SPAN; ++i) {
          pairs[2 * i] = first.word[i];
          pairs[2 * i + 1] = second.word[i];
        }
        const Operand<2 * SPAN> b(pairs);
        UNROLL for (int tile = 0; tile < TILES; ++tile) {
          unsigned weights[4];
          UNROLL for (int i = 0; i < 4; ++i) weights[i] = __float_as_uint(s[tile][key / 8][i % 2 * 2 + i / 2]);
          const Operand<4> a(weights);
          UNROLL for (int i = 0; i < SPAN; ++i) accumulate(added[tile][i], a, b, 2 * i);
        }
      }
      UNROLL for (int tile = 0; tile < TILES; ++tile) {
        UNROLL for (int i = 0; i < 4 * SPAN; ++i) o[tile][group + i / 4][i % 4] += added[tile][i / 4][i % 4];
      }
    }
  }

  // ---- softmax

  // Returns a score in the units of shifts: with FOLD `s` times scale * log2(e), without FOLD `s`, which is scaled
  // already. With lists the factor is computed anew, because no register is left to keep scale_log2.
  DEVICE float scaled(float s) const { return FOLD ? s * (MASK_LISTS ? p.scale * log2_e : scale_log2) : s; }
  // Converts the difference of two numbers in the units of shifts to base 2.
  DEVICE static float in_base_2(float difference) { return FOLD ? difference : difference * log2_e; }

#if SCORE_GRAIN != SCORE_ELEMENT
  // Applies a SCORE_ROW or SCORE_TILE hook to this thread's scores of rows `query` and `query + 8`. The hook gets a
  // copy, because it may need its array in memory. The copy is scaled and rounded first, so that hooks of every grain
  // get the same scores (times SCORE_IN, if the hook defines it).
  DEVICE void apply_hook(float (&scores)[BLOCK_C / 8][4], int query, int key, const ScoreContext& context) const {
#if SCORE_GRAIN == SCORE_TILE
    float run[BLOCK_C / 2];
    UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) run[i] = __fmul_rn(scores[i / 4][i % 4], SCORE_IN * p.scale);
    score_tile(run, BLOCK_C, query, key, context);
    UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) scores[i / 4][i % 4] = SCORE_OUT * run[i];
#else
    UNROLL for (int r = 0; r < 2; ++r) {
      float run[BLOCK_C / 4];
      UNROLL for (int i = 0; i < BLOCK_C / 4; ++i) run[i] = __fmul_rn(scores[i / 2][2 * r + i % 2], p.scale);
      score_row(run, query + r * 8, key, context);
      UNROLL for (int i = 0; i < BLOCK_C / 4; ++i) scores[i / 2][2 * r + i % 2] = run[i];
    }
#endif
  }
#endif

  // Asks the mask hook about a block: before Q K^T, so that the hook may use the registers that later hold the scores.
  DEVICE void find_seen(int number) {
    UNROLL for (int i = 0; i < 2 * TILES; ++i) {
      seen[i / 2][i % 2].find(row + i * 8, number * BLOCK_C + 2 * quarter, sequence());
    }
  }

  DEVICE void mask_pairs(int tile) {
    UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) {
      if (!seen[tile][i / 2 % 2][i / 4 * 2 + i % 2]) s[tile][i / 4][i % 4] = -infinity();
    }
  }

  // Applies the score hook, and hides scores: without a mask hook by the ranges of the rows, with a mask hook and
  // `masked` by the bits of find_seen(), which include the ranges.
  DEVICE void finish_scores(int number, [[maybe_unused]] bool masked) {
    const int key = number * BLOCK_C + 2 * quarter;
    [[maybe_unused]] const ScoreContext context{batch, head, p.q_heads, p.q_len, p.kv_len, p.score_data};
    UNROLL for (int tile = 0; tile < TILES; ++tile) {
#if SCORE_GRAIN != SCORE_ELEMENT
      apply_hook(s[tile], row + tile * 16, key, context);
#endif
      int begin[2], end[2];  // the keys that the rows see, counted from this thread's first key of the block
      UNROLL for (int r = 0; r < 2; ++r) {
        const int query = row + tile * 16 + r * 8;
        end[r] = p.kv_len - key;
        if constexpr (!KEYS_ARE_DEFAULT) {
          const KeyRange seen = keys_of(query);
          begin[r] = seen.begin - key;
          end[r] = min(end[r], seen.end - key);
        } else if (CAUSAL) {
          end[r] = min(end[r], visible_keys(query, sequence()).end - key);
        }
      }
      UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) {
        const int r = i / 2 % 2, column = i / 4 * 8 + i % 2;
        float& value = s[tile][i / 4][i % 4];
#if SCORE_GRAIN == SCORE_ELEMENT
        if constexpr (!FOLD) {
          value = score(__fmul_rn(value, p.scale), row + tile * 16 + r * 8, key + column, context);
        }
#endif
        if (MASK_IS_NONE && (column >= end[r] || (!KEYS_BEGIN_AT_ZERO && column < begin[r]))) value = -infinity();
      }
      if (!MASK_IS_NONE && masked) mask_pairs(tile);
    }
  }

  // Turns the scores of a tile of 16 rows into weights e^(score - shift), and adds the weights to the rows' sums. The
  // 16 shifts stay until some row's maximum exceeds its shift by more than 8 in base 2. Then each shift rises to its
  // row's maximum, if the maximum is greater. So outputs are seldom rescaled (FlashAttention-4, 2025), and no weight
  // exceeds 2^8.
  DEVICE void softmax(int tile) {
    constexpr float slack = FOLD ? 8 : 8 * ln_2;
    float largest[2];
    UNROLL for (int r = 0; r < 2; ++r) {
      largest[r] = s[tile][0][2 * r];
      UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) {
        if (i / 2 % 2 == r) largest[r] = fmaxf(largest[r], s[tile][i / 4][i % 4]);
      }
      largest[r] = scaled(maximum_of_quad(largest[r]));
    }
    if (__any_sync(~0u, largest[0] > shift[tile][0] + slack || largest[1] > shift[tile][1] + slack)) {
      UNROLL for (int r = 0; r < 2; ++r) {
        const float larger = fmaxf(largest[r], shift[tile][r]);
        const float alpha = exp2_approx(in_base_2(shift[tile][r] - larger));
        shift[tile][r] = larger;
        sum[tile][r] *= alpha;
        UNROLL for (int i = 0; i < DIM / 2; ++i) {
          if (i / 2 % 2 == r) o[tile][i / 4][i % 4] *= alpha;
        }
      }
    }
    UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) {
      const int r = i / 2 % 2;
      float& value = s[tile][i / 4][i % 4];
      value = exp2_approx(in_base_2(scaled(value) - shift[tile][r]));
      sum[tile][r] += value;
    }
  }

  // ---- the whole kernel

  DEVICE void run() {
    // A row with a sink begins with the sink as its shift. Four threads each sum a part of the row's weights; only one
    // of them adds the sink's weight.
    const float sink = SINK_IS_NONE ? -infinity() : sink_logit(sequence());
    UNROLL for (int tile = 0; tile < TILES; ++tile) {
      UNROLL for (int r = 0; r < 2; ++r) {
        shift[tile][r] = fmaxf(FOLD ? log2_e * sink : sink, lowest_score);
        sum[tile][r] = !SINK_IS_NONE && quarter == 0 ? first_weight(sink) : 0;
      }
      UNROLL for (int i = 0; i < DIM / 2; ++i) o[tile][i / 4][i % 4] = 0;
    }
    const int last = first_query + first_row + 16 * TILES - 1;
    const int all_see = keys_seen(first_query + first_row), some_see = keys_seen(last);
    const int all_begin = keys_before(last), some_begin = keys_before(first_query + first_row);
    const int last_block = KEYS_BEGIN_AT_ZERO || MASK_LISTS ? 0 : keys_before(first_query) / BLOCK_C;
    int block = (keys_seen(first_query + BLOCK_R - 1) + BLOCK_C - 1) / BLOCK_C - 1;
    if constexpr (MASK_LISTS) {
      const long long number = number_of_list(lists_of(p), batch, head, first_query);
      list = number * lists_of(p).capacity;
      block = lists_of(p).counts[number] - 1;
    }
    if (block >= last_block) {
      if constexpr (PAGES_ARE_DEFAULT) find_keys(block);
      copy_q();
      copy_block(block);
    }
    [[maybe_unused]] bool first = true;
    for (; block >= last_block; --block) {
      wait_copies<0>();
      __syncthreads();  // all warps see the block, and no warp works on the previous block any more
      if (block > last_block) copy_block(block - 1);
      if constexpr (!ROTATE_IS_IDENTITY) {
        if (first) turn_queries();
        first = false;
        turn_keys(block);
        __syncthreads();
      }
      const int number = number_of(block);
      if (number * BLOCK_C >= some_see) continue;
      if (!KEYS_BEGIN_AT_ZERO && (number + 1) * BLOCK_C <= some_begin) continue;
      [[maybe_unused]] const bool asked = !MASK_LISTS || lists_of(p).entries[list + block] & 1;
      if (!MASK_IS_NONE && asked) find_seen(number);
      multiply_scores(block);
      bool masked = (number + 1) * BLOCK_C > all_see || (!KEYS_BEGIN_AT_ZERO && number * BLOCK_C < all_begin);
      if constexpr (!MASK_IS_NONE) masked = asked;
      if (!FOLD || masked) finish_scores(number, masked);
      UNROLL for (int tile = 0; tile < TILES; ++tile) softmax(tile);
      if constexpr (IN_TYPE == F32) {
        multiply_outputs_f32(block);
      } else {
        multiply_outputs(block);
      }
    }
    unsigned anew = 0;  // bit i: row `row + 8 * i` must be computed anew
    UNROLL for (int i = 0; i < 2 * TILES; ++i) anew |= !store(i / 2, i % 2) << i;
    if (__any_sync(~0u, anew != 0)) write_rows_anew(anew);
  }

  // Computes the warp's rows anew whose bit is set in `anew` of some thread.
  DEVICE void write_rows_anew(unsigned anew) const {
#pragma unroll 1
    for (int i = 0; i < 16 * TILES; ++i) {
      const int query = first_query + first_row + i;
      const bool own = lane / 4 == i % 8 && anew >> i / 8 & 1;
      if (__any_sync(~0u, own) && query < p.q_len) write_row_anew(p, batch, head, query);
    }
  }

  // Writes this thread's part of a row of O, divided by the row's sum, and the row's log-sum-exp. Returns false if the
  // row must be computed anew (exact_row.h).
  DEVICE bool store(int tile, int r) {
    const float total = sum_of_quad(sum[tile][r]);
    const bool seen = total != 0;
    const float inverse = seen ? 1.0f / total : 0.0f;
    float zeros = 0;  // NaN if some result is not finite
    UNROLL for (int i = 0; i < DIM / 4; ++i) zeros += 0 * (inverse * o[tile][i / 2][2 * r + i % 2]);
    bool exact = zeros == 0 && (!KEYS_END_EARLY || end_of_keys(sequence()) >= 0);
    exact = exact && total < infinity() && (!FOLD || shift_is_exact(shift[tile][r], total, p.scale * log2_e));
    const int query = row + tile * 16 + r * 8;
    const bool there = query < p.q_len;
    const long long at = (static_cast<long long>(batch) * p.q_heads + head) * p.q_len + query;
    if (p.lse && quarter == 0 && there) {
      p.lse[at] = seen ? (FOLD ? shift[tile][r] * ln_2 : shift[tile][r]) + logf(total) : -infinity();
    }
    const long long base = batch * p.o_strides.batch + head * p.o_strides.head + query * p.o_strides.row;
    if constexpr (OUT_TYPE != F32 && SPAN == 1) {
      UNROLL for (int j = 0; j < HEAD_DIM / 8; j += 4) {
        unsigned words[4] = {};
        UNROLL for (int i = 0; i < 4; ++i) {
          if (j + i >= DIM / 8) break;
          const float* pair = o[tile][j + i] + 2 * r;
          words[i] = pack<OUT_TYPE>(pair[0] * inverse, pair[1] * inverse);
        }
        transpose_quad(words);
        const int d = (j + quarter) * 8;
        if (there && d < HEAD_DIM) store_words(base + d, words);
      }
    } else {
      // This thread has 2 SPAN neighbouring columns of each group of 8 SPAN columns.
      UNROLL for (int group = 0; group < HEAD_DIM / 8; group += SPAN) {
        float values[2 * SPAN];
        UNROLL for (int i = 0; i < 2 * SPAN; ++i) { values[i] = o[tile][group + i % SPAN][2 * r + i / SPAN] * inverse; }
        if (there) store_values(base + group * 8 + quarter * 2 * SPAN, values);
      }
    }
    return exact;
  }

  template <int N>
  DEVICE void store_words(long long index, const unsigned (&words)[N]) {
    constexpr int RUN = N < 4 ? N : 4;
    auto* target = static_cast<unsigned char*>(p.o) + index * (OUT_TYPE == F32 ? 4 : 2);
    UNROLL for (int i = 0; i < N; i += RUN) {
      AlignedWords<RUN> run;
      UNROLL for (int j = 0; j < RUN; ++j) run.word[j] = words[i + j];
      *reinterpret_cast<AlignedWords<RUN>*>(target + i * 4) = run;
    }
  }
  template <int N>
  DEVICE void store_values(long long index, const float (&values)[N]) {
    unsigned words[OUT_TYPE == F32 ? N : N / 2];
    UNROLL for (int i = 0; i < N; i += OUT_TYPE == F32 ? 1 : 2) {
      if constexpr (OUT_TYPE == F32) {
        words[i] = __float_as_uint(values[i]);
      } else {
        words[i / 2] = pack<OUT_TYPE>(values[i], values[i + 1]);
      }
    }
    store_words(index, words);
  }
};

}  // namespace

// 1: at least one threadgroup per multiprocessor. So the assembler may use all registers before it spills any.
extern "C" __global__ void __launch_bounds__(THREADS, 1) flash_forward(const __grid_constant__ Params p) {
  if constexpr (!BEFORE_IS_NONE) before_all<THREADS>(p, memory);
  Warp(p).run();
}
