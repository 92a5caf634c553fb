// What host and kernels of linear attention share. No other headers than the kernels' own.
//
// Each sequence and head has a state S [HEAD_DIM, VALUE_DIM] and, where NORMALISED, a key sum z [HEAD_DIM]. With the
// feature map f (feature.h), applied to each element:
//
//   S_t = decay_t S_{t-1} + f(k_t) v_t^T        z_t = decay_t z_{t-1} + f(k_t)
//   o_t = scale f(q_t)^T S_t                    NORMALISED: o_t = f(q_t)^T S_t / (f(q_t)^T z_t), 0 where that is 0 / 0
//
// (Katharopoulos et al. 2020; with decays RetNet, Sun et al. 2023, Mamba-2, Dao and Gu 2024, and GLA, Yang et al.
// 2024.) Without CAUSAL every o_t reads the state behind the last token, and there is no gate. A token's decay is at
// most 1 and stands as its natural logarithm; it applies to what the token finds, not to the token itself.
//
// Function constants of all kernels: HEAD_DIM, VALUE_DIM, GATE, NORMALISED, CAUSAL, IN_TYPE (of q, k, v), OUT_TYPE (of
// o), as far as they read them, and CHUNK where they work in chunks. An unused constant does not compile.
#pragma once

#include "common/attention/kernels/attention.h"

#ifdef __CUDACC__
#define EITHER_SIDE __host__ __device__
#else
#define EITHER_SIDE
#endif

/// Which decay a token has: none, one for each head, for each token and head, or for each token, head and row of S.
enum Gate { GATE_NONE = 0, GATE_HEAD = 1, GATE_TOKEN = 2, GATE_CHANNEL = 3 };

/// q, k: [batch, heads, tokens, HEAD_DIM]; v, o: [batch, heads, tokens, VALUE_DIM]; strides make the layout.
struct LinearParams {
  const void *q, *k, *v;
  void* o;
  TensorStrides q_strides, k_strides, v_strides, o_strides;
  /// Logarithms of decays, f32: by GATE [heads], [batch, heads, tokens] or [batch, heads, tokens, HEAD_DIM]; else null.
  const float* gate;
  TensorStrides gate_strides;
  /// [sequences, heads, HEAD_DIM, VALUE_DIM], and of z [sequences, heads, HEAD_DIM]. Null: zeros, or nobody wants it.
  const float *initial_state, *initial_key_sum;
  float *final_state, *final_key_sum;
  /// Of sequences of unlike lengths, which lie one after the other in batch 0: the first row of each, and behind them
  /// the number of rows, [sequences + 1]. Null: sequence s is batch s, and has `tokens` rows.
  const int* starts;
  int sequences, heads;
  int tokens;  // of the longest sequence
  float scale;
  const void* feature_data;  // what a user's feature map reads, else null
};

/// Of `phases`. A sequence is cut into chunks of CHUNK tokens, and a chunk has a number: those of sequence s begin at
/// starts[s] / CHUNK + s, or without `starts` at s * ceil(tokens / CHUNK). Not every number is a chunk's; a chunk ends
/// with its sequence.
///
///   chunk_h        writes what each chunk adds to the state: the sum over its tokens of f(k_j) v_j^T, decayed to the
///                  chunk's end, and how much it decays what came before
///   scan           makes that the state before each chunk, and writes the final state
///   chunk_o        reads the state before each chunk
///
/// Without CAUSAL a scan leaves the state behind the last token at the place of the sequence's first chunk, and nothing
/// else; chunk_o reads it there for all chunks.
///
/// chunk_h and chunk_o have the grid (chunks, heads).
struct ChunkParams : LinearParams {
  int chunks;       // numbers: tokens of all sequences / CHUNK + sequences, or sequences * ceil(tokens / CHUNK)
  float* states;    // [chunks, heads, HEAD_DIM, VALUE_DIM]
  float* key_sums;  // [chunks, heads, HEAD_DIM] where NORMALISED, of z as `states` of S
  float*
      decays;  // with a gate: logarithm of a chunk's decay, [chunks, heads, 1], or [chunks, heads, HEAD_DIM] by channel
};

