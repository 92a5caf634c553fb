// Variant `wgmma`: flash attention forward on Hopper's tensor cores, for 16-bit Q, K and V.
//
// A persistent threadgroup per multiprocessor, or two of one consumer each: one producer warpgroup, of which one thread
// issues the tensor copies (three where K and V lie on pages shorter than a block), and CONSUMERS = BLOCK_R / 64
// warpgroups that compute 64 query rows each. K and V pass through STAGES buffers of BLOCK_C keys each, K and V with
// barriers of their own. A consumer multiplies Q K^T for the next block while it does the softmax of this one (Shah et
// al. 2024, FlashAttention-3, algorithm 2), and where they take turns, one multiplies while another does the softmax
// (ping-pong, section 3.1). Blocks are walked from the last key to the first, so that those that need a mask come
// first.
//
// Tiles come from a list that the host has made, and an atomic counter hands them out in its order.
//
// It takes scores (by element or tile), keys, masks, pages, sinks, the rotation of queries and what comes before by
// hooks (score.h, keys.h, mask.h, pages.h, sink.h, rotate.h, before.h). A score hook by element gets places as Place,
// so that one that wants them as floats costs no conversions. What a hook with SCORE_IS_LINEAR adds is part of the
// product.
//
// Function constants: HEAD_DIM (multiple of 8, at most 256), BLOCK_R (64, 128, 192, 256), BLOCK_C (multiple of 16, at
// most 256), STAGES, OUT_PANELS (through which a consumer's outputs of 16 bits leave by tensor copies; none: threads
// store them), CAUSAL, IN_TYPE, OUT_TYPE, FOLD_SCALE (the scale is positive, and is applied inside the exponential),
// PING_PONG (more than one consumer, who take turns). Grid: at most as many threadgroups as run at the same time; (1 +
// CONSUMERS) * 128 threads; WgmmaLayout's threadgroup memory.
//
// Checked: flash_forward[BLOCK_C=64,BLOCK_R=256,CAUSAL=1,FOLD_SCALE=1,HEAD_DIM=64,IN_TYPE=2,OUT_PANELS=1,OUT_TYPE=2,PING_PONG=1,STAGES=3,assembler=-O1] without spills
// Checked: flash_forward[BLOCK_C=80,BLOCK_R=192,CAUSAL=1,FOLD_SCALE=1,HEAD_DIM=128,IN_TYPE=2,OUT_PANELS=2,OUT_TYPE=2,PING_PONG=0,STAGES=3,assembler=-O1] without spills
// Checked: flash_forward[BLOCK_C=64,BLOCK_R=128,CAUSAL=1,FOLD_SCALE=1,HEAD_DIM=256,IN_TYPE=2,OUT_PANELS=2,OUT_TYPE=2,PING_PONG=0,STAGES=2,assembler=-O1] without spills
// Checked: flash_forward[BLOCK_C=64,BLOCK_R=128,CAUSAL=1,FOLD_SCALE=0,HEAD_DIM=256,IN_TYPE=1,OUT_PANELS=0,OUT_TYPE=0,PING_PONG=0,STAGES=2,assembler=-O1]
#define MMA_WIDTH(n) ((n) == BLOCK_C_VALUE || (n) == (HEAD_DIM_VALUE + 15) / 16 * 16)
#include "common/attention/kernels/attention_row.h"
#include "common/attention/kernels/before.h"
#include "common/attention/kernels/mask_lists.h"
#include "common/attention/kernels/seen_pairs.h"
#include "common/attention/kernels/wgmma.h"
#include "common/kernel/base2.h"
#include "common/kernel/cuda.h"
#include "common/kernel/wgmma.h"

#ifndef SCORE_IN
#define SCORE_IN 1.0f
#define SCORE_OUT 1.0f
#endif
#ifndef SCORE_IS_BOUNDED
#define SCORE_IS_BOUNDED false
#endif
#ifndef SCORE_IS_LINEAR
#define SCORE_IS_LINEAR false
#define score_slope(context) 0.0f
#endif

