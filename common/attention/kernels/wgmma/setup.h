// What all warps of a threadgroup of `wgmma` share: constants, threadgroup memory with its barriers, and which keys the
// rows of a tile see.
#pragma once

#include "common/attention/kernels/attention_row.h"
#include "common/attention/kernels/mask_lists.h"
#include "common/attention/kernels/wgmma.h"
#include "common/kernel/wgmma.h"

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
// Keys of a box of K or V: a block, or a page if a page is shorter. If a block has several boxes, each of three warps
// issues every third box, and each box is issued by a lane of its own.
constexpr int BOX_KEYS = !PAGES_ARE_DEFAULT && PAGE_KEYS < BLOCK_C ? PAGE_KEYS : BLOCK_C;
constexpr int BOXES = BLOCK_C / BOX_KEYS;
static_assert(PAGES_ARE_DEFAULT || (BLOCK_C % BOX_KEYS == 0 && PAGE_KEYS % BOX_KEYS == 0 && BOX_KEYS % 8 == 0));
constexpr int PRODUCERS = BOXES > 1 ? 3 : 1;
// Where rows of a block of K or V lie in threadgroup memory: how far apart are panels, and groups of eight rows of a
// panel. If a block has several boxes, and a row several whole panels, a box has all panels. Then a group's panels lie
// next to each other.
constexpr bool GROUPED = BOXES > 1 && PANELS > 1 && WHOLE_PANELS;
constexpr int KV_PANEL_BYTES = (GROUPED ? 8 : BLOCK_C) * PANEL_ROW_BYTES;
constexpr int KV_GROUP_BYTES = (GROUPED ? PANELS : 1) * 8 * PANEL_ROW_BYTES;
using Params = ParamsWithLists<MASK_LISTS, WgmmaParams>::type;

extern __shared__ __align__(1024) unsigned char memory[];

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

// The place of a panel in the maps of WgmmaParams.
DEVICE int map_column(int panel) { return WHOLE_PANELS ? 0 : panel * PANEL_COLUMNS; }
DEVICE int map_panel(int panel) { return WHOLE_PANELS ? panel : 0; }

}  // namespace
