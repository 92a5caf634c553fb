// Paged attention for a few queries of each sequence, with simdgroup matrices of 8 x 8. This kernel has not run on
// Apple hardware yet. decode.h says how workers share the work, and who joins the parts of a tile.
//
// The kernel reads a key once for all rows of the tile. A simdgroup keeps the outputs, scores and weights of 8 rows in
// registers. Teams of simdgroups (MetalDecodeLayout) take 8 keys each at a time. A row becomes NaN if it sees a key on
// a page that does not exist, or if the length of its sequence is not allowed. A row is computed anew
// (exact_row_metal.h) if an element that it sees or a result is not finite, or if a score or the sink is NaN or has a
// magnitude of MOST_SCORE or more. But a score of -infinity hides its key, and a sink of -infinity has no effect.
// Threadgroup memory has 0 in place of an element that is not finite, and a flag says so.
//
// A cache may have a narrower type than q: the kernel converts the cache's elements to q's type on the way to
// threadgroup memory. With a cache of 8 bits the kernel multiplies a score by the scale of the key. It multiplies an
// element of V by the element's scale, and then rounds the product.
//
// With APPENDS the newest keys and values come from their own tensors. The kernel rotates the new keys and the queries.
// The workers of the first tile of a key/value head write the head's new keys and values to the cache, where no worker
// of the launch reads them.
//
// Function constants: HEAD_DIM (multiple of 8, at most 256), ROWS (8, 16 or 32), BLOCK_C (a multiple of 32), PAGE_SIZE
// (0: contiguous; any number of tokens), CAUSAL, IN_TYPE (of q), CACHE_TYPE (IN_TYPE, E4M3 or INT8; any type if IN_TYPE
// is F32, which represents every number of each type), OUT_TYPE, JOIN_LAST, APPENDS (1 only for a cache of q's type).
// With APPENDS: ROTARY_DIM (0: nothing is rotated), INTERLEAVED. decode_join has the same constants. Grid: workers; the
// grid of decode_join: tiles (batch * kv_heads * tiles of a group). Threads and threadgroup memory: MetalDecodeLayout.
//
// With JOIN_LAST parts pass between threadgroups of one launch, by coherent pointers and the fence of Metal 3.2.
//
// Hooks: score, keys, sink. The keys that a row sees may depend on the row's sequence and query, but not on its head.
//
// A lane has HEAD_DIM / 4 outputs and 2 scores in registers, and HEAD_DIM / 4 elements of Q if HEAD_DIM is at most 128.
// These are 66 registers at HEAD_DIM=128 (f32) and at HEAD_DIM=256.
#include "common/attention/kernels/exact_row_metal.h"
#include "common/attention/kernels/keys.h"
#include "common/attention/kernels/modifiers/turned_metal.h"
#include "common/attention/kernels/score.h"
#include "common/attention/kernels/sink.h"
#include "common/kernel/bytes_metal.h"
#include "common/kernel/metal.h"
#include "common/paged/kernels/decode.h"
#include "common/paged/kernels/decode_metal.h"

static_assert(CACHE_TYPE == IN_TYPE || (!APPENDS && (CACHE_TYPE == E4M3 || CACHE_TYPE == INT8 || IN_TYPE == F32)),
              "host asks for nothing else");

// The memory of the parts.
#if JOIN_LAST_VALUE
#define PART_SPACE coherent(device) device
#else
#define PART_SPACE device
#endif

typedef ElementOf<IN_TYPE>::type Element;
typedef simdgroup_matrix<Element, 8, 8> Operand;
typedef simdgroup_matrix<float, 8, 8> Sums;
typedef DecodeParamsOf<APPENDS != 0>::type Params;

