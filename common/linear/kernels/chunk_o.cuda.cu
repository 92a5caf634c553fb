// Computes the outputs of each chunk from the state before the chunk and from the chunk's tokens: linear.h has the
// contract. The kernel runs on tensor cores of sm_80 and later. It computes up to 64 rows of Q at a time, 16 for each
// warp, with their outputs in registers.
//
//   o_t = scale (decay_t f(q_t)) S + sum over j <= t of scale (decay_jt f(q_t) f(k_j)) v_j
//
// decay_t is the decay from the chunk's start to token t, and decay_jt is the decay from token j to token t.
// Decays are exponentials of sums of logarithms; a sum may be above 0 only for pairs that the mask hides. If the gate
// is by head or by token, the kernel multiplies scores by decays. If the gate is by channel, the kernel multiplies Q
// and K by decays (GLA, Yang et al. 2024). A key is multiplied by the decay from the key to the end of its group of 16
// keys. A query is multiplied by the decay from this end to the query, so Q is scaled anew for each group of 16 keys.
// Among the 16 tokens at the diagonal the kernel computes the score of each pair separately.
//
// If inputs have 16 bits, scaled queries and the state are rounded to tf32 for their product: 11 significant bits, and
// the exponents of f32. So rounding cannot make the state overflow; rounding to f16 could. Weights (decayed scores) are
// rounded to IN_TYPE, which has no more significant bits than tf32, so splitting the state into two parts would gain
// nothing. If IN_TYPE is F32, each number is split into two numbers of tf32, and three products of tf32 replace one
// product of f32 (multiply_add_exactly).
//
// Blocks pass through one ring of stages: first blocks of keys, from the diagonal back to the chunk's first key, then
// blocks of rows of the state.
//
// Function constants: HEAD_DIM, VALUE_DIM (multiples of 8, at most 256), CHUNK (a multiple of 16, at most 256), GATE,
// NORMALISED, CAUSAL (if 0, GATE is GATE_NONE), IN_TYPE, OUT_TYPE. Rows of q, k, v, o and of gates by channel begin at
// multiples of 16 bytes.
// Grid: (chunks, heads); 128 threads; ChunkOLayout's threadgroup memory.
//
// Checked: chunk_o[CAUSAL=1,CHUNK=64,GATE=0,HEAD_DIM=64,IN_TYPE=2,NORMALISED=0,OUT_TYPE=2,VALUE_DIM=64] without spills
// Checked: chunk_o[CAUSAL=1,CHUNK=64,GATE=2,HEAD_DIM=128,IN_TYPE=2,NORMALISED=0,OUT_TYPE=2,VALUE_DIM=128] without spills
// Checked: chunk_o[CAUSAL=1,CHUNK=128,GATE=3,HEAD_DIM=128,IN_TYPE=1,NORMALISED=1,OUT_TYPE=0,VALUE_DIM=64] without spills
// Checked: chunk_o[CAUSAL=1,CHUNK=64,GATE=1,HEAD_DIM=256,IN_TYPE=2,NORMALISED=1,OUT_TYPE=2,VALUE_DIM=256] without spills
// Checked: chunk_o[CAUSAL=0,CHUNK=64,GATE=0,HEAD_DIM=128,IN_TYPE=2,NORMALISED=1,OUT_TYPE=2,VALUE_DIM=72] without spills
// Checked: chunk_o[CAUSAL=1,CHUNK=64,GATE=2,HEAD_DIM=64,IN_TYPE=0,NORMALISED=0,OUT_TYPE=0,VALUE_DIM=64] without spills
// Checked: chunk_o[CAUSAL=1,CHUNK=256,GATE=3,HEAD_DIM=256,IN_TYPE=0,NORMALISED=1,OUT_TYPE=0,VALUE_DIM=256] without spills
#include "common/linear/kernels/phases_tile.h"

