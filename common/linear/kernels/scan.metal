// The scan: computes the state before each chunk from the sums that the chunks add to the state; without CAUSAL only
// the state after the last token. A launch runs one pass (ScanPass in linear.h). The kernel has not run on Apple
// hardware yet. A threadgroup cannot wait for another on these GPUs, so there is no scan that looks back.
//
// A threadgroup has SCAN_ROWS rows of a head's state and of its sum of keys. A thread has some elements of these rows.
// The thread computes an element for all chunks of a span, one after the other; with PASS_STARTS for all spans of a
// sequence. Elements do not depend on one another. No threadgroup memory. Grid: (sequences * spans, heads, HEAD_DIM /
// SCAN_ROWS); with PASS_STARTS (sequences, ...); any number of threads. Accumulators of a lane: 2, the element and the
// sum of logarithms.
#include "common/kernel/base2.h"
#include "common/kernel/metal.h"
#include "common/linear/kernels/linear.h"

INLINE SequenceRows rows_of(constant SpanParams& p, int sequence) {
  LinearParams lengths = {};
  lengths.starts = p.starts;
  lengths.tokens = p.tokens;
  return rows_of_sequence(lengths, sequence, CHUNK);
}

/// An element of a state, or with COLUMNS = 1 of a key sum: element `column` of row `row` of a head.
template <int COLUMNS>
struct Element {
  const int heads, head, row, column;
  float value;

  long at(long number) const { return (state_index(number, heads, head) * HEAD_DIM + row) * COLUMNS + column; }

  /// value = value * decay + the entry `number` of `sums`. With `starts` the old value replaces the entry.
  void pass(device float* sums, long number, float log, bool starts) {
    device float& there = sums[at(number)];
    const float was = value;
    value = (GATE == GATE_NONE ? was : was * fast::exp2(log * log2_e)) + there;
    if (starts) there = was;
  }
};

/// Computes one element for all chunks of a span, or with PASS_STARTS for all spans of a sequence. Returns the sum of
/// the logarithms of the chunks' decays, or 0 with PASS_STARTS.
template <int COLUMNS>
INLINE float take(constant SpanParams& p, int place, int head, int row, int column, device float* states,
                  device float* span_states, const device float* initial, device float* last) {
  const int sequence = PASS == PASS_STARTS ? place : place / p.spans, span = place - sequence * p.spans;
  const SequenceRows rows = rows_of(p, sequence);
  Element<COLUMNS> element{p.heads, head, row, column, 0};
  const bool whole = PASS == PASS_STARTS || (PASS == PASS_STATES && p.spans == 1);  // covers a whole sequence
  if (whole && initial) element.value = initial[element.at(sequence)];
  float logs = 0;
  if (PASS == PASS_STARTS) {
    for (int i = 0; i == 0 || (i < p.spans && i * p.span_chunks < rows.chunks); ++i) {
      const long number = static_cast<long>(sequence) * p.spans + i;
      const float log = GATE == GATE_NONE ? 0.0f : p.span_decays[state_index(number, p.heads, head) * HEAD_DIM + row];
      element.pass(span_states, number, log, CAUSAL);
    }
  } else {
    if (PASS == PASS_STATES && p.spans > 1) element.value = span_states[element.at(place)];
    for (int i = span * p.span_chunks; i < min((span + 1) * p.span_chunks, rows.chunks); ++i) {
      const long number = rows.first_chunk + i, index = state_index(number, p.heads, head);
      float log = 0;
      if (GATE != GATE_NONE) log = p.decays[GATE == GATE_CHANNEL ? index * HEAD_DIM + row : index];
      logs += log;
      element.pass(states, number, log, PASS == PASS_STATES && CAUSAL);
    }
  }
  if (PASS == PASS_TOTALS) span_states[element.at(place)] = element.value;
  if (whole) {
    if (last) last[element.at(sequence)] = element.value;
    if (!CAUSAL && rows.chunks > 0) states[element.at(rows.first_chunk)] = element.value;
  }
  return logs;
}

kernel void scan(constant SpanParams& p [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                 uint thread_index [[thread_index_in_threadgroup]], uint3 threads [[threads_per_threadgroup]]) {
  const int place = static_cast<int>(group.x), head = static_cast<int>(group.y);
  const int first_row = static_cast<int>(group.z) * static_cast<int>(SCAN_ROWS);
  if (PASS != PASS_STARTS) {  // a span after the first that lies beyond the chunks has no work
    const int sequence = place / p.spans, span = place - sequence * p.spans;
    if (span > 0 && span * p.span_chunks >= rows_of(p, sequence).chunks) return;
  }
  for (int i = static_cast<int>(thread_index); i < SCAN_ROWS * VALUE_DIM; i += static_cast<int>(threads.x)) {
    const int row = first_row + i / static_cast<int>(VALUE_DIM), column = i % static_cast<int>(VALUE_DIM);
    const float logs =
        take<VALUE_DIM>(p, place, head, row, column, p.states, p.span_states, p.initial_state, p.final_state);
    if (PASS == PASS_TOTALS && GATE != GATE_NONE && column == 0) {
      p.span_decays[state_index(place, p.heads, head) * HEAD_DIM + row] = logs;
    }
  }
  for (int i = static_cast<int>(thread_index); NORMALISED && i < SCAN_ROWS; i += static_cast<int>(threads.x)) {
    take<1>(p, place, head, first_row + i, 0, p.key_sums, p.span_key_sums, p.initial_key_sum, p.final_key_sum);
  }
}
