// Variant `wgmma`: flash attention forward on Hopper's tensor cores, for 16-bit Q, K and V.
//
// A threadgroup has one producer warpgroup and CONSUMERS = BLOCK_R / 64 consumer warpgroups. The grid is persistent:
// each multiprocessor runs up to THREADGROUPS threadgroups (1 or 2) until no tile is left. A tile is BLOCK_R query rows
// of one head. One thread of the producer issues the tensor copies (if K and V lie on pages shorter than a block, three
// warps issue the copies). Another thread of the producer hands out tiles. Each consumer computes 64 rows of a tile. K
// and V pass through STAGES buffers of BLOCK_C keys each; the buffers of K and the buffers of V have barriers of their
// own. A consumer issues Q K^T of a block and then P V of the previous block, and does the softmax of the block while P
// V runs (Shah et al. 2024, FlashAttention-3, algorithm 2). With PING_PONG consumers take turns: one multiplies while
// another does the softmax (section 3.1 of the paper). A tile walks its blocks from the last key to the first. With a
// causal mask, the blocks that need the mask thus come first.
//
// The host makes a list of the tiles. Threadgroup i begins with tile i. The other tiles are handed out in the order of
// the list, by an atomic counter.
//
// The kernel takes hooks for scores (by element or by tile), keys, masks, pages, sinks, the rotation of queries, and
// work before the attention (score.h, keys.h, mask.h, pages.h, sink.h, rotate.h, before.h). A score hook by element
// gets q and k as Place, so that a hook that takes them as floats costs no conversions. With LINEAR (a mode in the
// table below) the matrix product itself adds the term of the score hook.
//
// Function constants: HEAD_DIM (multiple of 8, at most 256), BLOCK_R (64, 128, 192, 256), BLOCK_C (multiple of 16, at
// most 256), STAGES, OUT_PANELS (0: threads store the outputs; else tensor copies store outputs of 16 bits, at most
// OUT_PANELS panels of 64 columns at a time), CAUSAL, IN_TYPE, OUT_TYPE, FOLD_SCALE (the scale is at least 1e-10, and
// the kernel applies it inside the exponential), PING_PONG (there are several consumers, and they take turns). Grid: at
// most as many threadgroups as run at the same time; (1 + CONSUMERS) * 128 threads; WgmmaLayout's threadgroup memory.
//
// One iteration of the main loop, in the order of the code: produce() on the left, attend() on the right. Block b is in
// buffer i. The block of the previous iteration, b + 1, is in buffer j. `wait B` and `arrive B` name a barrier of
// struct Barriers; `copy ... -> B` arrives at B with its bytes. [first] and [last] are the iterations with the first
// and the last block: for the producer, of all blocks of the tile; for a consumer, of the blocks that it walks. A
// consumer has one more iteration, [end], after [last].
//
//   producer                                       consumer c
//   ---------------------------------              --------------------------------------------------------------------
//   [last] arrive tile_empty
//   pages hook: place_of_key()
//   wait k_empty[i] <-------------------------.
//   arrive k_full[i]                          |
//   copy K of b -> k_full[i] -----------------|--> [not end] wait k_full[i]
//                                             |    [not end] PING_PONG: wait for named barrier 1 + c, its own turn
//   [first] for each consumer c:              |    issue S = Q K^T of b; [end] only the first 16 columns of Q and K
//     wait q_empty[c] <--------------------.  |    [not end] SCORE_AHEAD: read_ahead()
//     arrive q_full[c]                     |  |
//     copy Q of c -> q_full[c] ------------|--|--> before [first]: wait q_full[c], in run()
//   pages hook: place_of_key()             |  |
//   wait v_empty[i] <-------------------.  |  |
//   arrive v_full[i]                    |  |  |
//   copy V of b -> v_full[i] -----------|--|--|--> [not first] wait v_full[j]
//   i = the next buffer                 |  |  |    [not first] KEYS_END_EARLY: clear_values() after the last key
//                                       |  |  |    [not first] issue O += P V of b + 1; second iteration: O = P V
//                                       |  |  |    [not end] PING_PONG: arrive named barrier 1 + (c + 1) % CONSUMERS
//                                       |  |  |    [not end] mask hook: find_seen()
//                                       |  |  |    wait for S of b, while P V may still run
//                                       |  |  |    [end] leave the loop; wait for P V; arrive v_empty[j]
//                                       |  |  `--- arrive k_empty[i]
//                                       |  `------ [last] arrive q_empty[c]
//                                       |          read_scores(): reads S; score hook, masks of key ranges
//                                       |          mask hook: mask_scores()
//                                       |          softmax(): S to P in f32, while P V of b + 1 may still run
//                                       |          wait for P V of b + 1
//                                       `--------- [not first] arrive v_empty[j]
//                                                  pack_weights(): P to 16 bits
//                                                  [not first] O *= alpha, if the shift has grown
//                                                  j = i, i = the next buffer
//
// Around the loop. schedule() writes a tile, arrives at tile_full, and waits for tile_empty. The producer and all
// threads of the consumers wait for tile_full and read the tile. A consumer arrives at tile_empty as soon as it has
// read the tile. For blocks that only other consumers see, hand_back() waits for k_full and v_full, and arrives at
// k_empty and v_empty. A phase takes CONSUMERS arrivals at k_empty and v_empty (by thread 0 of each consumer, in
// release()), CONSUMERS * 128 + PRODUCERS at tile_empty, and one at every other barrier.
//
// The modes: each constant that switches code. First come function constants, then symbols that hooks define, then
// constants that this file derives from those two kinds. In the column "where", "constants" means the constants before
// struct Place.
//
//   constant           values     what changes                                  where
//   ------------------ ---------- --------------------------------------------- --------------------------------------
//   BLOCK_R            64..256    CONSUMERS = BLOCK_R / 64: number of           constants, flash_forward(),
//                                 warpgroups, registers of a thread; unrolling  copy_block()
//   HEAD_DIM           8..256     64 divides it: WHOLE_PANELS. DIM (HEAD_DIM    constants
//                                 rounded up to 16) up to 128: THREADGROUPS may
//                                 be 2
//   BLOCK_C            16..256    sizes; with a pages hook also BOXES           constants
//   STAGES             1..3       number of buffers of K and V; switches no     Ring, Barriers, flash_forward()
//                                 code
//   OUT_PANELS         0          threads store O                               store(), store_output()
//                      from 1     tensor copies store O, OUT_PANELS panels at a store(), copy_output(),
//                                 time                                          write_kept_rows()
//   CAUSAL             0, 1       with KEYS_ARE_DEFAULT. 0: keys end at kv_len. key_end(), read_scores()
//                                 1: visible_keys() (keys.h) gives their end
//   IN_TYPE            F16, BF16  type of products, weights, rotated queries,   Mma_S, Mma_O, pack_weights(),
//                                 parts of a slope, numbers of keys             rotate_queries(), split_slope(),
//                                                                               flash_forward()
//   OUT_TYPE           F16, BF16  pairs of 16 bits                              store(), store_output(), round_panels()
//                      F32        pairs of floats; OUT_PANELS must be 0         store_output()
//   FOLD_SCALE         0, 1       1: FOLD and LINEAR may be 1                   constants
//   PING_PONG          0          a consumer issues products at any time;       hand_back()
//                                 hand_back() syncs the warps of the consumer
//                                 for each block
//                      1          consumers take turns at issuing products;     wait_turn(), pass_turn(), run()
//                                 CONSUMERS must be more than 1
//   MASK_LISTS         0          a tile walks a range of blocks (mask.h        schedule(), produce(), attend()
//                                 defines 0 if there is no mask hook)
//                      1          a tile walks its list of blocks               Params, schedule(), produce(), attend()
//
//   SCORE_IS_IDENTITY  0, 1       1: FOLD may be 1                              constants
//   SCORE_IS_LINEAR    0, 1       1: LINEAR may be 1. Undefined: 0              constants
//   SCORE_IS_BOUNDED   0, 1       1: ONE_ROUNDING is 1. Undefined: 0            constants
//   SCORE_GRAIN        SCORE_TILE without FOLD: score_tile(), for all scores of read_scores()
//                                 a thread
//                      else       without FOLD: score(), for each score         read_scores()
//   SCORE_AHEAD        defined    ScoreAhead reads numbers from memory while    ahead, read_ahead(), read_scores(),
//                                 products run; score_tile() gets it            keep_for_later()
//   SCORE_IN           factor     without FOLD: on scores before the hook.      read_scores()
//                                 Undefined: 1
//   SCORE_OUT          factor     with ONE_ROUNDING, without FOLD: on scores    scaled()
//                                 after the hook. Undefined: 1
//   KEYS_ARE_DEFAULT   1          the host counts the blocks of a tile          schedule()
//                      0          find_blocks() counts them, unless MASK_LISTS; schedule(), keys_of(), key_end(),
//                                 a row that does not exist has the range of    read_scores(), attend()
//                                 the nearest row
//   KEYS_BEGIN_AT_ZERO 1          blocks are walked down to block 0             produce(), run(), attend()
//                      0          blocks are walked down to first_block; keys   key_begin(), produce(), run(),
//                                 before a range are masked; hand_back() after  read_scores(), attend()
//                                 the loop
//   KEYS_END_EARLY     0          keys end at kv_len. Undefined: 0              keys_there()
//                                 (attention_row.h)
//                      1          keys end at end_of_keys(); V is cleared from  keys_there(), schedule(), copy_block(),
//                                 there on; a negative end, or a page that does attend(), store()
//                                 not exist, makes rows NaN
//   MASK_IS_NONE       1          read_scores() masks by the ranges of the rows read_scores(), attend()
//                      0          find_seen() asks the mask hook, mask_scores() find_seen(), read_scores(),
//                                 masks by its answers, which include the       mask_scores(), attend()
//                                 ranges
//   PAGES_ARE_DEFAULT  1          a box is at the key, kv_head and batch        copy_block()
//                      0          a box is at place_of_key(); up to 2           copy_block(), flash_forward()
//                                 consumers: the producer has 8 more registers
//                                 a thread for each consumer, a consumer 8
//                                 fewer
//   PAGE_KEYS                     with a pages hook, less than BLOCK_C: BOXES   constants
//                                 is more than 1
//   ROTATE_IS_IDENTITY 0, 1       0: rotate_queries() rotates Q in threadgroup  run()
//                                 memory; ROTATE_LEAVES_KEYS must be 1
//   SINK_IS_NONE       0, 1       0: a row begins with the sink as its shift,   run()
//                                 and with the weight of the sink as its sum
//   BEFORE_IS_NONE     0, 1       0: before_all() is called first               flash_forward()
//
//   LINEAR             0, 1       FOLD_SCALE && SCORE_IS_LINEAR. 1: one more    layout, multiply_scores(),
//                                 product adds the slope times the number of a  with_offset(), read_scores(),
//                                 key in its block; offset has the rest of the  softmax(), run(), flash_forward()
//                                 term
//   FOLD               1          FOLD_SCALE && (SCORE_IS_IDENTITY || LINEAR):  read_scores(), scaled(), store()
//                                 scores are masked in their PTX registers, and
//                                 neither scaled nor handed to the hook
//                      0          read_scores() scales the scores, calls the    read_scores()
//                                 hook and masks
//   ONE_ROUNDING       1          FOLD || SCORE_IS_BOUNDED: shifts are in base  scaled(), in_base_2(), softmax(),
//                                 2; a score is scaled and shifted with one     run(), store()
//                                 rounding; store() checks the shifts
//                      0          shifts are in base e; a score is shifted      the same functions
//                                 first, and then scaled by log2(e)
//   WHOLE_PANELS       1          64 divides HEAD_DIM: one copy takes all       map_column(), map_panel(),
//                                 panels, one store OUT_PANELS panels           copy_panels(), copy_output()
//                      0          a copy or store takes one panel               the same functions
//   BOXES              1          BLOCK_C / BOX_KEYS. PRODUCERS = 1: one thread copy_block(), produce(),
//                                 issues all copies                             flash_forward()
//                      from 2     PRODUCERS = 3: three warps each issue every   the same functions
//                                 third box of a block, panel by panel; a lane
//                                 finds the place of a box; thread 0 copies Q
//   THREADGROUPS       1, 2       threadgroups of a multiprocessor: 2 if        flash_forward()
//                                 CONSUMERS == 1 and DIM <= 128. A consumer
//                                 then has 232 registers a thread, not 240
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