namespace {

constexpr ChunkOLayout layout(HEAD_DIM, VALUE_DIM, CHUNK, ELEMENT_BYTES, GATE);
constexpr int ROWS = layout.rows, BLOCK = layout.block, STATE_ROWS = layout.state_rows, STAGES = layout.stages;
constexpr int K_ROW_BYTES = layout.k_row_bytes, V_ROW_BYTES = layout.v_row_bytes;
constexpr int STATE_ROW_BYTES = layout.state_row_bytes, DECAY_ROW_BYTES = layout.decay_row_bytes;
constexpr int STEPS = layout.k_columns * ELEMENT_BYTES / 32;  // steps of the sum over a row of Q and K
constexpr int VALUE_TILES = layout.pass_columns / 8;
constexpr int SPAN = GATE == GATE_CHANNEL || BLOCK == 16 ? 16 : 32;  // keys whose scores are in registers at once
// The registers of a multiprocessor must suffice for this number of threadgroups.
constexpr int THREADGROUPS = VALUE_TILES <= 8                    ? (NORMALISED ? 3 : 4)
                             : VALUE_TILES > 16                  ? 1
                             : NORMALISED || int{IN_TYPE} == F32 ? 2
                                                                 : 3;
constexpr bool WIDE = VALUE_TILES > 16;  // outputs take half of the registers
constexpr int SLICES = BLOCK / 16, PAIRS = HEAD_DIM / 2;
constexpr bool BY_ROW = GATE == GATE_HEAD || GATE == GATE_TOKEN, BY_CHANNEL = GATE == GATE_CHANNEL;
static_assert(CAUSAL || GATE == GATE_NONE);

/// The work of a warp, 16 rows. A thread holds parts of two rows, `row` and `row + 8`. Of the thread's four results of
/// a product, 0 and 1 belong to the first row, 2 and 3 to the second row.
struct ChunkO {
  const ChunkParams& p;
  const int head = blockIdx.y;
  const ChunkPlace place = place_of_chunk(p, blockIdx.x, CHUNK);
  const long long state = state_index(CAUSAL ? static_cast<int>(blockIdx.x) : place.first_chunk, p.heads, head);
  const float scale = NORMALISED ? 1.0f : p.scale;
  // Whether this is the first chunk of a sequence without an initial state. The state before such a chunk is zero, and
  // is not read.
  const bool begins = CAUSAL && place.chunk == 0 && p.initial_state == nullptr && p.initial_key_sum == nullptr;

  int lane, quarter, warp_row, row;  // warp_row and row count among the ROWS rows
  int first_row;                     // the first of the ROWS rows, counted in the chunk
  int first_column;                  // the first column of V and the state in this pass
  int key_jobs, jobs;                // a job is one block; the first key_jobs jobs are blocks of keys
  float o[VALUE_TILES][4];
  float sum[2];  // NORMALISED: this thread's part of the outputs' divisor; four threads share a row

  DEVICE explicit ChunkO(const ChunkParams& params) : p(params) {}

  DEVICE void find_place() {
    const int thread = thread_anew();
    lane = thread % WARP;
    quarter = lane % 4;
    warp_row = thread / WARP * 16;
    row = warp_row + lane / 4;
  }

  // ---- threadgroup memory

  DEVICE static unsigned char* stage_of(int job) { return memory + job % STAGES * layout.stage_bytes; }
  DEVICE static unsigned char* q_tile() { return memory + layout.q; }
  // By channel: the logarithm in base 2 of the decay from the first of the ROWS rows to row `of_row`.
  DEVICE static float2& decay(int of_row, int column) {
    return *reinterpret_cast<float2*>(memory + layout.decays + of_row * DECAY_ROW_BYTES + column * 4);
  }
  DEVICE static float* key_sum() { return reinterpret_cast<float*>(memory + layout.key_sum); }
  DEVICE static float2* prefixes() { return reinterpret_cast<float2*>(memory + layout.prefixes); }
  // By channel, for each group of 16 keys, logarithms in base 2. slice_sums() has the decay over the whole group.
  // from_slice() has the decay from the group's end to the first of the ROWS rows. If the group's end comes after this
  // row, from_slice() has the inverse of the decay from the row to the end.
  DEVICE static float2* slice_sums() { return reinterpret_cast<float2*>(memory + layout.slice_sums); }
  DEVICE static float2* from_slice() { return slice_sums() + SLICES * PAIRS; }
  // By channel: the logarithm in base 2 of the decay from the earliest key processed so far to the first of the ROWS
  // rows. Blocks of keys are processed from last to first, so in the end this is the decay from the chunk's first
  // token.
  DEVICE static float2* done() { return from_slice() + SLICES * PAIRS; }

  // ---- copies

