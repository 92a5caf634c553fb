// The recurrence as it stands in linear.h, for one or a few tokens. A state is read once and written once for TOKENS of
// them: row by row, each over all tokens.
//
// Threadgroup memory, in floats: RecurrentLayout. Grid: (sequences, heads).
#include "common/kernel/cpu.h"
#include "proto6_linear/kernels/feature.h"
#include "proto6_linear/kernels/linear.h"
#include "proto6_linear/kernels/recurrent_layout.h"

namespace {

namespace math {
#include "common/kernel/math.h"
}

constexpr RecurrentLayout layout(HEAD_DIM, VALUE_DIM, TOKENS);
constexpr int lanes = VALUE_DIM % VECTOR_WIDTH == 0 ? VECTOR_WIDTH : 8;
using Floats = Vector<float, lanes>;

}  // namespace

extern "C" void recurrent(const LinearParams* params, const Threadgroup* group) {
  const LinearParams& p = *params;
  const int sequence = static_cast<int>(group->index[0]), head = static_cast<int>(group->index[1]);
  const SequenceRows place = rows_of_sequence(p, sequence, 1);
  const long long index = (static_cast<long long>(sequence) * p.heads + head) * HEAD_DIM;
  float* const memory = reinterpret_cast<float*>(group->memory);
  float *const o = memory + layout.o, *const q = memory + layout.q, *const k = memory + layout.k;
  float *const v = memory + layout.v, *const decays = memory + layout.decays, *const divisors = memory + layout.divisors;
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
        VECTORIZE for (int d = 0; d < HEAD_DIM; ++d) q[t * HEAD_DIM + d] = feature(q[t * HEAD_DIM + d], p.feature_data);
        VECTORIZE for (int d = 0; d < HEAD_DIM; ++d) k[t * HEAD_DIM + d] = feature(k[t * HEAD_DIM + d], p.feature_data);
      }
      if constexpr (GATE == GATE_CHANNEL) {
        const float* const logs = p.gate + offset(p.gate_strides, begin + t);
        VECTORIZE for (int d = 0; d < HEAD_DIM; ++d) decays[t * HEAD_DIM + d] = math::expf(logs[d]);
      } else if constexpr (GATE != GATE_NONE) {
        decays[t] = math::expf(GATE == GATE_HEAD ? p.gate[head] : p.gate[offset(p.gate_strides, begin + t)]);
      }
    }
    // From where a row comes, and where it goes: the sequence's states, or threadgroup memory between turns.
    const float* const from = first ? p.initial_state ? p.initial_state + index * VALUE_DIM : nullptr : state;
    const float* const from_sums = first ? p.initial_key_sum ? p.initial_key_sum + index : nullptr : sums;
    float* const to = last ? p.final_state ? p.final_state + index * VALUE_DIM : nullptr : state;
    float* const to_sums = last ? p.final_key_sum ? p.final_key_sum + index : nullptr : sums;
    for (int d = 0; d < HEAD_DIM; ++d) {
      for (int e = 0; e < VALUE_DIM; e += lanes) {
        Floats row = from ? load<Floats>(from + d * VALUE_DIM + e) : Floats{};
        for (int t = 0; t < count; ++t) {
          if (GATE != GATE_NONE) row *= decays[GATE == GATE_CHANNEL ? t * HEAD_DIM + d : t];
          row += k[t * HEAD_DIM + d] * load<Floats>(v + t * VALUE_DIM + e);
          float* const out = o + t * VALUE_DIM + e;
          store(out, load<Floats>(out) + q[t * HEAD_DIM + d] * row);
        }
        if (to) store(to + d * VALUE_DIM + e, row);
      }
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
