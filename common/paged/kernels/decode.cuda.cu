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
// Hooks: score (by element), keys, sink. The keys that a row sees may depend on the row's sequence and query, but not
// on the row's head.
//
// Function constants: HEAD_DIM (multiple of 8, or of 16 with a cache of 8 bits; at most 256), ROWS (8, 16, 32, 64),
// BLOCK_C (multiple of 16 times the number of teams), PAGE_SIZE (0: contiguous), CAUSAL, IN_TYPE, CACHE_TYPE (Q's type,
// or E4M3 or INT8 if Q has 16 bits), OUT_TYPE, STAGES (at least 2), JOIN_LAST, THREADGROUPS (threadgroups that fit on a
// multiprocessor), APPENDS (1 only for a cache of Q's type). With APPENDS: ROTARY_DIM (even, at most HEAD_DIM; 0:
// nothing is rotated), INTERLEAVED (1: pair i is elements 2i and 2i + 1; 0: elements i and i + ROTARY_DIM / 2). Grid:
// workers; 128 threads; DecodeLayout's threadgroup memory. Without JOIN_LAST a second launch, `decode_join`, has a
// threadgroup for each tile of the line, and layout.join_bytes of threadgroup memory.
//
// Checked: decode[APPENDS=0,BLOCK_C=64,CACHE_TYPE=2,CAUSAL=1,HEAD_DIM=128,IN_TYPE=2,INTERLEAVED=0,JOIN_LAST=1,OUT_TYPE=2,PAGE_SIZE=16,ROTARY_DIM=0,ROWS=8,STAGES=3,THREADGROUPS=2] without spills
// Checked: decode[APPENDS=1,BLOCK_C=64,CACHE_TYPE=2,CAUSAL=1,HEAD_DIM=128,IN_TYPE=2,INTERLEAVED=0,JOIN_LAST=1,OUT_TYPE=2,PAGE_SIZE=16,ROTARY_DIM=128,ROWS=8,STAGES=3,THREADGROUPS=2] without spills
// Checked: decode[APPENDS=0,BLOCK_C=64,CACHE_TYPE=3,CAUSAL=1,HEAD_DIM=128,IN_TYPE=2,INTERLEAVED=0,JOIN_LAST=1,OUT_TYPE=2,PAGE_SIZE=16,ROTARY_DIM=0,ROWS=8,STAGES=3,THREADGROUPS=3] without spills
// Checked: decode[APPENDS=0,BLOCK_C=64,CACHE_TYPE=3,CAUSAL=1,HEAD_DIM=128,IN_TYPE=2,INTERLEAVED=0,JOIN_LAST=1,OUT_TYPE=2,PAGE_SIZE=1,ROTARY_DIM=0,ROWS=16,STAGES=3,THREADGROUPS=2] without spills
// Checked: decode[APPENDS=0,BLOCK_C=64,CACHE_TYPE=0,CAUSAL=0,HEAD_DIM=64,IN_TYPE=0,INTERLEAVED=0,JOIN_LAST=0,OUT_TYPE=0,PAGE_SIZE=0,ROTARY_DIM=0,ROWS=32,STAGES=2,THREADGROUPS=2] without spills
// Checked: decode_join[APPENDS=0,BLOCK_C=64,CACHE_TYPE=2,CAUSAL=1,HEAD_DIM=128,IN_TYPE=2,INTERLEAVED=0,JOIN_LAST=0,OUT_TYPE=2,PAGE_SIZE=16,ROTARY_DIM=0,ROWS=8,STAGES=3,THREADGROUPS=2] without spills
#include "common/attention/kernels/exact_row.h"
#include "common/attention/kernels/keys.h"
#include "common/attention/kernels/score.h"
#include "common/attention/kernels/sink.h"
#include "common/kernel/ampere.h"
#include "common/kernel/base2.h"
#include "common/kernel/bytes.h"
#include "common/kernel/cuda.h"
#include "common/paged/kernels/decode.h"