  DEVICE int key_of(int job) const { return (key_jobs - 1 - job) * BLOCK; }
  DEVICE int state_row_of(int job) const { return (job - key_jobs) * STATE_ROWS; }

  DEVICE void copy_gates(unsigned char* tile, int from) const {
    const char* const gates = reinterpret_cast<const char*>(p.gate + row_at(p.gate_strides, place, head, from));
    const long long stride = p.gate_strides.row * 4;
    if (tile == memory + layout.decays) {
      copy_tile<ROWS, HEAD_DIM / 4, DECAY_ROW_BYTES>(tile, gates, stride, place.rows - from, HEAD_DIM / 4);
    } else {
      copy_tile<BLOCK, HEAD_DIM / 4, HEAD_DIM * 4>(tile, gates, stride, place.rows - from, HEAD_DIM / 4);
    }
  }

  DEVICE void copy_queries() const {
    copy_tile<ROWS, layout.k_columns / UNIT, K_ROW_BYTES>(q_tile(), row_from(p.q, p.q_strides, place, head, first_row),
                                                          p.q_strides.row * ELEMENT_BYTES, place.rows - first_row,
                                                          HEAD_DIM / UNIT);
    if constexpr (BY_CHANNEL) copy_gates(memory + layout.decays, first_row);
  }

  DEVICE void copy(int job) const {
    unsigned char* const stage = stage_of(job);
    if (CAUSAL && job < key_jobs) {
      const int key = key_of(job);
      copy_tile<BLOCK, layout.k_columns / UNIT, K_ROW_BYTES>(stage, row_from(p.k, p.k_strides, place, head, key),
                                                             p.k_strides.row * ELEMENT_BYTES, place.rows - key,
                                                             HEAD_DIM / UNIT);
      copy_tile<BLOCK, layout.pass_columns / UNIT, V_ROW_BYTES>(
          stage + layout.v, row_from(p.v, p.v_strides, place, head, key) + first_column * ELEMENT_BYTES,
          p.v_strides.row * ELEMENT_BYTES, place.rows - key, (static_cast<int>(VALUE_DIM) - first_column) / UNIT);
      if constexpr (BY_CHANNEL) copy_gates(stage + layout.gates, key);
    } else {
      const int from = state_row_of(job);
      copy_tile<STATE_ROWS, layout.pass_columns / 4, STATE_ROW_BYTES>(
          stage, reinterpret_cast<const char*>(p.states + (state * HEAD_DIM + from) * VALUE_DIM + first_column),
          VALUE_DIM * 4, static_cast<int>(HEAD_DIM) - from, (static_cast<int>(VALUE_DIM) - first_column) / 4);
    }
  }

  // ---- operands

  // Loads the operand Q of a step. A step has 32 bytes of each row. By channel Q is multiplied by its decay since the
  // end of group `slice` of 16 keys, and by the scale.
  DEVICE void load_queries(unsigned (&a)[4], int step, [[maybe_unused]] int slice) const {
    load_blocks(a, shared_address(q_tile()) + (warp_row + lane % 16) * K_ROW_BYTES + lane / 16 * 16 + step * 32);
    if constexpr (BY_CHANNEL && IN_TYPE == F32) {
      UNROLL for (int i = 0; i < 4; ++i) {
        const int d = step * 8 + i / 2 * 4 + quarter;
        const float* const own = reinterpret_cast<const float*>(&decay(row + i % 2 * 8, 0)) + d;
        const float* const from = reinterpret_cast<const float*>(from_slice() + slice * PAIRS) + d;
        a[i] = __float_as_uint(__uint_as_float(a[i]) * scale * exp2_approx(*own + *from));
      }
    } else if constexpr (BY_CHANNEL) {
      UNROLL for (int i = 0; i < 4; ++i) {
        const int d = step * 16 + i / 2 * 8 + 2 * quarter;
        if (HEAD_DIM % 16 != 0 && d >= HEAD_DIM) continue;
        const float2 exponent = decay(row + i % 2 * 8, d) + from_slice()[slice * PAIRS + d / 2];
        a[i] = pack<IN_TYPE>(load_float<IN_TYPE>(&a[i], 0) * scale * exp2_approx(exponent.x),
                             load_float<IN_TYPE>(&a[i], 1) * scale * exp2_approx(exponent.y));
      }
    }
  }

