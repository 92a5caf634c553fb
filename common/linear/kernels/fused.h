// Parameters and layout of the fused kernel for Hopper, which host and kernel share. This file includes only headers of
// kernels.
#pragma once

#include "common/kernel/tensor_map.h"
#include "common/linear/kernels/linear.h"

/// Tokens of a chunk, value columns of a task, and rows of a box of outputs.
constexpr int fused_chunk = 64, fused_slice = 64, fused_output_rows = 16;

/// The dimensions of a TensorMap are, innermost first, column, row, head, batch, and a dimension of size 1. The boxes
/// have 64 columns and 64 rows; the boxes of o have fused_output_rows rows. Columns beyond the width are read as zero.
///
/// A sequence is cut into segments of segment_chunks chunks. A task computes one segment of a sequence and head, for
/// one slice of 64 value columns. A slot is one sequence, head and slice; its number is (sequence * heads + head) *
/// slices + slice. The number of a task is segment * slots + slot.
struct FusedParams {
  TensorMap q, k, v, o;
  LinearParams linear;
  int value_dim;
  int slices;          // of 64 value columns
  int slots, tasks;    // slots: sequences * heads * slices; tasks: slots * segments of the longest sequence
  int segment_chunks;  // chunks of a segment
  int reach;           // how many segments back a task looks at most, 1 to 31; states of 2 * reach segments are kept
  /// [3]: tasks taken in this launch beyond each threadgroup's first, threadgroups done in this launch, launches done.
  /// All are 0 before the first launch. Only the kernel writes the counters.
  unsigned* counters;
  unsigned* flags;  // [segments, slots]; 0 before the first launch
  float* totals;    // [segments, slots]: log2 of a segment's decay
  /// [2 * reach, slots, 2, fused_state_floats()]: what a segment adds to the state, and the state after the segment.
  /// Segment i has index i % (2 * reach).
  float* states;
};

/// Returns how many floats one slice's state takes. For each panel of 64 rows, 128 threads have 32 floats of S each
/// and, if normalised, 4 floats of z.
constexpr long long fused_state_floats(long long head_dim, bool normalised) {
  return (head_dim + 63) / 64 * 128 * (normalised ? 36 : 32);
}

/// Threadgroup memory; all offsets are in bytes. A panel is 64 rows of 64 columns. In this order the memory has
///   the stages, each with the panels of Q, the panels of K, and one panel of V
///   the panels of the state, in 16 bits; one panel of outputs
///   if gated: one panel of V multiplied by its decays
///   if normalised: the key sum and the tokens' decays, each as a matrix of eight columns
///   the barriers
///   if gated: for each of eight warps, the sums of the chunk's gates.
struct FusedLayout {
  static constexpr long long panel_bytes = 64 * 128;

  long long panels, k, v, stage_bytes, state, out, values, key_sum, weights, barriers, bytes;

  constexpr FusedLayout(long long head_dim, long long stages, bool gated, bool normalised)
      : panels((head_dim + 63) / 64),
        k(panels * panel_bytes),
        v(2 * panels * panel_bytes),
        stage_bytes((2 * panels + 1) * panel_bytes),
        state(stages * stage_bytes),
        out(state + panels * panel_bytes),
        values(out + panel_bytes),
        key_sum(values + (gated ? panel_bytes : 0)),
        weights(key_sum + (normalised ? panels * 1024 : 0)),
        barriers(weights + (normalised ? 1024 : 0)),
        bytes(barriers + 1024 + (gated ? 8 * fused_chunk * 4 : 0)) {}
};
