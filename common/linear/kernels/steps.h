// The cpu dialect of linear attention: a state in threadgroup memory takes up a sequence in steps of at most STEP
// tokens. One loop computes all four products of a step, over a register tile of rows by vectors. The tile's rows are
// queries or rows of S; the lanes of its vectors are keys or columns of V. For each row of the tile, an iteration of
// the loop multiplies one row of the second operand by one broadcast number of the first:
//
//   scores  A[i][j]  = f(q_i) f(k_j)            broadcast q, rows of the transposed keys; then masked and decayed
//   outputs O[i]     = decay_i q_i S + A[i] V   broadcast q, rows of S; broadcast A, rows of V, up to the diagonal
//   update  S[d]     = decay S[d] + (K^T V)[d]  broadcast k, rows of V
//
// Decays are multiplied token by token, each at most 1. No decay is divided by another decay, so no factor is above 1.
// With a gate by head or token, decays multiply rows of S, rows of O, keys of the update, and scores. With a gate by
// channel, scores need the decay of each key, in its own lane, for every later query of the step; so STEP is small.
#pragma once

#include "common/kernel/cpu.h"
#include "common/linear/kernels/feature.h"
#include "common/linear/kernels/linear.h"
#include "common/linear/kernels/steps_layout.h"

namespace {

namespace math {
#include "common/kernel/math.h"
}

constexpr StepsLayout layout(HEAD_DIM, VALUE_DIM, STEP, VECTOR_WIDTH, GATE == GATE_CHANNEL);
constexpr int DIMS = layout.dims, VALUES = layout.values, KEYS = layout.keys;
constexpr int TAIL_ROWS = layout.tail_rows;
static_assert(HEAD_DIM % 8 == 0 && VALUE_DIM % 8 == 0);

using Floats = Vector<float, VECTOR_WIDTH>;

INLINE int smaller(int a, int b) { return a < b ? a : b; }

/// c[r][v] = c[r][v] * factors[r] + sum over i < depth of a[r * a_row + i * a_step] * b[i][v], or only the sum if
/// `factors` is null. Without a gate all factors are 1.
template <int ROWS, int VECTORS>
NOINLINE void multiply_add_tile(float* c, long c_step, const float* factors, const float* a, long a_row, long a_step,
                                const float* b, long b_step, int depth) {
  Floats acc[ROWS][VECTORS] = {};
  if (factors) {
    UNROLL for (int r = 0; r < ROWS; ++r) {
      UNROLL for (int v = 0; v < VECTORS; ++v) {
        acc[r][v] = load<Floats>(c + r * c_step + v * VECTOR_WIDTH);
        if (GATE != GATE_NONE) acc[r][v] *= factors[r];
      }
    }
  }
  // One pointer serves three rows, which lie 0, a_row and 2 * a_row after it.
  const float* group[(ROWS + 2) / 3];
  UNROLL for (int g = 0; g < (ROWS + 2) / 3; ++g) group[g] = a + 3 * g * a_row;
#pragma clang loop unroll_count(2)
  for (int i = 0; i < depth; ++i) {
    Floats row[VECTORS];
    UNROLL for (int v = 0; v < VECTORS; ++v) row[v] = load<Floats>(b + v * VECTOR_WIDTH);
    b += b_step;
    UNROLL for (int r = 0; r < ROWS; ++r) {
      const float factor = group[r / 3][r % 3 * a_row];
      UNROLL for (int v = 0; v < VECTORS; ++v) acc[r][v] += factor * row[v];
    }
    UNROLL for (int g = 0; g < (ROWS + 2) / 3; ++g) group[g] += a_step;
  }
  UNROLL for (int r = 0; r < ROWS; ++r) {
    UNROLL for (int v = 0; v < VECTORS; ++v) store(c + r * c_step + v * VECTOR_WIDTH, acc[r][v]);
  }
}

/// Prefetches the rows that the next step reads and writes, a few rows with each register tile. A step has so many
/// bytes that a wait for all of them takes long, but too few for the hardware prefetcher to detect a pattern.
struct Ahead {
  static constexpr int line = 64, most = 4;

  const char* rows[most];
  long long steps[most];  // bytes from row to row
  int widths[most];       // bytes of a row
  bool writes[most];
  int tensors = 0, next = 0, left = 0;

