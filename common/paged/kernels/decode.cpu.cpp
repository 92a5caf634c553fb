// Paged attention for a few queries of each sequence.
//
// The kernel reads a block from memory once, for all rows of the tile. It computes the dot products of DOT_KEYS keys
// and DOT_ROWS rows along head_dim in registers. It loads a key's values once for DOT_ROWS rows, and adds them to these
// rows' outputs in registers. While the kernel computes scores, it prefetches the block's values. While it adds up the
// values, it prefetches the next block's keys. The prefetches are spread evenly over the computation, so that the
// memory is not idle while the kernel computes.
//
// Function constants: HEAD_DIM, ROWS, BLOCK_C (a multiple of 4 and of VECTOR_WIDTH), PAGE_SIZE (0: contiguous), CAUSAL,
// IN_TYPE (of q), CACHE_TYPE, OUT_TYPE, JOIN_LAST, VECTOR_WIDTH, VECTOR_REGISTERS, APPENDS (1 only for a cache of Q's
// type). With APPENDS: ROTARY_DIM (even, at most HEAD_DIM; 0: nothing is rotated), INTERLEAVED (1: pair i is elements
// 2i and 2i + 1; 0: elements i and i + ROTARY_DIM / 2). decode_join has the same constants. Threadgroup memory:
// CpuDecodeLayout. Grid: workers; the grid of decode_join: tiles (batch * kv_heads * tiles of a group).
//
// If the cache's elements are shorter than 32 bits and a tile has more than DOT_ROWS rows, the kernel converts some
// keys to floats in the L1 cache, and all rows read them there. Else it converts elements when it loads them into
// registers. Elements of 8 bits are converted without their scales: the kernel multiplies a key's scores by the scale
// of the key's page in K, and the key's weights by the scale of this page in V. With a cache of any type it computes a
// row anew if an output of the row is not finite (common/attention/kernels/repair.h).
//
// With APPENDS the kernel rotates new keys, stores them in threadgroup memory, and reads them there. It reads new
// values from their own tensor. The workers of the first tile of a key/value head also write the head's new keys and
// values to the cache.
//
// Hooks: score (by element), keys, sink. The keys that a row sees may depend on the row's sequence and query, but not
// on the row's head.
#include "common/paged/kernels/decode.h"

#include "common/attention/kernels/keys.h"
#include "common/attention/kernels/score.h"

// This header calls the score hook, so it stands after the hook:
#include "common/attention/kernels/exact_row_cpu.h"
#include "common/kernel/bytes_cpu.h"
#include "common/paged/kernels/turn_cpu.h"

