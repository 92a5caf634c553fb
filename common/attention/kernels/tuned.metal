// Variant `tuned`: flash attention forward with simdgroup matrices of 8 x 8, after Dao 2023, FlashAttention-2. The
// kernel has not run on Apple hardware yet.
//
// A simdgroup has 8 query rows. It keeps their outputs, scores and weights in registers from the first key to the last.
// All simdgroups of a threadgroup share the blocks of K and V, which lie in threadgroup memory. If K and V have a
// buffer each, no barrier lies between the loads of V and the products of Q and K, nor between the loads of the next
// block of K and the products with V, so a simdgroup may load while another multiplies. Keys that do not exist are
// zeros in these blocks. The four lanes that hold a row of a matrix (fragment_row() in common/kernel/metal.h) exchange
// only the row's maximum and sum. Blocks are walked from the first key to the last.
//
// In threadgroup memory, 0 replaces each element that is not finite, and a flag records this. The kernel computes a row
// anew (exact_row_metal.h) in these cases:
//   - the row of Q has such an element
//   - a block of which the row sees a key has such an element in K or V, or has a key on a page that does not exist
//   - a score is NaN or +infinity, or so large that differences of scores may overflow
//   - the sink is NaN, +infinity or as large as such a score, or end_of_keys() (keys.h) is negative
//   - an output is not finite
//
// The kernel takes all hooks except before.h; score hooks get single scores.
//
// Function constants: HEAD_DIM (multiple of 8, at most 256), BLOCK_R, BLOCK_C (multiples of 8), CAUSAL, IN_TYPE,
// OUT_TYPE. Grid: (query tiles, q_heads, batch); causal tiles run from the last rows to the first. Threads and
// threadgroup memory: MetalTunedLayout.
//
// Accumulators of a lane: HEAD_DIM / 4 of outputs and BLOCK_C / 4 of scores, and HEAD_DIM / 4 elements of Q if HEAD_DIM
// is at most 128. With BLOCK_C=32 these take 72 registers with f32 at HEAD_DIM=128, and 72 at 256; a lane has about
// 128.
#include "common/attention/kernels/attention_row_metal.h"
#include "common/attention/kernels/mask_lists.h"
#include "common/attention/kernels/tuned_metal.h"
#include "common/kernel/metal.h"

typedef ElementOf<IN_TYPE>::type Element;
typedef simdgroup_matrix<Element, 8, 8> Operand;
typedef simdgroup_matrix<float, 8, 8> Sums;
typedef ParamsWithLists<MASK_LISTS, AttentionParams>::type Params;

constexpr constant int ROW = MetalTunedLayout(HEAD_DIM, BLOCK_R, BLOCK_C, IN_TYPE).row;
constexpr constant int THREADS = MetalTunedLayout(HEAD_DIM, BLOCK_R, BLOCK_C, IN_TYPE).threads;
constexpr constant int K_PLACE = MetalTunedLayout(HEAD_DIM, BLOCK_R, BLOCK_C, IN_TYPE).k;
constexpr constant int V_PLACE = MetalTunedLayout(HEAD_DIM, BLOCK_R, BLOCK_C, IN_TYPE).v;
constexpr constant int FLAGS = MetalTunedLayout(HEAD_DIM, BLOCK_R, BLOCK_C, IN_TYPE).flags;
constexpr constant bool TAKE_TURNS = V_PLACE == K_PLACE;  // K and V have one buffer
constexpr constant bool Q_REGISTERS = MetalTunedLayout(HEAD_DIM, BLOCK_R, BLOCK_C, IN_TYPE).q_registers;
constexpr constant int STEPS = HEAD_DIM / 8;    // matrices of a row of Q, K, V or O
constexpr constant int COLUMNS = BLOCK_C / 8;   // matrices of a row of scores
constexpr constant float MOST_SCORE = 1.0e37f;  // a larger score makes the row be computed anew

INLINE MaskLists lists_of(constant AttentionParams& /*params*/) { return {}; }
INLINE MaskLists lists_of(constant WithLists<AttentionParams>& params) {
  return {params.lists.counts,      params.lists.entries,  params.lists.capacity, params.lists.rows,
          params.lists.first_query, params.lists.of_batch, params.lists.of_head};
}

