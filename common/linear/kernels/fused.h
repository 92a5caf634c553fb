// Parameters and layout of the fused kernel for Hopper, which host and kernel share. This file includes only headers of
// kernels.
#pragma once

#include "common/kernel/tensor_map.h"
#include "common/linear/kernels/linear.h"

/// Tokens of a chunk, value columns of a panel, and rows of a box of outputs.
constexpr int fused_chunk = 64, fused_slice = 64, fused_output_rows = 16;

/// Whether a launch of decay_chunks computes the weights and the decays of all chunks, before `fused`. Else `fused`
/// does: at head_dim 64 the memory traffic of two launches takes more time than the decays.
constexpr bool fused_prepares(int gate, long long head_dim) { return gate == GATE_CHANNEL && head_dim > 64; }
constexpr int fused_chunk_threads = 128;  // of decay_chunks
/// Returns how many floats a chunk has in FusedParams::chunk_decays: a decay for each channel of the panels, and if
/// normalised the sums of the weights of the chunk's tokens.
constexpr int fused_decay_floats(long long head_dim) {
  return static_cast<int>((head_dim + 63) / 64 * 64 + fused_chunk);
}
/// Threadgroup memory of decay_chunks, in bytes: operands of products, 2 * 2 * 2 * 4 * 512 for each panel of 64
/// channels; from `decays` on the decays of the chunk's four quarters.
struct DecayChunksLayout {
  long long decays, bytes;
  constexpr explicit DecayChunksLayout(long long head_dim)
      : decays((head_dim + 63) / 64 * 16384), bytes(decays + (head_dim + 63) / 64 * 64 * 4 * 4) {}
};

/// The dimensions of a TensorMap are, innermost first, column, row, head, batch, and a dimension of size 1. The boxes
/// have 64 columns and 64 rows; the boxes of o have fused_output_rows rows, and the boxes of gates by channel 32
/// columns of f32. Columns beyond the width are read as zero.
///
/// A sequence is cut into segments of segment_chunks chunks. A task computes one segment of a sequence and head, for
/// one slice of value columns: one panel of 64 columns, or two (only by channel, unless fused_prepares()). A slot is
/// one sequence, head and slice; its number is (sequence * heads + head) * slices + slice. The number of a task is
/// segment * slots + slot.
struct FusedParams {
  TensorMap q, k, v, o;
  LinearParams linear;
  int value_dim;
  int slices;          // of one panel of value columns, or of two
  int slots, tasks;    // slots: sequences * heads * slices; tasks: slots * segments of the longest sequence
  int segment_chunks;  // chunks of a segment
  int reach;           // how many segments back a task looks at most, 1 to 31; states of 2 * reach segments are kept
  /// [3]: tasks taken in this launch beyond each threadgroup's first, threadgroups done in this launch, launches done.
  /// All are 0 before the first launch. Only the kernel writes the counters.
  unsigned* counters;
  unsigned* flags;  // [segments, slots]; 0 before the first launch
  /// [segments, slots]: log2 of a segment's decay. By channel [segments, slots, 64 * panels]: the decay of each row of
  /// the state, in the order of positions (fused/channels.h).
  float* totals;
  /// [2 * reach, slots, 2, fused_state_floats()]: what a segment adds to the state, and the state after the segment.
  /// Segment i has index i % (2 * reach).
  float* states;
  TensorMap gates;  // only by channel; if fused_prepares(), a map of the weights, with boxes of 64 columns and 64 rows
  /// Only if fused_prepares(): what decay_chunks writes, for the chunks of ChunkParams (linear.h). `q` and `k` are then
  /// maps of decayed_q and decayed_k.
  int chunks;                   // how many chunk numbers there are
  void *decayed_q, *decayed_k;  // [heads, chunks, 64, HEAD_DIM]
  void* weights;                // [heads, chunks, 64, 64]
  float* chunk_decays;          // [heads, chunks, fused_decay_floats()]
};

/// Returns how many floats one slice's state takes. For each panel of 64 rows and 64 columns, 128 threads have 32
/// floats of S each and, if normalised, 4 floats of z.
constexpr long long fused_state_floats(long long head_dim, bool normalised, long long column_panels) {
  return (head_dim + 63) / 64 * column_panels * 128 * (normalised ? 36 : 32);
}

/// Threadgroup memory; all offsets are in bytes. A panel is 64 rows of 64 columns. In this order the memory has
///   the stages, each with the panels of Q, the panels of K, the slice's panels of V and, by channel, for each panel of
///   K
///     two panels of 64 rows and 32 columns of gates, or if fused_prepares() one panel of weights in all
///   the panels of the state, in 16 bits; the panels of outputs
///   if gated by head or token: one panel of V multiplied by its decays
///   if normalised: the key sum and the tokens' decays, each as a matrix of eight columns
///   the barriers
///   if gated by head or token: for each of eight warps, the sums of the chunk's gates
///   by channel, unless fused_prepares(): diagonals and decays (fused/channels.h).
struct FusedLayout {
  static constexpr long long panel_bytes = 64 * 128;

  /// By channel: floats of the diagonals of two chunks and two warpgroups, and rows of the table of decays.
  static constexpr long long diagonal_floats = 2 * 2 * 6 * 128, decay_rows = 6;

  long long panels, k, v, gates, stage_bytes, state, out, values, key_sum, weights, barriers, diagonals, decays, bytes;

  constexpr FusedLayout(long long head_dim, long long stages, int gate, bool normalised, long long column_panels)
      : panels((head_dim + 63) / 64),
        k(panels * panel_bytes),
        v(2 * panels * panel_bytes),
        gates(v + column_panels * panel_bytes),
        stage_bytes(gates + (fused_prepares(gate, head_dim) ? panel_bytes
                             : gate == GATE_CHANNEL         ? 2 * panels * panel_bytes
                                                            : 0)),
        state(stages * stage_bytes),
        out(state + panels * column_panels * panel_bytes),
        values(out + column_panels * panel_bytes),
        key_sum(values + (gate == GATE_HEAD || gate == GATE_TOKEN ? panel_bytes : 0)),
        weights(key_sum + (normalised ? panels * 1024 : 0)),
        barriers(weights + (normalised ? 1024 : 0)),
        diagonals(barriers + 1024),
        decays(diagonals + diagonal_floats * 4),
        bytes(fused_prepares(gate, head_dim)            ? barriers + 1024
              : gate == GATE_CHANNEL                    ? decays + decay_rows * panels * 64 * 4
              : gate == GATE_HEAD || gate == GATE_TOKEN ? barriers + 1024 + 8 * fused_chunk * 4
                                                        : barriers + 1024) {}
};