namespace {

constexpr int gcd(int a, int b) { return b == 0 ? a : gcd(b, a % b); }
constexpr int largest_divisor(int n, int most) {
  int divisor = most;
  while (n % divisor != 0) --divisor;
  return divisor;
}

constexpr CpuDecodeLayout layout(HEAD_DIM, ROWS, BLOCK_C);
constexpr int LANES = gcd(HEAD_DIM, VECTOR_WIDTH);
constexpr int VECTORS = HEAD_DIM / LANES;  // of a row
constexpr int DOT_KEYS = 4, DOT_ROWS = VECTOR_REGISTERS >= 32 ? 4 : 2;
constexpr int REST_ROWS = ROWS % DOT_ROWS, ROW_GROUPS = (ROWS + DOT_ROWS - 1) / DOT_ROWS;
constexpr int LINE_BYTES = 64;
constexpr int ELEMENT_BYTES = bytes_of_type(CACHE_TYPE);
constexpr int ROW_BYTES = HEAD_DIM * ELEMENT_BYTES, LINES = (ROW_BYTES + LINE_BYTES - 1) / LINE_BYTES;
constexpr bool SCALED = ELEMENT_BYTES == 1;
constexpr bool CONVERTS = CACHE_TYPE != F32 && ROW_GROUPS > 1;  // whether keys are converted in the L1 cache
constexpr int READ_TYPE = CONVERTS ? F32 : CACHE_TYPE;          // of the keys that the products read
constexpr int VALUE_KEYS = ROW_GROUPS > 1 ? 16 : BLOCK_C;       // keys whose values all rows read from the L1 cache

/// Returns how many vectors of a key's values are multiplied at a time, for COUNT rows.
constexpr int value_width(int count) { return largest_divisor(VECTORS, count == 1 ? 8 : DOT_ROWS == 4 ? 4 : 2); }
/// Whether prefetches are spread over the computation. One to three rows take no longer than the prefetches; there rows
/// of the cache are prefetched as a whole.
constexpr bool SPREADS = ROWS >= DOT_ROWS;
/// How often a key's values are read for a tile's rows.
constexpr int VALUE_PASSES =
    ROWS / DOT_ROWS * (VECTORS / value_width(DOT_ROWS)) + (REST_ROWS > 0 ? VECTORS / value_width(REST_ROWS) : 0);
// A score times UNIT is the natural logarithm of a weight. A score times FACTOR is the weight's logarithm to base 4,
// for exp4(). Without a score hook Q is scaled so that scores are logarithms to base 4 from the start.
constexpr float UNIT = SCORE_IS_IDENTITY ? ln_4 : 1, FACTOR = SCORE_IS_IDENTITY ? 1 : log4_e;
using Params = DecodeParamsOf<APPENDS>::type;
static_assert(!APPENDS || CACHE_TYPE == IN_TYPE);

using Floats = Vector<float, LANES>;
using Quad = Vector<float, 4>;
using Scores = Vector<float, VECTOR_WIDTH>;
using ScoreBits = Vector<int, VECTOR_WIDTH>;

INLINE int min(int a, int b) { return a < b ? a : b; }
INLINE int max(int a, int b) { return a > b ? a : b; }

template <int N>
INLINE Quad folded(Vector<float, N> v) {
  if constexpr (N == 4) {
    return v;
  } else {
    Vector<float, N / 2> low, high;
    UNROLL for (int i = 0; i < N / 2; ++i) low[i] = v[i], high[i] = v[N / 2 + i];
    return folded<N / 2>(low + high);
  }
}

template <typename T, T... I>
struct Numbers {};
/// Takes lanes A, B, C and D of each group of four lanes; lanes 4 to 7 are those of the same group of y.
template <int A, int B, int C, int D, int... I>
INLINE Floats of_groups(Floats x, Floats y, Numbers<int, I...>) {
  constexpr int at[4] = {A % 4 + A / 4 * LANES, B % 4 + B / 4 * LANES, C % 4 + C / 4 * LANES, D % 4 + D / 4 * LANES};
  return __builtin_shufflevector(x, y, (I / 4 * 4 + at[I % 4])...);
}
template <int A, int B, int C, int D>
INLINE Floats of_groups(Floats x, Floats y) {
  return of_groups<A, B, C, D>(x, y, __make_integer_seq<Numbers, int, LANES>());
}

/// Returns the sum of the lanes of each of four vectors. All groups of four lanes are added up at once, and then the
/// groups.
INLINE Quad lane_sums(const Floats (&v)[4]) {
  const Floats ab = of_groups<0, 4, 1, 5>(v[0], v[1]) + of_groups<2, 6, 3, 7>(v[0], v[1]);
  const Floats cd = of_groups<0, 4, 1, 5>(v[2], v[3]) + of_groups<2, 6, 3, 7>(v[2], v[3]);
  return folded<LANES>(of_groups<0, 1, 4, 5>(ab, cd) + of_groups<2, 3, 6, 7>(ab, cd));
}

template <int N>
INLINE float sum_of_lanes(Vector<float, N> v) {
  const Quad four = folded<N>(v);
  return (four[0] + four[1]) + (four[2] + four[3]);
}

template <int N>
INLINE float largest_lane(Vector<float, N> v) {
  if constexpr (N == 1) {
    return v[0];
  } else {
    Vector<float, N / 2> low, high;
    UNROLL for (int i = 0; i < N / 2; ++i) low[i] = v[i], high[i] = v[N / 2 + i];
    return largest_lane<N / 2>(low > high ? low : high);
  }
}

/// A sequence and its blocks on the line of blocks (decode.h). All tiles of the sequence have the same number of
/// blocks. Every key that some query of the sequence may see lies in one of the blocks.
struct Sequence {
  int batch, keys;
  KeyRange seen;
  int first_block, blocks;  // at least one block, so that a worker writes the rows of a sequence without keys
};

/// A tile of a sequence, and its first block on the line.
struct TilePlace {
  Sequence sequence;
  int kv_head, tile;
  long long begin;

  INLINE long long end() const { return begin + sequence.blocks; }
};

/// The line of blocks (decode.h).
struct Line {
  const DecodeParams& p;
  const int rows = p.q_heads / p.kv_heads * p.q_len;
  const int tiles = (rows + static_cast<int>(ROWS) - 1) / static_cast<int>(ROWS);