// Whether a product adds slope * (number of the key in its block) to the scores. The rest of the linear term is the
// same for all keys of a block. (LINEAR is a macro, because a constant would become data in every kernel's binary.)
#define LINEAR (FOLD_SCALE && SCORE_IS_LINEAR)
constexpr WgmmaLayout layout(HEAD_DIM, BLOCK_R, BLOCK_C, STAGES, OUT_PANELS, LINEAR);
constexpr int CONSUMERS = BLOCK_R / 64;
constexpr int DIM = (HEAD_DIM + 15) / 16 * 16;  // columns beyond head_dim are zero
constexpr int PANELS = layout.panels;
constexpr bool WHOLE_PANELS = HEAD_DIM % PANEL_COLUMNS == 0;
constexpr int COPY_PANELS = WHOLE_PANELS ? PANELS : 1, STORE_PANELS = WHOLE_PANELS ? OUT_PANELS : 1;  // panels of a box
constexpr int Q_PANEL_BYTES = 64 * PANEL_ROW_BYTES;  // a panel of one consumer's rows
constexpr int KV_PANEL_BYTES = BLOCK_C * PANEL_ROW_BYTES;
constexpr int KV_BYTES = layout.kv_bytes;
static_assert(ROTATE_LEAVES_KEYS, "tensor copies bring K as it is");
static_assert(!PING_PONG || CONSUMERS > 1);
// Threadgroups of a multiprocessor. Half of a multiprocessor's registers cannot hold accumulators of more than 128
// columns.
constexpr int THREADGROUPS = CONSUMERS == 1 && DIM <= 128 ? 2 : 1;
constexpr bool FOLD = FOLD_SCALE && (SCORE_IS_IDENTITY || LINEAR);
// Whether scaling a score and subtracting the shift take one rounding; shifts are then in base 2. store() finds rows
// whose scores are too large for one rounding.
constexpr bool ONE_ROUNDING = FOLD || SCORE_IS_BOUNDED;
static_assert(OUT_PANELS == 0 || OUT_TYPE != F32);
static_assert(!KEYS_END_EARLY || MASK_IS_NONE, "the last block's number is not known");
// Keys of a box of K or V: a block, or a page if a page is shorter. One thread takes about 110 cycles to issue a box.
// So if a block has several boxes, each of three warps issues every third box.
constexpr int BOX_KEYS = !PAGES_ARE_DEFAULT && PAGE_KEYS < BLOCK_C ? PAGE_KEYS : BLOCK_C;
constexpr int BOXES = BLOCK_C / BOX_KEYS;
static_assert(PAGES_ARE_DEFAULT || (BLOCK_C % BOX_KEYS == 0 && PAGE_KEYS % BOX_KEYS == 0 && BOX_KEYS % 8 == 0));
constexpr int PRODUCERS = BOXES > 1 ? 3 : 1;
using Params = ParamsWithLists<MASK_LISTS, WgmmaParams>::type;