  // ---- a block of keys

  // S = Q K^T for SPAN keys, of which the first has number `key` in the block.
  DEVICE void multiply_scores(float (&s)[SPAN / 8][4], const unsigned char* stage, int key) const {
    const unsigned k = shared_address(stage) + (key + lane % 8 + lane / 16 * 8) * K_ROW_BYTES + lane / 8 % 2 * 16;
    UNROLL for (int i = 0; i < SPAN / 2; ++i) s[i / 4][i % 4] = 0;
#pragma unroll(WIDE ? 1 : 2)
    for (int step = 0; step < STEPS; ++step) {
      unsigned a[4];
      load_queries(a, step, key / 16);
      UNROLL for (int of_span = 0; of_span < SPAN; of_span += 16) {
        unsigned b[4];
        load_blocks(b, k + of_span * K_ROW_BYTES + step * 32);
        multiply_add_exactly<IN_TYPE>(s[of_span / 8], a, b[0], b[1]);
        multiply_add_exactly<IN_TYPE>(s[of_span / 8 + 1], a, b[2], b[3]);
      }
    }
  }

  // By channel: the scores of the warp's own 16 tokens, pair by pair. The first of these tokens has number `key` in the
  // block.
  template <int N>
  DEVICE void multiply_diagonal(float (&s)[N][4], const unsigned char* stage, int key) const {
    UNROLL for (int i = 0; i < 8; ++i) s[i / 4][i % 4] = 0;
#pragma unroll(WIDE ? 1 : 2)
    for (int d = 0; d < HEAD_DIM; d += 2) {
      float2 q[2], q_decay[2];
      UNROLL for (int r = 0; r < 2; ++r) {
        q[r] = load_pair(q_tile() + (row + r * 8) * K_ROW_BYTES + d * ELEMENT_BYTES);
        q_decay[r] = decay(row + r * 8, d);
      }
      UNROLL for (int i = 0; i < 4; ++i) {
        const int column = i / 2 * 8 + 2 * quarter + i % 2;
        const float2 k = load_pair(stage + (key + column) * K_ROW_BYTES + d * ELEMENT_BYTES);
        const float2 k_decay = decay(warp_row + column, d);
        UNROLL for (int r = i / 2; r < 2; ++r) {  // the first eight rows do not see the last eight keys
          float& score = s[i / 2][2 * r + i % 2];
          score += q[r].x * k.x * exp2_approx(q_decay[r].x - k_decay.x);
          score += q[r].y * k.y * exp2_approx(q_decay[r].y - k_decay.y);
        }
      }
    }
    UNROLL for (int i = 0; i < 8; ++i) s[i / 4][i % 4] *= scale;
  }

  // Turns scores into weights: decay, scale and mask. The first of the SPAN keys has number `key` in the chunk.
  DEVICE void weigh(float (&s)[SPAN / 8][4], int key, bool masked) {
    [[maybe_unused]] float2 own[2];
    if constexpr (BY_ROW) {
      UNROLL for (int r = 0; r < 2; ++r) own[r] = prefixes()[min(first_row + row + r * 8, static_cast<int>(CHUNK) - 1)];
    }
    UNROLL for (int i = 0; i < SPAN / 2; ++i) {
      const int r = i / 2 % 2, column = key + i / 4 * 8 + 2 * quarter + i % 2;
      float& value = s[i / 4][i % 4];
      if constexpr (BY_ROW) {
        const float2 its = prefixes()[min(column, static_cast<int>(CHUNK) - 1)];
        value *= scale * exp2_approx((own[r].x - its.x) + (own[r].y - its.y));
      } else if constexpr (!BY_CHANNEL) {
        value *= scale;
      }
      if (masked && column > first_row + row + r * 8) value = 0;
      if constexpr (NORMALISED) sum[r] += value;
    }
  }