  INLINE ScoreContext context_of(int batch, int head, int keys) const {
    return {batch, head, p.q_heads, p.q_len, keys, p.score_data};
  }
  INLINE Sequence sequence_of(int batch) const {
    const int keys = p.lengths[batch];
    const ScoreContext context = context_of(batch, 0, keys);
    const int end = max(min(visible_keys(p.q_len - 1, context).end, keys), 0);
    const int begin = min(max(visible_keys(0, context).begin, 0), end);
    // New tokens before the first visible key have blocks too, so that a worker writes them to the cache.
    const int first_key = APPENDS ? min(begin, max(keys - p.q_len, 0)) : begin;
    const int first_block = first_key / static_cast<int>(BLOCK_C);
    const int blocks = max((end + static_cast<int>(BLOCK_C) - 1) / static_cast<int>(BLOCK_C) - first_block, 1);
    return {batch, keys, {begin, end}, first_block, blocks};
  }
  INLINE long long blocks_of(const Sequence& sequence) const {
    return static_cast<long long>(sequence.blocks) * p.kv_heads * tiles;
  }
  INLINE long long blocks() const {
    long long all = 0;
    for (int batch = 0; batch < p.batch; ++batch) all += blocks_of(sequence_of(batch));
    return all;
  }
  /// Returns the tile of a block of the line.
  INLINE TilePlace at(long long block) const {
    long long begin = 0;
    int batch = 0;
    Sequence sequence = sequence_of(batch);
    for (; begin + blocks_of(sequence) <= block; sequence = sequence_of(++batch)) begin += blocks_of(sequence);
    const auto number = static_cast<int>((block - begin) / sequence.blocks);
    return {sequence, number / tiles, number % tiles, begin + static_cast<long long>(number) * sequence.blocks};
  }
  /// Returns the tile with this number. Tiles are numbered sequence by sequence.
  INLINE TilePlace tile(int number) const {
    const int of_sequence = p.kv_heads * tiles, rest = number % of_sequence;
    long long begin = 0;
    for (int batch = 0; batch < number / of_sequence; ++batch) begin += blocks_of(sequence_of(batch));
    const Sequence sequence = sequence_of(number / of_sequence);
    return {sequence, rest / tiles, rest % tiles, begin + static_cast<long long>(rest) * sequence.blocks};
  }
};

/// The keys of a block: their number, and each key's rows in K and V with the scales of these rows.
struct Block {
  int first_key = 0, keys = 0;
  const char *k[BLOCK_C], *v[BLOCK_C];
  float k_scales[SCALED ? BLOCK_C : 1], v_scales[SCALED ? BLOCK_C : 1];
};

/// Prefetches a line of a row, or all lines.
INLINE void ask_for(const char* row, int line) { __builtin_prefetch(row + line * LINE_BYTES, 0, 2); }
INLINE void ask_for(const char* row) { UNROLL for (int line = 0; line < LINES; ++line) ask_for(row, line); }

/// Spreads the prefetches of rows, line by line: VALUE_PASSES calls of step() prefetch one row. Without SPREADS each
/// call prefetches a row, until no row is left.
struct Asker {
  const char* const* rows;
  int count;  // of the rows
  int row = 0, line = 0, due = 0;

  INLINE void step() {
    if (!SPREADS) {
      if (row < count) ask_for(rows[row++]);
      return;
    }
    for (due += LINES; due >= VALUE_PASSES; due -= VALUE_PASSES) {
      if (row >= count) continue;
      ask_for(rows[row], line);
      if (++line < LINES) continue;
      line = 0;
      ++row;
    }
  }
};

/// Returns the number of the part in which a worker leaves its result for a tile: the worker's second part if the tile
/// begins in the worker's share, else the worker's first part.
INLINE long long part_of(int worker, bool begins) { return 2LL * worker + begins; }

struct Worker {
  const Params& p;
  const Line line{p};
  float *q, *o, *scores, *maximum, *sum;  // of the tile
  char* turned;                           // rotated new keys, of the cache's type
  Sequence sequence;
  int kv_head, first_row, rows;  // first_row: the tile's first row among the rows of its key/value head

  INLINE Worker(const Params& params, const Threadgroup& group) : p(params) {
    float* memory = reinterpret_cast<float*>(group.memory);
    q = memory;
    o = memory + layout.o;
    scores = memory + layout.scores;
    maximum = memory + layout.maximum;
    sum = memory + layout.sum;
    turned = reinterpret_cast<char*>(memory + layout.turned);
  }

  INLINE int head_of(int row) const { return kv_head * (p.q_heads / p.kv_heads) + (first_row + row) / p.q_len; }
  INLINE int query_of(int row) const { return (first_row + row) % p.q_len; }
  INLINE ScoreContext context(int row) const { return line.context_of(sequence.batch, head_of(row), sequence.keys); }