namespace {

// A product adds slope * (number of the key in its block) to the scores; the rest of the term is one of the block. (A
// symbol of the preprocessor: a constant would be data in every kernel.)
#define LINEAR (FOLD_SCALE && SCORE_IS_LINEAR)
constexpr WgmmaLayout layout(HEAD_DIM, BLOCK_R, BLOCK_C, STAGES, OUT_PANELS, LINEAR);
constexpr int CONSUMERS = BLOCK_R / 64;
constexpr int DIM = (HEAD_DIM + 15) / 16 * 16;  // columns beyond head_dim are zero
constexpr int PANELS = layout.panels;
constexpr bool WHOLE_PANELS = HEAD_DIM % PANEL_COLUMNS == 0;
constexpr int COPY_PANELS = WHOLE_PANELS ? PANELS : 1, STORE_PANELS = WHOLE_PANELS ? OUT_PANELS : 1;  // of one box
constexpr int Q_PANEL_BYTES = 64 * PANEL_ROW_BYTES;  // of one consumer's rows
constexpr int KV_PANEL_BYTES = BLOCK_C * PANEL_ROW_BYTES;
constexpr int KV_BYTES = layout.kv_bytes;
static_assert(ROTATE_LEAVES_KEYS, "tensor copies bring K as it is");
static_assert(!PING_PONG || CONSUMERS > 1);
// Threadgroups of a multiprocessor; accumulators of more than 128 columns do not fit half of its registers.
constexpr int THREADGROUPS = CONSUMERS == 1 && DIM <= 128 ? 2 : 1;
constexpr bool FOLD = FOLD_SCALE && (SCORE_IS_IDENTITY || LINEAR);
// Whether a score is scaled, and the shift taken off, with one rounding; shifts are then in base 2. Rows whose scores
// are too large for that are found in the end.
constexpr bool ONE_ROUNDING = FOLD || SCORE_IS_BOUNDED;
static_assert(OUT_PANELS == 0 || OUT_TYPE != F32);
static_assert(!KEYS_END_EARLY || MASK_IS_NONE, "the last block's number is not known");
// Keys of a box of K or V; a page, where that is shorter than a block. One thread issues a box in about 110 cycles: of
// short ones three warps each issue every third.
constexpr int BOX_KEYS = !PAGES_ARE_DEFAULT && PAGE_KEYS < BLOCK_C ? PAGE_KEYS : BLOCK_C;
constexpr int BOXES = BLOCK_C / BOX_KEYS;
static_assert(PAGES_ARE_DEFAULT || (BLOCK_C % BOX_KEYS == 0 && PAGE_KEYS % BOX_KEYS == 0 && BOX_KEYS % 8 == 0));
constexpr int PRODUCERS = BOXES > 1 ? 3 : 1;
using Params = ParamsWithLists<MASK_LISTS, WgmmaParams>::type;

extern __shared__ __align__(1024) unsigned char memory[];

// x, which is the same in all threads of the warp. After the reduction the compiler knows that, and keeps what depends
// on it, above all indices of rings, in uniform registers (8 to 12 % at head_dim 64).
DEVICE int uniform(int x) { return __reduce_max_sync(~0u, x); }

/// A place in a sequence: for a hook that takes it as int, and for one that takes it as float (exact up to 2^24).
struct Place {
  int number;
  float value;
  DEVICE operator int() const { return number; }
  DEVICE operator float() const { return value; }
  DEVICE Place after(int count) const { return {number + count, value + static_cast<float>(count)}; }
};
DEVICE Place place(int number) { return {number, static_cast<float>(number)}; }

constexpr int no_more_tiles = -1;  // in place of a tile's blocks
constexpr int none_kept = -1;      // in place of a number of 16 rows

struct Barriers {
  Barrier q_full[CONSUMERS], q_empty[CONSUMERS];
  Barrier k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
  Barrier tile_full, tile_empty;
  WgmmaTile tile;                 // from the scheduler to the others
  int first_block;                // of keys that some row of the tile sees, where they do not begin at key 0
  const int* list;                // MASK_LISTS: entries of the tile, in place of blocks
  int first_kept[4 * CONSUMERS];  // of each warp's rows that are to be computed anew
  bool lost[2];  // KEYS_END_EARLY, of this tile and the next in turn: a length or a page is none of the cache's
};
static_assert(sizeof(Barriers) <= layout.barrier_bytes);

// LINEAR: of a block's keys, a narrow operand.
DEVICE unsigned char* numbers() { return memory + layout.barriers - BLOCK_C * 32; }
DEVICE Barriers& barriers() { return *reinterpret_cast<Barriers*>(memory + layout.barriers); }

/// A place in a ring of COUNT buffers: the index, and the parity of the phase that fills it.
template <int COUNT>
struct Ring {
  int index = 0;
  unsigned parity = 0;
  DEVICE void advance() {
    if (++index == COUNT) {
      index = 0;
      parity ^= 1;
    }
  }
};

DEVICE ScoreContext context_of(const AttentionParams& a, const WgmmaTile& tile) {
  return {tile.batch, tile.head, a.q_heads, a.q_len, a.kv_len, a.score_data};
}

/// Where the sequence's own keys end.
DEVICE int keys_there(const AttentionParams& a, const WgmmaTile& tile) {
  return KEYS_END_EARLY ? min(a.kv_len, end_of_keys(context_of(a, tile))) : a.kv_len;
}

/// What a row sees; of a row that does not exist, what the nearest one sees.
DEVICE KeyRange keys_of(const AttentionParams& a, const WgmmaTile& tile, int query) {
  return visible_keys(KEYS_ARE_DEFAULT ? query : max(0, min(query, a.q_len - 1)), context_of(a, tile));
}

/// Where the keys end, and begin, that a row sees.
DEVICE int key_end(const AttentionParams& a, const WgmmaTile& tile, int query) {
  if (KEYS_ARE_DEFAULT && !CAUSAL) return a.kv_len;
  return min(max(keys_of(a, tile, query).end, 0), a.kv_len);
}
DEVICE int key_begin(const AttentionParams& a, const WgmmaTile& tile, int query) {
  return KEYS_BEGIN_AT_ZERO ? 0 : min(max(keys_of(a, tile, query).begin, 0), a.kv_len);
}

DEVICE bool row_exists(const AttentionParams& a, int query) {
  return static_cast<unsigned>(query) < static_cast<unsigned>(a.q_len);
}

// ---- scheduler: one thread that hands out tiles

// The tile's blocks, of which the host knows those of the default rule only; at least one.
DEVICE void find_blocks(const AttentionParams& a, Barriers& bars) {
  const int first = bars.tile.first_query;
  const int begin = key_begin(a, bars.tile, first), end = key_end(a, bars.tile, first + BLOCK_R - 1);
  bars.first_block = begin / BLOCK_C;
  bars.tile.blocks = max((end + BLOCK_C - 1) / BLOCK_C, bars.first_block + 1);
}

// The tile's list; of an empty one its first entry, which is masked.
[[maybe_unused]] DEVICE void find_list(const MaskLists& lists, Barriers& bars) {
  const MaskList list = list_of(lists, bars.tile.batch, bars.tile.head, bars.tile.first_query);
  bars.list = list.entries;
  bars.first_block = 0;
  bars.tile.blocks = max(list.count, 1);
}

DEVICE void schedule(const Params& p) {
  Barriers& bars = barriers();
  unsigned parity = 0;
  for (unsigned number = blockIdx.x; number < p.tile_count; number = gridDim.x + atomicAdd(p.counters, 1)) {
    bars.tile = p.tiles[number];
    if constexpr (MASK_LISTS) {
      find_list(lists_of(p), bars);
    } else if constexpr (!KEYS_ARE_DEFAULT) {
      find_blocks(p.attention, bars);
    }
    if constexpr (KEYS_END_EARLY) {
      bars.lost[parity] = end_of_keys(context_of(p.attention, bars.tile)) < 0;
    }
    bars.tile_full.arrive();
    bars.tile_empty.wait(parity);  // until this tile's copies are issued: tiles taken earlier are badly balanced
    parity ^= 1;
  }
  bars.tile.blocks = no_more_tiles;
  bars.tile_full.arrive();
  // The last to finish leaves the counters as it found them.
  __threadfence();
  if (atomicAdd(p.counters + 1, 1) == gridDim.x - 1) {
    p.counters[0] = 0;
    p.counters[1] = 0;
  }
}

// Where a panel is in the maps of WgmmaParams.
DEVICE int map_column(int panel) { return WHOLE_PANELS ? 0 : panel * PANEL_COLUMNS; }
DEVICE int map_panel(int panel) { return WHOLE_PANELS ? panel : 0; }

// ---- producers: threads that issue the tensor copies; the first alone those of Q

DEVICE void copy_panels(unsigned char* target, int panel_bytes, const TensorMap& map, Barrier& full, int row, int head,
                        int batch) {
  UNROLL for (int panel = 0; panel < PANELS; panel += COPY_PANELS) {
    copy_box(target + panel * panel_bytes, map, full, map_column(panel), row, map_panel(panel), head, batch);
  }
}

// BLOCK_C rows of K (OF_KEYS) or V, once their buffer is free. Of several boxes a warp looks up where each lies, a lane
// each; they have one panel, and this is producer `number`.
template <bool OF_KEYS>
DEVICE void copy_block(const TensorMap& map, Barrier& empty, Barrier& full, int region, const Ring<STAGES>& kv, int key,
                       const WgmmaTile& tile, const AttentionParams& a, [[maybe_unused]] bool& lost,
                       [[maybe_unused]] int number) {
  if constexpr (PAGES_ARE_DEFAULT) {
    empty.wait(kv.parity ^ 1);
    full.arrive_expect(KV_BYTES);
    copy_panels(memory + region + kv.index * KV_BYTES, KV_PANEL_BYTES, map, full, key, tile.kv_head, tile.batch);
  } else {
    const int lane = BOXES > 1 ? threadIdx.x % 32 : 0, first = key + lane * BOX_KEYS;
    KeyPlace place{-1, 0, 0};  // beyond the last key there is no page: a box before the tensor is zeros
    const bool there = lane < BOXES && first < keys_there(a, tile);
    if (there) place = place_of_key(first, tile.kv_head, context_of(a, tile));
    if constexpr (KEYS_END_EARLY && OF_KEYS) {  // by the thread that arrives, too
      const bool none = there && !is_place(a, place);
      if (BOXES > 1 ? __any_sync(~0u, none) : none) lost = true;
    }
    unsigned char* const block = memory + region + kv.index * KV_BYTES;
    empty.wait(kv.parity ^ 1);
    if (BOXES == 1 || threadIdx.x == 0) full.arrive_expect(KV_BYTES);
    if constexpr (BOXES == 1) {
      copy_panels(block, KV_PANEL_BYTES, map, full, place.row, place.head, place.batch);
    } else {
#pragma unroll(CONSUMERS > 2 ? 1 : 2)
      for (int box = number; box < BOXES; box += PRODUCERS) {
        const int page = __shfl_sync(~0u, place.batch, box), row = __shfl_sync(~0u, place.row, box),
                  head = __shfl_sync(~0u, place.head, box);
        if (lane != 0) continue;
        UNROLL for (int panel = 0; panel < PANELS; ++panel) {
          copy_box(block + panel * KV_PANEL_BYTES + box * BOX_KEYS * PANEL_ROW_BYTES, map, full, map_column(panel), row,
                   map_panel(panel), head, page);
        }
      }
    }
  }
}

DEVICE void produce(const WgmmaParams& p, int number) {
  Barriers& bars = barriers();
  Ring<STAGES> kv;
  unsigned tile_parity = 0, q_parity = 0;
  while (true) {
    bars.tile_full.wait(tile_parity);
    tile_parity ^= 1;
    const WgmmaTile tile = bars.tile;
    bool& lost = bars.lost[tile_parity ^ 1];
    if (tile.blocks == no_more_tiles) break;
    const int first_key = KEYS_BEGIN_AT_ZERO ? 0 : bars.first_block * BLOCK_C;
    [[maybe_unused]] const int* const list = bars.list;
    if constexpr (PRODUCERS > 1) __syncwarp();  // all have read the tile before the first gives it back
    const bool leads = PRODUCERS == 1 || threadIdx.x % 32 == 0;
    bool first = true;
#pragma unroll 1  // this warpgroup has few registers
    for (int key = (tile.blocks - 1) * BLOCK_C; key >= first_key; key -= BLOCK_C) {
      const int from = MASK_LISTS ? (list[key / BLOCK_C] >> 1) * BLOCK_C : key;
      if (key == first_key && leads) bars.tile_empty.arrive();
      copy_block<true>(p.k, bars.k_empty[kv.index], bars.k_full[kv.index], layout.k, kv, from, tile, p.attention, lost,
                       number);
      if (first && (PRODUCERS == 1 || threadIdx.x == 0)) {
#pragma unroll 1  // compiles faster
        for (int c = 0; c < CONSUMERS; ++c) {
          bars.q_empty[c].wait(q_parity ^ 1);
          bars.q_full[c].arrive_expect(PANELS * Q_PANEL_BYTES);
          copy_panels(memory + c * PANELS * Q_PANEL_BYTES, Q_PANEL_BYTES, p.q, bars.q_full[c],
                      tile.first_query + c * 64, tile.head, tile.batch);
        }
        q_parity ^= 1;
        first = false;
      }
      if constexpr (PRODUCERS > 1) __syncwarp();
      copy_block<false>(p.v, bars.v_empty[kv.index], bars.v_full[kv.index], layout.v, kv, from, tile, p.attention, lost,
                        number);
      kv.advance();
    }
  }
}

// ---- consumers: 64 query rows each. A thread holds parts of rows r and r + 8, see common/kernel/wgmma.h.

using Mma_S = Mma<IN_TYPE, BLOCK_C>;
using Mma_O = Mma<IN_TYPE, DIM>;

struct Consumer {
  const WgmmaParams& p;
  const int index;  // of the warpgroup among the consumers
  const int thread = threadIdx.x % WARPGROUP;
  const int row = thread / 32 * 16 + thread % 32 / 4;  // of the 64
  const int column = thread % 4 * 2;                   // of 8
  float s[BLOCK_C / 2];
  unsigned weights[BLOCK_C / 4];
  float sum[2], shift[2], alpha[2];  // of the two rows
  float slope;                       // LINEAR: in base 2
  unsigned slope_parts[4];           // LINEAR: slope / scale as the sum of three columns of an operand, in all its rows
  float offset[2];                   // LINEAR: of the block, what its number 0 has, in base 2
  bool grew;                         // whether outputs are to be multiplied by alpha
  SeenKeys<BLOCK_C> seen[2];         // with a mask hook, of a block that is masked
#ifdef SCORE_AHEAD
  ScoreAhead ahead;  // of a block
#endif

