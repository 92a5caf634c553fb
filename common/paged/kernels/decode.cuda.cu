// Attention of a few new queries over a cache, on tensor cores of sm_80 and later: decode.h has the contract.
//
// Teams of warps share a block of keys. A team has all rows of the tile and its own keys, which no other team reads. So
// within a tile a team waits for no other team. Keys go through STAGES buffers of threadgroup memory, by asynchronous
// copies of 16 bytes. A thread looks up the pages of its rows of K and V one block ahead. Copies for the next tile
// begin before the present tile ends. At a tile's end the kernel adds up the teams' sums (flash decoding: Dao et al.
// 2023).
//
// Caches of 8 bits are converted to f16 on their way to the tensor cores. The conversion is exact, and takes fewer
// instructions than a conversion to bf16. With a cache of 8 bits the kernel also converts Q of bf16 to f16, and divides
// each row by a power of 2, so that the row's elements fit f16. The kernel multiplies a key's scores by the scale of
// the key's page in K, and the key's weights by the scale of this page in V.
//
// With APPENDS the kernel copies new keys and values from their own tensors to the same buffers. In these buffers each
// team rotates its new keys. All threads rotate the tile's queries. The workers of the first tile of a key/value head
// write the head's new keys and values to the cache; no thread reads them from the cache before the launch ends.
//
// The files of decode/, by role. schedule.h: the line of blocks, and what a worker takes of it. The parts of a worker
// are a chain of structs: Team (team.h: a thread's registers), Appends (new_tokens.h), Producer (producer.h: copies),
// Products (products.h), Softmax (softmax.h), Epilogue (epilogue.h) and Worker (below). join.h joins the parts of
// tiles, exact.h computes rows anew. setup.h has what all of them share.
//
// Hooks: score (by element), keys, sink. The keys that a row sees may depend on the row's sequence and query, but not
// on the row's head.
//
// Function constants: HEAD_DIM (multiple of 8, or of 16 with a cache of 8 bits; at most 256), ROWS (8, 16, 32, 64),
// BLOCK_C (multiple of 16 times the number of teams), PAGE_SIZE (0: contiguous), CAUSAL, IN_TYPE, CACHE_TYPE (Q's type,
// or E4M3 or INT8 if Q has 16 bits), OUT_TYPE, STAGES (at least 2), JOIN_LAST, THREADGROUPS (threadgroups that fit on a
// multiprocessor), APPENDS (1 only for a cache of Q's type). With APPENDS: ROTARY_DIM (even, at most HEAD_DIM; 0:
// nothing is rotated), INTERLEAVED (1: pair i is elements 2i and 2i + 1; 0: elements i and i + ROTARY_DIM / 2). Grid:
// workers; 128 threads; DecodeLayout's threadgroup memory. Without JOIN_LAST a second launch, `decode_join`, has a
// threadgroup for each tile of the line.
//
// Checked: decode[APPENDS=0,BLOCK_C=64,CACHE_TYPE=2,CAUSAL=1,HEAD_DIM=128,IN_TYPE=2,INTERLEAVED=0,JOIN_LAST=1,OUT_TYPE=2,PAGE_SIZE=16,ROTARY_DIM=0,ROWS=8,STAGES=3,THREADGROUPS=2] without spills
// Checked: decode[APPENDS=1,BLOCK_C=64,CACHE_TYPE=2,CAUSAL=1,HEAD_DIM=128,IN_TYPE=2,INTERLEAVED=0,JOIN_LAST=1,OUT_TYPE=2,PAGE_SIZE=16,ROTARY_DIM=128,ROWS=8,STAGES=3,THREADGROUPS=2] without spills
// Checked: decode[APPENDS=0,BLOCK_C=64,CACHE_TYPE=3,CAUSAL=1,HEAD_DIM=128,IN_TYPE=2,INTERLEAVED=0,JOIN_LAST=1,OUT_TYPE=2,PAGE_SIZE=16,ROTARY_DIM=0,ROWS=8,STAGES=3,THREADGROUPS=3] without spills
// Checked: decode[APPENDS=0,BLOCK_C=64,CACHE_TYPE=3,CAUSAL=1,HEAD_DIM=128,IN_TYPE=2,INTERLEAVED=0,JOIN_LAST=1,OUT_TYPE=2,PAGE_SIZE=1,ROTARY_DIM=0,ROWS=16,STAGES=3,THREADGROUPS=2] without spills
// Checked: decode[APPENDS=0,BLOCK_C=64,CACHE_TYPE=0,CAUSAL=0,HEAD_DIM=64,IN_TYPE=0,INTERLEAVED=0,JOIN_LAST=0,OUT_TYPE=0,PAGE_SIZE=0,ROTARY_DIM=0,ROWS=32,STAGES=2,THREADGROUPS=2] without spills
// Checked: decode_join[APPENDS=0,BLOCK_C=64,CACHE_TYPE=2,CAUSAL=1,HEAD_DIM=128,IN_TYPE=2,INTERLEAVED=0,JOIN_LAST=0,OUT_TYPE=2,PAGE_SIZE=16,ROTARY_DIM=0,ROWS=8,STAGES=3,THREADGROUPS=2] without spills
#include "common/paged/kernels/decode/epilogue.h"

