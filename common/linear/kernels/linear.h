// Parameters and numbers that host and kernels of linear attention share. This file includes only headers of kernels.
//
// Each sequence and head has a state S [HEAD_DIM, VALUE_DIM] and, if NORMALISED, a key sum z [HEAD_DIM]. With the
// feature map f (feature.h), applied to each element:
//
//   S_t = decay_t S_{t-1} + f(k_t) v_t^T        z_t = decay_t z_{t-1} + f(k_t)
//   o_t = scale f(q_t)^T S_t                    NORMALISED: o_t = f(q_t)^T S_t / (f(q_t)^T z_t); 0 if the divisor is 0
//
// The formulas without decays are from Katharopoulos et al. 2020. Those with decays are from RetNet (Sun et al. 2023),
// Mamba-2 (Dao and Gu 2024) and GLA (Yang et al. 2024). Without CAUSAL every o_t reads the state after the last token,
// and there is no gate. A token's decay is at most 1, and is given as its natural logarithm. A decay applies to the
// state before the token, not to the token itself. "The state takes up token t" means: the state changes from S_{t-1}
// to S_t.
//
// Function constants: HEAD_DIM, VALUE_DIM, GATE, NORMALISED, CAUSAL, IN_TYPE (of q, k, v), OUT_TYPE (of o), and CHUNK
// if the kernel works in chunks. A kernel gets only those of these constants that it reads, and may have further
// constants. On the cpu a constant that the kernel does not read is a compile error.
#pragma once

#include "common/attention/kernels/attention.h"

#ifdef __CUDACC__
#define EITHER_SIDE __host__ __device__
#else
#define EITHER_SIDE
#endif

/// The decays: none; one for each head; one for each token and head; or one for each token, head and row of S.
enum Gate { GATE_NONE = 0, GATE_HEAD = 1, GATE_TOKEN = 2, GATE_CHANNEL = 3 };

/// q, k: [batch, heads, tokens, HEAD_DIM]; v, o: [batch, heads, tokens, VALUE_DIM]; the strides give the layout.
struct LinearParams {
  const GLOBAL void *q, *k, *v;
  GLOBAL void* o;
  TensorStrides q_strides, k_strides, v_strides, o_strides;
  /// Logarithms of decays, f32. The shape is [heads] for GATE_HEAD, [batch, heads, tokens] for GATE_TOKEN, and [batch,
  /// heads, tokens, HEAD_DIM] for GATE_CHANNEL. Null for GATE_NONE.
  const GLOBAL float* gate;
  TensorStrides gate_strides;
  /// S [sequences, heads, HEAD_DIM, VALUE_DIM], and z [sequences, heads, HEAD_DIM]. A null initial tensor means zeros;
  /// a null final tensor is not written.
  const GLOBAL float *initial_state, *initial_key_sum;
  GLOBAL float *final_state, *final_key_sum;
  /// For sequences of unlike lengths, which lie one after the other in batch 0: [sequences + 1], the first row of each
  /// sequence, then the number of all rows. Null: sequence s is batch s, and has `tokens` rows.
  const GLOBAL int* starts;
  int sequences, heads;
  int tokens;  // of the longest sequence
  float scale;
  const GLOBAL void* feature_data;  // data of a user's feature map, or null
};

/// Parameters of chunk_h and chunk_o. A sequence is cut into chunks of CHUNK tokens, and each chunk has a number. The
/// numbers of sequence s begin at starts[s] / CHUNK + s, or without `starts` at s * ceil(tokens / CHUNK). Some numbers
/// have no chunk. No chunk goes beyond the end of its sequence.
///
///   chunk_h        writes what each chunk adds to the state: the sum of f(k_j) v_j^T over the chunk's tokens, each
///                  term decayed to the chunk's end. Also writes the decay of the whole chunk
///   scan           replaces this sum by the state before the chunk, and writes the final state
///   chunk_o        computes the outputs of a chunk from the state before the chunk, and from the chunk's q, k and v
///
/// Without CAUSAL a scan computes only the state after the last token. The scan writes this state as the final state,
/// and to the entry of the sequence's first chunk in `states`. chunk_o reads this entry for all chunks.
///
/// chunk_h and chunk_o have the grid (chunks, heads).
struct ChunkParams : LinearParams {
  /// How many chunk numbers there are: with `starts` (rows of all sequences) / CHUNK + sequences, else sequences *
  /// ceil(tokens / CHUNK).
  int chunks;
  GLOBAL float* states;    // [chunks, heads, HEAD_DIM, VALUE_DIM]
  GLOBAL float* key_sums;  // if NORMALISED: [chunks, heads, HEAD_DIM], for z what `states` is for S
  GLOBAL float*
      decays;  // with a gate: logarithms of chunks' decays, [chunks, heads, 1], or [chunks, heads, HEAD_DIM] by channel
};