extern __shared__ __align__(1024) unsigned char memory[];

// Returns x, which must be the same in all threads of the warp. The reduction tells the compiler that x is uniform. The
// compiler then keeps values that depend on x, above all indices of rings, in uniform registers (8 to 12 % faster at
// head_dim 64).
DEVICE int uniform(int x) { return __reduce_max_sync(~0u, x); }

/// A place in a sequence, for hooks that take it as int and for hooks that take it as float (exact up to 2^24).
struct Place {
  int number;
  float value;
  DEVICE operator int() const { return number; }
  DEVICE operator float() const { return value; }
  DEVICE Place after(int count) const { return {number + count, value + static_cast<float>(count)}; }
};
DEVICE Place place(int number) { return {number, static_cast<float>(number)}; }

constexpr int no_more_tiles = -1;  // a value of WgmmaTile::blocks
constexpr int none_kept = -1;      // the end of a list of groups of 16 rows

struct Barriers {
  Barrier q_full[CONSUMERS], q_empty[CONSUMERS];
  Barrier k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
  Barrier tile_full, tile_empty;
  WgmmaTile tile;                 // written by the scheduler, read by all others
  int first_block;                // if ranges do not begin at key 0: the first block that some row of the tile sees
  const int* list;                // MASK_LISTS: the tile's entries
  int first_kept[4 * CONSUMERS];  // for each warp, the first group of 16 rows that must be computed anew
  // KEYS_END_EARLY: whether end_of_keys() is negative, or a page of the tile does not exist; a flag for this tile, and
  // a flag for the next tile.
  bool lost[2];
};
static_assert(sizeof(Barriers) <= layout.barrier_bytes);