// An element that is not finite has an exponent of ones. A word has one element of 32 bits, or two of 16 bits.
constexpr constant uint EXPONENTS = IN_TYPE == F32 ? 0x7f800000u : IN_TYPE == F16 ? 0x7c007c00u : 0x7f807f80u;
constexpr constant uint ONES = IN_TYPE == F32 ? 0x00800000u : IN_TYPE == F16 ? 0x04000400u : 0x00800080u;
constexpr constant uint SIGNS = IN_TYPE == F32 ? 0x80000000u : 0x80008000u;

/// Stores an element, or 0 if it is not finite. Returns whether it is finite.
INLINE bool put(threadgroup Element* to, Element element) {
  const bool finite = is_finite(static_cast<float>(element));
  *to = finite ? element : static_cast<Element>(0.0f);
  return finite;
}

/// Copies 8 elements; both addresses are multiples of 16 bytes. Returns whether all are finite; 0 replaces the others.
INLINE bool copy_8(threadgroup Element* to, const device Element* from) {
  uint carries = 0;  // into the signs, from exponents of ones
  UNROLL for (int i = 0; i < static_cast<int>(sizeof(Element)) / 2; ++i) {
    const uint4 words = reinterpret_cast<const device uint4*>(from)[i];
    reinterpret_cast<threadgroup uint4*>(to)[i] = words;
    const uint4 sums = (words & EXPONENTS) + ONES;
    carries |= sums.x | sums.y | sums.z | sums.w;
  }
  if ((carries & SIGNS) == 0) return true;
  for (int d = 0; d < 8; ++d) put(to + d, from[d]);
  return false;
}
INLINE void clear_8(threadgroup Element* to) {
  for (int d = 0; d < 8; ++d) to[d] = static_cast<Element>(0.0f);
}

/// The tile of a threadgroup.
struct Tile {
  constant Params& p;
  const HookContext context;
  const int kv_head, first_query, keys_there;  // keys_there: where the sequence's own keys end

  Tile(constant Params& params, int batch, int head, int first)
      : p(params),
        context{batch, head, params.q_heads, params.q_len, params.kv_len, params.score_data},
        kv_head(head / (params.q_heads / params.kv_heads)),
        first_query(first),
        keys_there(KEYS_END_EARLY ? min(params.kv_len, end_of_keys(context)) : params.kv_len) {}

  /// Copies row `query` of Q, rotated by the rotate hook; a row that does not exist becomes zeros. `units` threads
  /// share a row: thread number `unit` copies elements unit, unit + units, and so on. Returns whether this thread's
  /// elements are finite.
  bool copy_q(threadgroup Element* to, int query, int unit, int units) const {
    const RowElements<IN_TYPE> from{p.q, index_of(p.q_strides, context.batch, context.head, query)};
    bool finite = true;
    for (int d = unit; d < HEAD_DIM; d += units) {
      const float element = query < p.q_len ? rotate_query(from, query, d, context) : 0.0f;
      finite = put(to + d, static_cast<Element>(element)) && finite;
    }
    return finite;
  }
  /// Copies a block of K. A key whose page does not exist counts as not finite. Returns whether this thread's elements
  /// are finite.
  bool copy_k(threadgroup Element* to, int first_key, int thread_number) const {
    bool finite = true;
    for (int i = thread_number; i < BLOCK_C * STEPS; i += THREADS) {
      const int row = i / STEPS, first = i % STEPS * 8, key = first_key + row;
      threadgroup Element* const there = to + row * ROW + first;
      if (key >= keys_there) {
        clear_8(there);
        continue;
      }
      const KeyPlace place = place_of_key(key, kv_head, context);
      if (!is_page(p, place)) {
        clear_8(there);
        finite = false;
        continue;
      }
      const long at = index_of(p.k_strides, place.batch, place.head, place.row);
      if (ROTATE_LEAVES_KEYS) {
        finite = copy_8(there, static_cast<const device Element*>(p.k) + at + first) && finite;
        continue;
      }
      const RowElements<IN_TYPE> from{p.k, at};
      for (int d = 0; d < 8; ++d) {
        finite = put(there + d, static_cast<Element>(rotate_key(from, key, first + d, context))) && finite;
      }
    }
    return finite;
  }
  /// Copies a block of V. A key whose page does not exist becomes zeros. Returns whether this thread's elements are
  /// finite.
  bool copy_v(threadgroup Element* to, int first_key, int thread_number) const {
    bool finite = true;
    for (int i = thread_number; i < BLOCK_C * STEPS; i += THREADS) {
      const int row = i / STEPS, first = i % STEPS * 8, key = first_key + row;
      threadgroup Element* const there = to + row * ROW + first;
      bool exists = key < keys_there;
      KeyPlace place = {};
      if (exists) {
        place = place_of_key(key, kv_head, context);
        exists = is_page(p, place);
      }
      if (!exists) {
        clear_8(there);
        continue;
      }
      const long at = index_of(p.v_strides, place.batch, place.head, place.row);
      finite = copy_8(there, static_cast<const device Element*>(p.v) + at + first) && finite;
    }
    return finite;
  }
  /// The keys that a row sees. A row beyond the last query gets the range of the last query.
  KeyRange keys_of(int query) const {
    const KeyRange range = visible_keys(min(query, p.q_len - 1), context);
    return {max(range.begin, 0), min(range.end, keys_there)};
  }
};