  INLINE void enter(const TilePlace& place) {
    sequence = place.sequence;
    kv_head = place.kv_head;
    first_row = place.tile * static_cast<int>(ROWS);
    rows = min(line.rows - first_row, ROWS);
  }

  INLINE void clear(int row) {
    for (int d = 0; d < HEAD_DIM; d += LANES) store(o + row * HEAD_DIM + d, Floats{});
    maximum[row] = hidden_score;
    sum[row] = 0;
  }

  /// Loads a query as floats, times `factor`; with APPENDS also rotates the query.
  INLINE void load_query(float* to, int row, float factor) const {
    const long long at = index_of(p.q_strides, {sequence.batch, head_of(row), query_of(row)});
    for (int d = 0; d < HEAD_DIM; d += LANES) store(to + d, load_floats<IN_TYPE, LANES>(p.q, at + d) * factor);
    if constexpr (APPENDS) {
      if (const int position = first_new() + query_of(row); position >= 0) turn(to, tokens_of(p), position);
    }
  }

  /// Loads the tile's queries, with zeros for rows beyond the tile's last row, and clears the tile's outputs.
  INLINE void begin() {
    for (int row = 0; row < ROWS; ++row) {
      clear(row);
      if (row < rows) {
        load_query(q + row * HEAD_DIM, row, SCORE_IS_IDENTITY ? p.scale * log4_e : p.scale);
      } else {
        for (int d = 0; d < HEAD_DIM; d += LANES) store(q + row * HEAD_DIM + d, Floats{});
      }
    }
  }

  INLINE KeyPlace place_of(int key) const {
    if constexpr (PAGE_SIZE == 0) {
      return {sequence.batch, kv_head, key};
    } else {
      const int page = key / static_cast<int>(PAGE_SIZE), slot = key % static_cast<int>(PAGE_SIZE);
      return {p.cache.table[static_cast<long long>(sequence.batch) * p.cache.max_pages + page], kv_head, slot};
    }
  }

  /// The key of the first new token; negative if a sequence has fewer keys than new tokens.
  INLINE int first_new() const { return sequence.keys - p.q_len; }
  INLINE const char* new_row(const void* rows, const TensorStrides& strides, int token) const {
    return static_cast<const char*>(rows) +
           (sequence.batch * strides.batch + kv_head * strides.head + token * strides.row) * ELEMENT_BYTES;
  }

  /// Loads a new key, and rotates it by its position.
  INLINE void turn_new(char* row, int token) const {
    const char* const k = new_row(tokens_of(p).k, tokens_of(p).k_strides, token);
    float values[HEAD_DIM];
    for (int d = 0; d < HEAD_DIM; d += LANES) store(values + d, load_floats<IN_TYPE, LANES>(k, d));
    turn(values, tokens_of(p), first_new() + token);
    for (int d = 0; d < HEAD_DIM; d += LANES) store_floats<IN_TYPE, LANES>(row, d, load<Floats>(values + d));
  }

  /// Rotates the new keys of the blocks from `from` to before `to`. If the tile is the first tile of its key/value
  /// head, also writes these keys and their values to the cache.
  INLINE void take_new(int from, int to) {
    const KvCacheView& cache = p.cache;
    const NewTokens& tokens = tokens_of(p);
    const int first_key = (sequence.first_block + from) * static_cast<int>(BLOCK_C);
    const int end = min((sequence.first_block + to) * static_cast<int>(BLOCK_C), sequence.keys);
    for (int key = max(max(first_new(), 0), first_key); key < end; ++key) {
      const int token = key - first_new();
      char* const row = turned + token * ROW_BYTES;
      turn_new(row, token);
      if (first_row > 0) continue;
      const KeyPlace to_place = place_of(key);
      __builtin_memcpy(static_cast<char*>(cache.k) + index_of(cache.k_strides, to_place) * ELEMENT_BYTES, row,
                       ROW_BYTES);
      __builtin_memcpy(static_cast<char*>(cache.v) + index_of(cache.v_strides, to_place) * ELEMENT_BYTES,
                       new_row(tokens.v, tokens.v_strides, token), ROW_BYTES);
    }
  }