  DEVICE Consumer(const WgmmaParams& params, int number) : p(params), index(number) {}

  // LINEAR: what a score of the row has beside what the products give.
  DEVICE float with_offset(float s, int r) const {
    if constexpr (LINEAR) s += offset[r];
    return s;
  }
  // In units of shifts: scores that a hook has seen are scaled already, by all but this.
  DEVICE float scaled(float s) const { return ONE_ROUNDING ? s * (FOLD ? p.scale_log2 : SCORE_OUT * log2_e) : s; }
  // Differences of shifts and scores in base 2.
  DEVICE static float in_base_2(float difference) { return ONE_ROUNDING ? difference : difference * log2_e; }

  // Issues S = Q K^T of a block. Without a block it still issues the first step, and nothing uses the result: if a
  // branch could skip all products of S, ptxas would do all products one after the other (C7515).
  DEVICE void multiply_scores(int stage, bool block_exists) {
    const unsigned q_tile = operand(memory + index * PANELS * Q_PANEL_BYTES);
    const unsigned k_block = operand(memory + layout.k + stage * KV_BYTES);
    mma_fence();
    if constexpr (LINEAR) Mma_S::narrow(slope_parts, narrow_operand(numbers()));
    Mma_S::shared(q_tile, k_block, LINEAR);
    if (block_exists) {
      mma_fence();
      UNROLL for (int step = 1; step < DIM / 16; ++step) {
        const int panel = step / 4, bytes = step % 4 * 32;
        Mma_S::shared(q_tile + (panel * Q_PANEL_BYTES + bytes) / 16, k_block + (panel * KV_PANEL_BYTES + bytes) / 16,
                      true);
      }
      mma_commit();
    } else {
      mma_commit();  // in both branches: for one commit behind them, ptxas would add a product of its own
    }
  }