namespace {

struct Worker : Epilogue {
  using Epilogue::Epilogue;

  DEVICE void run() {
    const Line::Share share = line.share_of(0);
    const long long blocks_of_line = line.length(share);
    const long long from = first_block_of(blockIdx.x, p.workers, blocks_of_line);
    const long long count = first_block_of(blockIdx.x + 1, p.workers, blocks_of_line) - from;
    if (count == 0) return;
    if (threadIdx.x == 0) {
      some_kept = some_lost = false;
      shared_count = 0;
    }
    if constexpr (PAGE_SIZE > 0) __syncthreads();
    Place here = line.find(share, from);
    ahead = here;
    blocks_left = count;
    find_pages();
    UNROLL for (int i = 0; i < STAGES - 1; ++i) copy_next(i, i == 0);
    int number = 0, q_of = 0;
    bool from_first_block = false;
#pragma unroll 1
    for (long long done = 0; done < count; ++done) {
      const bool begins = done == 0 || here.block == 0;
      wait_copies<STAGES - 2>();
      if (begins) {
        __syncthreads();
        from_first_block = here.block == 0;
        if constexpr (APPENDS && ROTARY_DIM > 0) {
          turn_queries(here, q_slot(q_of));
          __syncthreads();
        }
        if constexpr (SCALES_Q) {
          scale_queries(q_slot(q_of));
          __syncthreads();
        }
        begin_tile(here, q_slot(q_of));
      } else {
        sync_team();
      }
      copy_next(number == 0 ? STAGES - 1 : number - 1, false);
      const int first_key = first_key_of(here);
      if constexpr (APPENDS) take_new(here, number, first_key);
      multiply_scores(number, q_slot(q_of));
      const bool masked = first_key + TEAM_KEYS > min(end[0], end[HALVES - 1]) ||
                          (!KEYS_BEGIN_AT_ZERO && first_key < max(begin[0], begin[HALVES - 1]));
      finish_scores(here, number, first_key, masked);
      softmax(number);
      multiply_outputs(number);
      if (done + 1 == count || here.block + 1 == here.blocks) {
        merge(number);
        leave_tile(here, from_first_block, blocks_of_line);
        q_of = q_of + 1 < STAGES ? q_of + 1 : 0;
      }
      line.advance(here);
      number = number + 1 < STAGES ? number + 1 : 0;
    }
    __syncthreads();
    if constexpr (JOIN_LAST) join_shared_tiles<Helpers>(p, line);
    if (some_kept) write_kept_tiles(from, count);
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, THREADGROUPS) decode(const __grid_constant__ Params p) {
  Worker(p).run();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) decode_join(const __grid_constant__ Params p) {
  const Line line{p};
  const Line::Share share = line.share_of(0);
  const long long blocks_of_line = line.length(share);
  Place place = line.find(share, 0, blockIdx.x / (line.tiles * p.kv_heads));
  place.tile = blockIdx.x % line.tiles;
  place.kv_head = blockIdx.x / line.tiles % p.kv_heads;
  place.index += static_cast<long long>(place.kv_head * line.tiles + place.tile) * place.blocks;
  const Parts parts = parts_of(p, place, blocks_of_line);
  if (parts.count() == 1) return;
  Items items(p, place, parts);
  items.spread_over(Helpers::WARPS);
  for (int item = Helpers::warp(); item < items.count; item += Helpers::WARPS) join_item(p, line, place, items, item);
}