// LINEAR: where the numbers 0 to BLOCK_C - 1 of a block's keys lie. These numbers are an operand for Mma::narrow().
DEVICE unsigned char* numbers() { return memory + layout.barriers - BLOCK_C * 32; }
DEVICE Barriers& barriers() { return *reinterpret_cast<Barriers*>(memory + layout.barriers); }

/// A place in a ring of COUNT buffers: the index of a buffer, and the parity of the phase that fills the buffer.
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

/// Returns how many keys the tile's sequence has. With KEYS_END_EARLY the sequence may have fewer than kv_len keys.
DEVICE int keys_there(const AttentionParams& a, const WgmmaTile& tile) {
  return KEYS_END_EARLY ? min(a.kv_len, end_of_keys(context_of(a, tile))) : a.kv_len;
}

/// Returns the keys that a row sees. Unless KEYS_ARE_DEFAULT, a row that does not exist gets the range of the nearest
/// row that exists.
DEVICE KeyRange keys_of(const AttentionParams& a, const WgmmaTile& tile, int query) {
  return visible_keys(KEYS_ARE_DEFAULT ? query : max(0, min(query, a.q_len - 1)), context_of(a, tile));
}

/// key_end() returns where the keys that a row sees end, and key_begin() where they begin.
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

// Finds the first block that the tile walks, and WgmmaTile::blocks. The host can find both only for the default keys
// hook.
DEVICE void find_blocks(const AttentionParams& a, Barriers& bars) {
  const int first = bars.tile.first_query;
  const int begin = key_begin(a, bars.tile, first), end = key_end(a, bars.tile, first + BLOCK_R - 1);
  bars.first_block = begin / BLOCK_C;
  bars.tile.blocks = max((end + BLOCK_C - 1) / BLOCK_C, bars.first_block + 1);
}