/// Sets the simdgroup's flag to whether some lane's part of a block is not finite. All lanes call this function.
INLINE void set_flag(threadgroup uint* flags, bool finite, uint simdgroup, uint lane) {
  const bool odd = simd_any(!finite);
  if (lane == 0) flags[simdgroup] = odd;
}
/// Whether any simdgroup has set its flag.
INLINE bool any_set(threadgroup const uint* flags) {
  uint set = 0;
  for (int i = 0; i < THREADS / SIMD; ++i) set |= flags[i];
  return set != 0;
}

/// Twice the number of a block of keys, plus 1 if its pairs must be masked.
INLINE int entry_of(MaskList list, int block) { return MASK_LISTS ? list.entries[block] : 2 * block + 1; }

kernel void flash_forward(constant Params& p [[buffer(0)]], threadgroup uchar* memory [[threadgroup(0)]],
                          uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],
                          uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                          uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const int tile_number = static_cast<int>(CAUSAL ? groups.x - 1 - group.x : group.x);
  const Tile tile(p, static_cast<int>(group.z), static_cast<int>(group.y), tile_number * static_cast<int>(BLOCK_R));
  const int thread_number = static_cast<int>(thread_index);
  const int first_row = static_cast<int>(simdgroup) * 8;  // of the simdgroup, within the tile
  const int query = tile.first_query + first_row + fragment_row(lane), column = fragment_column(lane);
  threadgroup Element* const k_block = reinterpret_cast<threadgroup Element*>(memory + K_PLACE);
  threadgroup Element* const v_block = reinterpret_cast<threadgroup Element*>(memory + V_PLACE);
  threadgroup Element* const q_rows = reinterpret_cast<threadgroup Element*>(memory);
  threadgroup uint* const odd_rows = reinterpret_cast<threadgroup uint*>(memory + FLAGS);  // 1: a row is not finite
  threadgroup uint* const odd_k = odd_rows + BLOCK_R;  // 1: a simdgroup's part of a block is not finite
  threadgroup uint* const odd_v = odd_k + THREADS / SIMD;

  // With Q_REGISTERS, Q comes to the registers by way of the buffer of K, BLOCK_C rows at a time.
  Operand q[Q_REGISTERS ? STEPS : 1];
  const int at_once = Q_REGISTERS ? static_cast<int>(BLOCK_C) : static_cast<int>(BLOCK_R);
  for (int begin = 0; begin < BLOCK_R; begin += at_once) {
    for (int row = begin + static_cast<int>(simdgroup); row < min(begin + at_once, static_cast<int>(BLOCK_R));
         row += THREADS / SIMD) {
      const bool finite =
          tile.copy_q(q_rows + (row - begin) * ROW, tile.first_query + row, static_cast<int>(lane), SIMD);
      const bool odd = simd_any(!finite);
      if (lane == 0) odd_rows[row] = odd;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (Q_REGISTERS) {
      if (first_row >= begin && first_row < begin + at_once) {
        UNROLL for (int t = 0; t < (Q_REGISTERS ? STEPS : 1); ++t) {
          simdgroup_load(q[t], q_rows + (first_row - begin) * ROW + t * 8, ROW);
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }

  Sums o[STEPS];
  UNROLL for (int j = 0; j < STEPS; ++j) o[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  // These variables belong to the lane's row. `maximum` is in base 2: a score times log2(e). `sum` is the lane's part
  // of the row's sum.
  float maximum = lowest_score, sum = 0;
  bool strange = (KEYS_END_EARLY && tile.keys_there < 0) || odd_rows[first_row + fragment_row(lane)] != 0;
  if (!SINK_IS_NONE) {
    const float sink = sink_logit(tile.context);
    if (is_finite(sink) && fabs(sink) < MOST_SCORE) {
      maximum = sink * log2_e;
      if (column == 0) sum = 1;
    } else if (!is_minus_infinity(sink)) {
      strange = true;
    }
  }

  // The keys that some row of the tile sees, and the keys that all rows of this simdgroup see.
  const int last_query = min(tile.first_query + static_cast<int>(BLOCK_R), p.q_len) - 1;
  const KeyRange seen{tile.keys_of(tile.first_query).begin, tile.keys_of(last_query).end};
  const KeyRange seen_by_all{tile.keys_of(tile.first_query + first_row + 7).begin,
                             tile.keys_of(tile.first_query + first_row).end};
  const KeyRange own = tile.keys_of(query);
  MaskList list = {};
  if (MASK_LISTS) list = list_of(lists_of(p), tile.context.batch, tile.context.head, tile.first_query);
  const int first_block = MASK_LISTS ? 0 : seen.begin / static_cast<int>(BLOCK_C);
  const int end_block =
      MASK_LISTS ? list.count : (seen.end + static_cast<int>(BLOCK_C) - 1) / static_cast<int>(BLOCK_C);

  if (!TAKE_TURNS && first_block < end_block) {
    const int first_key = (entry_of(list, first_block) >> 1) * static_cast<int>(BLOCK_C);
    set_flag(odd_k, tile.copy_k(k_block, first_key, thread_number), simdgroup, lane);
  }
  for (int block = first_block; block < end_block; ++block) {
    const int entry = entry_of(list, block), first_key = (entry >> 1) * static_cast<int>(BLOCK_C);
    if (TAKE_TURNS) {
      threadgroup_barrier(mem_flags::mem_threadgroup);  // all simdgroups have read V of the previous block
      set_flag(odd_k, tile.copy_k(k_block, first_key, thread_number), simdgroup, lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // K is there; with two buffers, V has been read
    const bool sees_some = first_key < own.end && own.begin < first_key + static_cast<int>(BLOCK_C);
    strange = strange || (sees_some && any_set(odd_k));
    if (!TAKE_TURNS) set_flag(odd_v, tile.copy_v(v_block, first_key, thread_number), simdgroup, lane);

    Sums s[COLUMNS];
    UNROLL for (int c = 0; c < COLUMNS; ++c) {
      s[c] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      UNROLL for (int t = 0; t < STEPS; ++t) {
        Operand k;
        simdgroup_load(k, k_block + c * 8 * ROW + t * 8, ROW, ulong2(0, 0), true);
        if (!Q_REGISTERS) simdgroup_load(q[0], q_rows + first_row * ROW + t * 8, ROW);
        simdgroup_multiply_accumulate(s[c], q[Q_REGISTERS ? t : 0], k, s[c]);
      }
    }

    threadgroup_barrier(mem_flags::mem_threadgroup);  // all simdgroups have read K; with two buffers, V is there
    if (TAKE_TURNS) {
      set_flag(odd_v, tile.copy_v(v_block, first_key, thread_number), simdgroup, lane);
      threadgroup_barrier(mem_flags::mem_threadgroup);  // V is there
    } else if (block + 1 < end_block) {
      const int next_key = (entry_of(list, block + 1) >> 1) * static_cast<int>(BLOCK_C);
      set_flag(odd_k, tile.copy_k(k_block, next_key, thread_number), simdgroup, lane);
    }
    strange = strange || (sees_some && any_set(odd_v));

    // Scores, and the row's maximum. A hidden pair gets the lowest score here, and later a weight of 0.
    const bool all_seen =
        first_key >= seen_by_all.begin && first_key + static_cast<int>(BLOCK_C) <= seen_by_all.end && SCORE_IS_IDENTITY;
    const bool masked = !MASK_IS_NONE && (entry & 1);
    float larger = maximum;
    UNROLL for (int c = 0; c < COLUMNS; ++c) {
      UNROLL for (int i = 0; i < 2; ++i) {
        const int key = first_key + c * 8 + column + i;
        float x = s[c].thread_elements()[i] * p.scale;
        bool visible_pair = all_seen || (own.begin <= key && key < own.end && query < p.q_len);
        if (masked && visible_pair) visible_pair = visible(query, key, tile.context);
        if (visible_pair) {
          if (!SCORE_IS_IDENTITY && is_finite(x)) x = score(x, query, key, tile.context);
          visible_pair = !is_minus_infinity(x);
          if (visible_pair && !(is_finite(x) && fabs(x) < MOST_SCORE)) strange = true;
        }
        x = visible_pair && !strange ? x * log2_e : lowest_score;
        s[c].thread_elements()[i] = x;
        larger = max(larger, x);
      }
    }
    larger = maximum_of_row(larger);
    const float alpha = fast::exp2(maximum - larger);
    maximum = larger;
    sum *= alpha;
    Operand weights[COLUMNS];
    UNROLL for (int c = 0; c < COLUMNS; ++c) {
      UNROLL for (int i = 0; i < 2; ++i) {
        const float x = s[c].thread_elements()[i];
        const float weight = x == lowest_score ? 0.0f : fast::exp2(x - larger);
        sum += weight;
        weights[c].thread_elements()[i] = static_cast<Element>(weight);
      }
    }
    UNROLL for (int j = 0; j < STEPS; ++j) {
      o[j].thread_elements()[0] *= alpha;
      o[j].thread_elements()[1] *= alpha;
    }

    UNROLL for (int j = 0; j < STEPS; ++j) {
      UNROLL for (int c = 0; c < COLUMNS; ++c) {
        Operand v;
        simdgroup_load(v, v_block + c * 8 * ROW + j * 8, ROW);
        simdgroup_multiply_accumulate(o[j], weights[c], v, o[j]);
      }
    }
  }

  // Outputs. An output that is not finite comes from a sum that overflowed: the elements in v_block are finite.
  sum = sum_of_row(sum);
  const float share = sum == 0 ? 0.0f : 1 / sum;
  UNROLL for (int j = 0; j < STEPS; ++j) {
    UNROLL for (int i = 0; i < 2; ++i) {
      const float value = o[j].thread_elements()[i] * share;
      o[j].thread_elements()[i] = value;
      strange = strange || !is_finite(value);
    }
  }
  const uint row_bit = query < p.q_len ? 1u << fragment_row(lane) : 0u;
  const uint strange_rows = simd_or(strange ? row_bit : 0u);
  if (row_bit != 0 && (strange_rows & row_bit) == 0) {
    const long at = index_of(p.o_strides, tile.context.batch, tile.context.head, query) + column;
    UNROLL for (int j = 0; j < STEPS; ++j) {
      UNROLL for (int i = 0; i < 2; ++i) store_float<OUT_TYPE>(p.o, at + j * 8 + i, o[j].thread_elements()[i]);
    }
    if (p.lse && column == 0) {
      const long row = (static_cast<long>(tile.context.batch) * p.q_heads + tile.context.head) * p.q_len + query;
      store_lse(p.lse + row, maximum * ln_2, sum, false);
    }
  }
  for (uint rows = strange_rows; rows != 0; rows &= rows - 1) {
    const int row = static_cast<int>(ctz(rows));
    write_exact_row(AttentionRow(p, tile.context.batch, tile.context.head, tile.first_query + first_row + row), lane);
  }
}
