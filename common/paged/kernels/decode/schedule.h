// The schedule of `decode`: the line of blocks that the workers share, and where a worker, a tile and a row lie on it.
#pragma once

#include "common/paged/kernels/decode/basics.h"

namespace {

/// A block of the line. A sequence without visible keys has one block without visible keys, so that a worker writes
/// zeros to its rows.
struct Place {
  int batch, kv_head, tile;
  int block, blocks;  // block: counted from first_block; blocks: how many blocks the tile has
  int first_block;    // the sequence's first block with a visible key or, with APPENDS, with a new token
  int keys;           // of the sequence; -1: its length is not allowed, and its rows are NaN
  long long index;    // on the line
};

struct Line {
  const DecodeParams& p;
  const int tiles = (p.q_heads / p.kv_heads * p.q_len + ROWS - 1) / ROWS;

  DEVICE ScoreContext context_of(int batch, int head, int keys) const {
    return {batch, head, p.q_heads, p.q_len, keys, p.score_data};
  }

  // Sets first_block, blocks and keys of a sequence.
  DEVICE void measure(Place& place) const {
    place.keys = p.lengths[place.batch];
    if (static_cast<unsigned>(place.keys) > static_cast<unsigned>(p.most_keys)) place.keys = -1;
    const ScoreContext context = context_of(place.batch, 0, place.keys);
    const int end = min(place.keys, visible_keys(p.q_len - 1, context).end);
    int first_key = max(0, min(visible_keys(0, context).begin, end));
    // New tokens before the first visible key have blocks too, so that a worker writes them to the cache.
    if (APPENDS) first_key = min(first_key, max(place.keys - p.q_len, 0));
    place.first_block = KEYS_BEGIN_AT_ZERO ? 0 : first_key / BLOCK_C;
    place.blocks = max((end + BLOCK_C - 1) / BLOCK_C - place.first_block, 1);
  }

  // The sequence of a lane. The lanes of a warp have 32 successive sequences.
  struct Share {
    Place place;
    long long blocks;  // of the sequence, on the line
    long long up_to;   // the sum of the blocks of this lane and of the lanes before it
  };
  DEVICE Share share_of(int first_batch) const {
    Share share{};
    const int lane = threadIdx.x % WARP;
    share.place.batch = first_batch + lane;
    if (share.place.batch < p.batch) {
      measure(share.place);
      share.blocks = static_cast<long long>(share.place.blocks) * p.kv_heads * tiles;
    }
    share.up_to = share.blocks;
    UNROLL for (int step = 1; step < WARP; step *= 2) {
      const long long other = __shfl_up_sync(~0u, share.up_to, step);
      if (lane >= step) share.up_to += other;
    }
    return share;
  }

  // Returns the number of blocks of the line. All warps compute the same result, here and in find().
  DEVICE long long length(const Share& first_share) const {
    long long sum = __shfl_sync(~0u, first_share.up_to, WARP - 1);
    for (int first = WARP; first < p.batch; first += WARP) {
      sum += __shfl_sync(~0u, share_of(first).up_to, WARP - 1);
    }
    return sum;
  }

  // Returns block `index` of the line. If `of_batch` is not negative, returns the first block of sequence `of_batch`
  // instead.
  DEVICE Place find(const Share& first_share, long long index, int of_batch = -1) const {
    Share share = first_share;
    long long before = 0;
    for (int first = 0;; first += WARP) {
      if (first > 0) share = share_of(first);
      const bool here = of_batch >= 0 ? share.place.batch == of_batch : index < before + share.up_to;
      const unsigned lanes = __ballot_sync(~0u, here);
      if (lanes != 0) {
        const int lane = __ffs(lanes) - 1;
        const long long start = before + __shfl_sync(~0u, share.up_to - share.blocks, lane);
        Place found{};
        found.batch = first + lane;
        found.blocks = __shfl_sync(~0u, share.place.blocks, lane);
        found.first_block = __shfl_sync(~0u, share.place.first_block, lane);
        found.keys = __shfl_sync(~0u, share.place.keys, lane);
        found.index = of_batch >= 0 ? start : index;
        const auto rest = static_cast<unsigned>(found.index - start);
        found.block = rest % found.blocks;
        found.tile = rest / found.blocks % tiles;
        found.kv_head = rest / found.blocks / tiles;
        return found;
      }
      before += __shfl_sync(~0u, share.up_to, WARP - 1);
    }
  }

  // Returns the place of a tile's counter of a kind in DecodeParams::arrived.
  DEVICE long long counter_of(const Place& place, int kind) const {
    return ((static_cast<long long>(kind) * p.batch + place.batch) * p.kv_heads + place.kv_head) * tiles + place.tile;
  }

  DEVICE void advance(Place& place) const {
    ++place.index;
    if (++place.block < place.blocks) return;
    place.block = 0;
    if (++place.tile < tiles) return;
    place.tile = 0;
    if (++place.kv_head < p.kv_heads) return;
    place.kv_head = 0;
    if (++place.batch < p.batch) measure(place);
  }
};

/// A row of the tile, as a row of Q and O.
struct Row {
  int head, query;
  bool exists;
};
DEVICE Row row_of(const DecodeParams& p, const Place& place, int row) {
  const int group = p.q_heads / p.kv_heads, number = place.tile * ROWS + row;
  const bool exists = number < group * p.q_len;
  return {place.kv_head * group + (exists ? number / p.q_len : 0), exists ? number % p.q_len : p.q_len - 1, exists};
}

/// Parts of a tile that several workers share: the parts of workers `first` to `last`.
struct Parts {
  int first, last;
  DEVICE int count() const { return last - first + 1; }
};
DEVICE Parts parts_of(const DecodeParams& p, const Place& place, long long blocks_of_line) {
  const long long start = place.index - place.block;
  return {worker_of(start, p.workers, blocks_of_line), worker_of(start + place.blocks - 1, p.workers, blocks_of_line)};
}
// Returns the number of the worker's second part if the worker has the first block of the tile, else the number of the
// worker's first part.
DEVICE long long part_number(int worker, bool from_first_block) { return 2LL * worker + from_first_block; }

}  // namespace