// Finds the tile's list. If the list is empty, the tile walks the list's first entry: block 0 with a mask.
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
    // Waits until the producer comes to the last block of the tile. If this threadgroup took its next tile earlier, the
    // tiles would be badly balanced between threadgroups.
    bars.tile_empty.wait(parity);
    parity ^= 1;
  }
  bars.tile.blocks = no_more_tiles;
  bars.tile_full.arrive();
  // The last threadgroup that finds no more tiles sets the counters back to 0.
  __threadfence();
  if (atomicAdd(p.counters + 1, 1) == gridDim.x - 1) {
    p.counters[0] = 0;
    p.counters[1] = 0;
  }
}

// The place of a panel in the maps of WgmmaParams.
DEVICE int map_column(int panel) { return WHOLE_PANELS ? 0 : panel * PANEL_COLUMNS; }
DEVICE int map_panel(int panel) { return WHOLE_PANELS ? panel : 0; }

// ---- producers: threads that issue the tensor copies; only the first producer issues copies of Q

DEVICE void copy_panels(unsigned char* target, int panel_bytes, const TensorMap& map, Barrier& full, int row, int head,
                        int batch) {
  UNROLL for (int panel = 0; panel < PANELS; panel += COPY_PANELS) {
    copy_box(target + panel * panel_bytes, map, full, map_column(panel), row, map_panel(panel), head, batch);
  }
}

