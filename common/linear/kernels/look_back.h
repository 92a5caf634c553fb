// Decoupled look-back on the cpu (Merrill and Garland 2016): a threadgroup computes the state before its span from what
// the threadgroups of earlier spans have published. Each of these threadgroups publishes what its span adds to the
// state, or the state after its span. Look-back visits the earlier spans, the nearest first. It ends at a span whose
// threadgroup has published the state after the span, or at the sequence's first span.
#pragma once

#include "common/kernel/cpu.h"
#include "common/linear/kernels/linear.h"

namespace look_back_math {
#include "common/kernel/math.h"
}

INLINE float decay_of(float log) { return GATE == GATE_NONE ? 1 : look_back_math::expf(log); }

/// Rows of a head's state, which begin `step` floats apart, and the same rows of its key sum.
struct StateRows {
  float *state, *key_sum;
  long step;
};

/// A span of a sequence, for a threadgroup that has ROWS rows of the state from first_row on.
template <int ROWS>
struct Span {
  const SpanParams& p;
  int sequence, span, head, first_row, slice, slices;

  INLINE long long number(int of) const {
    return state_index(static_cast<long long>(sequence) * p.spans + of, p.heads, head);
  }
  INLINE long long row(int of) const { return number(of) * HEAD_DIM + first_row; }
  INLINE unsigned* flag(int of) const { return p.flags + number(of) * slices + slice; }

  INLINE void say(SpanFlag what) const {
    if (DELAY > 0 && span % 2 == 1) {
      for (volatile long long i = 0; i < DELAY; i = i + 1) {
      }
    }
    __atomic_store_n(flag(span), static_cast<unsigned>(what), __ATOMIC_RELEASE);
  }

  INLINE void copy(const StateRows& own, float* states, float* sums) const {
    for (int r = 0; r < ROWS; ++r) {
      float* const to = states + (row(span) + r) * VALUE_DIM;
      VECTORIZE for (int e = 0; e < VALUE_DIM; ++e) to[e] = own.state[r * own.step + e];
      if (NORMALISED) sums[row(span) + r] = own.key_sum[r];
    }
  }
  /// Publishes what the span adds, and `logs`: for each of the ROWS rows the logarithm of its decay over the span.
  INLINE void say_adds(const StateRows& own, const float* logs) const {
    copy(own, p.span_states, p.span_key_sums);
    for (int r = 0; GATE != GATE_NONE && r < ROWS; ++r) p.span_decays[row(span) + r] = logs[r];
    say(SPAN_ADDS);
  }
  /// Publishes the state after the span.
  INLINE void say_after(const StateRows& own) const {
    copy(own, p.states_after, p.key_sums_after);
    say(SPAN_AFTER);
  }

  /// Writes the state before the span to `own`. `logs` [ROWS] is scratch memory.
  INLINE void look_back(const StateRows& own, float* logs) const {
    for (int r = 0; r < ROWS; ++r) {
      VECTORIZE for (int e = 0; e < VALUE_DIM; ++e) own.state[r * own.step + e] = 0;
      if (NORMALISED) own.key_sum[r] = 0;
      logs[r] = 0;
    }
    const auto take = [&](const float* states, const float* sums, long long from) INLINE_LAMBDA {
      for (int r = 0; r < ROWS; ++r) {
        const float factor = decay_of(logs[r]);
        VECTORIZE for (int e = 0; e < VALUE_DIM; ++e) {
          own.state[r * own.step + e] += factor * states[(from + r) * VALUE_DIM + e];
        }
        if (NORMALISED && sums) own.key_sum[r] += factor * sums[from + r];
      }
    };
    for (int before = span - 1; before >= 0; --before) {
      unsigned said = SPAN_SILENT;
      while ((said = __atomic_load_n(flag(before), __ATOMIC_ACQUIRE)) == SPAN_SILENT) {
      }
      if (said == SPAN_AFTER) return take(p.states_after, p.key_sums_after, row(before));
      take(p.span_states, p.span_key_sums, row(before));
      for (int r = 0; GATE != GATE_NONE && r < ROWS; ++r) logs[r] += p.span_decays[row(before) + r];
    }
    const long long first = state_index(sequence, p.heads, head) * HEAD_DIM + first_row;
    if (p.initial_state) take(p.initial_state, p.initial_key_sum, first);
  }
};