  // Issues O += P V, or O = P V for the first block.
  DEVICE void multiply_outputs(int stage, bool first_block) {
    const unsigned v = operand(memory + layout.v + stage * KV_BYTES, KV_PANEL_BYTES);
    mma_fence();
    UNROLL for (int step = 0; step < BLOCK_C / 16; ++step) {
      Mma_O::registers(weights + 4 * step, v + step * 16 * PANEL_ROW_BYTES / 16, step > 0 || !first_block);
    }
    mma_commit();
  }

  // Zeros in the place of the block's rows of V from `first` on, which no row of Q sees. Other consumers write the
  // same.
  DEVICE void clear_values(int stage, int first) {
    for (int unit = thread; unit < (BLOCK_C - first) * PANELS * 8; unit += WARPGROUP) {
      const int of_panel = unit % ((BLOCK_C - first) * 8), panel = unit / ((BLOCK_C - first) * 8);
      *reinterpret_cast<uint4*>(memory + layout.v + stage * KV_BYTES + panel * KV_PANEL_BYTES +
                                first * PANEL_ROW_BYTES + of_panel * 16) = uint4{};
    }
    fence_stores();
    sync_consumer();
  }

  // What the mask hook says of an entry's block. In the shade of the products: a hook may take long.
  DEVICE void find_seen(const WgmmaTile& tile, int entry) {
    if constexpr (!MASK_IS_NONE) {
      if (!(entry & 1)) return;
      const ScoreContext context = context_of(p.attention, tile);
      UNROLL for (int r = 0; r < 2; ++r) {
        seen[r].find(tile.first_query + index * 64 + row + r * 8, (entry >> 1) * BLOCK_C + column, context);
      }
      __syncwarp();  // a hook may branch, and what follows wants whole warps
    }
  }

  // What the score hook wants to have read before its scores are there. In the shade of the products.
  DEVICE void read_ahead([[maybe_unused]] const WgmmaTile& tile, [[maybe_unused]] int block) {
#ifdef SCORE_AHEAD
    ahead.read(tile.first_query + index * 64 + row, block * BLOCK_C + column, context_of(p.attention, tile));
#endif
  }