  // O += weights times V, for SPAN keys, of which the first has number `key` in the block. The product is computed as
  // in the attention variant mma_sync.
  DEVICE void multiply_values(const float (&s)[SPAN / 8][4], const unsigned char* stage, int key) {
    if constexpr (IN_TYPE == F32) {
      // In each group of eight keys the product expects keys `quarter` and `quarter + 4` from this thread. This
      // function passes keys 2 * quarter and 2 * quarter + 1 instead, because this thread has the weights of these two
      // keys.
      const unsigned v = shared_address(stage + layout.v) + (key + 2 * quarter) * V_ROW_BYTES + lane / 4 * 4;
      UNROLL for (int of_span = 0; of_span < SPAN; of_span += 8) {
        unsigned a[4];
        UNROLL for (int i = 0; i < 4; ++i) a[i] = __float_as_uint(s[of_span / 8][i % 2 * 2 + i / 2]);
        UNROLL for (int tile = 0; tile < VALUE_TILES; ++tile) {
          const unsigned at = v + of_span * V_ROW_BYTES + tile * 32;
          multiply_add_exactly<F32>(o[tile], a, load_word(at), load_word(at + V_ROW_BYTES));
        }
      }
    } else {
      const unsigned v = shared_address(stage + layout.v) + (key + lane % 16) * V_ROW_BYTES + lane / 16 * 16;
      UNROLL for (int of_span = 0; of_span < SPAN; of_span += 16) {
        unsigned a[4];
        UNROLL for (int i = 0; i < 4; ++i) {
          const float(&pair)[4] = s[of_span / 8 + i / 2];
          a[i] = pack<IN_TYPE>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
        }
        UNROLL for (int tile = 0; tile < VALUE_TILES; tile += 2) {
          unsigned b[4];
          load_blocks_transposed(b, v + of_span * V_ROW_BYTES + tile * 16);
          multiply_add<IN_TYPE>(o[tile], a, b[0], b[1]);
          multiply_add<IN_TYPE>(o[tile + 1], a, b[2], b[3]);
        }
      }
    }
  }

  // By channel: decays the keys of a block to the end of their group of 16, and computes from_slice(). A barrier stands
  // before each call, and the function ends with a barrier.
  DEVICE void decay_keys(unsigned char* stage, int key, bool mapped) {
    const auto* const gates = reinterpret_cast<const float*>(stage + layout.gates);
    for (int i = threadIdx.x; i < SLICES * PAIRS; i += phases_threads) {
      const int slice = i / PAIRS, pair = i % PAIRS;
      if (mapped) {
        slice_sums()[i] = decay_slice<HEAD_DIM, K_ROW_BYTES, false>(stage, gates, slice, pair, {0, 0}, BLOCK, nullptr);
      } else {
        slice_sums()[i] =
            decay_slice<HEAD_DIM, K_ROW_BYTES, true>(stage, gates, slice, pair, {0, 0}, BLOCK, p.feature_data);
      }
    }
    __syncthreads();
    for (int pair = threadIdx.x; pair < PAIRS; pair += phases_threads) {
      float2 all = done()[pair];
      for (int slice = SLICES - 1; slice >= 0; --slice) {
        const int last = key + slice * 16 + 15 - first_row;  // counted from first_row
        if (last < 0) {
          from_slice()[slice * PAIRS + pair] = all;
          all = all + slice_sums()[slice * PAIRS + pair];
        } else if (last < ROWS) {
          const float2 until = decay(last, 2 * pair);
          from_slice()[slice * PAIRS + pair] = {-until.x, -until.y};
        }
      }
      done()[pair] = all;
    }
    __syncthreads();
  }

  DEVICE void work_on_keys(int job) {
    unsigned char* const stage = stage_of(job);
    const int key = key_of(job), last_row = first_row + warp_row + 15;
    const bool diagonal = key + BLOCK > first_row;  // the block is at the diagonal for some of the ROWS rows
    float s[SPAN / 8][4];
    if constexpr (BY_CHANNEL) {
      if (diagonal) {
        if constexpr (!FEATURE_IS_IDENTITY) {
          map_keys(stage);
          __syncthreads();
        }
        const int own = first_row + warp_row - key;  // where the warp's 16 tokens begin in the block
        if (warp_row < ROWS && own >= 0 && own < BLOCK) {
          multiply_diagonal(s, stage, own);
          weigh(s, key + own, true);
          multiply_values(s, stage, own);
        }
        __syncthreads();
      }
      decay_keys(stage, key, diagonal || FEATURE_IS_IDENTITY);
#pragma unroll 1
      for (int of_block = 0; of_block < BLOCK; of_block += 16) {
        if (warp_row >= ROWS || key + of_block + 15 >= first_row + warp_row) continue;
        multiply_scores(s, stage, of_block);
        weigh(s, key + of_block, false);
        multiply_values(s, stage, of_block);
      }
    } else {
      if constexpr (!FEATURE_IS_IDENTITY) {
        map_keys(stage);
        __syncthreads();
      }
#pragma unroll 1
      for (int of_block = 0; of_block < BLOCK; of_block += SPAN) {
        if (warp_row >= ROWS || key + of_block > last_row) return;
        multiply_scores(s, stage, of_block);
        weigh(s, key + of_block, key + of_block + SPAN - 1 > first_row + warp_row);
        multiply_values(s, stage, of_block);
      }
    }
  }