  INLINE void add(const void* tensor, long long index, long long row_step, int width, int type, bool write = false) {
    const int element = type == F32 ? 4 : 2;
    rows[tensors] = static_cast<const char*>(tensor) + index * element;
    steps[tensors] = row_step * element;
    writes[tensors] = write;
    widths[tensors++] = width * element;
  }
  INLINE void begin(int count) {
    next = 0;
    left = count * tensors;
  }
  INLINE void ask(int count) {
    for (; count > 0 && left > 0; --count, --left) {
      if (writes[next]) {
        for (int at = 0; at < widths[next]; at += line) __builtin_prefetch(rows[next] + at, 1);
      } else {
        for (int at = 0; at < widths[next]; at += line) __builtin_prefetch(rows[next] + at);
      }
      rows[next] += steps[next];
      next = next + 1 < tensors ? next + 1 : 0;
    }
  }
};

/// Returns the number of register tiles of a matrix.
constexpr int tiles_of(int rows, int columns) {
  constexpr int wide = TILE_VECTORS * VECTOR_WIDTH;
  return (rows + TILE_ROWS - 1) / TILE_ROWS * (columns / wide + columns % wide / VECTOR_WIDTH);
}
/// STEP_TILES: the tiles of the update and of the outputs. AHEAD_ROWS: how many rows of the next step each of these
/// tiles prefetches, so that together they prefetch the rows of all tensors.
constexpr int STEP_TILES = tiles_of(HEAD_DIM, VALUES) + 2 * tiles_of(STEP, VALUES);
constexpr int AHEAD_ROWS = (Ahead::most * STEP + STEP_TILES - 1) / STEP_TILES;

/// A matrix product, tile by tile. c has `rows` rows and `columns` columns; `columns` is a multiple of VECTOR_WIDTH.
/// With TRIANGLE the sum over i ends at the tile's last row. With TRIANGLE_OF_COLUMNS the columns end at the tile's
/// last row.
struct Product {
  float* c;
  long c_step;
  const float* factors;
  const float* a;
  long a_row, a_step;
  const float* b;
  long b_step;
  int rows, columns, depth;
  Ahead& ahead;

  template <int VECTORS>
  INLINE void tile(int row, int column, int rows_of_tile, int depth_of_tile) const {
    ahead.ask(AHEAD_ROWS);
    (rows_of_tile == TILE_ROWS
         ? multiply_add_tile<TILE_ROWS, VECTORS>
         : multiply_add_tile<TAIL_ROWS, VECTORS>)(c + row * c_step + column, c_step, factors ? factors + row : nullptr,
                                                  a + row * a_row, a_row, a_step, b + column, b_step, depth_of_tile);
  }

  /// Returns how many rows the next tile has if `left` rows are left: TILE_ROWS if a tile of TILE_ROWS rows ends at the
  /// last row, or leaves enough rows for a tail tile; else TAIL_ROWS. A tail tile may reach beyond the last row.
  static INLINE int rows_of_tile(int left) {
    return left == TILE_ROWS || left >= TILE_ROWS + TAIL_ROWS ? TILE_ROWS : TAIL_ROWS;
  }