  // The block's scores, with hook and mask. All rows see the blocks from `hidden` to `visible`.
  DEVICE void read_scores(const WgmmaTile& tile, int block, int hidden, int visible) {
    const AttentionParams& a = p.attention;
    const int query = tile.first_query + index * 64 + row;
    const int key = block * BLOCK_C + column;
    const bool masked = block >= visible || (!KEYS_BEGIN_AT_ZERO && block < hidden);
    int begin[2], end[2];  // what the rows see of this block, counted from this thread's first key
    UNROLL for (int r = 0; r < 2; ++r) {
      end[r] = a.kv_len - key;
      if constexpr (!KEYS_ARE_DEFAULT || CAUSAL) {
        const KeyRange seen = keys_of(a, tile, query + r * 8);
        end[r] = min(end[r], seen.end - key);
        begin[r] = seen.begin - key;
      }
    }
    if constexpr (LINEAR) {
      const int own = query + keys_there(a, tile) - a.q_len;
      UNROLL for (int r = 0; r < 2; ++r) offset[r] = slope * static_cast<float>(block * BLOCK_C - own - r * 8);
    }
    if constexpr (FOLD) {
      if (MASK_IS_NONE && block >= visible) mask_s<BLOCK_C / 2>(end, -infinity());
      if constexpr (!KEYS_BEGIN_AT_ZERO && MASK_IS_NONE) {
        if (block < hidden) mask_s_before<BLOCK_C / 2>(begin, -infinity());
      }
      read_s(s);
    } else {
      read_s(s);
      const ScoreContext context = context_of(a, tile);
      const float scale = SCORE_IN * a.scale;
      UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) s[i] *= scale;
#ifdef SCORE_AHEAD
      score_tile(s, BLOCK_C, query, key, context, ahead);
#elif SCORE_GRAIN == SCORE_TILE
      score_tile(s, BLOCK_C, query, key, context);
#else
      const Place first_query = place(query), first_key = place(key);
      UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) {
        s[i] = score(s[i], first_query.after(i / 2 % 2 * 8), first_key.after(i / 4 * 8 + i % 2), context);
      }
#endif
      if (MASK_IS_NONE && masked) {
        UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) {
          const int r = i / 2 % 2, from_first = i / 4 * 8 + i % 2;
          if (from_first >= end[r] || (!KEYS_BEGIN_AT_ZERO && from_first < begin[r])) s[i] = -infinity();
        }
      }
    }
  }

  // Scores that the mask hook hides.
  DEVICE void mask_scores(int entry) {
    if constexpr (!MASK_IS_NONE) {
      if ((entry & 1) == 0) return;
      UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) {
        if (!seen[i / 2 % 2][i / 4 * 2 + i % 2]) s[i] = -infinity();
      }
    }
  }

  // Scores to weights exp2(scale * s - shift), in place, and their sum. The shift follows the maximum only when that
  // has grown by more than 8 in base 2: outputs are then seldom rescaled (FlashAttention-4, 2025), and weights stay
  // below 2^8.
  DEVICE void softmax() {
    constexpr float slack = ONE_ROUNDING ? 8 : 8 * ln_2;
    float part[4] = {s[0], s[1], s[2], s[3]};  // four short chains, two of a row, since all else waits for them
    UNROLL for (int i = 4; i < BLOCK_C / 2; ++i) part[i % 4] = fmaxf(part[i % 4], s[i]);
    const float largest[2] = {with_offset(scaled(fmaxf(part[0], part[1])), 0),
                              with_offset(scaled(fmaxf(part[2], part[3])), 1)};
    grew = __any_sync(~0u, largest[0] > shift[0] + slack || largest[1] > shift[1] + slack);
    if (grew) {  // only now are the maxima of the row's four threads compared
      UNROLL for (int r = 0; r < 2; ++r) {
        const float larger = fmaxf(maximum_of_quad(largest[r]), shift[r]);
        alpha[r] = exp2_approx(in_base_2(shift[r] - larger));
        shift[r] = larger;
        sum[r] *= alpha[r];
      }
    }
    if constexpr (LINEAR) {  // from here on what is taken off
      UNROLL for (int r = 0; r < 2; ++r) offset[r] = shift[r] - offset[r];
    }
    UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) {
      s[i] = exp2_approx(in_base_2(scaled(s[i]) - (LINEAR ? offset : shift)[i / 2 % 2]));
      sum[i / 2 % 2] += s[i];
    }
  }

  DEVICE void pack_weights() {
    UNROLL for (int i = 0; i < BLOCK_C / 4; ++i) weights[i] = pack<IN_TYPE>(s[2 * i], s[2 * i + 1]);
  }

  // Ping-pong: this consumer's turn to issue, and handing it on to the next.
  DEVICE void wait_turn() {
    if constexpr (PING_PONG) named_sync(1 + index, 2 * WARPGROUP);
  }
  DEVICE void pass_turn() {
    if constexpr (PING_PONG) named_arrive(1 + (index + 1) % CONSUMERS, 2 * WARPGROUP);
  }

  DEVICE void release(Barrier& empty) {
    if (thread == 0) empty.arrive();
  }

  // Among this consumer's threads; warps are whole again behind it.
  DEVICE void sync_consumer() const {
    __syncwarp();
    named_sync(1 + CONSUMERS + index, WARPGROUP);
  }

  DEVICE void run() {
    Barriers& bars = barriers();
    if constexpr (PING_PONG) {
      if (index == CONSUMERS - 1) pass_turn();  // the first begins
    }
    Ring<STAGES> kv;
    unsigned tile_parity = 0, q_parity = 0;
    while (true) {
      bars.tile_full.wait(tile_parity);
      tile_parity ^= 1;
      const WgmmaTile tile = bars.tile;
      const int first_block = KEYS_BEGIN_AT_ZERO ? 0 : bars.first_block;
      [[maybe_unused]] const int* const list = bars.list;
      bars.tile_empty.arrive();
      if (tile.blocks == no_more_tiles) break;
      // A sink is where a row begins: one of the row's four threads has its weight, which is 1 there.
      const float sink = SINK_IS_NONE ? -infinity() : sink_logit(context_of(p.attention, tile));
      UNROLL for (int r = 0; r < 2; ++r) {
        shift[r] = fmaxf(ONE_ROUNDING ? log2_e * sink : sink, lowest_score);
        sum[r] = !SINK_IS_NONE && thread % 4 == 0 ? first_weight(sink) : 0;
      }
      if constexpr (LINEAR) split_slope(score_slope(context_of(p.attention, tile)));
      bars.q_full[index].wait(q_parity);
      q_parity ^= 1;
      if constexpr (!ROTATE_IS_IDENTITY) rotate_queries(tile);
      attend(tile, first_block, list, kv);
      store(tile, bars.lost[tile_parity ^ 1]);
    }
  }

  // A part has as many bits as the type of Q, and each takes what the parts before it leave.
  DEVICE void split_slope(float of_key) {
    slope = of_key * log2_e;
    float rest = of_key / p.attention.scale, parts[3];
    UNROLL for (int i = 0; i < 3; ++i) {
      const unsigned bits = pack<IN_TYPE>(rest, 0);
      parts[i] = load_float<IN_TYPE>(&bits, 0);
      rest -= parts[i];
    }
    const unsigned first = pack<IN_TYPE>(parts[0], parts[1]), second = pack<IN_TYPE>(parts[2], 0);
    slope_parts[0] = slope_parts[1] = thread % 4 == 0 ? first : thread % 4 == 1 ? second : 0;
    slope_parts[2] = slope_parts[3] = 0;
  }

  // What the rotate hook gives in place of this consumer's rows, in place, four columns and their partners at a time.
  // Neighbours in a warp take neighbours in a row, so that they read tables in whole lines.
  DEVICE void rotate_queries(const WgmmaTile& tile) {
    struct Four {
      float value[4];
    };
    unsigned char* const panels = memory + index * PANELS * Q_PANEL_BYTES;
#pragma unroll 2
    for (int unit = thread; unit < 64 * rotate_units(); unit += WARPGROUP) {
      const int own = unit / rotate_units(), query = tile.first_query + index * 64 + own;
      if (!row_exists(p.attention, query)) continue;
      // Groups of 16 bytes of a panel's row are permuted (Swizzle::bytes_128).
      const auto place_of = [&](int column) {
        const int group = column % PANEL_COLUMNS / 8 ^ own % 8;
        return reinterpret_cast<uint2*>(panels + column / PANEL_COLUMNS * Q_PANEL_BYTES + own * PANEL_ROW_BYTES +
                                        group * 16 + column % 8 * 2);
      };
      const auto load = [&](int column) {
        const uint2 pairs = *place_of(column);
        return Four{{load_float<IN_TYPE>(&pairs, 0), load_float<IN_TYPE>(&pairs, 1), load_float<IN_TYPE>(&pairs, 2),
                     load_float<IN_TYPE>(&pairs, 3)}};
      };
      const auto turned = [&](int column) -> uint2 {
        const Four four = rotate_query(load, query, column, context_of(p.attention, tile));
        return {pack<IN_TYPE>(four.value[0], four.value[1]), pack<IN_TYPE>(four.value[2], four.value[3])};
      };
      const int column = rotate_unit(unit % rotate_units()), partner = rotate_partner(column);
      const uint2 first = turned(column), second = turned(partner);
      *place_of(column) = first;
      *place_of(partner) = second;
    }
    fence_stores();
    sync_consumer();
  }

  // What only other consumers use is handed back: the blocks before `from` down to `to`.
  DEVICE void hand_back(int from, int to, Ring<STAGES>& kv) {
    Barriers& bars = barriers();
#pragma unroll 1
    for (int block = from; block > to; --block) {
      bars.k_full[kv.index].wait(kv.parity);
      bars.v_full[kv.index].wait(kv.parity);
      // No product keeps the warps together here. A warp that falls behind would miss a phase and wait for ever.
      if constexpr (!PING_PONG) sync_consumer();
      wait_turn();
      pass_turn();
      release(bars.k_empty[kv.index]);
      release(bars.v_empty[kv.index]);
      kv.advance();
    }
  }

  DEVICE void attend(const WgmmaTile& tile, int first_block, [[maybe_unused]] const int* list, Ring<STAGES>& kv) {
    Barriers& bars = barriers();
    const AttentionParams& a = p.attention;
    const int query = tile.first_query + index * 64;
    const int last_query = min(query + 64, a.q_len) - 1;
    const int end = row_exists(a, query) ? key_end(a, tile, last_query) : 0;
    // Blocks that its rows see, from `last` to before `own`; at least one, and one of the tile's.
    int own = max((end + BLOCK_C - 1) / BLOCK_C, first_block + 1);
    if constexpr (!KEYS_ARE_DEFAULT) own = min(own, tile.blocks);
    if constexpr (MASK_LISTS) own = tile.blocks;
    int last = KEYS_BEGIN_AT_ZERO ? 0 : max(first_block, min(key_begin(a, tile, query) / BLOCK_C, own - 1));
    if constexpr (MASK_LISTS) last = 0;
    const int visible = key_end(a, tile, query) / BLOCK_C;                        // from here on up they need a mask
    const int hidden = (key_begin(a, tile, last_query) + BLOCK_C - 1) / BLOCK_C;  // and before this one
    [[maybe_unused]] const int there = keys_there(a, tile);
    hand_back(tile.blocks, own, kv);
    // A turn issues Q K^T of a block and P V of the block before it. The first turn has no P V, the last has no Q K^T.
    // All turns share one text, which compiles faster.
    Ring<STAGES> previous = kv;
    bool first = true;
#pragma unroll 1
    for (int block = own - 1;; --block) {
      if (block >= last) {
        bars.k_full[kv.index].wait(kv.parity);
        wait_turn();
      }
      const int entry = MASK_IS_NONE || block < last ? 0 : MASK_LISTS ? list[block] : 2 * block + 1;
      multiply_scores(kv.index, block >= last);
      if (block >= last) read_ahead(tile, MASK_IS_NONE ? block : entry >> 1);
      if (first) {
        pass_turn();
        find_seen(tile, entry);
        mma_wait<0>();
      } else {
        bars.v_full[previous.index].wait(previous.parity);
        if constexpr (KEYS_END_EARLY) {
          const int of_block = there - (block + 1) * BLOCK_C;
          if (of_block < BLOCK_C) clear_values(previous.index, max(of_block, 0));
        }
        multiply_outputs(previous.index, block == own - 2);
        if (block >= last) pass_turn();
        find_seen(tile, entry);
        mma_wait<1>();
      }
      if (block < last) break;
      release(bars.k_empty[kv.index]);
      if (block == last) release(bars.q_empty[index]);
      read_scores(tile, MASK_IS_NONE ? block : entry >> 1, hidden, visible);
      mask_scores(entry);
      softmax();
      mma_wait<0>();
      if (!first) release(bars.v_empty[previous.index]);
      pack_weights();  // before the branch, so that the compiler puts it among the exponentials
      if (grew && !first) scale_o<DIM / 2>(alpha);
      first = false;
      previous = kv;
      kv.advance();
    }
    mma_wait<0>();
    release(bars.v_empty[previous.index]);
    if constexpr (!KEYS_BEGIN_AT_ZERO) hand_back(last, first_block, kv);
  }

  // O / sum to memory, and the log-sum-exp.
  DEVICE void store(const WgmmaTile& tile, [[maybe_unused]] const bool& lost) {
    const AttentionParams& a = p.attention;
    float inverse[2];
    bool exact = !KEYS_END_EARLY || !lost;
    UNROLL for (int r = 0; r < 2; ++r) {
      const float total = sum_of_quad(sum[r]);
      const bool seen = total != 0;
      inverse[r] = seen ? reciprocal_approx(total) : 0.0f;
      if constexpr (ONE_ROUNDING) exact = exact && shift_is_exact(shift[r], total, FOLD ? p.scale_log2 : 0);
      const int query = tile.first_query + index * 64 + row + r * 8;
      if (a.lse && thread % 4 == 0 && row_exists(a, query)) {
        const long long at = (static_cast<long long>(tile.batch) * a.q_heads + tile.head) * a.q_len + query;
        a.lse[at] = seen ? (ONE_ROUNDING ? shift[r] * ln_2 : shift[r]) + __logf(total) : -infinity();
      }
    }
    scale_o<DIM / 2>(inverse);
    if constexpr (OUT_PANELS > 0) {
      unsigned sums[2] = {};
      copy_output<0>(tile, sums);
      exact = exact && finite_pairs<OUT_TYPE>(sums[0], sums[1]);
    } else {
      store_output(tile);
      exact = exact && zeros_of_o<DIM / 2>() == 0;
    }
    if (!exact) keep_for_later(tile);
  }

  // ---- rows that are to be computed anew (exact_row.h). Their warp keeps its 16 rows of a tile in a list until it has
  // no more tiles: ptxas does all products one after the other if it finds the code for such rows among them (C7520).

  DEVICE int& first_kept() const { return barriers().first_kept[index * 4 + thread / WARP]; }

  // By one thread, or several.
  DEVICE void keep_for_later(const WgmmaTile& tile) {
#ifdef SCORE_AHEAD  // the same, with a register fewer
    const int query = tile.first_query + (static_cast<int>(threadIdx.x) - WARPGROUP) / WARP * 16;
#else
    const int query = tile.first_query + index * 64 + thread / WARP * 16;
#endif
    const int number = (tile.batch * p.attention.q_heads + tile.head) * p.sixteens + query / 16 + p.sixteens_before;
    const int before = first_kept();
    if (before == number) return;
    p.next_kept[number] = before;
    first_kept() = number;
  }

  DEVICE void write_kept_rows() const {
    sync_consumer();
    const int* const of_warps = barriers().first_kept + 4 * index;
    const bool none = (of_warps[0] & of_warps[1] & of_warps[2] & of_warps[3]) == none_kept;  // all bits are ones
    if (OUT_PANELS > 0 && thread == 0) {  // the memory is this threadgroup's as long as it runs
      if (none)
        wait_stores_read();
      else
        wait_stores();
    }
    if (none) return;
    sync_consumer();  // the copies have written to these rows
#pragma unroll 1
    for (int number = first_kept(); number != none_kept; number = p.next_kept[number]) {
      const int of_head = number / p.sixteens, query = (number % p.sixteens - p.sixteens_before) * 16;
#pragma unroll 1
      for (int i = 0; i < 16; ++i) {
        if (!row_exists(p.attention, query + i)) continue;
        write_exact_row(
            AttentionRow(p.attention, of_head / p.attention.q_heads, of_head % p.attention.q_heads, query + i));
      }
    }
  }

  // O to memory by its threads.
  DEVICE void store_output(const WgmmaTile& tile) {
    const AttentionParams& a = p.attention;
    float o[DIM / 2];
    read_o(o);
    UNROLL for (int r = 0; r < 2; ++r) {
      const int query = tile.first_query + index * 64 + row + r * 8;
      if (!row_exists(a, query)) continue;
      const long long base =
          tile.batch * a.o_strides.batch + tile.head * a.o_strides.head + query * a.o_strides.row + column;
      UNROLL for (int j = 0; j < HEAD_DIM / 8; ++j) {
        const float* d = o + 4 * j + 2 * r;
        if constexpr (OUT_TYPE == F32) {
          *reinterpret_cast<float2*>(static_cast<float*>(a.o) + base + j * 8) = make_float2(d[0], d[1]);
        } else {
          *reinterpret_cast<unsigned*>(static_cast<unsigned short*>(a.o) + base + j * 8) = pack<OUT_TYPE>(d[0], d[1]);
        }
      }
    }
  }

  // O to memory by tensor copies, OUT_PANELS panels at a time, from the panel FIRST on. sums: as store_o has them.
  template <int FIRST>
  DEVICE void copy_output(const WgmmaTile& tile, unsigned (&sums)[2]) {
    constexpr int end = FIRST + OUT_PANELS < PANELS ? FIRST + OUT_PANELS : PANELS;
    unsigned char* const panels = memory + layout.o + index * OUT_PANELS * Q_PANEL_BYTES;
    const int query = tile.first_query + index * 64;
    if (thread == 0) wait_stores_read();  // of the panels before
    sync_consumer();
    // A lane addresses 16 bytes: one of the warp's rows 0 to 15, and one of two groups of 8 columns. Within a row of a
    // panel these groups are permuted as the copies expect it (Swizzle::bytes_128).
    const int lane = thread % 32;
    const unsigned to =
        shared_address(panels) + (thread / 32 * 16 + lane % 16) * PANEL_ROW_BYTES + (lane / 16 ^ lane % 8) * 16;
    round_panels<FIRST * 8, end * 8 < DIM / 8 ? end * 8 : DIM / 8>(to, sums);
    fence_stores();
    sync_consumer();
    if (thread == 0 && row_exists(p.attention, query)) {  // a box that begins before the tensor is a fault
      UNROLL for (int panel = FIRST; panel < end; panel += STORE_PANELS) {
        store_box(p.o, panels + (panel - FIRST) * Q_PANEL_BYTES, map_column(panel), query, map_panel(panel), tile.head,
                  tile.batch);
      }
      commit_stores();
    }
    __syncwarp();
    if constexpr (end < PANELS) copy_output<end>(tile, sums);
  }

  // O's groups of eight columns from GROUP to END, to panels of threadgroup memory.
  template <int GROUP, int END>
  DEVICE void round_panels(unsigned to, unsigned (&sums)[2]) {
    store_o<OUT_TYPE, 4 * GROUP>(to ^ GROUP % 8 * 16, sums);
    constexpr int next = GROUP + 2;
    if constexpr (next < END) round_panels<next, END>(next % 8 == 0 ? to + Q_PANEL_BYTES : to, sums);
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__((1 + CONSUMERS) * WARPGROUP, THREADGROUPS)
    flash_forward(const __grid_constant__ Params p) {
  if constexpr (!BEFORE_IS_NONE) before_all<(1 + CONSUMERS) * WARPGROUP>(p.attention, memory);
  declare_results<BLOCK_C / 2, DIM / 2>();
  Barriers& bars = barriers();
  if constexpr (LINEAR) {
    auto* const of_keys = reinterpret_cast<unsigned short*>(numbers());
    for (int i = threadIdx.x; i < BLOCK_C * 16; i += blockDim.x) {
      const int key = i / 16, column = i % 16;
      store_float<IN_TYPE>(of_keys, narrow_index(key, column), column < 3 ? key : 0);
    }
    fence_stores();
  }
  if (threadIdx.x == 0) {
    for (int c = 0; c < CONSUMERS; ++c) {
      bars.q_full[c].init(1);
      bars.q_empty[c].init(1);
    }
    for (int stage = 0; stage < STAGES; ++stage) {
      bars.k_full[stage].init(1);
      bars.v_full[stage].init(1);
      bars.k_empty[stage].init(CONSUMERS);
      bars.v_empty[stage].init(CONSUMERS);
    }
    for (int& first : bars.first_kept) first = none_kept;
    bars.tile_full.init(1);
    bars.tile_empty.init(CONSUMERS * WARPGROUP + PRODUCERS);
    fence_barrier_init();
  }
  __syncthreads();
  const int warpgroup = threadIdx.x / WARPGROUP;
  // The threadgroup is launched with 96, 128 (three consumers, or two threadgroups), 168 or 255 registers a thread.
  // Here they are dealt out anew. To take more than there are would wait for ever. Those who look pages up need 32.
  constexpr int looks_up = !PAGES_ARE_DEFAULT && CONSUMERS <= 2 ? 8 : 0;
  if (warpgroup == 0) {
    give_registers<CONSUMERS >= 3 ? 32 : 24 + looks_up * CONSUMERS>();
    if constexpr (PRODUCERS == 1) {
      if (threadIdx.x == 0) produce(p, 0);
    } else if (const int warp = uniform(threadIdx.x / 32); warp != 1) {
      produce(p, warp == 0 ? 0 : warp - 1);  // of warps 0, 2 and 3
    }
    if (threadIdx.x == 32) schedule(p);
  } else {
    take_registers<CONSUMERS == 4 ? 112 : CONSUMERS == 3 ? 160 : (THREADGROUPS == 2 ? 232 : 240) - looks_up>();
    Consumer(p, uniform(warpgroup - 1)).run();
    Consumer(p, threadIdx.x / WARPGROUP - 1).write_kept_rows();  // another one: the first's loop stays as it is
  }
}