  /// Finds the keys of a block that the sequence's queries see.
  INLINE void find(Block& block, int number) const {
    const int start = (sequence.first_block + number) * static_cast<int>(BLOCK_C);
    block.first_key = max(start, sequence.seen.begin);
    block.keys = max(min(start + static_cast<int>(BLOCK_C), sequence.seen.end) - block.first_key, 0);
    const KvCacheView& cache = p.cache;
    for (int i = 0; i < block.keys;) {
      const int key = block.first_key + i;
      const KeyPlace at = place_of(key);
      int together = block.keys - i;  // keys that lie on one page
      if constexpr (PAGE_SIZE > 0) together = min(together, static_cast<int>(PAGE_SIZE) - at.row);
      const char* k = static_cast<const char*>(cache.k) + index_of(cache.k_strides, at) * ELEMENT_BYTES;
      const char* v = static_cast<const char*>(cache.v) + index_of(cache.v_strides, at) * ELEMENT_BYTES;
      float k_scale = 1, v_scale = 1;
      if constexpr (SCALED) {
        const long long scale = static_cast<long long>(at.batch) * p.kv_heads + kv_head;
        k_scale = cache.k_scales[scale] / unit_of_type(CACHE_TYPE);
        v_scale = cache.v_scales[scale] / unit_of_type(CACHE_TYPE);
      }
      for (; together > 0; --together, ++i) {
        block.k[i] = k;
        block.v[i] = v;
        if constexpr (SCALED) block.k_scales[i] = k_scale, block.v_scales[i] = v_scale;
        k += cache.k_strides.row * ELEMENT_BYTES;
        v += cache.v_strides.row * ELEMENT_BYTES;
      }
    }
    if constexpr (APPENDS) {
      for (int i = max(first_new() - block.first_key, 0); i < block.keys; ++i) {
        const int token = block.first_key + i - first_new();
        block.k[i] = turned + token * ROW_BYTES;
        block.v[i] = new_row(tokens_of(p).v, tokens_of(p).v_strides, token);
      }
    }
    for (int i = block.keys; i % DOT_KEYS != 0; ++i) block.k[i] = block.k[block.keys - 1];
  }

  /// Converts `count` rows to floats. Returns the rows' addresses in `converted`.
  static INLINE void convert(const char* const* rows, int count, float (*floats)[HEAD_DIM], const char** converted) {
    for (int i = 0; i < count; ++i) {
      for (int d = 0; d < HEAD_DIM; d += LANES) store(floats[i] + d, load_elements<CACHE_TYPE, LANES>(rows[i], d));
      converted[i] = reinterpret_cast<const char*>(floats[i]);
    }
  }

  /// Computes the scores of COUNT rows from `row` on and of the block's four keys from `i` on. `keys_at`: where these
  /// keys lie, in READ_TYPE. Prefetches the `asks` rows at `asked` meanwhile.
  template <int COUNT>
  INLINE void multiply_keys(const char* const* keys_at, int row, int i, const char* const* asked, int asks) {
    for (int a = 0; !SPREADS && a < asks; ++a) ask_for(asked[a]);
    Floats acc[COUNT][DOT_KEYS] = {};
    for (int d = 0; d < HEAD_DIM; d += LANES) {
      if (SPREADS && d * ELEMENT_BYTES % LINE_BYTES == 0) {
        for (int a = 0; a < asks; ++a) ask_for(asked[a], d * ELEMENT_BYTES / LINE_BYTES);
      }
      Floats keys[DOT_KEYS];
      UNROLL for (int key = 0; key < DOT_KEYS; ++key) keys[key] = load_elements<READ_TYPE, LANES>(keys_at[key], d);
      UNROLL for (int r = 0; r < COUNT; ++r) {
        const Floats query = load<Floats>(q + (row + r) * HEAD_DIM + d);
        UNROLL for (int key = 0; key < DOT_KEYS; ++key) acc[r][key] += query * keys[key];
      }
    }
    UNROLL for (int r = 0; r < COUNT; ++r) { store(scores + (row + r) * BLOCK_C + i, lane_sums(acc[r])); }
  }

  /// Whether rows of the cache have a NaN of E4M3, which the conversion turns into a number. The caller has just read
  /// the rows, so they are in the L1 cache.
  static INLINE bool have_nan(const char* const* of_keys, int keys) {
    if constexpr (CACHE_TYPE == E4M3) return rows_have_nan<HEAD_DIM, gcd(HEAD_DIM, 4 * VECTOR_WIDTH)>(of_keys, keys);
    return false;
  }

  INLINE void multiply_keys(const Block& block) {
    alignas(LINE_BYTES) float floats[CONVERTS ? DOT_KEYS : 1][HEAD_DIM];
    const char* converted[DOT_KEYS];
    for (int i = 0; i < block.keys; i += DOT_KEYS) {
      if constexpr (CONVERTS) convert(block.k + i, DOT_KEYS, floats, converted);
      const char* const* const keys_at = CONVERTS ? converted : block.k + i;
      // Each group of rows prefetches its share of these keys' values.
      const auto share = [&](int group) INLINE_LAMBDA { return min(i + DOT_KEYS * group / ROW_GROUPS, block.keys); };
      int row = 0, group = 0;
      for (; row + DOT_ROWS <= ROWS; row += DOT_ROWS, ++group) {
        multiply_keys<DOT_ROWS>(keys_at, row, i, block.v + share(group), share(group + 1) - share(group));
      }
      if constexpr (REST_ROWS > 0) {
        multiply_keys<REST_ROWS>(keys_at, row, i, block.v + share(group), share(group + 1) - share(group));
      }
    }
  }