/// Parameters of scans, and of fused kernels except Hopper's. A sequence's chunks are cut into spans of span_chunks
/// chunks; the longest sequence has `spans` spans. Span i of sequence s has number s * spans + i. A span beyond the
/// sequence's chunks has no work, except span 0 of an empty sequence, whose final state is the initial state.
///
/// Scans have the grid (sequences * spans, heads, HEAD_DIM / SCAN_ROWS): a threadgroup has SCAN_ROWS rows of S and of
/// z. Rows do not depend on one another. A threadgroup that looks back (look_back.h, scan.cuda.cu) waits for earlier
/// spans. The threadgroup takes its span's number from a counter (`tickets`), so all these spans have begun. DELAY is
/// how long every second span waits before it sets its flag: iterations of a loop on the cpu, nanoseconds on a GPU.
/// DELAY is 0 except in tests.
struct SpanParams : ChunkParams {
  int span_chunks, spans;
  /// What each span adds to S and z, in the layout of states and key_sums, with span numbers in place of chunk numbers.
  /// If CAUSAL, PASS_STARTS replaces what a span adds by the state before the span. span_decays has the logarithms of
  /// the spans' decays; its shape is [span numbers, heads, HEAD_DIM] for every kind of gate. All three are null if
  /// there is one span.
  GLOBAL float *span_states, *span_key_sums, *span_decays;
  /// For kernels that look back. states_after and key_sums_after have the state and the key sum after each span. flags
  /// has one word for each span number, head and slice of rows. On the cpu a flag is a SpanFlag, tickets are [slices,
  /// heads], and both must be 0 when a launch begins. On a GPU scan.cuda.cu gives the meaning of flags and of the three
  /// words of tickets; both must be 0 only before the first launch.
  GLOBAL float *states_after, *key_sums_after;
  GLOBAL unsigned *flags, *tickets;
};

/// The pass of a launch of `scan`. With one span only PASS_STATES runs. It writes the final state, and without CAUSAL
/// also writes this state to the entry of the first chunk. With several spans PASS_STARTS writes these states instead;
/// without CAUSAL PASS_STATES then does not run.
///   PASS_TOTALS  writes what each span adds to span_states, and each span's decay to span_decays
///   PASS_STARTS  grid (sequences, ...): if CAUSAL, replaces span_states by the state before each span
///   PASS_STATES  if CAUSAL, replaces `states` by the state before each chunk. Begins with the initial state, or with
///                span_states if spans > 1
enum ScanPass { PASS_TOTALS = 1, PASS_STARTS = 2, PASS_STATES = 3 };

/// What a span has published. SPAN_SILENT: nothing; SPAN_ADDS: what the span adds (span_states); SPAN_AFTER: the state
/// after the span (states_after).
enum SpanFlag { SPAN_SILENT = 0, SPAN_ADDS = 1, SPAN_AFTER = 2 };

/// The rows of a sequence, and the numbers of its chunks.
struct SequenceRows {
  int batch, first, rows;  // from row `first` of the batch on
  int first_chunk, chunks;
};
EITHER_SIDE constexpr SequenceRows rows_of_sequence(const LOCAL LinearParams& p, int sequence, int chunk) {
  const int first = p.starts ? p.starts[sequence] : 0;
  const int rows = p.starts ? p.starts[sequence + 1] - first : p.tokens;
  const int all = (p.tokens + chunk - 1) / chunk;
  return {p.starts ? 0 : sequence, first, rows, p.starts ? first / chunk + sequence : sequence * all,
          (rows + chunk - 1) / chunk};
}

/// The chunk that has a given number. If rows is 0, no chunk has this number.
struct ChunkPlace {
  int sequence, chunk;     // chunk: the chunk's index in its sequence
  int first_chunk;         // the number of the sequence's first chunk
  int batch, first, rows;  // the chunk's rows
};
EITHER_SIDE constexpr ChunkPlace place_of_chunk(const LOCAL LinearParams& p, int number, int chunk) {
  int sequence = 0;
  if (p.starts) {  // the last sequence whose first number is not above `number`
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

/// Returns the index of a head's state of a chunk or span. In `states` the index counts whole states, in `key_sums`
/// rows of HEAD_DIM elements.
EITHER_SIDE constexpr INT64 state_index(INT64 number, int heads, int head) { return number * heads + head; }