  DEVICE void map_keys(unsigned char* stage) const {
    map_tile<BLOCK, HEAD_DIM / UNIT, K_ROW_BYTES>(stage, BLOCK, p.feature_data, [](int) { return 1.0f; });
  }

  // ---- a block of the state's rows

  // O += scale decay f(Q) S, for the rows of S that the stage has. If NORMALISED, sum += decay f(Q) z for these rows.
  DEVICE void work_on_state(int job) {
    if (warp_row >= ROWS) return;
    const int from = state_row_of(job);
    const unsigned state = shared_address(stage_of(job)) + 2 * quarter * STATE_ROW_BYTES + lane / 4 * 4;
    float factor[2] = {scale, scale};
    if constexpr (BY_ROW) {
      UNROLL for (int r = 0; r < 2; ++r) {
        const float2 since = prefixes()[min(first_row + row + r * 8, static_cast<int>(CHUNK) - 1)];
        factor[r] *= exp2_approx(since.x);
      }
    }
    const int end = min(STATE_ROWS, static_cast<int>(HEAD_DIM) - from);
#pragma unroll(WIDE ? 1 : 2)
    for (int of_block = 0; of_block < end; of_block += 8) {
      // From each group of eight columns of Q the product expects columns `quarter` and `quarter + 4`. This function
      // passes columns 2 * quarter and 2 * quarter + 1 instead, and the rows of S with the same numbers.
      const int d = from + of_block + 2 * quarter;
      float2 q[2];
      unsigned a[4];
      UNROLL for (int r = 0; r < 2; ++r) {
        q[r] = load_pair(q_tile() + (row + r * 8) * K_ROW_BYTES + d * ELEMENT_BYTES);
        float2 by = {factor[r], factor[r]};
        if constexpr (BY_CHANNEL) {
          const float2 since = decay(row + r * 8, d) + done()[d / 2];
          by = {by.x * exp2_approx(since.x), by.y * exp2_approx(since.y)};
        }
        q[r] = {q[r].x * by.x, q[r].y * by.y};
        if constexpr (NORMALISED) {
          const float2 z = *reinterpret_cast<const float2*>(key_sum() + d);
          sum[r] += q[r].x * z.x + q[r].y * z.y;
        }
        a[r] = to_operand(q[r].x);
        a[2 + r] = to_operand(q[r].y);
      }
      UNROLL for (int tile = 0; tile < VALUE_TILES; ++tile) {
        const unsigned at = state + of_block * STATE_ROW_BYTES + tile * 32;
        const unsigned first = load_word(at), second = load_word(at + STATE_ROW_BYTES);
        if constexpr (IN_TYPE == F32) {
          multiply_add_exactly<F32>(o[tile], a, first, second);
        } else {
          multiply_add<F32>(o[tile], a, rounded(first), rounded(second));
        }
      }
    }
  }
  // Returns the operand of a product with the state: x rounded to tf32, or x itself if IN_TYPE is F32, because
  // multiply_add_exactly() then splits x.
  DEVICE static unsigned to_operand(float x) {
    return IN_TYPE == F32 ? __float_as_uint(x) : rounded(__float_as_uint(x));
  }
  // Rounds to nearest. The NaN that arithmetic gives has ones in all bits except the sign. Without min() the addition
  // of 0x1000 would turn this NaN into a number.
  DEVICE static unsigned rounded(unsigned x) { return min(static_cast<int>(x), 0x7fffefff) + 0x1000u; }

  // ---- the chunk