namespace {

constexpr int THREADS = 128;
constexpr int HALVES = ROWS == 8 ? 1 : 2;  // how many halves of a product's 16 rows are rows of the tile
constexpr int ROW_WARPS = (ROWS + 15) / 16, KEY_WARPS = THREADS / WARP / ROW_WARPS;
constexpr int TEAM_THREADS = ROW_WARPS * WARP, TEAM_KEYS = BLOCK_C / KEY_WARPS;
constexpr int Q_BYTES = IN_TYPE == F32 ? 4 : 2, KV_BYTES = bytes_of_type(CACHE_TYPE);
constexpr DecodeLayout layout(HEAD_DIM, ROWS, BLOCK_C, STAGES, Q_BYTES, KV_BYTES);
constexpr int DIM = layout.dim;  // columns beyond head_dim are zero
constexpr int STEPS = DIM * KV_BYTES / 32;
constexpr int OPERAND_TYPE = KV_BYTES == 1 ? F16 : IN_TYPE;  // type of the products' operands
constexpr bool SCALES_Q = KV_BYTES == 1 && IN_TYPE == BF16;
constexpr bool FOLD = SCORE_IS_IDENTITY;  // scores and shifts are in base 2
using Params = DecodeParamsOf<APPENDS>::type;
static_assert(!APPENDS || (CACHE_TYPE == IN_TYPE && ROTARY_DIM % 2 == 0 && ROTARY_DIM <= HEAD_DIM));
static_assert(TEAM_KEYS % 16 == 0 && (KV_BYTES == 1 || CACHE_TYPE == IN_TYPE) && (KV_BYTES > 1 || IN_TYPE != F32));

extern __shared__ __align__(16) unsigned char memory[];
// If a result of a tile is not finite, the worker marks the tile (keep_for_later()). After its last block the worker
// computes the rows of marked tiles anew. A marked tile is a kept tile. some_lost: the table has named a page that the
// cache does not have; from then on this worker's sums are NaN. some_kept: this worker has marked a tile.
__shared__ bool some_lost;
__shared__ bool some_kept;
constexpr unsigned kept = 0x80000000;  // value of the counter `arrived` of a kept tile

/// Returns 2^difference, or without FOLD e^difference, for a difference of two scores or shifts. A row's shift is the
/// number that the softmax subtracts from the row's scores.
DEVICE float power(float difference) { return exp2_approx(FOLD ? difference : difference * log2_e); }

// ---- the line

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

// ---- pages

/// Returns the page that the table names for a key. It is possible that the cache does not have this page.
DEVICE int named_page(const KvCacheView& cache, int batch, int key) {
  if constexpr (PAGE_SIZE == 0) {
    return batch;
  } else {
    return __ldg(cache.table + static_cast<long long>(batch) * cache.max_pages + key / PAGE_SIZE);
  }
}
DEVICE bool is_page(const KvCacheView& cache, int page) {
  return PAGE_SIZE == 0 || static_cast<unsigned>(page) < static_cast<unsigned>(cache.pages);
}
DEVICE int slot_of(int key) { return PAGE_SIZE == 0 ? key : key % (PAGE_SIZE == 0 ? 1 : PAGE_SIZE); }

// ---- outputs

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

/// Returns the factor by which a row's sum of weighted V is multiplied once all keys are added up. If `writes`, writes
/// the row's log-sum-exp to memory.
DEVICE float finish_row(const DecodeParams& p, const Line& line, const Place& place, const Row& row, float shift,
                        float sum, bool writes) {
  float factor = 1;
  if constexpr (!SINK_IS_NONE) {
    const float sink = (FOLD ? log2_e : 1) * sink_logit(line.context_of(place.batch, row.head, place.keys));
    const float larger = fmaxf(shift, sink);
    factor = power(shift - larger);
    sum = sum * factor + power(sink - larger);
    shift = larger;
  }
  if (place.keys < 0) sum = not_a_number();
  // If scale * log2(e) is above 1, a finite product of Q and K may become -infinity when it is multiplied by this
  // number. So if all weights are 0, a sum of NaN makes the caller compute the row anew.
  if (FOLD && sum == 0 && p.scale > ln_2) sum = not_a_number();
  if (writes && p.lse != nullptr) {
    const long long at = (static_cast<long long>(place.batch) * p.q_heads + row.head) * p.q_len + row.query;
    p.lse[at] = sum == 0 ? -infinity() : (FOLD ? shift * ln_2 : shift) + __logf(sum);
  }
  return sum == 0 ? 0 : factor / sum;
}

DEVICE long long output_at(const DecodeParams& p, const Place& place, const Row& row) {
  return place.batch * p.o_strides.batch + row.head * p.o_strides.head + row.query * p.o_strides.row;
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

/// Some parts of a row, joined: four columns of the sum of weighted V, the sum of the weights, and the shift of both
/// sums.
struct Joined {
  float shift = lowest_score, sum = 0, o[4] = {};

  DEVICE void add(float its_shift, float its_sum, const float4& its_o) {
    const float larger = fmaxf(shift, its_shift);
    const float old = power(shift - larger), added = power(its_shift - larger);
    shift = larger;
    sum = sum * old + its_sum * added;
    o[0] = o[0] * old + its_o.x * added;
    o[1] = o[1] * old + its_o.y * added;
    o[2] = o[2] * old + its_o.z * added;
    o[3] = o[3] * old + its_o.w * added;
  }
};

/// A row for write_exact_row(). New keys come from their own tensors, because other threadgroups may write them to the
/// cache at the same time.
struct DecodeRow {
  const Params& p;
  const ScoreContext context;
  const int query, kv_head;
  const KeyRange keys;

  DEVICE DecodeRow(const Params& params, int batch, int head, int number, int length)
      : p(params),
        context{batch, head, p.q_heads, p.q_len, length, p.score_data},
        query(number),
        kv_head(head / (p.q_heads / p.kv_heads)),
        keys(clipped(visible_keys(query, context))) {}

  DEVICE KeyRange clipped(const KeyRange& range) const { return {max(range.begin, 0), min(range.end, context.kv_len)}; }

  // Returns an element of a row, rotated by the angles of the row's position.
  template <typename Load>
  DEVICE float turned(Load load, int position, int d) const {
    const float x = load(d);
    if constexpr (APPENDS && ROTARY_DIM > 0) {
      constexpr int pairs = ROTARY_DIM / 2;
      if (d >= ROTARY_DIM || position < 0) return x;
      const bool second = INTERLEAVED ? d % 2 != 0 : d >= pairs;
      const long long at = static_cast<long long>(position) * pairs + (INTERLEAVED ? d / 2 : second ? d - pairs : d);
      const float y = load(INTERLEAVED ? d ^ 1 : second ? d - pairs : d + pairs);
      const float sine = second ? tokens_of(p).sines[at] : -tokens_of(p).sines[at];
      float place;  // memory for an element of IN_TYPE
      store_float<IN_TYPE>(&place, 0, x * tokens_of(p).cosines[at] + y * sine);
      return load_float<IN_TYPE>(&place, 0);
    }
    return x;
  }

  // Returns an element of K or V; NaN if the cache does not have the key's page.
  DEVICE float element(bool v, int key, int d) const {
    const int token = key - (context.kv_len - p.q_len);
    if (APPENDS && token >= 0) {
      const NewTokens& tokens = tokens_of(p);
      const void* const from = v ? tokens.v : tokens.k;
      const long long at = index_of(v ? tokens.v_strides : tokens.k_strides, {context.batch, kv_head, token});
      const auto load = [&](int column) { return load_float<IN_TYPE>(from, at + column); };
      return v ? load(d) : turned(load, key, d);
    }
    const KvCacheView& cache = p.cache;
    const int page = named_page(cache, context.batch, key);
    if (!is_page(cache, page)) return not_a_number();
    const long long at = index_of(v ? cache.v_strides : cache.k_strides, {page, kv_head, slot_of(key)}) + d;
    const void* const from = v ? cache.v : cache.k;
    if constexpr (KV_BYTES > 1) {
      return load_float<IN_TYPE>(from, at);
    } else {
      const unsigned pair = pair_of_four<CACHE_TYPE, 0, 1>(static_cast<const unsigned char*>(from)[at]);
      const float* const scales = v ? cache.v_scales : cache.k_scales;
      return load_float<F16>(&pair, 0) * scales[static_cast<long long>(page) * p.kv_heads + kv_head];
    }
  }

  DEVICE float score_of(int key) const {
    const long long q = index_of(p.q_strides, {context.batch, context.head, query});
    const auto load_q = [&](int d) { return load_float<IN_TYPE>(p.q, q + d); };
    float dot = 0;
#pragma unroll 1  // compiles faster
    for (int d = 0; d < HEAD_DIM; ++d)
      dot += turned(load_q, context.kv_len - p.q_len + query, d) * element(false, key, d);
    return score(__fmul_rn(dot, p.scale), query, key, context);
  }
  DEVICE float value_of(int key, int d) const { return element(true, key, d); }
  // Returns NaN if the sequence's length is not allowed; a sink of NaN makes the row NaN.
  DEVICE float sink() const {
    if (context.kv_len < 0) return not_a_number();
    return SINK_IS_NONE ? -infinity() : sink_logit(context);
  }
  DEVICE void store(int d, float value) const {
    store_float<OUT_TYPE>(p.o, index_of(p.o_strides, {context.batch, context.head, query}) + d, value);
  }
  DEVICE void store_lse(float lse) const {
    if (p.lse) p.lse[(static_cast<long long>(context.batch) * p.q_heads + context.head) * p.q_len + query] = lse;
  }
};

/// Computes the rows of a tile anew (exact_row.h), by all threads.
DEVICE void write_tile_anew(const Params& p, const Place& place) {
#pragma unroll 1
  for (int number = threadIdx.x / WARP; number < ROWS; number += THREADS / WARP) {
    const Row row = row_of(p, place, number);
    if (row.exists) write_exact_row(DecodeRow(p, place.batch, row.head, row.query, place.keys));
  }
}

/// Joins the parts of a tile, four rows at a time, and writes the tile's rows. All threads call this function. Each
/// slice of HEAD_DIM / 4 threads adds up some of the parts; then the slices' sums are added up through
/// layout.join_bytes of threadgroup memory. Returns whether all results are finite.
DEVICE bool join(const Params& p, const Line& line, const Place& place, const Parts& parts, void* scratch) {
  constexpr int units = HEAD_DIM / 4, slices = THREADS / units, rows_at_once = 4;
  static_assert(sizeof(Joined) * slices * rows_at_once * units <= layout.join_bytes);
  auto* const shared = static_cast<Joined(*)[rows_at_once][units]>(scratch);  // [slices]
  const int rows = min(ROWS, p.q_heads / p.kv_heads * p.q_len - place.tile * ROWS);
  const int slice = threadIdx.x / units, unit = threadIdx.x % units;
  bool exact = true;
  for (int first = 0; first < rows; first += rows_at_once) {
    Joined joined[rows_at_once];
    if (slice < slices) {
#pragma unroll 2
      for (int worker = parts.first + slice; worker <= parts.last; worker += slices) {
        // A thread loads its elements of four rows before it uses the first row. In place of a row beyond the tile's
        // last row, the thread loads the last row.
        float2 stats[rows_at_once];
        float4 part[rows_at_once];
        UNROLL for (int i = 0; i < rows_at_once; ++i) {
          const long long at = part_number(worker, worker == parts.first) * ROWS + min(first + i, rows - 1);
          stats[i] = __ldcg(reinterpret_cast<const float2*>(p.part_stats) + at);
          part[i] = __ldcg(reinterpret_cast<const float4*>(p.part_o + at * HEAD_DIM) + unit);
        }
        UNROLL for (int i = 0; i < rows_at_once; ++i) joined[i].add(stats[i].x, stats[i].y, part[i]);
      }
      UNROLL for (int i = 0; i < rows_at_once; ++i) shared[slice][i][unit] = joined[i];
    }
    __syncthreads();
    float zeros = 0;  // NaN where a result is not finite
    for (int i = slice; i < rows_at_once && slice < slices && first + i < rows; i += slices) {
      Joined all = shared[0][i][unit];
      for (int other = 1; other < slices; ++other) {
        const Joined& its = shared[other][i][unit];
        all.add(its.shift, its.sum, make_float4(its.o[0], its.o[1], its.o[2], its.o[3]));
      }
      const Row row = row_of(p, place, first + i);
      const float factor = finish_row(p, line, place, row, all.shift, all.sum, unit == 0);
      UNROLL for (int column = 0; column < 4; ++column) {
        store_float<OUT_TYPE>(p.o, output_at(p, place, row) + unit * 4 + column, all.o[column] * factor);
        zeros += 0 * (all.o[column] * factor);
      }
    }
    exact = __syncthreads_and(zeros == 0) && exact;
  }
  return exact;
}

// ---- a worker

struct Worker {
  const Params& p;
  const Line line{p};
  const int lane = threadIdx.x % WARP, quarter = lane % 4;
  const int first_row =
      threadIdx.x / WARP % ROW_WARPS * 16;  // of the warp's 16 rows; a thread has parts of two of them, 8 apart
  const int team = threadIdx.x / TEAM_THREADS;
  const float scale_log2 = p.scale * log2_e;

  static constexpr int PRODUCTS = KV_BYTES == 1 ? 2 : 1;  // products for 32 bytes of a row of the cache
  static constexpr bool HOLD_Q = STEPS * PRODUCTS <= 8;   // whether Q stays in registers
  unsigned queries[HOLD_Q ? STEPS : 1][PRODUCTS][4];
  float o[DIM / 8][4];
  float s[TEAM_KEYS / 8][4];  // scores, then weights
  float shift[HALVES], sum[HALVES];
  Row rows[HALVES];
  int begin[HALVES], end[HALVES];  // keys that the rows see
  float q_scale[SCALES_Q ? HALVES : 1];

  DEVICE explicit Worker(const Params& params) : p(params) {}

  DEVICE static unsigned char* q_slot(int slot) { return memory + slot * layout.q_bytes; }
  DEVICE static unsigned char* stage(int number) { return memory + layout.kv + number * layout.stage_bytes; }
  // K or V of this thread's team.
  DEVICE unsigned char* team_rows(int number, bool v) const {
    return stage(number) + (v ? layout.v : 0) + team * TEAM_KEYS * layout.row_bytes;
  }
  DEVICE unsigned rows_of_team(int number, bool v) const { return shared_address(team_rows(number, v)); }
  DEVICE float* scales(int number, bool v) const {
    return reinterpret_cast<float*>(stage(number) + layout.scales) + v * BLOCK_C + team * TEAM_KEYS;
  }
  DEVICE void sync_team() const {
    if constexpr (ROW_WARPS == 1) {
      __syncwarp();
    } else if constexpr (KEY_WARPS == 1) {
      __syncthreads();
    } else {
      asm volatile("barrier.sync %0, %1;" ::"r"(1 + team), "n"(TEAM_THREADS) : "memory");
    }
  }

  // ---- copies: a thread copies its units (16 bytes) of a block, and finds the pages of its units of the next block

  static constexpr int ROW_UNITS = DIM * KV_BYTES / 16, UNITS_THERE = HEAD_DIM * KV_BYTES / 16;  // of 16 bytes
  static constexpr int UNITS = TEAM_KEYS * ROW_UNITS;
  static constexpr int COPIES = (UNITS + TEAM_THREADS - 1) / TEAM_THREADS;
  static constexpr bool ONE_PAGE = PAGE_SIZE == 0 || PAGE_SIZE % TEAM_KEYS == 0;  // one page has all keys of the team
  int pages[ONE_PAGE ? 1 : COPIES];
  Place ahead;  // the next block to copy
  long long blocks_left;
  int slot = 0;  // q_slot(slot) is for the rows of Q of the tile of `ahead`

  DEVICE int unit_of(int copy) const { return threadIdx.x % TEAM_THREADS + copy * TEAM_THREADS; }
  DEVICE int first_key_of(const Place& place) const {
    return (place.first_block + place.block) * BLOCK_C + team * TEAM_KEYS;
  }

  DEVICE int page_of(const Place& place, int key) const {
    return key < place.keys ? named_page(p.cache, place.batch, key) : 0;
  }
  DEVICE void find_pages() {
    if (blocks_left == 0) return;
    UNROLL for (int copy = 0; copy < (ONE_PAGE ? 1 : COPIES); ++copy) {
      pages[copy] = page_of(ahead, first_key_of(ahead) + (ONE_PAGE ? 0 : unit_of(copy) / ROW_UNITS));
    }
  }

  // Checks the pages that find_pages() has loaded, directly before their first use. Replaces pages that the cache does
  // not have by pages that it has.
  DEVICE void check_pages() {
    if constexpr (PAGE_SIZE > 0) {
      unsigned largest = 0;
      const unsigned last = p.cache.pages - 1;
      UNROLL for (int& page : pages) {
        largest = max(largest, static_cast<unsigned>(page));
        page = min(max(page, 0), static_cast<int>(last));
      }
      if (largest > last) some_lost = true;
    }
  }

  // HAS_NEW: some rows may belong to new tokens.
  template <bool HAS_NEW>
  DEVICE void copy_rows(int number, bool v, int first_key) const {
    const TensorStrides& strides = v ? p.cache.v_strides : p.cache.k_strides;
    const long long row_bytes = strides.row * KV_BYTES, page_bytes = strides.batch * KV_BYTES;
    const char* const head =
        static_cast<const char*>(v ? p.cache.v : p.cache.k) + ahead.kv_head * strides.head * KV_BYTES;
    // The address of the first row, if all rows are on one page.
    const char* const rows = head + pages[0] * page_bytes + slot_of(first_key) * row_bytes;
    const unsigned to = rows_of_team(number, v);
    UNROLL for (int copy = 0; copy < COPIES; ++copy) {
      const int unit = unit_of(copy), row = unit / ROW_UNITS, column = unit % ROW_UNITS;
      if (UNITS % TEAM_THREADS != 0 && unit >= UNITS) break;
      const bool there = first_key + row < ahead.keys && (ROW_UNITS == UNITS_THERE || column < UNITS_THERE);
      const char* from =
          ONE_PAGE ? rows + row * row_bytes : head + pages[copy] * page_bytes + slot_of(first_key + row) * row_bytes;
      if constexpr (HAS_NEW) {
        if (const int token = first_key + row - first_new(ahead); token >= 0) from = new_row(ahead, token, v);
      }
      copy_16_of_line(to + row * layout.row_bytes + column * 16, there ? from + column * 16 : head, there);
    }
  }

  DEVICE void copy_scales(int number, int first_key) const {
    for (int row = threadIdx.x % TEAM_THREADS; row < TEAM_KEYS; row += TEAM_THREADS) {
      const int named = ONE_PAGE ? pages[0] : page_of(ahead, first_key + row);
      const int page = is_page(p.cache, named) ? named : 0;
      const long long at = static_cast<long long>(page) * p.kv_heads + ahead.kv_head;
      copy_4(shared_address(scales(number, false) + row), p.cache.k_scales + at);
      copy_4(shared_address(scales(number, true) + row), p.cache.v_scales + at);
    }
  }

  // Copies the tile's rows of Q, by all threads.
  DEVICE void copy_queries() const {
    constexpr int row_units = DIM * Q_BYTES / 16, units_there = HEAD_DIM * Q_BYTES / 16;
    const unsigned to = shared_address(q_slot(slot));
    for (int unit = threadIdx.x; unit < ROWS * row_units; unit += THREADS) {
      const int number = unit / row_units, column = unit % row_units;
      const Row row = row_of(p, ahead, number);
      const long long at = ahead.batch * p.q_strides.batch + row.head * p.q_strides.head + row.query * p.q_strides.row;
      copy_16(to + number * layout.q_row_bytes + column * 16,
              static_cast<const char*>(p.q) + at * Q_BYTES + column * 16 % (units_there * 16),
              row.exists && column < units_there);
    }
  }

  // Copies the next block to a stage. Commits a group of copies, even if no block is left.
  DEVICE void copy_next(int number, bool first) {
    if (blocks_left > 0) {
      if (!first && ahead.block == 0) slot = slot + 1 < STAGES ? slot + 1 : 0;
      if (first || ahead.block == 0) {
        copy_queries();
        if constexpr (APPENDS && ROTARY_DIM > 0) ask_for_angles(ahead);
      }
      check_pages();
      const int first_key = first_key_of(ahead);
      if (APPENDS && first_key + TEAM_KEYS > first_new(ahead)) {
        copy_rows<APPENDS>(number, false, first_key);
        copy_rows<APPENDS>(number, true, first_key);
      } else {
        copy_rows<false>(number, false, first_key);
        copy_rows<false>(number, true, first_key);
      }
      if constexpr (KV_BYTES == 1) copy_scales(number, first_key);
      line.advance(ahead);
      --blocks_left;
      find_pages();
    }
    commit_copies();
  }

  // ---- new tokens

  // The key of the first new token; negative if a sequence has fewer keys than new tokens.
  DEVICE int first_new(const Place& place) const { return place.keys - p.q_len; }
  DEVICE const char* new_row(const Place& place, int token, bool v) const {
    const NewTokens& tokens = tokens_of(p);
    const TensorStrides& strides = v ? tokens.v_strides : tokens.k_strides;
    return static_cast<const char*>(v ? tokens.v : tokens.k) +
           (place.batch * strides.batch + place.kv_head * strides.head + token * strides.row) * KV_BYTES;
  }

  static constexpr int PAIRS = ROTARY_DIM > 0 ? ROTARY_DIM / 2 : 1;
  // Rotates rows by the angles of their positions, `count` pairs of elements in all; row_at and position_at take the
  // number of a row. A thread loads the angles of four pairs before it uses the first angle.
  template <typename RowAt, typename PositionAt>
  DEVICE void turn_rows(int count, int thread, int threads, RowAt row_at, PositionAt position_at) const {
    constexpr int at_once = 4;
    for (int first = thread; first < count; first += at_once * threads) {
      float cosines[at_once], sines[at_once];
      int positions[at_once];
      UNROLL for (int i = 0; i < at_once; ++i) {
        const int unit = min(first + i * threads, count - 1);
        positions[i] = position_at(unit / PAIRS);
        const long long at = static_cast<long long>(max(positions[i], 0)) * PAIRS + unit % PAIRS;
        cosines[i] = __ldg(tokens_of(p).cosines + at);
        sines[i] = __ldg(tokens_of(p).sines + at);
      }
      UNROLL for (int i = 0; i < at_once; ++i) {
        const int unit = first + i * threads, pair = unit % PAIRS;
        if (unit >= count || positions[i] < 0) continue;
        unsigned char* const row = row_at(unit / PAIRS);
        const int low = INTERLEAVED ? 2 * pair : pair, high = INTERLEAVED ? low + 1 : low + PAIRS;
        const float x = load_float<IN_TYPE>(row, low), y = load_float<IN_TYPE>(row, high);
        store_float<IN_TYPE>(row, low, x * cosines[i] - y * sines[i]);
        store_float<IN_TYPE>(row, high, y * cosines[i] + x * sines[i]);
      }
    }
  }

  // Prefetches the angles of a tile that is about to begin.
  DEVICE void ask_for_angles(const Place& place) const {
    constexpr int line = 32;  // floats
    for (int at = threadIdx.x * line; at < p.q_len * PAIRS; at += THREADS * line) {
      const long long index = static_cast<long long>(max(first_new(place), 0)) * PAIRS + at;
      asm volatile("prefetch.global.L2 [%0];" ::"l"(tokens_of(p).cosines + index));
      asm volatile("prefetch.global.L2 [%0];" ::"l"(tokens_of(p).sines + index));
    }
  }

  // Rotates the tile's queries in threadgroup memory. All threads call this function.
  DEVICE void turn_queries(const Place& here, unsigned char* q) const {
    turn_rows(
        ROWS * PAIRS, threadIdx.x, THREADS, [&](int row) { return q + row * layout.q_row_bytes; },
        [&](int row) {
          const Row query = row_of(p, here, row);
          return query.exists ? first_new(here) + query.query : -1;
        });
  }

  // Rotates the new keys in the team's stage. If the tile is the first tile of its key/value head, also writes these
  // keys and their values to the cache. All threads of a team call this function.
  DEVICE void take_new(const Place& here, int number, int first_key) const {
    const int first = max(max(first_new(here), 0), first_key), end = min(here.keys, first_key + TEAM_KEYS);
    if (first >= end) return;
    const int thread = threadIdx.x % TEAM_THREADS;
    const int first_page = page_of(here, min(first + thread / UNITS_THERE, end - 1));  // loaded during the rotation
    if constexpr (ROTARY_DIM > 0) {
      turn_rows((end - first) * PAIRS, thread, TEAM_THREADS,
                [&](int row) { return team_rows(number, false) + (first + row - first_key) * layout.row_bytes; },
                [&](int row) { return first + row; });
      sync_team();
    }
    if (here.tile != 0) return;
    for (int unit = thread; unit < (end - first) * UNITS_THERE; unit += TEAM_THREADS) {
      const int key = first + unit / UNITS_THERE, column = unit % UNITS_THERE;
      const long long page = unit == thread ? first_page : page_of(here, key);
      if (!is_page(p.cache, static_cast<int>(page))) continue;
      UNROLL for (int v = 0; v < 2; ++v) {
        const TensorStrides& strides = v ? p.cache.v_strides : p.cache.k_strides;
        char* const to = static_cast<char*>(v ? p.cache.v : p.cache.k) +
                         (page * strides.batch + here.kv_head * strides.head + slot_of(key) * strides.row) * KV_BYTES +
                         column * 16;
        *reinterpret_cast<uint4*>(to) =
            *reinterpret_cast<const uint4*>(team_rows(number, v) + (key - first_key) * layout.row_bytes + column * 16);
      }
    }
  }

  // ---- products

  // Loads the operand A of a step: 16 rows of Q, and as many columns as 32 bytes of a row of the cache hold. With a
  // cache of 8 bits these are 32 columns, for two products; this thread has columns 4 * quarter to 4 * quarter + 3 of
  // the 16 columns of a product.
  DEVICE void load_queries(unsigned (&a)[PRODUCTS][4], const unsigned char* q, int step) const {
    if constexpr (KV_BYTES > 1) {
      // If the tile has no rows 8 to 15, rows 0 to 7 are loaded twice; no thread reads the results of the second copy.
      load_blocks(a[0], shared_address(q) + (first_row + lane % (8 * HALVES)) * layout.q_row_bytes + step * 32 +
                            lane / 16 * 16);
    } else {
      UNROLL for (int half = 0; half < 2; ++half) {
        const unsigned char* const at =
            q + (first_row + lane / 4) * layout.q_row_bytes + ((2 * step + half) * 16 + 4 * quarter) * 2;
        const uint2 first = *reinterpret_cast<const uint2*>(at);
        const uint2 second = *reinterpret_cast<const uint2*>(at + (HALVES - 1) * 8 * layout.q_row_bytes);
        a[half][0] = first.x;
        a[half][1] = second.x;
        a[half][2] = first.y;
        a[half][3] = second.y;
      }
    }
  }

  // Returns the address of the scale of a row of Q. The scale is stored after the columns of the row.
  DEVICE static float* scale_of_row(unsigned char* q, int row) {
    return reinterpret_cast<float*>(q + row * layout.q_row_bytes + DIM * Q_BYTES);
  }
  // Converts the tile's queries in threadgroup memory from bf16 to f16. Divides each row by the largest power of 2 that
  // is not above the row's largest magnitude. All threads call this function.
  DEVICE void scale_queries(unsigned char* q) const {
    constexpr int words = DIM / 2, turns = (words + WARP - 1) / WARP;
    for (int row = threadIdx.x / WARP; row < ROWS; row += THREADS / WARP) {
      auto* const pairs = reinterpret_cast<unsigned*>(q + row * layout.q_row_bytes);
      unsigned mine[turns], largest = 0;
      UNROLL for (int i = 0; i < turns; ++i) {
        const int word = lane + i * WARP;
        mine[i] = word < words ? pairs[word] : 0;
        largest = max(largest, max(mine[i] & 0x7fff, mine[i] >> 16 & 0x7fff));
      }
      const unsigned exponent = min(max(__reduce_max_sync(~0u, largest) >> 7, 1u), 253u);
      const float down = __uint_as_float((254 - exponent) << 23);
      UNROLL for (int i = 0; i < turns; ++i) {
        const int word = lane + i * WARP;
        const float low = __uint_as_float(mine[i] << 16), high = __uint_as_float(mine[i] & 0xffff0000u);
        if (word < words) pairs[word] = pack<F16>(low * down, high * down);
      }
      if (lane == 0) *scale_of_row(q, row) = __uint_as_float(exponent << 23);
    }
  }

  // S = Q K^T of the team's keys.
  DEVICE void multiply_scores(int number, const unsigned char* q) {
    UNROLL for (int i = 0; i < TEAM_KEYS / 2; ++i) s[i / 4][i % 4] = 0;
    const unsigned k = rows_of_team(number, false) + (lane % 8 + lane / 16 * 8) * layout.row_bytes + lane / 8 % 2 * 16;
    UNROLL for (int step = 0; step < STEPS; ++step) {
      unsigned(&a)[PRODUCTS][4] = queries[HOLD_Q ? step : 0];
      if constexpr (!HOLD_Q) load_queries(a, q, step);
      UNROLL for (int keys = 0; keys < TEAM_KEYS; keys += 16) {
        unsigned words[4];
        load_blocks(words, k + keys * layout.row_bytes + step * 32);
        UNROLL for (int n = 0; n < 2; ++n) {
          float(&d)[4] = s[keys / 8 + n];
          if constexpr (KV_BYTES == 1) {
            UNROLL for (int half = 0; half < 2; ++half) {
              const unsigned four = words[2 * n + half];
              multiply_add<F16>(d, a[half], pair_of_four<CACHE_TYPE, 0, 1>(four), pair_of_four<CACHE_TYPE, 2, 3>(four));
            }
          } else {
            multiply_add_exactly<IN_TYPE>(d, a[0], words[2 * n], words[2 * n + 1]);
          }
        }
      }
    }
  }

  // O += P V. With f32 this thread has keys 2 * quarter and 2 * quarter + 1 of eight.
  DEVICE void multiply_outputs(int number) {
    const unsigned v = rows_of_team(number, true);
    if constexpr (KV_BYTES == 4) {
      UNROLL for (int keys = 0; keys < TEAM_KEYS; keys += 8) {
        const float(&w)[4] = s[keys / 8];
        const unsigned a[4] = {__float_as_uint(w[0]), __float_as_uint(w[2]), __float_as_uint(w[1]),
                               __float_as_uint(w[3])};
        const unsigned row = v + (keys + 2 * quarter) * layout.row_bytes + lane / 4 * 4;
        UNROLL for (int j = 0; j < DIM / 8; ++j) {
          multiply_add_exactly<F32>(o[j], a, load_word(row + j * 32), load_word(row + layout.row_bytes + j * 32));
        }
      }
    } else {
      UNROLL for (int keys = 0; keys < TEAM_KEYS; keys += 16) {
        const float(&w)[4] = s[keys / 8], (&next)[4] = s[keys / 8 + 1];
        const unsigned a[4] = {pack<OPERAND_TYPE>(w[0], w[1]), HALVES == 1 ? 0 : pack<OPERAND_TYPE>(w[2], w[3]),
                               pack<OPERAND_TYPE>(next[0], next[1]),
                               HALVES == 1 ? 0 : pack<OPERAND_TYPE>(next[2], next[3])};
        const unsigned row = v + (keys + lane % 16) * layout.row_bytes + lane / 16 * 16;
        UNROLL for (int step = 0; step < STEPS; ++step) {
          unsigned words[4];
          load_blocks_transposed(words, row + step * 32);
          UNROLL for (int n = 0; n < 2; ++n) {
            const unsigned low = words[2 * n], high = words[2 * n + 1];
            if constexpr (KV_BYTES == 1) {
              multiply_add<F16>(o[4 * step + 2 * n], a, pair_of_four<CACHE_TYPE, 0, 2>(low),
                                pair_of_four<CACHE_TYPE, 0, 2>(high));
              multiply_add<F16>(o[4 * step + 2 * n + 1], a, pair_of_four<CACHE_TYPE, 1, 3>(low),
                                pair_of_four<CACHE_TYPE, 1, 3>(high));
            } else {
              multiply_add<IN_TYPE>(o[2 * step + n], a, low, high);
            }
          }
        }
      }
    }
  }
  // Returns the column of o[j][i], i from 0 to 1. With a cache of 8 bits neighbouring columns of V lie in neighbouring
  // products.
  DEVICE int column_of(int j, int i) const {
    return KV_BYTES == 1 ? j / 2 * 16 + 4 * quarter + 2 * i + j % 2 : j * 8 + 2 * quarter + i;
  }

  // ---- softmax

  // Returns the scale of V for key `second` (0 or 1) of the thread's two keys in a group of eight keys.
  DEVICE float v_scale(int number, int group, int second) const {
    return scales(number, true)[group * 8 + 2 * quarter + second];
  }

  // Multiplies scores by the scales of K and Q, and applies hook and mask.
  DEVICE void finish_scores(const Place& here, int number, int first_key, bool masked) {
    UNROLL for (int i = 0; i < TEAM_KEYS / 2; ++i) {
      const int r = i / 2 % 2;
      if (r == HALVES) continue;
      const int column = i / 4 * 8 + 2 * quarter + i % 2, key = first_key + column;
      float& value = s[i / 4][i % 4];
      if constexpr (KV_BYTES == 1) value *= scales(number, false)[column];
      if constexpr (SCALES_Q) value *= q_scale[r];
      if constexpr (FOLD) {
        value = __fmul_rn(value, scale_log2);  // rounded, as the shift is, before the subtraction
      } else {
        value =
            score(__fmul_rn(value, p.scale), rows[r].query, key, line.context_of(here.batch, rows[r].head, here.keys));
      }
      if (masked && (key >= end[r] || (!KEYS_BEGIN_AT_ZERO && key < begin[r]))) value = -infinity();
    }
  }

  // Turns scores into weights exp2(s - shift), or exp(s - shift), and adds up the weights. A warp raises its rows'
  // shifts to the rows' maxima only when some row's maximum exceeds the row's shift by more than 8 in base 2. So
  // outputs are seldom rescaled (FlashAttention-4, 2025), and weights are at most 2^8. With a cache of 8 bits the
  // maximum is taken of the scores plus the logarithms of V's scales. So the products of weights and V's scales,
  // not the weights, are at most 2^8, and fit f16.
  DEVICE void softmax(int number) {
    constexpr float slack = FOLD ? 8 : 8 * ln_2, smallest_scale = 1e-30f;
    float largest[HALVES];
    bool grew = false;
    UNROLL for (int r = 0; r < HALVES; ++r) {
      largest[r] = -infinity();
      UNROLL for (int i = 0; i < TEAM_KEYS / 4; ++i) {
        float value = s[i / 2][2 * r + i % 2];
        if constexpr (KV_BYTES == 1) {
          value += (FOLD ? 1 : ln_2) * __log2f(fmaxf(v_scale(number, i / 2, i % 2), smallest_scale));
        }
        largest[r] = fmaxf(largest[r], value);
      }
      grew |= largest[r] > shift[r] + slack;
    }
    if (__any_sync(~0u, grew)) {
      UNROLL for (int r = 0; r < HALVES; ++r) {
        const float larger = fmaxf(maximum_of_quad(largest[r]), shift[r]);
        const float alpha = power(shift[r] - larger);
        shift[r] = larger;
        sum[r] *= alpha;
        UNROLL for (int i = 0; i < DIM / 4; ++i) o[i / 2][2 * r + i % 2] *= alpha;
      }
    }
    UNROLL for (int i = 0; i < TEAM_KEYS / 2; ++i) {
      const int r = i / 2 % 2;
      if (r == HALVES) continue;
      float& value = s[i / 4][i % 4];
      value = power(value - shift[r]);
      sum[r] += value;
      if constexpr (KV_BYTES == 1) value *= v_scale(number, i / 4, i % 2);
    }
  }

  // ---- a tile

  DEVICE void begin_tile(const Place& here, unsigned char* q) {
    if constexpr (HOLD_Q) {
      UNROLL for (int step = 0; step < STEPS; ++step) load_queries(queries[step], q, step);
    }
    UNROLL for (int r = 0; r < HALVES; ++r) {
      shift[r] = lowest_score;
      sum[r] = 0;
      rows[r] = row_of(p, here, first_row + lane / 4 + 8 * r);
      if constexpr (SCALES_Q) q_scale[r] = *scale_of_row(q, first_row + lane / 4 + 8 * r);
      const KeyRange seen = visible_keys(rows[r].query, line.context_of(here.batch, rows[r].head, here.keys));
      begin[r] = seen.begin;
      end[r] = min(seen.end, here.keys);
    }
    UNROLL for (int i = 0; i < DIM / 2; ++i) o[i / 4][i % 4] = 0;
  }

  // Returns element i of this thread's elements of O, counting only rows of the tile.
  DEVICE float& part_of_o(int i) { return HALVES == 1 ? o[i / 2][i % 2] : o[i / 4][i % 4]; }

  // Adds up the teams' sums for the first team, through a stage that is no longer needed. All threads call this
  // function.
  DEVICE void merge(int number) {
    UNROLL for (int r = 0; r < HALVES; ++r) sum[r] = PAGE_SIZE > 0 && some_lost ? not_a_number() : sum_of_quad(sum[r]);
    if constexpr (KEY_WARPS == 1) return;
    __syncthreads();                                              // waits until the stage's last readers are done
    float* const sums = reinterpret_cast<float*>(stage(number));  // [teams][HALVES * DIM / 4][team's threads]
    float* const stats = sums + KEY_WARPS / 2 * ROWS * DIM;       // [teams][2 * HALVES][team's threads]
    const int thread = threadIdx.x % TEAM_THREADS;
    UNROLL for (int step = KEY_WARPS / 2; step > 0; step /= 2) {
      if (team >= step && team < 2 * step) {
        float* const to = sums + (team - step) * ROWS * DIM + thread;
        UNROLL for (int i = 0; i < HALVES * DIM / 4; ++i) to[i * TEAM_THREADS] = part_of_o(i);
        float* const to_stats = stats + (team - step) * 2 * HALVES * TEAM_THREADS + thread;
        UNROLL for (int r = 0; r < HALVES; ++r) {
          to_stats[r * TEAM_THREADS] = shift[r];
          to_stats[(HALVES + r) * TEAM_THREADS] = sum[r];
        }
      }
      __syncthreads();
      if (team < step) {
        const float* const from = sums + team * ROWS * DIM + thread;
        const float* const from_stats = stats + team * 2 * HALVES * TEAM_THREADS + thread;
        float own[HALVES], other[HALVES];
        UNROLL for (int r = 0; r < HALVES; ++r) {
          const float its = from_stats[r * TEAM_THREADS], larger = fmaxf(shift[r], its);
          own[r] = power(shift[r] - larger);
          other[r] = power(its - larger);
          shift[r] = larger;
          sum[r] = sum[r] * own[r] + from_stats[(HALVES + r) * TEAM_THREADS] * other[r];
        }
        UNROLL for (int i = 0; i < HALVES * DIM / 4; ++i) {
          float& value = part_of_o(i);
          const int r = HALVES == 1 ? 0 : i / 2 % 2;
          value = value * own[r] + from[i * TEAM_THREADS] * other[r];
        }
      }
      if (step > 1) __syncthreads();
    }
  }

  // Returns the counter of the tile's parts that have arrived.
  DEVICE unsigned& arrived_at(const Place& place) const {
    return p.arrived[(static_cast<long long>(place.batch) * p.kv_heads + place.kv_head) * line.tiles + place.tile];
  }
  // Marks a tile whose rows are to be computed anew. The tile's only worker, or the last worker to arrive, marks the
  // tile; so no worker adds to the tile's counter after that. write_kept_tiles() computes the rows after the loop of
  // run(): in the loop, the registers of write_tile_anew() together with the loop's registers would spill.
  DEVICE void keep_for_later(const Place& place) {
    arrived_at(place) = kept;
    some_kept = true;
  }
  // Computes the kept tiles among `count` blocks of the line, from block `from` on, anew.
  DEVICE void write_kept_tiles(long long from, long long count) const {
    for (Place place = line.find(line.share_of(0), from); place.index < from + count;) {
      // Another worker that shares the tile may have computed its rows anew already.
      if (__syncthreads_or(arrived_at(place) == kept)) {
        arrived_at(place) = 0;
        write_tile_anew(p, place);
      }
      place.index += place.blocks - place.block - 1;
      place.block = place.blocks - 1;
      line.advance(place);
    }
  }

  // The first team has this worker's sums of the tile. leave_tile() writes them to O, or leaves them as a part for the
  // worker or the launch that joins the parts.
  DEVICE void leave_tile(const Place& here, int number, bool from_first_block, long long blocks_of_line) {
    const Parts parts = parts_of(p, here, blocks_of_line);
    if (team == 0) {
      UNROLL for (int r = 0; r < HALVES; ++r) {
        if (!rows[r].exists) continue;
        if (parts.count() == 1) {
          const float factor = finish_row(p, line, here, rows[r], shift[r], sum[r], quarter == 0);
          const long long at = output_at(p, here, rows[r]);
          float zeros = 0;  // NaN where a result is not finite
          UNROLL for (int i = 0; i < DIM / 4; ++i) {
            const int column = column_of(i / 2, i % 2);
            const float value = o[i / 2][2 * r + i % 2] * factor;
            zeros += 0 * value;
            if (DIM == HEAD_DIM || column < HEAD_DIM) store_float<OUT_TYPE>(p.o, at + column, value);
          }
          if (!(zeros == 0)) keep_for_later(here);
        } else {
          const long long at = part_number(blockIdx.x, from_first_block) * ROWS + first_row + lane / 4 + 8 * r;
          UNROLL for (int i = 0; i < DIM / 4; ++i) {
            const int column = column_of(i / 2, i % 2);
            if (DIM == HEAD_DIM || column < HEAD_DIM) p.part_o[at * HEAD_DIM + column] = o[i / 2][2 * r + i % 2];
          }
          if (quarter == 0) reinterpret_cast<float2*>(p.part_stats)[at] = make_float2(shift[r], sum[r]);
        }
      }
    }
    if (!JOIN_LAST || parts.count() == 1) return;
    __shared__ bool joins;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      unsigned& arrived = arrived_at(here);
      joins = atomicAdd(&arrived, 1) == parts.count() - 1;
      if (joins) arrived = 0;
    }
    __syncthreads();
    if (joins) {
      __threadfence();
      if (!join(p, line, here, parts, stage(number))) keep_for_later(here);
    }
  }

  DEVICE void run() {
    const Line::Share share = line.share_of(0);
    const long long blocks_of_line = line.length(share);
    const long long from = first_block_of(blockIdx.x, p.workers, blocks_of_line);
    const long long count = first_block_of(blockIdx.x + 1, p.workers, blocks_of_line) - from;
    if (count == 0) return;
    if (threadIdx.x == 0) some_kept = some_lost = false;
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
        leave_tile(here, number, from_first_block, blocks_of_line);
        q_of = q_of + 1 < STAGES ? q_of + 1 : 0;
      }
      line.advance(here);
      number = number + 1 < STAGES ? number + 1 : 0;
    }
    __syncthreads();
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
  if (parts.count() > 1 && !join(p, line, place, parts, memory)) write_tile_anew(p, place);
}