constexpr constant int ELEMENT_BYTES = IN_TYPE == F32 ? 4 : 2;
constexpr constant int ROW = MetalDecodeLayout(HEAD_DIM, ROWS, ELEMENT_BYTES).row;
constexpr constant int TEAMS = MetalDecodeLayout(HEAD_DIM, ROWS, ELEMENT_BYTES).teams;
constexpr constant int THREADS = MetalDecodeLayout(HEAD_DIM, ROWS, ELEMENT_BYTES).threads;
constexpr constant int KV_PLACE = MetalDecodeLayout(HEAD_DIM, ROWS, ELEMENT_BYTES).kv;
constexpr constant int FLAGS = MetalDecodeLayout(HEAD_DIM, ROWS, ELEMENT_BYTES).flags;
constexpr constant bool Q_REGISTERS = MetalDecodeLayout(HEAD_DIM, ROWS, ELEMENT_BYTES).q_registers;
constexpr constant int TEAM_SIMDGROUPS = ROWS / 8, TEAM_THREADS = TEAM_SIMDGROUPS * SIMD;
constexpr constant int STEPS = HEAD_DIM / 8;                                // matrices of a row of Q, K, V or O
constexpr constant int BLOCK = BLOCK_C;                                     // keys, as an int
constexpr constant bool SCALED = CACHE_TYPE == E4M3 || CACHE_TYPE == INT8;  // elements have scales
constexpr constant float MOST_SCORE = 1.0e37f;  // a larger score makes the row be computed anew

/// The new tokens; null without APPENDS.
INLINE constant NewTokens* tokens_of(constant DecodeParams& /*params*/) { return nullptr; }
INLINE constant NewTokens* tokens_of(constant FusedDecodeParams& params) { return &params.tokens; }

/// A sequence and its blocks on the line of blocks (decode.h). All tiles of the sequence have the same number of
/// blocks. Every key that some query of the sequence may see lies in one of the blocks.
struct Sequence {
  int batch, keys;  // keys: -1 if the sequence's length is not allowed
  KeyRange seen;
  int first_block, blocks;  // at least one block, so that a worker writes the rows of a sequence without keys
};

/// A tile of a sequence, and its first block on the line.
struct TilePlace {
  Sequence sequence;
  int kv_head, tile;
  long begin;
};

/// The line of blocks (decode.h).
struct Line {
  constant Params& p;
  int rows, tiles;

  Line(constant Params& params) : p(params) {
    rows = p.q_heads / p.kv_heads * p.q_len;
    tiles = (rows + static_cast<int>(ROWS) - 1) / static_cast<int>(ROWS);
  }
  HookContext context_of(int batch, int head, int keys) const {
    return {batch, head, p.q_heads, p.q_len, keys, p.score_data};
  }
  Sequence sequence_of(int batch) const {
    const int length = p.lengths[batch];
    const int keys = static_cast<uint>(length) <= static_cast<uint>(p.most_keys) ? length : -1;
    const HookContext context = context_of(batch, 0, max(keys, 0));
    const int end = max(min(visible_keys(p.q_len - 1, context).end, keys), 0);
    const int begin = min(max(visible_keys(0, context).begin, 0), end);
    const int first_block = begin / BLOCK;
    return {batch, keys, {begin, end}, first_block, max((end + BLOCK - 1) / BLOCK - first_block, 1)};
  }
  long blocks_of(int sequence_blocks) const { return static_cast<long>(sequence_blocks) * p.kv_heads * tiles; }
  long blocks() const {
    long all = 0;
    for (int batch = 0; batch < p.batch; ++batch) all += blocks_of(sequence_of(batch).blocks);
    return all;
  }
  /// Returns the tile of a block of the line.
  TilePlace at(long block) const {
    long begin = 0;
    Sequence sequence = sequence_of(0);
    while (begin + blocks_of(sequence.blocks) <= block) {
      begin += blocks_of(sequence.blocks);
      sequence = sequence_of(sequence.batch + 1);
    }
    const int number = static_cast<int>((block - begin) / sequence.blocks);
    return {sequence, number / tiles, number % tiles, begin + static_cast<long>(number) * sequence.blocks};
  }
  /// Returns the tile with this number. Tiles are numbered sequence by sequence.
  TilePlace tile(int number) const {
    const int of_sequence = p.kv_heads * tiles, rest = number % of_sequence;
    long begin = 0;
    for (int batch = 0; batch < number / of_sequence; ++batch) begin += blocks_of(sequence_of(batch).blocks);
    const Sequence sequence = sequence_of(number / of_sequence);
    return {sequence, rest / tiles, rest % tiles, begin + static_cast<long>(rest) * sequence.blocks};
  }
};

/// A row of a tile, for write_exact_row(), which says what the members do.
struct DecodeRow {
  constant Params& p;
  const HookContext context;
  const int query, kv_head, keys;
  int begin, end;

