// Two scans, which compute the state before each chunk from what the chunks add (linear.h): `scan` in passes,
// `scan_lookback` in one pass by decoupled look-back (look_back.h).
//
// Threadgroup memory, in floats: the running state [SCAN_ROWS][VALUE_DIM], its key sum [SCAN_ROWS], and the logarithms
// of its decays [SCAN_ROWS].
// Grid: (sequences * spans, heads, HEAD_DIM / SCAN_ROWS); with PASS_STARTS (sequences, ...).
#ifdef DELAY_VALUE
#define LOOKS_BACK 1
#else
#define LOOKS_BACK 0
constexpr long long DELAY = 0;
#endif
#include "common/linear/kernels/look_back.h"

namespace {

/// SCAN_ROWS rows of a head's state, which take up chunks one after the other.
struct Rows {
  const SpanParams& p;
  const SequenceRows rows;
  const int sequence, head, first_row;
  float *state, *key_sum, *logs;  // logs: logarithms of the decay of the chunks that the rows have taken up

  INLINE Rows(const SpanParams& params, const Threadgroup& group, int of)
      : p(params),
        rows(rows_of_sequence(params, of, CHUNK)),
        sequence(of),
        head(static_cast<int>(group.index[1])),
        first_row(static_cast<int>(group.index[2] * SCAN_ROWS)) {
    state = reinterpret_cast<float*>(group.memory);
    key_sum = state + SCAN_ROWS * VALUE_DIM;
    logs = key_sum + SCAN_ROWS;
    for (int i = 0; i < SCAN_ROWS * (VALUE_DIM + 2); ++i) state[i] = 0;
  }

  INLINE StateRows own() const { return {state, key_sum, VALUE_DIM}; }

  /// state = state * decay + the entry `number` of states and sums. With STARTS the old state replaces the entry.
  /// decays[r * decay_step] is the logarithm of the decay of row r.
  template <bool STARTS>
  INLINE void pass(float* states, float* sums, long long number, const float* decays, int decay_step) {
    const long long first = state_index(number, p.heads, head) * HEAD_DIM + first_row;
    for (int r = 0; r < SCAN_ROWS; ++r) {
      const float log = GATE == GATE_NONE ? 0 : decays[r * decay_step], factor = decay_of(log);
      logs[r] += log;
      float *const before = state + r * VALUE_DIM, *const there = states + (first + r) * VALUE_DIM;
      VECTORIZE for (int e = 0; e < VALUE_DIM; ++e) {
        const float was = before[e];
        before[e] = was * factor + there[e];
        if (STARTS) there[e] = was;
      }
      if constexpr (NORMALISED) {
        const float was = key_sum[r];
        key_sum[r] = was * factor + sums[first + r];
        if (STARTS) sums[first + r] = was;
      }
    }
  }
  template <bool STARTS>
  INLINE void pass_chunk(int i) {
    const long long number = rows.first_chunk + i, index = state_index(number, p.heads, head);
    const long long decay = GATE == GATE_CHANNEL ? index * HEAD_DIM + first_row : index;
    pass<STARTS>(p.states, p.key_sums, number, GATE == GATE_NONE ? nullptr : p.decays + decay, GATE == GATE_CHANNEL);
  }
  template <bool STARTS>
  INLINE void pass_chunks(int span) {
    for (int i = first_of(span); i < end_of(span); ++i) pass_chunk<STARTS>(i);
  }
  template <bool STARTS>
  INLINE void pass_span(int span) {
    const long long number = static_cast<long long>(sequence) * p.spans + span;
    const long long decay = state_index(number, p.heads, head) * HEAD_DIM + first_row;
    pass<STARTS>(p.span_states, p.span_key_sums, number, GATE == GATE_NONE ? nullptr : p.span_decays + decay, 1);
  }