  /// Multiplies a row's scores by the scales of K, and applies the score hook. Hides the scores of keys that the row
  /// does not see, and the scores after the block's last key up to `whole`.
  INLINE void change_scores(const Block& block, int row, int whole) {
    float* s = scores + row * BLOCK_C;
    if constexpr (SCALED) {
      for (int i = 0; i < whole; i += VECTOR_WIDTH)
        store(s + i, load<Scores>(s + i) * load<Scores>(block.k_scales + i));
    }
    if constexpr (!SCORE_IS_IDENTITY) {
      const ScoreContext hooked = context(row);
      const int query = query_of(row);
      for (int i = 0; i < block.keys; ++i) s[i] = score(s[i], query, block.first_key + i, hooked);
    }
    const KeyRange seen = visible_keys(query_of(row), context(row));
    for (int i = 0; i < min(seen.begin - block.first_key, block.keys); ++i) s[i] = hidden_score;
    for (int i = max(min(seen.end - block.first_key, block.keys), 0); i < whole; ++i) s[i] = hidden_score;
  }

  /// Turns scores into weights. If the maximum of a row grows, scales the row's outputs and sum down.
  INLINE void weigh(const Block& block) {
    const int whole = (block.keys + VECTOR_WIDTH - 1) / VECTOR_WIDTH * VECTOR_WIDTH;
    for (int row = 0; row < rows; ++row) {
      change_scores(block, row, whole);
      float* s = scores + row * BLOCK_C;
      Scores most = Scores{} + maximum[row];
      for (int i = 0; i < whole; i += VECTOR_WIDTH) {
        const Scores some = load<Scores>(s + i);
        most = some > most ? some : most;
      }
      const float larger = largest_lane<VECTOR_WIDTH>(most);
      const float shift = shift_of(larger);
      Scores weights = {};
      for (int i = 0; i < whole; i += VECTOR_WIDTH) {
        const Scores weight = exp4((load<Scores>(s + i) - shift) * FACTOR);
        if constexpr (SCALED) {
          store(s + i, weight * load<Scores>(block.v_scales + i));
        } else {
          store(s + i, weight);
        }
        weights += weight;
      }
      if (larger > maximum[row]) {
        const float alpha = exp4(Quad{} + (maximum[row] - larger) * FACTOR)[0];
        for (int d = 0; d < HEAD_DIM; d += LANES) {
          store(o + row * HEAD_DIM + d, load<Floats>(o + row * HEAD_DIM + d) * alpha);
        }
        sum[row] *= alpha;
        maximum[row] = larger;
      }
      sum[row] += sum_of_lanes<VECTOR_WIDTH>(weights);
    }
  }

  /// Adds values of the block's keys from `first` to before `end` to COUNT rows of outputs from `row` on. `values_at`:
  /// where these keys' values lie, in READ_TYPE.
  template <int COUNT>
  INLINE void add_values(const char* const* values_at, int first, int end, int row, Asker& asker) {
    constexpr int WIDTH = value_width(COUNT);
    for (int d = 0; d < HEAD_DIM; d += WIDTH * LANES) {
      Floats acc[COUNT][WIDTH];
      UNROLL for (int r = 0; r < COUNT; ++r) {
        UNROLL for (int w = 0; w < WIDTH; ++w) acc[r][w] = load<Floats>(o + (row + r) * HEAD_DIM + d + w * LANES);
      }
      for (int i = first; i < end; ++i) {
        asker.step();
        Floats values[WIDTH];
        UNROLL for (int w = 0; w < WIDTH; ++w) {
          values[w] = load_elements<READ_TYPE, LANES>(values_at[i - first], d + w * LANES);
        }
        UNROLL for (int r = 0; r < COUNT; ++r) {
          const float weight = scores[(row + r) * BLOCK_C + i];
          UNROLL for (int w = 0; w < WIDTH; ++w) acc[r][w] += weight * values[w];
        }
      }
      UNROLL for (int r = 0; r < COUNT; ++r) {
        UNROLL for (int w = 0; w < WIDTH; ++w) store(o + (row + r) * HEAD_DIM + d + w * LANES, acc[r][w]);
      }
    }
  }