/// Of the cpu's scans, and of its fused form: a sequence's chunks in spans of span_chunks, `spans` for the longest.
/// Span i of sequence s has number s * spans + i, and nothing to do where the sequence is shorter (but for span 0 of an
/// empty sequence, whose final state is the initial one).
///
/// Scans have the grid (sequences * spans, heads, HEAD_DIM / SCAN_ROWS): threadgroup z does SCAN_ROWS rows of S and z,
/// which do not depend on other rows. What looks back takes its span from a ticket, so that all spans before it have
/// begun; DELAY is 0, or in tests the turns that every second span waits before it says what it has.
struct SpanParams : ChunkParams {
  int span_chunks, spans;
  /// Of spans, as states and key_sums are of chunks: what the span adds; of `scan` with PASS_STARTS then the state
  /// before it. span_decays: logarithms, by any gate [span numbers, heads, HEAD_DIM]. Null with one span.
  float *span_states, *span_key_sums, *span_decays;
  /// Of what looks back: the state behind each span; a SpanFlag for each [span number, heads, slice of rows]; tickets
  /// [slices, heads]. Flags and tickets are 0 when the launch begins.
  float *states_after, *key_sums_after;
  unsigned *flags, *tickets;
};

/// What a launch of `scan` does. With one span only PASS_STATES runs, and writes the final state (and, without CAUSAL,
/// that of the first chunk). With several, PASS_STARTS does so, and without CAUSAL PASS_STATES does not run.
///   PASS_TOTALS  span_states becomes what each span adds, span_decays its decay
///   PASS_STARTS  grid (sequences, ...): span_states becomes the state before each span
///   PASS_STATES  states becomes the state before each chunk, from the initial state, or span_states where spans > 1
enum ScanPass { PASS_TOTALS = 1, PASS_STARTS = 2, PASS_STATES = 3 };

/// What a span has said: nothing; what it adds (span_states); the state behind it (states_after).
enum SpanFlag { SPAN_SILENT = 0, SPAN_ADDS = 1, SPAN_AFTER = 2 };

/// Where a sequence lies, and its chunks among the numbers of all chunks.
struct SequenceRows {
  int batch, first, rows;  // from row `first` of the batch on
  int first_chunk, chunks;
};
EITHER_SIDE constexpr SequenceRows rows_of_sequence(const LinearParams& p, int sequence, int chunk) {
  const int first = p.starts ? p.starts[sequence] : 0;
  const int rows = p.starts ? p.starts[sequence + 1] - first : p.tokens;
  const int all = (p.tokens + chunk - 1) / chunk;
  return {p.starts ? 0 : sequence, first, rows, p.starts ? first / chunk + sequence : sequence * all,
          (rows + chunk - 1) / chunk};
}

/// The chunk of a number: none where rows is 0.
struct ChunkPlace {
  int sequence, chunk;     // of the sequence's, from 0
  int first_chunk;         // the sequence's first number
  int batch, first, rows;  // the chunk's rows
};
EITHER_SIDE constexpr ChunkPlace place_of_chunk(const LinearParams& p, int number, int chunk) {
  int sequence = 0;
  if (p.starts) {  // the last sequence whose first number is not larger
    for (int end = p.sequences; end - sequence > 1;) {
      const int middle = (sequence + end) / 2;
      (p.starts[middle] / chunk + middle <= number ? sequence : end) = middle;
    }
  } else {
    sequence = number / ((p.tokens + chunk - 1) / chunk);
  }
  const SequenceRows rows = rows_of_sequence(p, sequence, chunk);
  const int i = number - rows.first_chunk, left = rows.rows - i * chunk;
  return {
      sequence, i, rows.first_chunk, rows.batch, rows.first + i * chunk, left < 0 ? 0 : left < chunk ? left : chunk};
}

/// Index of a chunk's or span's state of a head, in states, times HEAD_DIM in key_sums.
EITHER_SIDE constexpr long long state_index(long long number, int heads, int head) { return number * heads + head; }
