// Variant `wgmma`: flash attention forward on Hopper's tensor cores, for 16-bit Q, K and V.
//
// A threadgroup has one producer warpgroup and CONSUMERS = BLOCK_R / 64 consumer warpgroups. The grid is persistent:
// each multiprocessor runs up to THREADGROUPS threadgroups (1 or 2) until no tile is left. A tile is BLOCK_R query rows
// of one head. One thread of the producer issues the tensor copies. (If K and V lie on pages shorter than a block, each
// page is copied by a lane of its own, of three warps.) Another thread of the producer hands out tiles. Each consumer
// computes 64 rows of a tile. K and V pass through STAGES buffers of BLOCK_C keys each; the buffers of K and the
// buffers of V have barriers of their own. A consumer issues Q K^T of a block and then P V of the previous block, and
// does the softmax of the block while P V runs (Shah et al. 2024, FlashAttention-3, algorithm 2). With PING_PONG
// consumers take turns: one multiplies while another does the softmax (section 3.1 of the paper). A tile walks its
// blocks from the last key to the first. With a causal mask, the blocks that need the mask thus come first.
//
// The host makes a list of the tiles. Threadgroup i begins with tile i. The other tiles are handed out in the order of
// the list, by an atomic counter.
//
// The kernel takes hooks for scores (by element or by tile), keys, masks, pages, sinks, the rotation of queries, and
// work before the attention (score.h, keys.h, mask.h, pages.h, sink.h, rotate.h, before.h). A score hook by element
// gets q and k as Place, so that a hook that takes them as floats costs no conversions. With LINEAR
// (below) the matrix product itself adds the term of the score hook.
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
//   pages hook: find_box() of b - 1
//   wait k_empty[i] <-------------------------.
//   arrive k_full[i]                          |
//   copy K of b -> k_full[i] -----------------|--> [not end] wait k_full[i]
//                                             |    [not end] PING_PONG: wait for named barrier 1 + c, its own turn
//   [first] for each consumer c:              |    issue S = Q K^T of b; [end] only the first 16 columns of Q and K
//     wait q_empty[c] <--------------------.  |    [not end] SCORE_AHEAD: read_ahead()
//     arrive q_full[c]                     |  |
//     copy Q of c -> q_full[c] ------------|--|--> before [first]: wait q_full[c], in run()
//                                          |  |
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
// The files of wgmma/, by role: schedule.h hands out tiles, producer.h copies. A consumer is a chain of structs:
// Warpgroup (warpgroup.h: a thread's registers), Products (products.h), Softmax (softmax.h), Epilogue (epilogue.h) and
// Consumer (consumer.h), which has the main loop. setup.h has what all of them share.
//
// Constants that switch code are function constants, symbols that hooks define (see the hooks' headers), and constants
// that setup.h derives from both. What some of them change in several files at once:
//
//   CAUSAL                counts only with the default keys hook; other hooks read it themselves
//   KEYS_ARE_DEFAULT 0    the scheduler, not the host, counts a tile's blocks
//   KEYS_BEGIN_AT_ZERO 0  a tile's walk ends at first_block; a consumer masks keys before its rows' ranges, and hands
//                         back the blocks after its own walk
//   KEYS_END_EARLY 1      a sequence ends before kv_len: V is cleared from there on. A negative end, or a page that
//                         does not exist, makes rows NaN
//   MASK_IS_NONE 0        the mask hook's answers include the ranges of the keys hook
//   MASK_LISTS 1          all consumers walk all blocks of the tile's list
//   LINEAR 1              a product of 16 more columns adds the slope times the number of the key in its block, and
//                         `offset` has the rest of the term; FOLD is then 1, as without a hook
//   FOLD 1                scores stay unscaled, and are masked in their PTX registers
//
// Checked: flash_forward[BLOCK_C=64,BLOCK_R=256,CAUSAL=1,FOLD_SCALE=1,HEAD_DIM=64,IN_TYPE=2,OUT_PANELS=1,OUT_TYPE=2,PING_PONG=1,STAGES=3,assembler=-O1] without spills
// Checked: flash_forward[BLOCK_C=80,BLOCK_R=192,CAUSAL=1,FOLD_SCALE=1,HEAD_DIM=128,IN_TYPE=2,OUT_PANELS=2,OUT_TYPE=2,PING_PONG=0,STAGES=3,assembler=-O1] without spills
// Checked: flash_forward[BLOCK_C=64,BLOCK_R=128,CAUSAL=1,FOLD_SCALE=1,HEAD_DIM=256,IN_TYPE=2,OUT_PANELS=2,OUT_TYPE=2,PING_PONG=0,STAGES=2,assembler=-O1] without spills
// Checked: flash_forward[BLOCK_C=64,BLOCK_R=128,CAUSAL=1,FOLD_SCALE=0,HEAD_DIM=256,IN_TYPE=1,OUT_PANELS=0,OUT_TYPE=0,PING_PONG=0,STAGES=2,assembler=-O1]
#include "common/attention/kernels/before.h"
#include "common/attention/kernels/wgmma/consumer.h"
#include "common/attention/kernels/wgmma/producer.h"
#include "common/attention/kernels/wgmma/schedule.h"

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
    } else if (const int warp = uniform<int>(threadIdx.x / 32); warp != 1) {
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