  /// Adds the block's values to the tile's outputs. Prefetches the keys of `next` if `next` is not null.
  INLINE void add_values(const Block& block, const Block* next) {
    Asker asker{next ? next->k : nullptr, next ? next->keys : 0};
    alignas(LINE_BYTES) float floats[CONVERTS ? VALUE_KEYS : 1][HEAD_DIM];
    const char* converted[VALUE_KEYS];
    for (int first = 0; first < block.keys; first += VALUE_KEYS) {
      const int end = min(first + VALUE_KEYS, block.keys);
      if constexpr (CONVERTS) convert(block.v + first, end - first, floats, converted);
      const char* const* const values_at = CONVERTS ? converted : block.v + first;
      int row = 0;
      for (; row + DOT_ROWS <= ROWS; row += DOT_ROWS) add_values<DOT_ROWS>(values_at, first, end, row, asker);
      if constexpr (REST_ROWS > 0) add_values<REST_ROWS>(values_at, first, end, row, asker);
    }
  }

  /// Attends to the blocks of the tile from `from` to before `to`.
  INLINE void attend(int from, int to) {
    begin();
    if constexpr (APPENDS) take_new(from, to);
    Block blocks[2];
    find(blocks[0], from);
    for (int i = from; i < to; ++i) {
      Block& block = blocks[(i - from) % 2];
      Block& next = blocks[(i - from + 1) % 2];
      if (i + 1 < to) find(next, i + 1);
      if (block.keys == 0) continue;
      multiply_keys(block);
      if (have_nan(block.k, block.keys)) {
        for (int key = 0; key < block.keys; ++key) {
          if (have_nan(block.k + key, 1)) block.k_scales[key] = __builtin_nanf("");
        }
      }
      weigh(block);
      add_values(block, i + 1 < to ? &next : nullptr);
      if (have_nan(block.v, block.keys)) {  // makes finish() repair all rows, key by key
        for (int row = 0; row < rows; ++row) o[row * HEAD_DIM] = __builtin_nanf("");
      }
    }
  }

  /// Writes the rows of the tile to O and lse.
  INLINE void finish() const {
    for (int row = 0; row < rows; ++row) {
      const int head = head_of(row), query = query_of(row);
      const RowEnd end = end_of_row(maximum[row], sum[row], UNIT, context(row));
      const long long at = index_of(p.o_strides, {sequence.batch, head, query});
      Floats not_finite = {};
      for (int d = 0; d < HEAD_DIM; d += LANES) {
        const Floats values = load<Floats>(o + row * HEAD_DIM + d) * end.share;
        store_floats<OUT_TYPE, LANES>(p.o, at + d, values);
        not_finite += values * 0.0f;
      }
      if (p.lse) p.lse[(static_cast<long long>(sequence.batch) * p.q_heads + head) * p.q_len + query] = end.lse;
      // Calls repair() on a copy, so that the compiler may keep this worker in registers.
      if (any_lane(not_finite != 0) && end.share == end.share) Worker(*this).repair(row);
    }
  }

  /// Computes a row's outputs anew (common/attention/kernels/repair.h says why). New tokens are read from their own
  /// tensors, because the worker that writes them to the cache may not have written them yet.
  NOINLINE void repair(int row) const {
    const KvCacheView& cache = p.cache;
    const ScoreContext own = context(row);
    const int query = query_of(row);
    KeyRange keys = visible_keys(query, own);
    if (keys.begin < 0) keys.begin = 0;
    if (keys.end > sequence.keys) keys.end = sequence.keys;
    float loaded[HEAD_DIM];
    load_query(loaded, row, p.scale);
    const auto is_new = [&](int key) { return APPENDS && key >= first_new(); };
    const auto elements = [](const char* of_key, float scale) {
      return [=](int d) { return load_element<CACHE_TYPE>(of_key, d) * scale; };
    };
    const auto cached = [&](const void* tensor, const TensorStrides& strides, const float* scales, int key) {
      const KeyPlace at = place_of(key);
      float scale = 1;
      if constexpr (SCALED) {
        scale = scales[static_cast<long long>(at.batch) * p.kv_heads + kv_head] / unit_of_type(CACHE_TYPE);
      }
      return elements(static_cast<const char*>(tensor) + index_of(strides, at) * ELEMENT_BYTES, scale);
    };
    const auto score_of = [&](int key) {
#pragma clang fp reassociate(on)
      char fresh[ROW_BYTES];
      if constexpr (APPENDS) {
        if (is_new(key)) turn_new(fresh, key - first_new());
      }
      const auto k = is_new(key) ? elements(fresh, 1) : cached(cache.k, cache.k_strides, cache.k_scales, key);
      double dot = 0;
      VECTORIZE for (int d = 0; d < HEAD_DIM; ++d) dot += double{loaded[d]} * k(d);
      return hooked_score(static_cast<float>(dot), query, key, own);
    };
    const auto values_of = [&](int key) {
      return is_new(key) ? elements(new_row(tokens_of(p).v, tokens_of(p).v_strides, key - first_new()), 1)
                         : cached(cache.v, cache.v_strides, cache.v_scales, key);
    };
    const long long at = index_of(p.o_strides, {sequence.batch, head_of(row), query});
    exact_row(keys, SINK_IS_NONE ? hidden_score : sink_logit(own), score_of, values_of,
              [&](int d, float output) { store_float<OUT_TYPE>(p.o, at + d, output); });
  }