  template <bool TRIANGLE, bool TRIANGLE_OF_COLUMNS>
  INLINE void run() const {
    constexpr int wide = TILE_VECTORS * VECTOR_WIDTH;
    for (int column = 0, step = 0; column < columns; column += step) {
      step = columns - column >= wide ? wide : VECTOR_WIDTH;
      for (int row = 0, count = 0; row < rows; row += count) {
        count = rows_of_tile(rows - row);
        const int last = row + count;
        const int depth_of_tile = TRIANGLE ? smaller(depth, last) : depth;
        const int end = TRIANGLE_OF_COLUMNS ? smaller(column + step, last) : column + step;
        if (step == wide && end > column + wide - VECTOR_WIDTH) {
          tile<TILE_VECTORS>(row, column, count, depth_of_tile);
        } else {
          for (int one = column; one < end; one += VECTOR_WIDTH) tile<1>(row, one, count, depth_of_tile);
        }
      }
    }
  }
};

/// How many lanes the vectors have that load and store rows of WIDTH elements. WIDTH is a multiple of 8.
template <int WIDTH>
constexpr int lanes_of_row = WIDTH % VECTOR_WIDTH == 0 ? VECTOR_WIDTH : 8;

/// Writes `value` after the last element of a row, up to the end of the row's last vector.
template <int WIDTH>
INLINE void pad(float* row, float value) {
  for (int d = WIDTH; d % VECTOR_WIDTH != 0; ++d) row[d] = value;
}

/// Loads a row of a tensor as floats, padded with zeros.
template <int WIDTH>
INLINE void load_row(float* row, const void* tensor, long long index) {
  constexpr int lanes = lanes_of_row<WIDTH>;
  for (int d = 0; d < WIDTH; d += lanes) store(row + d, load_floats<IN_TYPE, lanes>(tensor, index + d));
  pad<WIDTH>(row, 0);
}

/// A head of a sequence, and its state.
struct Steps {
  const LinearParams& p;
  float *state, *key_sum, *q, *k, *turned, *v, *scores, *o, *decays, *prefix, *logs;
  const float* gate;  // of the batch's row 0, or with GATE_HEAD of the head
  long long q_row, k_row, v_row, o_row;
  float scale;
  Ahead ahead;

  INLINE Steps(const LinearParams& params, const Threadgroup& group, int batch, int head) : p(params) {
    float* const memory = reinterpret_cast<float*>(group.memory);
    state = memory + layout.state;
    key_sum = memory + layout.key_sum;
    q = memory + layout.q;
    k = memory + layout.k;
    turned = memory + layout.turned;
    v = memory + layout.v;
    scores = memory + layout.scores;
    o = memory + layout.o;
    decays = memory + layout.decays;
    prefix = memory + layout.prefix;
    logs = memory + layout.logs;
    const auto base = [&](const TensorStrides& strides)
                          INLINE_LAMBDA { return batch * strides.batch + head * strides.head; };
    q_row = base(p.q_strides);
    k_row = base(p.k_strides);
    v_row = base(p.v_strides);
    o_row = base(p.o_strides);
    gate = GATE == GATE_NONE ? nullptr : GATE == GATE_HEAD ? p.gate + head : p.gate + base(p.gate_strides);
    scale = p.scale;
  }

  INLINE Product product(float* c, long c_step, const float* factors, const float* a, long a_row, long a_step,
                         const float* b, long b_step, int rows, int columns, int depth) {
    return {c, c_step, factors, a, a_row, a_step, b, b_step, rows, columns, depth, ahead};
  }

  // ---- the state

  /// Clears the state, the key sum, and the logarithms of the decays since the last clear().
  INLINE void clear() {
    for (int d = 0; d < DIMS; ++d) logs[d] = 0;
    for (int i = 0; i < HEAD_DIM * VALUES; i += VECTOR_WIDTH) store(state + i, Floats{});
    for (int i = 0; i < DIMS; i += VECTOR_WIDTH) store(key_sum + i, Floats{});
  }
  /// Reads the state from [HEAD_DIM, VALUE_DIM], and the key sum from [HEAD_DIM]; null: zeros.
  INLINE void read(const float* from, const float* sum) {
    clear();
    constexpr int lanes = lanes_of_row<VALUE_DIM>;
    for (int d = 0; from && d < HEAD_DIM; ++d) {
      for (int e = 0; e < VALUE_DIM; e += lanes) {
        store(state + d * VALUES + e, load<Vector<float, lanes>>(from + d * VALUE_DIM + e));
      }
    }
    for (int d = 0; NORMALISED && sum && d < HEAD_DIM; ++d) key_sum[d] = sum[d];
  }
  INLINE void write(float* to, float* sum) const {
    constexpr int lanes = lanes_of_row<VALUE_DIM>;
    for (int d = 0; to && d < HEAD_DIM; ++d) {
      for (int e = 0; e < VALUE_DIM; e += lanes) {
        store(to + d * VALUE_DIM + e, load<Vector<float, lanes>>(state + d * VALUES + e));
      }
    }
    for (int d = 0; NORMALISED && sum && d < HEAD_DIM; ++d) sum[d] = key_sum[d];
  }

  /// Returns, for each row of the state, the logarithm of the row's decay since clear().
  INLINE const float* log_decays() {
    for (int d = 1; GATE != GATE_CHANNEL && d < HEAD_DIM; ++d) logs[d] = logs[0];
    return logs;
  }