  DecodeRow(constant Params& params, Sequence sequence, int key_head, int row)
      : p(params),
        context{sequence.batch,        key_head * (params.q_heads / params.kv_heads) + row / params.q_len,
                params.q_heads,        params.q_len,
                max(sequence.keys, 0), params.score_data},
        query(row % params.q_len),
        kv_head(key_head),
        keys(sequence.keys) {
    const KeyRange range = visible_keys(query, context);
    begin = max(range.begin, 0);
    end = min(range.end, keys);
  }

  /// Where a key lies in the cache. If its page does not exist, .batch is negative.
  KeyPlace place_of(int key) const {
    if (PAGE_SIZE == 0) return {context.batch, kv_head, key};
    const int page_size = PAGE_SIZE == 0 ? 1 : PAGE_SIZE;
    const int page = p.cache.table[static_cast<long>(context.batch) * p.cache.max_pages + key / page_size];
    return {static_cast<uint>(page) < static_cast<uint>(p.cache.pages) ? page : -1, kv_head, key % page_size};
  }
  /// The number of a key among the new tokens; negative: the key is in the cache.
  int token_of(int key) const { return APPENDS ? key - (keys - p.q_len) : -1; }
  /// The scale of K's or V's elements at a place; 1 without scales.
  float scale_of(const device float* scales, KeyPlace place) const {
    return SCALED ? scales[static_cast<long>(place.batch) * p.kv_heads + kv_head] : 1.0f;
  }
  /// Returns element d of a row, rotated by the angles of the row's position if the launch rotates.
  float turn(RowElements<IN_TYPE> row, int position, int d) const {
#if APPENDS_VALUE && ROTARY_DIM_VALUE > 0
    const AngleTable cosines{reinterpret_cast<const device char*>(tokens_of(p)->cosines), 0};
    const AngleTable sines{reinterpret_cast<const device char*>(tokens_of(p)->sines), 0};
    if (position >= 0) return turned(row, position, d, cosines, sines);
#endif
    (void)position;
    return row(d);
  }
  float query_element(int d) const {
    const RowElements<IN_TYPE> row{p.q, index_of(p.q_strides, context.batch, context.head, query)};
    return turn(row, keys - p.q_len + query, d);
  }
  /// Element d of a new key, rotated as in the cache; new_value() returns element d of a new value.
  float new_key(int token, int d) const {
    constant NewTokens& tokens = *tokens_of(p);
    const RowElements<IN_TYPE> row{tokens.k, index_of(tokens.k_strides, context.batch, kv_head, token)};
    return turn(row, keys - p.q_len + token, d);
  }
  float new_value(int token, int d) const {
    constant NewTokens& tokens = *tokens_of(p);
    return load_float<IN_TYPE>(tokens.v, index_of(tokens.v_strides, context.batch, kv_head, token) + d);
  }
  /// Element d of a row of the cache, without its scale.
  float cached(const device void* tensor, constant TensorStrides& strides, KeyPlace place, int d) const {
    return load_element<CACHE_TYPE>(tensor, index_of(strides, place.batch, place.head, place.row) + d);
  }
  float score_of(int key) const {
    const int token = token_of(key);
    const KeyPlace place = token < 0 ? place_of(key) : KeyPlace{0, 0, 0};
    if (place.batch < 0) return not_a_number();
    Dot dot;
    for (int d = 0; d < HEAD_DIM; ++d) {
      dot.add(query_element(d), token < 0 ? cached(p.cache.k, p.cache.k_strides, place, d) : new_key(token, d));
    }
    const float s = dot.times(token < 0 ? p.scale * scale_of(p.cache.k_scales, place) : p.scale);
    return is_nan(s) ? s : score(s, query, key, context);
  }
  float value_of(int key, int d) const {
    const int token = token_of(key);
    if (token >= 0) return new_value(token, d);
    const KeyPlace place = place_of(key);
    if (place.batch < 0) return not_a_number();
    const float element = cached(p.cache.v, p.cache.v_strides, place, d);
    return is_finite(element) ? element * scale_of(p.cache.v_scales, place) : element;
  }
  float sink() const {
    if (keys < 0) return not_a_number();
    return SINK_IS_NONE ? -__builtin_inff() : sink_logit(context);
  }
  void store(int d, float value, bool nan) const {
    const long at = index_of(p.o_strides, context.batch, context.head, query) + d;
    if (nan) {
      store_nan<OUT_TYPE>(p.o, at);
    } else {
      store_float<OUT_TYPE>(p.o, at, value);
    }
  }
  void store_lse(float maximum, float sum, bool nan) const {
    if (!p.lse) return;
    ::store_lse(p.lse + (static_cast<long>(context.batch) * p.q_heads + context.head) * p.q_len + query, maximum, sum,
                nan);
  }
};