// Waits until the buffer is free, and then copies BLOCK_C rows of K (OF_KEYS) or V to it. If a block has several boxes,
// each lane of the warp looks up the place of one box, and a box has only one panel. `number` is the number of this
// producer.
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
    KeyPlace place{-1, 0, 0};  // for keys after the last key: a box that begins before the tensor is read as zeros
    const bool there = lane < BOXES && first < keys_there(a, tile);
    if (there) place = place_of_key(first, tile.kv_head, context_of(a, tile));
    if constexpr (KEYS_END_EARLY && OF_KEYS) {  // the thread that arrives at `full` writes `lost` too
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
    if constexpr (PRODUCERS > 1) __syncwarp();  // all lanes have read the tile before lane 0 arrives at tile_empty
    const bool leads = PRODUCERS == 1 || threadIdx.x % 32 == 0;
    bool first = true;
#pragma unroll 1  // this warpgroup has few registers
    for (int key = (tile.blocks - 1) * BLOCK_C; key >= first_key; key -= BLOCK_C) {
      const int from = MASK_LISTS ? (list[key / BLOCK_C] >> 1) * BLOCK_C : key;
      if (key == first_key && leads) bars.tile_empty.arrive();
      copy_block<true>(p.k, bars.k_empty[kv.index], bars.k_full[kv.index], layout.k, kv, from, tile, p.attention, lost,
                       number);
      if (first && (PRODUCERS == 1 || threadIdx.x == 0)) {
#pragma unroll 1  // so that the kernel compiles faster
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
  const int index;  // the number of the consumer
  const int thread = threadIdx.x % WARPGROUP;
  const int row = thread / 32 * 16 + thread % 32 / 4;  // the first of the thread's two rows, of 64
  const int column = thread % 4 * 2;                   // the first of the thread's columns, of each group of 8
  float s[BLOCK_C / 2];
  unsigned weights[BLOCK_C / 4];
  float sum[2], shift[2], alpha[2];  // of the thread's two rows
  float slope;                       // LINEAR: the slope in base 2
  unsigned slope_parts[4];           // LINEAR: an operand; in each row the sum of three columns is slope / scale
  float offset[2];                   // LINEAR: the term of key number 0 of the block, in base 2
  bool grew;                         // whether outputs must be multiplied by alpha
  SeenKeys<BLOCK_C> seen[2];         // with a mask hook, for a block that is masked
#ifdef SCORE_AHEAD
  ScoreAhead ahead;  // of one block
#endif

  DEVICE Consumer(const WgmmaParams& params, int number) : p(params), index(number) {}

  // With LINEAR adds the part of the linear term that the product does not add.
  DEVICE float with_offset(float s, int r) const {
    if constexpr (LINEAR) s += offset[r];
    return s;
  }
  // Returns the score in the units of shifts. Without FOLD a score already has all factors except SCORE_OUT and
  // log2(e).
  DEVICE float scaled(float s) const { return ONE_ROUNDING ? s * (FOLD ? p.scale_log2 : SCORE_OUT * log2_e) : s; }
  // Converts the difference of a scaled score and a shift to base 2.
  DEVICE static float in_base_2(float difference) { return ONE_ROUNDING ? difference : difference * log2_e; }

  // Issues S = Q K^T of a block, 16 columns of Q and K a step. If no block is left, this function still issues the
  // first step, and nobody uses the result. If a branch could skip all products of S, ptxas would do all products one
  // after the other (C7515).
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
      mma_commit();  // each branch has its own commit: with one commit after both branches, ptxas would add a product
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

  // Writes zeros to the block's rows of V from `first` on. No query sees the keys of these rows. Other consumers write
  // the same zeros.
  DEVICE void clear_values(int stage, int first) {
    for (int unit = thread; unit < (BLOCK_C - first) * PANELS * 8; unit += WARPGROUP) {
      const int of_panel = unit % ((BLOCK_C - first) * 8), panel = unit / ((BLOCK_C - first) * 8);
      *reinterpret_cast<uint4*>(memory + layout.v + stage * KV_BYTES + panel * KV_PANEL_BYTES +
                                first * PANEL_ROW_BYTES + of_panel * 16) = uint4{};
    }
    fence_stores();
    sync_consumer();
  }

  // Asks the mask hook about the block of `entry`, an entry of MaskLists. The hook may take long, so it runs while the
  // products run.
  DEVICE void find_seen(const WgmmaTile& tile, int entry) {
    if constexpr (!MASK_IS_NONE) {
      if (!(entry & 1)) return;
      const ScoreContext context = context_of(p.attention, tile);
      UNROLL for (int r = 0; r < 2; ++r) {
        seen[r].find(tile.first_query + index * 64 + row + r * 8, (entry >> 1) * BLOCK_C + column, context);
      }
      __syncwarp();  // a hook may branch, and the code after it needs whole warps
    }
  }

  // While the products of a block's scores run, reads the numbers that the score hook needs for these scores.
  DEVICE void read_ahead([[maybe_unused]] const WgmmaTile& tile, [[maybe_unused]] int block) {
#ifdef SCORE_AHEAD
    ahead.read(tile.first_query + index * 64 + row, block * BLOCK_C + column, context_of(p.attention, tile));
#endif
  }

  // Reads the block's scores, and applies the score hook and the masks of ranges. The blocks [hidden, visible) need no
  // mask: all rows see all keys of these blocks.
  DEVICE void read_scores(const WgmmaTile& tile, int block, int hidden, int visible) {
    const AttentionParams& a = p.attention;
    const int query = tile.first_query + index * 64 + row;
    const int key = block * BLOCK_C + column;
    const bool masked = block >= visible || (!KEYS_BEGIN_AT_ZERO && block < hidden);
    int begin[2], end[2];  // the keys that the rows see, counted from this thread's first key of the block
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

  // Hides scores according to the mask hook.
  DEVICE void mask_scores(int entry) {
    if constexpr (!MASK_IS_NONE) {
      if ((entry & 1) == 0) return;
      UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) {
        if (!seen[i / 2 % 2][i / 4 * 2 + i % 2]) s[i] = -infinity();
      }
    }
  }

  // Turns scores into weights e^(score - shift), in place, and adds the weights to the rows' sums. The shifts of the
  // warp's 16 rows stay until the maximum of some row exceeds its shift by more than 8 in base 2. Then each shift is
  // raised to its row's maximum, if the maximum is greater. So outputs are seldom rescaled (FlashAttention-4, 2025),
  // and no weight exceeds 2^8.
  DEVICE void softmax() {
    constexpr float slack = ONE_ROUNDING ? 8 : 8 * ln_2;
    float part[4] = {s[0], s[1], s[2], s[3]};  // four short chains, two for each row, because all else waits for them
    UNROLL for (int i = 4; i < BLOCK_C / 2; ++i) part[i % 4] = fmaxf(part[i % 4], s[i]);
    const float largest[2] = {with_offset(scaled(fmaxf(part[0], part[1])), 0),
                              with_offset(scaled(fmaxf(part[2], part[3])), 1)};
    grew = __any_sync(~0u, largest[0] > shift[0] + slack || largest[1] > shift[1] + slack);
    if (grew) {  // only in this case the four threads of a row compare their maxima
      UNROLL for (int r = 0; r < 2; ++r) {
        const float larger = fmaxf(maximum_of_quad(largest[r]), shift[r]);
        alpha[r] = exp2_approx(in_base_2(shift[r] - larger));
        shift[r] = larger;
        sum[r] *= alpha[r];
      }
    }
    if constexpr (LINEAR) {  // from here on, offset is the number that is subtracted from a scaled score
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

  // With PING_PONG wait_turn() waits for this consumer's turn to issue products, and pass_turn() gives the turn to the
  // next consumer.
  DEVICE void wait_turn() {
    if constexpr (PING_PONG) named_sync(1 + index, 2 * WARPGROUP);
  }
  DEVICE void pass_turn() {
    if constexpr (PING_PONG) named_arrive(1 + (index + 1) % CONSUMERS, 2 * WARPGROUP);
  }

  DEVICE void release(Barrier& empty) {
    if (thread == 0) empty.arrive();
  }

  // Waits for all threads of this consumer. After the wait the threads of each warp run together again.
  DEVICE void sync_consumer() const {
    __syncwarp();
    named_sync(1 + CONSUMERS + index, WARPGROUP);
  }

  DEVICE void run() {
    Barriers& bars = barriers();
    if constexpr (PING_PONG) {
      if (index == CONSUMERS - 1) pass_turn();  // consumer 0 begins
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
      // A row with a sink begins with the sink as its shift. At this shift the sink's weight is 1, and one of the row's
      // four threads adds this weight to its sum.
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

  // Splits slope / scale into a sum of three parts. Each part is the rest that the earlier parts leave, rounded to the
  // type of Q.
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

  // Replaces this consumer's rows of Q by the results of the rotate hook, four columns and their partners (rotate.h) at
  // a time. Neighbouring threads take neighbouring columns of a row, so that they read whole lines of the tables.
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

  // Hands back the buffers of blocks that only other consumers use: the blocks from `from` - 1 down to `to`.
  DEVICE void hand_back(int from, int to, Ring<STAGES>& kv) {
    Barriers& bars = barriers();
#pragma unroll 1
    for (int block = from; block > to; --block) {
      bars.k_full[kv.index].wait(kv.parity);
      bars.v_full[kv.index].wait(kv.parity);
      // No product keeps the warps together here. A late warp would miss a phase of a barrier and wait for ever.
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
    // This consumer walks the blocks from own - 1 down to `last`: the blocks that its rows see, or with MASK_LISTS the
    // tile's whole list. A consumer walks at least one block of the tile.
    int own = max((end + BLOCK_C - 1) / BLOCK_C, first_block + 1);
    if constexpr (!KEYS_ARE_DEFAULT) own = min(own, tile.blocks);
    if constexpr (MASK_LISTS) own = tile.blocks;
    int last = KEYS_BEGIN_AT_ZERO ? 0 : max(first_block, min(key_begin(a, tile, query) / BLOCK_C, own - 1));
    if constexpr (MASK_LISTS) last = 0;
    const int visible = key_end(a, tile, query) / BLOCK_C;  // blocks from `visible` on need a mask
    const int hidden = (key_begin(a, tile, last_query) + BLOCK_C - 1) / BLOCK_C;  // blocks before `hidden` too
    [[maybe_unused]] const int there = keys_there(a, tile);
    hand_back(tile.blocks, own, kv);
    // An iteration issues Q K^T of a block, and P V of the block before it in the walk. The first iteration has no P V.
    // After the last block comes one more iteration, which has no Q K^T. The loop's body stands here only once, because
    // one copy compiles faster than several.
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
      pack_weights();  // before the branch, so that the compiler packs between the exponentials
      if (grew && !first) scale_o<DIM / 2>(alpha);
      first = false;
      previous = kv;
      kv.advance();
    }
    mma_wait<0>();
    release(bars.v_empty[previous.index]);
    if constexpr (!KEYS_BEGIN_AT_ZERO) hand_back(last, first_block, kv);
  }

  // Writes O / sum and the log-sum-exp to memory.
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

  // ---- rows that must be computed anew (exact_row.h). A warp keeps its 16 rows of a tile in a list until there are no
  // more tiles. If the code for these rows stood among the products, ptxas would do all products one after the other
  // (C7520).

  DEVICE int& first_kept() const { return barriers().first_kept[index * 4 + thread / WARP]; }

  // Adds the warp's 16 rows to the warp's list. One or several threads of the warp call this function.
  DEVICE void keep_for_later(const WgmmaTile& tile) {
#ifdef SCORE_AHEAD  // as in the #else, with one register fewer
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
    const bool none = (of_warps[0] & of_warps[1] & of_warps[2] & of_warps[3]) == none_kept;  // -1 has all bits set
    if (OUT_PANELS > 0 && thread == 0) {  // a threadgroup must not end before the copies have read its memory
      if (none)
        wait_stores_read();
      else
        wait_stores();
    }
    if (none) return;
    sync_consumer();  // OUT_PANELS > 0: thread 0 has waited until the copies have written this consumer's rows of O
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

  // Writes O to memory by the threads that hold it.
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

  // Writes O to memory by tensor copies, OUT_PANELS panels at a time, from the panel FIRST on. `sums` are the sums of
  // store_o.
  template <int FIRST>
  DEVICE void copy_output(const WgmmaTile& tile, unsigned (&sums)[2]) {
    constexpr int end = FIRST + OUT_PANELS < PANELS ? FIRST + OUT_PANELS : PANELS;
    unsigned char* const panels = memory + layout.o + index * OUT_PANELS * Q_PANEL_BYTES;
    const int query = tile.first_query + index * 64;
    if (thread == 0) wait_stores_read();  // until the previous panels have been read
    sync_consumer();
    // A lane gives the address of 16 bytes: one of two groups of 8 columns, in one of the warp's 16 rows. Within a row
    // of a panel the groups are permuted in the way that the copies expect (Swizzle::bytes_128).
    const int lane = thread % 32;
    const unsigned to =
        shared_address(panels) + (thread / 32 * 16 + lane % 16) * PANEL_ROW_BYTES + (lane / 16 ^ lane % 8) * 16;
    round_panels<FIRST * 8, end * 8 < DIM / 8 ? end * 8 : DIM / 8>(to, sums);
    fence_stores();
    sync_consumer();
    if (thread == 0 && row_exists(p.attention, query)) {  // a store of a box that begins before the tensor is a fault
      UNROLL for (int panel = FIRST; panel < end; panel += STORE_PANELS) {
        store_box(p.o, panels + (panel - FIRST) * Q_PANEL_BYTES, map_column(panel), query, map_panel(panel), tile.head,
                  tile.batch);
      }
      commit_stores();
    }
    __syncwarp();
    if constexpr (end < PANELS) copy_output<end>(tile, sums);
  }

  // Writes O's groups of eight columns from GROUP to END to panels in threadgroup memory.
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
  // The threadgroup is launched with this number of registers a thread: 96 with four consumers; 128 with three, or if a
  // multiprocessor has two threadgroups; 168 with two consumers; 255 with one. Here warpgroups exchange registers. A
  // warpgroup that takes more registers than are free waits for ever. Threads that look up pages need at least 32
  // registers.
  constexpr int looks_up = !PAGES_ARE_DEFAULT && CONSUMERS <= 2 ? 8 : 0;
  if (warpgroup == 0) {
    give_registers<CONSUMERS >= 3 ? 32 : 24 + looks_up * CONSUMERS>();
    if constexpr (PRODUCERS == 1) {
      if (threadIdx.x == 0) produce(p, 0);
    } else if (const int warp = uniform(threadIdx.x / 32); warp != 1) {
      produce(p, warp == 0 ? 0 : warp - 1);  // warps 0, 2 and 3 are producers 0, 1 and 2
    }
    if (threadIdx.x == 32) schedule(p);
  } else {
    take_registers<CONSUMERS == 4 ? 112 : CONSUMERS == 3 ? 160 : (THREADGROUPS == 2 ? 232 : 240) - looks_up>();
    Consumer(p, uniform(warpgroup - 1)).run();
    // This call has a Consumer of its own, because sharing run()'s Consumer would change how run() compiles.
    Consumer(p, threadIdx.x / WARPGROUP - 1).write_kept_rows();
  }
}