  INLINE void copy_from(const float* states, const float* sums, long long number) {
    const long long first = state_index(number, p.heads, head) * HEAD_DIM + first_row;
    for (int i = 0; states && i < SCAN_ROWS * VALUE_DIM; ++i) state[i] = states[first * VALUE_DIM + i];
    for (int r = 0; NORMALISED && sums && r < SCAN_ROWS; ++r) key_sum[r] = sums[first + r];
  }
  INLINE void copy_to(float* states, float* sums, long long number) const {
    const long long first = state_index(number, p.heads, head) * HEAD_DIM + first_row;
    for (int i = 0; states && i < SCAN_ROWS * VALUE_DIM; ++i) states[first * VALUE_DIM + i] = state[i];
    for (int r = 0; NORMALISED && sums && r < SCAN_ROWS; ++r) sums[first + r] = key_sum[r];
  }
  INLINE void begin() { copy_from(p.initial_state, p.initial_key_sum, sequence); }
  /// Writes the state after the last token, as the final state and, without CAUSAL, as the entry of the first chunk.
  INLINE void end() const {
    copy_to(p.final_state, p.final_key_sum, sequence);
    if (!CAUSAL && rows.chunks > 0) copy_to(p.states, p.key_sums, rows.first_chunk);
  }

  // ---- spans

  INLINE int first_of(int span) const { return span * p.span_chunks; }
  INLINE int end_of(int span) const {
    const int end = first_of(span + 1);
    return end < rows.chunks ? end : rows.chunks;
  }
  INLINE bool has(int span) const { return span == 0 || (span < p.spans && first_of(span) < rows.chunks); }
};

}  // namespace

#if LOOKS_BACK
extern "C" void scan_lookback(const SpanParams* params, const Threadgroup* group) {
  const SpanParams& p = *params;
  int sequence = 0, span = 0;
  if (p.spans > 1) {
    unsigned* const ticket = p.tickets + group->index[2] * p.heads + group->index[1];
    const auto number = static_cast<int>(__atomic_fetch_add(ticket, 1u, __ATOMIC_RELAXED));
    sequence = number / p.spans;
    span = number % p.spans;
  } else {
    sequence = static_cast<int>(group->index[0]);
  }
  Rows rows(p, *group, sequence);
  if (!rows.has(span)) return;
  const bool last = !rows.has(span + 1);
  const Span<SCAN_ROWS> own{p,
                            sequence,
                            span,
                            rows.head,
                            rows.first_row,
                            static_cast<int>(group->index[2]),
                            static_cast<int>(group->count[2])};
  if (span > 0 && !last) {
    rows.pass_chunks<false>(span);
    own.say_adds(rows.own(), rows.logs);
  }
  own.look_back(rows.own(), rows.logs);
  rows.pass_chunks<CAUSAL>(span);
  if (last) {
    rows.end();
  } else {
    own.say_after(rows.own());
  }
}
#else
extern "C" void scan(const SpanParams* params, const Threadgroup* group) {
  const SpanParams& p = *params;
  const auto place = static_cast<int>(group->index[0]);
  const int sequence = PASS == PASS_STARTS ? place : place / p.spans, span = place - sequence * p.spans;
  Rows rows(p, *group, sequence);
  if constexpr (PASS == PASS_STARTS) {
    rows.begin();
    for (int i = 0; rows.has(i); ++i) rows.pass_span<CAUSAL>(i);
    rows.end();
    return;
  }
  if (!rows.has(span)) return;
  if constexpr (PASS == PASS_TOTALS) {
    rows.pass_chunks<false>(span);
    const long long number = state_index(place, p.heads, rows.head) * HEAD_DIM + rows.first_row;
    rows.copy_to(p.span_states, p.span_key_sums, place);
    for (int r = 0; GATE != GATE_NONE && r < SCAN_ROWS; ++r) p.span_decays[number + r] = rows.logs[r];
  } else {
    if (p.spans > 1) {
      rows.copy_from(p.span_states, p.span_key_sums, place);
    } else {
      rows.begin();
    }
    rows.pass_chunks<CAUSAL>(span);
    if (p.spans == 1) rows.end();
  }
}
#endif