/// Returns the number of the part in which a worker leaves its result for a tile: the worker's second part if the tile
/// begins in the worker's share, else the worker's first part.
INLINE long part_of(int worker, bool begins) { return 2L * worker + begins; }

/// Stores an element, or 0 if it is not finite. Returns whether it is finite.
INLINE bool put(threadgroup Element* to, Element element) {
  const bool finite = is_finite(static_cast<float>(element));
  *to = finite ? element : static_cast<Element>(0.0f);
  return finite;
}

/// The work of a threadgroup on a tile. A lane holds parts of one row of its simdgroup's 8 rows.
struct Worker {
  constant Params& p;
  const Line line;
  threadgroup uchar* const memory;
  const int thread_number, lane, simdgroup;
  const int team, column, row;  // row: the lane's row in the tile; column: the first of its two columns in a matrix
  Sequence sequence;
  int kv_head, first_row;  // first_row: of the tile, among the rows of its key/value head; 0 in the first tile
  Operand q[Q_REGISTERS ? STEPS : 1];
  Sums o[STEPS];
  float maximum, sum;  // of the lane's row; the maximum is in base 2, the sum is the lane's part of the row's sum
  bool strange;        // the row must be computed anew

  Worker(constant Params& params, threadgroup uchar* place, uint thread_index, uint lane_index, uint number)
      : p(params),
        line(params),
        memory(place),
        thread_number(static_cast<int>(thread_index)),
        lane(static_cast<int>(lane_index)),
        simdgroup(static_cast<int>(number)),
        team(static_cast<int>(number) / TEAM_SIMDGROUPS),
        column(fragment_column(lane_index)),
        row(static_cast<int>(number) % TEAM_SIMDGROUPS * 8 + fragment_row(lane_index)) {}

  bool exists(int of_tile) const { return first_row + of_tile < line.rows; }
  DecodeRow row_of(int of_tile) const {
    return DecodeRow(p, sequence, kv_head, min(first_row + of_tile, line.rows - 1));
  }

  void enter(TilePlace place) {
    sequence = place.sequence;
    kv_head = place.kv_head;
    first_row = place.tile * static_cast<int>(ROWS);
  }

