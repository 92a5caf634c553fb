// Attention of a few new queries over a cache of 16 or 8 bits, on Hopper's tensor cores: decode.h has the contract.
//
// A worker is a threadgroup with one producer warpgroup and CONSUMERS = ROWS / 64 * TURNS consumer warpgroups. Each
// consumer computes 64 rows of a tile. All consumers read the same blocks of K and V, so a key is read once whatever
// the number of rows. The producer issues tensor copies (TMA); blocks of K and V pass through a ring of SLOTS buffers,
// K and V in turn. A consumer issues Q K^T of a block and then P V of the block before it, and does the softmax of the
// block while P V runs (FlashAttention-3). With a cache of 8 bits, one more warpgroup, the converter, converts the
// copied blocks to the operands of the products (bytes.h).
//
// With TURNS = 2 two consumers have the same 64 rows, and take the worker's blocks in turn. So one multiplies while the
// other does the softmax. Each has half of the buffers. At a tile's end one adds the other's results to its own
// (turns.h).
//
// Workers that share a tile leave parts (decode.h). If they are two, the last to arrive adds the other's part to its
// own results. If they are more, then each, when it is done with its share of the line, joins rows of the tiles that it
// shares by its warps (decode/join.h), together with the warps of the other workers.
//
// Hooks: score (by element), keys, sink. The keys that a row sees may depend on the row's sequence and query, but not
// on the row's head.
//
// Function constants: HEAD_DIM (multiple of 8, at most 256), ROWS (64, 128), BLOCK_C (multiple of 16), PAGE_SIZE (0:
// contiguous; else a power of 2, at least 8), CAUSAL, IN_TYPE (F16, BF16), CACHE_TYPE (the same, or E4M3, INT8),
// OUT_TYPE, SLOTS (at least 3 * TURNS), TURNS (1; 2 only with ROWS = 64), JOIN_LAST (1), APPENDS (0 with a cache of 8
// bits), ROTARY_DIM, INTERLEAVED (decode.cuda.cu). Grid: workers; THREADS threads; DecodeWgmmaLayout's threadgroup
// memory.
//
// Checked: decode[APPENDS=0,BLOCK_C=64,CACHE_TYPE=2,CAUSAL=1,HEAD_DIM=128,IN_TYPE=2,INTERLEAVED=0,JOIN_LAST=1,OUT_TYPE=2,PAGE_SIZE=16,ROTARY_DIM=0,ROWS=64,SLOTS=12,TURNS=2,assembler=-O1] without spills
// Checked: decode[APPENDS=0,BLOCK_C=64,CACHE_TYPE=2,CAUSAL=1,HEAD_DIM=256,IN_TYPE=2,INTERLEAVED=0,JOIN_LAST=1,OUT_TYPE=2,PAGE_SIZE=0,ROTARY_DIM=0,ROWS=128,SLOTS=5,TURNS=1,assembler=-O1] without spills
// Checked: decode[APPENDS=0,BLOCK_C=64,CACHE_TYPE=3,CAUSAL=1,HEAD_DIM=128,IN_TYPE=2,INTERLEAVED=0,JOIN_LAST=1,OUT_TYPE=2,PAGE_SIZE=16,ROTARY_DIM=0,ROWS=128,SLOTS=15,TURNS=1,assembler=-O1] without spills
// Checked: decode[APPENDS=0,BLOCK_C=64,CACHE_TYPE=3,CAUSAL=1,HEAD_DIM=128,IN_TYPE=2,INTERLEAVED=0,JOIN_LAST=1,OUT_TYPE=2,PAGE_SIZE=16,ROTARY_DIM=0,ROWS=64,SLOTS=10,TURNS=2,assembler=-O1] without spills
#include "common/paged/kernels/decode_wgmma/consumer.h"
#include "common/paged/kernels/decode_wgmma/producer.h"

extern "C" __global__ void __launch_bounds__(THREADS, 1) decode(const __grid_constant__ DecodeWgmmaParams p) {
  declare_results<BLOCK_C / 2, DIM / 2>();
  Barriers& bars = barriers();
  if (threadIdx.x == 0) {
    for (int i = 0; i < OPERAND_SLOTS; ++i) {
      bars.full[i].init(BYTES ? CONVERTERS : 1);
      bars.empty[i].init(CONSUMERS / TURNS);
    }
    for (int i = 0; BYTES && i < SLOTS; ++i) {
      bars.copied[i].init(1);
      bars.taken[i].init(CONVERTERS);
    }
    some_kept = some_lost = kept_sums[0] = kept_sums[1] = false;
    shared_count = 0;
    fence_barrier_init();
  }
  __syncthreads();
  const Line line{p.decode};
  const Line::Share share = line.share_of(0);
  const long long blocks_of_line = line.length(share);
  const long long from = first_block_of(blockIdx.x, p.decode.workers, blocks_of_line);
  const long long count = first_block_of(blockIdx.x + 1, p.decode.workers, blocks_of_line) - from;
  if (count == 0) return;
  const Place place = line.find(share, from);
  const int warpgroup = threadIdx.x / WARPGROUP;
  if (warpgroup == 0) {
    if constexpr (WARPGROUPS > 2) give_registers<BYTES ? 56 : 40>();
    if (threadIdx.x / WARP >= PRODUCERS) return;
    Producer(p).run(place, count);
  } else if (BYTES && warpgroup > CONSUMERS) {
    give_registers<56>();
    Converter().run(count);
  } else {
    if constexpr (WARPGROUPS > 2) take_registers<BYTES && CONSUMERS == 2 ? 200 : 232>();
    Consumer consumer(p.decode, uniform(warpgroup - 1), blocks_of_line);
    consumer.run(place, count);
    consumer.finish_share(place, count);
  }
}