  // By channel: replaces the gate of each of the ROWS rows by the sum of the gates from the first row to this row.
  // Barriers stand before and after each call.
  DEVICE void sum_decays() {
    constexpr int MOST = (ROWS / 16 * PAIRS + phases_threads - 1) / phases_threads;
    float2 before[MOST];
    UNROLL for (int n = 0; n < MOST; ++n) {
      const int i = n * phases_threads + threadIdx.x, slice = i / PAIRS, pair = i % PAIRS;
      if (i >= ROWS / 16 * PAIRS) break;
      float2 all{};
      for (int j = 0; j < 16; ++j) {
        float2& gate = decay(slice * 16 + j, 2 * pair);
        all = all + decay_log2(gate);
        gate = all;
      }
    }
    __syncthreads();
    UNROLL for (int n = 0; n < MOST; ++n) {
      const int i = n * phases_threads + threadIdx.x, slice = i / PAIRS, pair = i % PAIRS;
      before[n] = {0, 0};
      if (i >= ROWS / 16 * PAIRS) break;
      for (int earlier = 0; earlier < slice; ++earlier) {
        before[n] = before[n] + decay(earlier * 16 + 15, 2 * pair);
      }
    }
    __syncthreads();
    UNROLL for (int n = 0; n < MOST; ++n) {
      const int i = n * phases_threads + threadIdx.x, slice = i / PAIRS, pair = i % PAIRS;
      if (i >= ROWS / 16 * PAIRS) break;
      for (int j = 0; j < 16 && slice > 0; ++j) {
        float2& sum_of = decay(slice * 16 + j, 2 * pair);
        sum_of = sum_of + before[n];
      }
    }
    for (int pair = threadIdx.x; pair < PAIRS; pair += phases_threads) done()[pair] = {0, 0};
  }

  DEVICE void begin_rows() {
    if constexpr (!FEATURE_IS_IDENTITY) {
      map_tile<ROWS, HEAD_DIM / UNIT, K_ROW_BYTES>(q_tile(), ROWS, p.feature_data, [](int) { return 1.0f; });
    }
    if constexpr (BY_CHANNEL) sum_decays();
    if constexpr (!FEATURE_IS_IDENTITY || BY_CHANNEL) __syncthreads();
  }

  DEVICE void run() {
    if (place.rows == 0) return;
#pragma unroll 1
    for (int turn = 0; turn / layout.passes * ROWS < place.rows; ++turn) run_rows(turn);
  }

  // Computes ROWS rows in one pass of columns.
  DEVICE void run_rows(int turn) {
    first_row = turn / layout.passes * ROWS;
    first_column = turn % layout.passes * layout.pass_columns;
    key_jobs = CAUSAL ? (min(place.rows, first_row + ROWS) + BLOCK - 1) / BLOCK : 0;
    jobs = key_jobs + (begins ? 0 : (static_cast<int>(HEAD_DIM) + STATE_ROWS - 1) / STATE_ROWS);
    if (turn > 0) __syncthreads();
    copy_queries();
#pragma unroll 1
    for (int job = 0; job < STAGES; ++job) {
      if (job < jobs) copy(job);
      commit_copies();
    }
    if (turn == 0) read_once();
    UNROLL for (int i = 0; i < 4 * VALUE_TILES; ++i) o[i / 4][i % 4] = 0;
    sum[0] = sum[1] = 0;
#pragma unroll 1
    for (int job = 0; job < jobs; ++job) {
      wait_copies<STAGES - 1>();
      __syncthreads();
      find_place();
      if (job == 0) begin_rows();
      if (CAUSAL && job < key_jobs) {
        work_on_keys(job);
      } else {
        work_on_state(job);
      }
      if (job + STAGES < jobs) {
        __syncthreads();
        copy(job + STAGES);
      }
      commit_copies();
    }
    if (warp_row < ROWS) {
      UNROLL for (int r = 0; r < 2; ++r) {
        const float by = factor_of(r);
        float zeros = 0;
        UNROLL for (int i = 0; i < 2 * VALUE_TILES; ++i) zeros += 0 * (o[i / 2][2 * r + i % 2] * by);
        store(r, by);
        if (some_not_finite(zeros)) write_rows_anew(r, zeros, by);
      }
    }
  }