  /// Writes the tile's rows to the part, for the worker or the launch that joins the parts.
  INLINE void leave(long long part) const {
    float *part_o = p.part_o + part * ROWS * HEAD_DIM, *stats = p.part_stats + part * ROWS * 2;
    for (int row = 0; row < rows; ++row) {
      for (int d = 0; d < HEAD_DIM; d += LANES) {
        store(part_o + row * HEAD_DIM + d, load<Floats>(o + row * HEAD_DIM + d));
      }
      stats[2 * row] = maximum[row];
      stats[2 * row + 1] = sum[row];
    }
  }

  /// Joins the tile's parts in the order of the line, so that the result does not depend on the worker that joins.
  INLINE void join(int first_worker, int last_worker) {
    for (int row = 0; row < rows; ++row) clear(row);
    for (int worker = first_worker; worker <= last_worker; ++worker) {
      const long long part = part_of(worker, worker == first_worker);
      const float *part_o = p.part_o + part * ROWS * HEAD_DIM, *stats = p.part_stats + part * ROWS * 2;
      for (int row = 0; row < rows; ++row) {
        const float theirs = stats[2 * row], larger = theirs > maximum[row] ? theirs : maximum[row];
        const float shift = shift_of(larger);
        const Quad factors = exp4(Quad{maximum[row] - shift, theirs - shift} * FACTOR);
        for (int d = 0; d < HEAD_DIM; d += LANES) {
          float* to = o + row * HEAD_DIM + d;
          const Floats added = load<Floats>(part_o + row * HEAD_DIM + d) * factors[1];
          store(to, load<Floats>(to) * factors[0] + added);
        }
        sum[row] = sum[row] * factors[0] + stats[2 * row + 1] * factors[1];
        maximum[row] = larger;
      }
    }
    finish();
  }
};

}  // namespace

extern "C" void decode(const Params* params, const Threadgroup* group) {
  const Params& p = *params;
  Worker worker(p, *group);
  const Line& line = worker.line;
  const int index = static_cast<int>(group->index[0]);
  const long long blocks = line.blocks();
  const long long from = first_block_of(index, p.workers, blocks), to = first_block_of(index + 1, p.workers, blocks);
  for (long long block = from; block < to;) {
    const TilePlace place = line.at(block);
    const bool begins = block == place.begin, ends = place.end() <= to;
    worker.enter(place);
    worker.attend(static_cast<int>(block - place.begin), static_cast<int>((ends ? place.end() : to) - place.begin));
    block = place.end();
    if (begins && ends) {
      worker.finish();
      continue;
    }
    worker.leave(part_of(index, begins));
    if constexpr (JOIN_LAST) {
      const int first = worker_of(place.begin, p.workers, blocks), last = worker_of(place.end() - 1, p.workers, blocks);
      const long long head = static_cast<long long>(place.sequence.batch) * p.kv_heads + place.kv_head;
      unsigned* arrived = p.arrived + head * line.tiles + place.tile;
      if (static_cast<int>(__atomic_fetch_add(arrived, 1, __ATOMIC_ACQ_REL)) == last - first) {
        worker.join(first, last);
        __atomic_store_n(arrived, 0, __ATOMIC_RELAXED);
      }
    }
  }
}

extern "C" void decode_join(const Params* params, const Threadgroup* group) {
  const Params& p = *params;
  Worker worker(p, *group);
  const TilePlace place = worker.line.tile(static_cast<int>(group->index[0]));
  const long long blocks = worker.line.blocks();
  const int first = worker_of(place.begin, p.workers, blocks), last = worker_of(place.end() - 1, p.workers, blocks);
  if (first == last) return;
  worker.enter(place);
  worker.join(first, last);
}
