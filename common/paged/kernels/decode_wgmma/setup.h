// What all warps of a threadgroup of `decode_wgmma` share: constants and threadgroup memory with its barriers.
#pragma once

#include "common/kernel/wgmma.h"
#include "common/paged/kernels/decode/basics.h"
#include "common/paged/kernels/decode_wgmma.h"

namespace {

constexpr DecodeWgmmaLayout layout(HEAD_DIM, ROWS, BLOCK_C, SLOTS, KV_BYTES, TURNS);
constexpr bool BYTES = KV_BYTES == 1;
constexpr int OPERAND_TYPE = BYTES ? F16 : IN_TYPE;  // type of the products' operands
constexpr int OPERAND_SLOTS = BYTES ? layout.operand_slots : SLOTS;
constexpr bool SCALES_Q = BYTES && IN_TYPE == BF16;
constexpr int CONSUMERS = ROWS / 64 * TURNS, CONSUMER_THREADS = CONSUMERS * WARPGROUP;
constexpr int TEAM_THREADS = TURNS * WARPGROUP;          // of the consumers that have the same 64 rows
constexpr int BLOCK_THREADS = CONSUMER_THREADS / TURNS;  // of the consumers that multiply the same block
constexpr int RING_SLOTS = OPERAND_SLOTS / TURNS;
constexpr int WARPGROUPS = 1 + CONSUMERS + BYTES, THREADS = WARPGROUPS * WARPGROUP;
constexpr int DIM = (HEAD_DIM + 15) / 16 * 16;  // columns beyond head_dim are zero
constexpr int PANELS = layout.panels;
constexpr bool WHOLE_PANELS = HEAD_DIM % PANEL_COLUMNS == 0;
constexpr int Q_PANEL_BYTES = 64 * PANEL_ROW_BYTES;  // a panel of one consumer's rows
constexpr int KV_PANEL_BYTES = BLOCK_C * PANEL_ROW_BYTES;
// A block of K or V comes in boxes. The units of a block are its boxes, or if a box has one panel of several, the
// panels of its boxes. Each lane of PRODUCERS warps issues at most one unit of a block. A box of elements of 8 bits has
// all columns.
constexpr int BOX_KEYS = PAGE_SIZE > 0 && PAGE_SIZE < BLOCK_C ? PAGE_SIZE : BLOCK_C, BOXES = BLOCK_C / BOX_KEYS;
constexpr int BOX_PANELS = BYTES || (BOXES == 1 && WHOLE_PANELS) ? PANELS : 1, UNITS = BOXES * PANELS / BOX_PANELS;
constexpr int PRODUCERS = BYTES || UNITS < 4 ? 1 : 4;
static_assert(ROWS % 64 == 0 && CONSUMERS <= 2 && JOIN_LAST && OPERAND_SLOTS % TURNS == 0);
static_assert(BYTES ? !APPENDS && IN_TYPE != F32 && HEAD_DIM % 16 == 0 : KV_BYTES == 2 && CACHE_TYPE == IN_TYPE);
static_assert(BLOCK_C % BOX_KEYS == 0 && BOX_KEYS % 8 == 0 && (PAGE_SIZE == 0 || PAGE_SIZE % BOX_KEYS == 0));
static_assert(UNITS <= PRODUCERS * WARP);

extern __shared__ __align__(1024) unsigned char memory[];

// `full` and `empty` are of the blocks that are operands of products. `copied` and `taken` are of the blocks of a cache
// of 8 bits, as they are copied.
struct Barriers {
  Barrier full[OPERAND_SLOTS], empty[OPERAND_SLOTS];
  Barrier copied[BYTES ? SLOTS : 1], taken[BYTES ? SLOTS : 1];
};
static_assert(sizeof(Barriers) <= layout.barrier_bytes);
DEVICE Barriers& barriers() { return *reinterpret_cast<Barriers*>(memory + layout.barriers); }
DEVICE unsigned char* slot(int number) { return memory + layout.q_bytes + number * layout.block_bytes; }

/// A place among COUNT buffers, in the order in which these are filled. With TURNS = 2 each consumer has a ring of half
/// of the operands, and turn() goes to the other consumer's ring, after each block.
template <int COUNT, int COUNT_OF_RINGS>
struct Rings {
  Ring<COUNT / COUNT_OF_RINGS> ring, other;
  int first = 0;  // buffer of the ring

  DEVICE int number() const { return first + ring.index; }
  DEVICE void turn() {
    if constexpr (COUNT_OF_RINGS == 1) return;
    const Ring<COUNT / COUNT_OF_RINGS> last = ring;
    ring = other;
    other = last;
    first = COUNT / COUNT_OF_RINGS - first;
  }
};

/// Returns the address of a column of a row of panels in threadgroup memory (common/kernel/wgmma.h).
DEVICE unsigned short* element_at(unsigned char* panels, int panel_bytes, int row, int column) {
  const int chunk = column % PANEL_COLUMNS / 8 ^ row % 8;
  return reinterpret_cast<unsigned short*>(panels + column / PANEL_COLUMNS * panel_bytes + row * PANEL_ROW_BYTES +
                                           chunk * 16) +
         column % 8;
}

// Numbers of named barriers: of all consumers, of consumer 0 and 1, and of consumers and producers.
constexpr int all_consumers = 1, first_consumer = 2, queries_asked = 4;

}  // namespace