  // ---- the inputs of a step

  INLINE void map(float* row, float factor) const {
    if constexpr (!FEATURE_IS_IDENTITY) {
      const void* const data = p.feature_data;
      VECTORIZE for (int d = 0; d < HEAD_DIM; ++d) row[d] = feature(row[d], data);
    }
    if (factor == 1) return;
    for (int d = 0; d < DIMS; d += VECTOR_WIDTH) store(row + d, load<Floats>(row + d) * factor);
  }

  INLINE void load_keys(int first, int rows) {
    for (int i = 0; i < rows; ++i) {
      load_row<HEAD_DIM>(k + i * DIMS, p.k, k_row + (first + i) * p.k_strides.row);
      map(k + i * DIMS, 1);
      load_row<VALUE_DIM>(v + i * VALUES, p.v, v_row + (first + i) * p.v_strides.row);
    }
    ahead.add(p.k, k_row + (first + STEP) * p.k_strides.row, p.k_strides.row, HEAD_DIM, IN_TYPE);
    ahead.add(p.v, v_row + (first + STEP) * p.v_strides.row, p.v_strides.row, VALUE_DIM, IN_TYPE);
  }

  /// Loads each token's decay, or with a gate by channel its row of decays. Adds the logarithms to `logs`.
  INLINE void load_decays(int first, int rows) {
    if constexpr (GATE == GATE_HEAD || GATE == GATE_TOKEN) {
      for (int i = 0; i < rows; ++i) {
        const float log = GATE == GATE_HEAD ? *gate : gate[(first + i) * p.gate_strides.row];
        logs[0] += log;
        decays[i] = math::expf(log);
      }
    } else if constexpr (GATE == GATE_CHANNEL) {
      for (int i = 0; i < rows; ++i) {
        const float* const own = gate + (first + i) * p.gate_strides.row;
        VECTORIZE for (int d = 0; d < HEAD_DIM; ++d) {
          logs[d] += own[d];
          decays[i * DIMS + d] = math::expf(own[d]);
        }
        pad<HEAD_DIM>(decays + i * DIMS, 1);
      }
    }
  }

  // ---- the update

  /// Adds the step to the state. update() changes the keys: each key decays to the end of the step.
  INLINE void update(int rows) {
    float* const factors = prefix;
    float all = 1;
    if constexpr (GATE == GATE_CHANNEL) {
      for (int d = 0; d < DIMS; d += VECTOR_WIDTH) {
        Floats since = Floats{} + 1;
        for (int i = rows - 1; i >= 0; --i) {
          store(k + i * DIMS + d, load<Floats>(k + i * DIMS + d) * since);
          since *= load<Floats>(decays + i * DIMS + d);
        }
        store(factors + d, since);
      }
    } else {
      for (int i = rows - 1; GATE != GATE_NONE && i >= 0; --i) {
        for (int d = 0; d < DIMS; d += VECTOR_WIDTH) store(k + i * DIMS + d, load<Floats>(k + i * DIMS + d) * all);
        all *= decays[i];
      }
      for (int d = 0; d < DIMS; d += VECTOR_WIDTH) store(factors + d, Floats{} + all);
    }
    for (int d = 0; NORMALISED && d < DIMS; d += VECTOR_WIDTH) {
      Floats sum = load<Floats>(key_sum + d) * load<Floats>(factors + d);
      for (int i = 0; i < rows; ++i) sum += load<Floats>(k + i * DIMS + d);
      store(key_sum + d, sum);
    }
    product(state, VALUES, factors, k, 1, DIMS, v, VALUES, HEAD_DIM, VALUES, rows).run<false, false>();
  }

  // ---- steps

  /// Adds rows from `first` on, at most STEP, to the state.
  INLINE void add(int first, int rows) {
    ahead.tensors = 0;
    load_keys(first, rows);
    load_decays(first, rows);
    ahead.begin(STEP);
    update(rows);
  }
};

/// Calls body(first, rows) for the steps of rows `first` to before `end`.
template <typename Body>
INLINE void for_steps(int first, int end, const Body& body) {
  for (; first < end; first += STEP) body(first, smaller(end - first, STEP));
}

}  // namespace