  /// Loads the tile's queries, with zeros for rows beyond the tile's last row, and clears the tile's outputs.
  void begin() {
    threadgroup Element* const rows = reinterpret_cast<threadgroup Element*>(memory);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // all simdgroups have ended the previous tile
    for (int of_tile = simdgroup; of_tile < ROWS; of_tile += THREADS / SIMD) {
      const DecodeRow from = row_of(of_tile);
      bool finite = true;
      for (int d = lane; d < HEAD_DIM; d += SIMD) {
        finite = put(rows + of_tile * ROW + d, static_cast<Element>(exists(of_tile) ? from.query_element(d) : 0.0f)) &&
                 finite;
      }
      const bool odd = simd_any(!finite);
      if (lane == 0) odd_rows()[of_tile] = odd;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (Q_REGISTERS) {
      UNROLL for (int t = 0; t < (Q_REGISTERS ? STEPS : 1); ++t) simdgroup_load(q[t], own_queries() + t * 8, ROW);
    }
    UNROLL for (int j = 0; j < STEPS; ++j) o[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    maximum = lowest_score;
    sum = 0;
    strange = sequence.keys < 0 || odd_rows()[row] != 0;
  }
  /// Flags: for each row of Q, 1 if the row is not finite; then the flags of copy(), one for each simdgroup.
  threadgroup uint* odd_rows() const { return reinterpret_cast<threadgroup uint*>(memory + FLAGS); }
  threadgroup Element* own_queries() const {
    return reinterpret_cast<threadgroup Element*>(memory) + simdgroup % TEAM_SIMDGROUPS * 8 * ROW;
  }

  /// Copies 8 rows of K or V from `first_key` on; rows from `end` on become zeros. In K, a key whose page does not
  /// exist counts as not finite. In the first tile of a key/value head, also writes new tokens to the cache. Sets the
  /// simdgroup's flag to 1 if the simdgroup copied an element that is not finite, else to 0.
  void copy(device void* tensor, constant TensorStrides& strides, threadgroup Element* to, int first_key, int end,
            bool of_k) const {
    const DecodeRow any = row_of(0);
    bool finite = true;
    for (int i = thread_number % TEAM_THREADS; i < 8 * STEPS; i += TEAM_THREADS) {
      const int of_block = i / STEPS, first = i % STEPS * 8, key = first_key + of_block;
      threadgroup Element* const there = to + of_block * ROW + first;
      KeyPlace place{-1, 0, 0};
      if (key < end) place = any.place_of(key);
      const bool found = place.batch >= 0, fresh = key < end && any.token_of(key) >= 0;
      const float factor = !of_k && found ? any.scale_of(p.cache.v_scales, place) : 1.0f;
      for (int d = first; d < first + 8; ++d) {
        float element = of_k && key < end ? not_a_number() : 0.0f;
        if (fresh) {
          element = of_k ? any.new_key(any.token_of(key), d) : any.new_value(any.token_of(key), d);
          if (found && first_row == 0) {
            store_float<IN_TYPE>(tensor, index_of(strides, place.batch, place.head, place.row) + d, element);
          }
        } else if (found) {
          element = any.cached(tensor, strides, place, d);
          if (SCALED && is_finite(element)) element *= factor;
        }
        finite = put(there + d - first, static_cast<Element>(element)) && finite;
      }
    }
    const bool odd = simd_any(!finite);
    if (lane == 0) odd_rows()[static_cast<int>(ROWS) + simdgroup] = odd;
  }
  /// Whether the team has copied an element that is not finite.
  bool team_is_odd() const {
    uint set = 0;
    for (int i = 0; i < TEAM_SIMDGROUPS; ++i) {
      set |= odd_rows()[static_cast<int>(ROWS) + team * TEAM_SIMDGROUPS + i];
    }
    return set != 0;
  }

  /// Attends to the blocks of the tile from `from` to before `to`.
  void attend(int from, int to) {
    begin();
    threadgroup Element* const block = reinterpret_cast<threadgroup Element*>(memory + KV_PLACE) + team * 8 * ROW;
    const DecodeRow own = row_of(row);
    const bool there = exists(row);
    const int end = min((sequence.first_block + to) * BLOCK, sequence.seen.end);
    for (int step = (sequence.first_block + from) * BLOCK; step < end; step += TEAMS * 8) {
      const int first_key = step + team * 8;
      threadgroup_barrier(mem_flags::mem_threadgroup);  // all simdgroups have read the previous keys and Q
      copy(p.cache.k, p.cache.k_strides, block, first_key, end, true);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      const bool sees_some = there && first_key < own.end && own.begin < first_key + 8;
      strange = strange || (sees_some && team_is_odd());
      Sums s = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      UNROLL for (int t = 0; t < STEPS; ++t) {
        Operand k;
        simdgroup_load(k, block + t * 8, ROW, ulong2(0, 0), true);
        if (!Q_REGISTERS) simdgroup_load(q[0], own_queries() + t * 8, ROW);
        simdgroup_multiply_accumulate(s, q[Q_REGISTERS ? t : 0], k, s);
      }
      float x[2];
      UNROLL for (int i = 0; i < 2; ++i) {
        const int key = first_key + column + i;
        x[i] = s.thread_elements()[i] * p.scale;
        bool seen = there && own.begin <= key && key < min(own.end, end);
        if (seen) {
          if (SCALED) {
            const KeyPlace place = own.place_of(key);
            if (place.batch >= 0) x[i] *= own.scale_of(p.cache.k_scales, place);
          }
          if (!SCORE_IS_IDENTITY && is_finite(x[i])) x[i] = score(x[i], own.query, key, own.context);
          seen = !is_minus_infinity(x[i]);
          if (seen && !(is_finite(x[i]) && fabs(x[i]) < MOST_SCORE)) strange = true;
        }
        x[i] = seen && !strange ? x[i] * log2_e : lowest_score;
      }
      const float larger = maximum_of_row(max(maximum, max(x[0], x[1])));
      const float alpha = fast::exp2(maximum - larger);
      maximum = larger;
      sum *= alpha;
      Operand weights;
      UNROLL for (int i = 0; i < 2; ++i) {
        const float weight = x[i] == lowest_score ? 0.0f : fast::exp2(x[i] - larger);
        sum += weight;
        weights.thread_elements()[i] = static_cast<Element>(weight);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);  // all simdgroups of the team have read K
      copy(p.cache.v, p.cache.v_strides, block, first_key, end, false);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      strange = strange || (sees_some && team_is_odd());
      UNROLL for (int j = 0; j < STEPS; ++j) {
        o[j].thread_elements()[0] *= alpha;
        o[j].thread_elements()[1] *= alpha;
        Operand v;
        simdgroup_load(v, block + j * 8, ROW);
        simdgroup_multiply_accumulate(o[j], weights, v, o[j]);
      }
    }
    sum = sum_of_row(sum);
    strange = maximum_of_row(strange ? 1.0f : 0.0f) != 0;
    join_teams();
  }

  /// Adds the results of the other teams to the results of team 0.
  void join_teams() {
    threadgroup float* const shared = reinterpret_cast<threadgroup float*>(memory + KV_PLACE);
    threadgroup float* const outputs = shared + row * HEAD_DIM + column;
    threadgroup float* const stats = shared + ROWS * HEAD_DIM + row * 3;
    for (int other = 1; other < TEAMS; ++other) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (team == other) {
        UNROLL for (int j = 0; j < STEPS; ++j) {
          UNROLL for (int i = 0; i < 2; ++i) outputs[j * 8 + i] = o[j].thread_elements()[i];
        }
        if (column == 0) stats[0] = maximum, stats[1] = sum, stats[2] = strange ? 1.0f : 0.0f;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (team != 0) continue;
      const float theirs = stats[0], larger = max(maximum, theirs);
      const float factor = fast::exp2(maximum - larger), their_factor = fast::exp2(theirs - larger);
      UNROLL for (int j = 0; j < STEPS; ++j) {
        UNROLL for (int i = 0; i < 2; ++i) {
          o[j].thread_elements()[i] = o[j].thread_elements()[i] * factor + outputs[j * 8 + i] * their_factor;
        }
      }
      sum = sum * factor + stats[1] * their_factor;
      strange = strange || stats[2] != 0;
      maximum = larger;
    }
  }

  /// Writes the rows of the tile to O and lse. Only team 0 has results.
  void finish() {
    if (team != 0) return;
    const DecodeRow own = row_of(row);
    if (!SINK_IS_NONE) {
      const float sink = own.sink();
      if (is_finite(sink) && fabs(sink) < MOST_SCORE) {
        const float larger = max(maximum, sink * log2_e), alpha = fast::exp2(maximum - larger);
        UNROLL for (int j = 0; j < STEPS; ++j) {
          o[j].thread_elements()[0] *= alpha;
          o[j].thread_elements()[1] *= alpha;
        }
        sum = sum * alpha + fast::exp2(sink * log2_e - larger);
        maximum = larger;
      } else if (!is_minus_infinity(sink)) {
        strange = true;
      }
    }
    const float share = sum == 0 ? 0.0f : 1 / sum;
    UNROLL for (int j = 0; j < STEPS; ++j) {
      UNROLL for (int i = 0; i < 2; ++i) {
        o[j].thread_elements()[i] *= share;
        strange = strange || !is_finite(o[j].thread_elements()[i]);
      }
    }
    const int of_simdgroup = row % 8;
    const uint row_bit = exists(row) ? 1u << of_simdgroup : 0u;
    const uint strange_rows = simd_or(strange ? row_bit : 0u);
    if (row_bit != 0 && (strange_rows & row_bit) == 0) {
      UNROLL for (int j = 0; j < STEPS; ++j) {
        UNROLL for (int i = 0; i < 2; ++i) own.store(j * 8 + column + i, o[j].thread_elements()[i], false);
      }
      if (column == 0) own.store_lse(maximum * ln_2, sum, false);
    }
    for (uint rows = strange_rows; rows != 0; rows &= rows - 1) {
      write_exact_row(row_of(row - of_simdgroup + static_cast<int>(ctz(rows))), static_cast<uint>(lane));
    }
  }

  /// Writes the tile's rows to the part. A row that must be computed anew gets a sum of NaN.
  void leave(long part) {
    if (team != 0) return;
    PART_SPACE float* const outputs = p.part_o + (part * ROWS + row) * HEAD_DIM + column;
    UNROLL for (int j = 0; j < STEPS; ++j) {
      UNROLL for (int i = 0; i < 2; ++i) outputs[j * 8 + i] = o[j].thread_elements()[i];
    }
    if (column != 0) return;
    PART_SPACE float* const stats = p.part_stats + (part * ROWS + row) * 2;
    stats[0] = maximum;
    if (strange) {
      reinterpret_cast<PART_SPACE uint*>(stats)[1] = 0x7fc00000u;
    } else {
      stats[1] = sum;
    }
  }

  /// Joins the tile's parts in the order of the line, so that the result does not depend on the worker that joins.
  void join(int first_worker, int last_worker) {
    if (team != 0) return;
    UNROLL for (int j = 0; j < STEPS; ++j) o[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    maximum = lowest_score;
    sum = 0;
    strange = false;
    for (int worker = first_worker; worker <= last_worker; ++worker) {
      const long part = part_of(worker, worker == first_worker);
      const PART_SPACE float* const outputs = p.part_o + (part * ROWS + row) * HEAD_DIM + column;
      const PART_SPACE float* const stats = p.part_stats + (part * ROWS + row) * 2;
      const float theirs = stats[0], their_sum = stats[1], larger = max(maximum, theirs);
      const float factor = fast::exp2(maximum - larger), their_factor = fast::exp2(theirs - larger);
      UNROLL for (int j = 0; j < STEPS; ++j) {
        UNROLL for (int i = 0; i < 2; ++i) {
          o[j].thread_elements()[i] = o[j].thread_elements()[i] * factor + outputs[j * 8 + i] * their_factor;
        }
      }
      if (is_finite(their_sum)) {
        sum = sum * factor + their_sum * their_factor;
      } else {
        strange = true;
      }
      maximum = larger;
    }
    finish();
  }
};

kernel void decode(constant Params& p [[buffer(0)]], threadgroup uchar* memory [[threadgroup(0)]],
                   uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  Worker worker(p, memory, thread_index, lane, simdgroup);
  const int index = static_cast<int>(group.x);
  const long blocks = worker.line.blocks();
  const long from = first_block_of(index, p.workers, blocks), to = first_block_of(index + 1, p.workers, blocks);
  for (long block = from; block < to;) {
    const TilePlace place = worker.line.at(block);
    const long end = place.begin + place.sequence.blocks;
    const bool begins = block == place.begin, ends = end <= to;
    worker.enter(place);
    worker.attend(static_cast<int>(block - place.begin), static_cast<int>((ends ? end : to) - place.begin));
    block = end;
    if (begins && ends) {
      worker.finish();
      continue;
    }
    worker.leave(part_of(index, begins));
#if JOIN_LAST_VALUE
    const int first = worker_of(place.begin, p.workers, blocks), last = worker_of(end - 1, p.workers, blocks);
    const long head = static_cast<long>(place.sequence.batch) * p.kv_heads + place.kv_head;
    device atomic_uint* const arrived =
        reinterpret_cast<device atomic_uint*>(p.arrived + head * worker.line.tiles + place.tile);
    threadgroup uint* const before = reinterpret_cast<threadgroup uint*>(memory + KV_PLACE);
    atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    if (thread_index == 0) *before = atomic_fetch_add_explicit(arrived, 1u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const bool is_last = static_cast<int>(*before) == last - first;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (is_last) {
      atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
      worker.join(first, last);
      if (thread_index == 0) atomic_store_explicit(arrived, 0u, memory_order_relaxed);
    }
#endif
  }
}

kernel void decode_join(constant Params& p [[buffer(0)]], threadgroup uchar* memory [[threadgroup(0)]],
                        uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  Worker worker(p, memory, thread_index, lane, simdgroup);
  const TilePlace place = worker.line.tile(static_cast<int>(group.x));
  const long blocks = worker.line.blocks();
  const int first = worker_of(place.begin, p.workers, blocks);
  const int last = worker_of(place.begin + place.sequence.blocks - 1, p.workers, blocks);
  if (first == last) return;
  worker.enter(place);
  worker.join(first, last);
}