  // Returns the factor by which the kernel multiplies a row's outputs at the end; 1 unless NORMALISED.
  DEVICE float factor_of(int r) const {
    if constexpr (!NORMALISED) return 1;
    const float divisor = sum_of_quad(sum[r]);
    return divisor != 0 ? 1 / divisor : 0;
  }

  // Checks the warp's eight rows `row + r * 8` one by one, and computes each row with an infinite or NaN output anew.
  // `zeros` is a thread's sum of 0 times its outputs of the row.
  DEVICE void write_rows_anew(int r, float zeros, float by) const {
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {
      const int of_chunk = first_row + warp_row + r * 8 + i;
      const float factor = scale * __shfl_sync(~0u, by, i * 4);
      if (some_not_finite(lane / 4 == i ? zeros : 0)) write_row_anew(p, of_chunk, first_column, factor);
    }
  }
  // Not inlined, because the kernel's main loop needs all registers.
  static __device__ __noinline__ void write_row_anew(const ChunkParams& params, int of_chunk, int first_column,
                                                     float factor) {
    constexpr int COLUMNS = (layout.pass_columns + WARP - 1) / WARP;
    const ChunkO chunk(params);
    if (of_chunk >= chunk.place.rows) return;
    const int end = min(first_column + layout.pass_columns, static_cast<int>(VALUE_DIM));
    const float* const states = params.states + chunk.state * HEAD_DIM * VALUE_DIM;
    const auto of_state = [&](int d, int column) {
      return chunk.begins ? 0 : states[d * static_cast<long long>(VALUE_DIM) + column];
    };
    float outputs[COLUMNS];
    ExactTokens{params, chunk.place.batch, chunk.head, chunk.place.first}.outputs(of_chunk, CAUSAL ? of_chunk + 1 : 0,
                                                                                  first_column, end, of_state, outputs);
    const long long row = row_at(params.o_strides, chunk.place, chunk.head, of_chunk);
    UNROLL for (int c = 0; c < COLUMNS; ++c) {
      const int column = first_column + static_cast<int>(threadIdx.x % WARP) + c * WARP;
      if (column < end) store_float<OUT_TYPE>(params.o, row + column, outputs[c] * factor);
    }
  }

  // Reads the data that all rows need. A barrier stands after the call.
  DEVICE void read_once() {
    if constexpr (BY_ROW) {
      if (threadIdx.x < WARP) {
        scalar_decays<false>(p, place, head, [](int t, double until) {
          const float high = static_cast<float>(until);
          prefixes()[t] = {high, static_cast<float>(until - high)};
        });
      }
    }
    if constexpr (NORMALISED) {
      for (int d = threadIdx.x; d < HEAD_DIM; d += phases_threads) key_sum()[d] = p.key_sums[state * HEAD_DIM + d];
    }
  }

  // Writes one row of O to memory.
  DEVICE void store(int r, float by) const {
    const int of_chunk = first_row + row + r * 8;
    const bool there = of_chunk < place.rows;
    const long long base = row_at(p.o_strides, place, head, of_chunk);
    if constexpr (OUT_TYPE == F32) {
      UNROLL for (int tile = 0; tile < VALUE_TILES; ++tile) {
        const float* const pair = o[tile] + 2 * r;
        const int column = first_column + tile * 8 + 2 * quarter;
        float* const target = static_cast<float*>(p.o) + base + column;
        if (there && column < VALUE_DIM) {
          __stcg(reinterpret_cast<float2*>(target), make_float2(pair[0] * by, pair[1] * by));
        }
      }
    } else {
      UNROLL for (int tile = 0; tile < VALUE_TILES; tile += 4) {
        unsigned words[4] = {};
        UNROLL for (int i = 0; i < 4; ++i) {
          if (tile + i >= VALUE_TILES) break;
          const float* const pair = o[tile + i] + 2 * r;
          words[i] = pack<OUT_TYPE>(pair[0] * by, pair[1] * by);
        }
        transpose_quad(words);
        const int column = first_column + (tile + quarter) * 8;
        if (there && column < VALUE_DIM) {
          *reinterpret_cast<uint4*>(static_cast<unsigned short*>(p.o) + base + column) =
              make_uint4(words[0], words[1], words[2], words[3]);
        }
      }
    }
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(phases_threads, THREADGROUPS)
    chunk_o(const __grid_constant__ ChunkParams p) {
  ChunkO(p).run();
}
