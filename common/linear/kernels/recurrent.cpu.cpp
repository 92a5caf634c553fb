// The recurrence as in linear.h, for one or a few tokens. The kernel reads and writes a state once for each group of
// TOKENS tokens. The kernel works on the state row by row: it adds all tokens of the group to a row before it goes to
// the next row.
//
// Function constants: those of linear.h except CAUSAL and CHUNK; TOKENS; STREAM (1 if initial and final states together
// are larger than the last-level cache); VECTOR_WIDTH and VECTOR_REGISTERS.
// Threadgroup memory, in floats: RecurrentLayout. Grid: (sequences, heads).
#include "common/kernel/cpu.h"
#include "common/linear/kernels/feature.h"
#include "common/linear/kernels/linear.h"
#include "common/linear/kernels/recurrent_layout.h"

namespace {

namespace math {
#include "common/kernel/math.h"
}

constexpr RecurrentLayout layout(HEAD_DIM, VALUE_DIM, TOKENS);
constexpr int lanes = VALUE_DIM % VECTOR_WIDTH == 0 ? VECTOR_WIDTH : 8;
using Floats = Vector<float, lanes>;
// Returns how many vectors of a row a loop computes at once: at most `most`, and a divisor of the row's vectors. `most`
// is a quarter of the registers, because the registers also hold as many vectors of values, and as many of outputs.
constexpr int vectors_of(int most) {
  int vectors = VALUE_DIM / lanes;
  while (vectors > most) vectors = vectors % 2 == 0 ? vectors / 2 : 1;
  return vectors;
}
constexpr int VECTORS = vectors_of(VECTOR_REGISTERS / 4), BLOCK = VECTORS * lanes;
constexpr int ROWS_AHEAD = 2048 / (VALUE_DIM * 4) + 1;  // rows in 2 KiB; the hardware does not prefetch them in time

[[maybe_unused]] INLINE void map(float* row, const void* data) {
  VECTORIZE for (int d = 0; d < HEAD_DIM; ++d) row[d] = feature(row[d], data);
}

/// The source and the destination of the rows of a state, either of which may be null, and the inputs and outputs of
/// a group of tokens.
struct State {
  const float* from;
  float* to;
  const float *k, *q, *v;
  float* o;
  const float* decays;

  INLINE float decay(int t, int d) const { return decays[GATE == GATE_CHANNEL ? t * HEAD_DIM + d : t]; }
  INLINE void ask_ahead(int d, int e) const {
    for (int at = e; at < e + BLOCK; at += 16) {
      if (from) __builtin_prefetch(from + (d + ROWS_AHEAD) * VALUE_DIM + at);
      if (to && !STREAM) __builtin_prefetch(to + (d + ROWS_AHEAD) * VALUE_DIM + at, 1);
    }
  }
};

/// Computes BLOCK columns, from column e on, for one token. With PAST_CACHES the stores bypass the caches.
template <bool PAST_CACHES>
INLINE void one_token(const State& s, int e) {
  Floats values[VECTORS], out[VECTORS] = {};
  UNROLL for (int n = 0; n < VECTORS; ++n) values[n] = load<Floats>(s.v + e + n * lanes);
  for (int d = 0; d < HEAD_DIM; ++d) {
    s.ask_ahead(d, e);
    UNROLL for (int n = 0; n < VECTORS; ++n) {
      const int at = d * VALUE_DIM + e + n * lanes;
      Floats row = s.from ? load<Floats>(s.from + at) : Floats{};
      if (GATE != GATE_NONE) row *= s.decay(0, d);
      row += s.k[d] * values[n];
      out[n] += s.q[d] * row;
      if (PAST_CACHES) {
        __builtin_nontemporal_store(row, reinterpret_cast<Floats*>(s.to + at));
      } else if (s.to) {
        store(s.to + at, row);
      }
    }
  }
  UNROLL for (int n = 0; n < VECTORS; ++n) store(s.o + e + n * lanes, out[n]);
}

INLINE void tokens(const State& s, int e, int count) {
  for (int d = 0; d < HEAD_DIM; ++d) {
    s.ask_ahead(d, e);
    Floats rows[VECTORS];
    UNROLL for (int n = 0; n < VECTORS; ++n) {
      rows[n] = s.from ? load<Floats>(s.from + d * VALUE_DIM + e + n * lanes) : Floats{};
    }
    for (int t = 0; t < count; ++t) {
      float* const out = s.o + t * VALUE_DIM + e;
      UNROLL for (int n = 0; n < VECTORS; ++n) {
        if (GATE != GATE_NONE) rows[n] *= s.decay(t, d);
        rows[n] += s.k[t * HEAD_DIM + d] * load<Floats>(s.v + t * VALUE_DIM + e + n * lanes);
        store(out + n * lanes, load<Floats>(out + n * lanes) + s.q[t * HEAD_DIM + d] * rows[n]);
      }
    }
    UNROLL for (int n = 0; n < VECTORS; ++n) {
      if (s.to) store(s.to + d * VALUE_DIM + e + n * lanes, rows[n]);
    }
  }
}

}  // namespace

extern "C" void recurrent(const LinearParams* params, const Threadgroup* group) {
  const LinearParams& p = *params;
  const int sequence = static_cast<int>(group->index[0]), head = static_cast<int>(group->index[1]);
  const SequenceRows place = rows_of_sequence(p, sequence, 1);
  const long long index = (static_cast<long long>(sequence) * p.heads + head) * HEAD_DIM;
  float* const memory = reinterpret_cast<float*>(group->memory);
  float *const o = memory + layout.o, *const q = memory + layout.q, *const k = memory + layout.k;
  float *const v = memory + layout.v, *const decays = memory + layout.decays,
               *const divisors = memory + layout.divisors;
  float *const state = memory + layout.state, *const sums = memory + layout.key_sum;

  const auto offset = [&](const TensorStrides& strides, int row) INLINE_LAMBDA {
    return place.batch * strides.batch + head * strides.head + (place.first + row) * strides.row;
  };
  for (int begin = 0; begin == 0 || begin < place.rows; begin += TOKENS) {
    const int count = place.rows - begin < TOKENS ? place.rows - begin : TOKENS;
    const bool first = begin == 0, last = begin + TOKENS >= place.rows;
    for (int t = 0; t < count; ++t) {
      const long long own_q = offset(p.q_strides, begin + t), own_k = offset(p.k_strides, begin + t);
      const long long own_v = offset(p.v_strides, begin + t);
      for (int d = 0; d < HEAD_DIM; d += 8) {
        store(q + t * HEAD_DIM + d, load_floats<IN_TYPE, 8>(p.q, own_q + d));
        store(k + t * HEAD_DIM + d, load_floats<IN_TYPE, 8>(p.k, own_k + d));
      }
      for (int e = 0; e < VALUE_DIM; e += lanes) {
        store(v + t * VALUE_DIM + e, load_floats<IN_TYPE, lanes>(p.v, own_v + e));
        store(o + t * VALUE_DIM + e, Floats{});
      }
      divisors[t] = 0;
      if constexpr (!FEATURE_IS_IDENTITY) {
        map(q + t * HEAD_DIM, p.feature_data);
        map(k + t * HEAD_DIM, p.feature_data);
      }
      if constexpr (GATE == GATE_CHANNEL) {
        const float* const logs = p.gate + offset(p.gate_strides, begin + t);
        VECTORIZE for (int d = 0; d < HEAD_DIM; ++d) decays[t * HEAD_DIM + d] = math::expf(logs[d]);
      } else if constexpr (GATE != GATE_NONE) {
        decays[t] = math::expf(GATE == GATE_HEAD ? p.gate[head] : p.gate[offset(p.gate_strides, begin + t)]);
      }
    }
    // The first group of tokens reads the initial state, and the last group writes the final state. Between two groups
    // the state lies in threadgroup memory.
    const float* const from = first ? p.initial_state ? p.initial_state + index * VALUE_DIM : nullptr : state;
    const float* const from_sums = first ? p.initial_key_sum ? p.initial_key_sum + index : nullptr : sums;
    float* const to = last ? p.final_state ? p.final_state + index * VALUE_DIM : nullptr : state;
    float* const to_sums = last ? p.final_key_sum ? p.final_key_sum + index : nullptr : sums;
    const State rows{from, to, k, q, v, o, decays};
    const bool streams = STREAM && to && reinterpret_cast<unsigned long>(to) % sizeof(Floats) == 0;
    for (int e = 0; e < VALUE_DIM; e += BLOCK) {
      if (count == 1) {
        (streams ? one_token<true> : one_token<false>)(rows, e);
      } else {
        tokens(rows, e, count);
      }
    }
    for (int d = 0; d < HEAD_DIM; ++d) {
      if constexpr (NORMALISED) {
        float sum = from_sums ? from_sums[d] : 0;
        for (int t = 0; t < count; ++t) {
          if (GATE != GATE_NONE) sum *= decays[GATE == GATE_CHANNEL ? t * HEAD_DIM + d : t];
          sum += k[t * HEAD_DIM + d];
          divisors[t] += q[t * HEAD_DIM + d] * sum;
        }
        if (to_sums) to_sums[d] = sum;
      }
    }
    for (int t = 0; t < count; ++t) {
      const float factor = NORMALISED ? divisors[t] != 0 ? 1 / divisors[t] : 0 : p.scale;
      const long long own_o = offset(p.o_strides, begin + t);
      for (int e = 0; e < VALUE_DIM; e += lanes) {
        store_floats<OUT_TYPE, lanes>(p.o, own_o + e, load<Floats>(o + t * VALUE_DIM + e) * factor);
      }
    }
  }
}
