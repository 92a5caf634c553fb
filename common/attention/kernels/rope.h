// Parameters of the kernels that rotate Q and K by their positions (RoPE), and the angles, for the host and for kernels
// of every dialect. Function constants of the kernels: HEAD_DIM, ROTARY_DIM, IN_TYPE (of inputs and outputs),
// INTERLEAVED (1: pair i is elements 2i and 2i + 1; 0: elements i and i + ROTARY_DIM / 2), TABLE (1: cosines and sines
// are read from a table; 0: they are computed), and GROUP (see each kernel).
#pragma once

#include "common/kernel/spaces.h"

/// Strides in elements; head_dim is contiguous.
struct RopeStrides {
  INT64 batch;
  int head, row;
};

/// Q or K, before and after the rotation: [batch, heads, rows, HEAD_DIM]. `out` may be `in`, with the same strides. If
/// there are no heads, nothing is read or written.
struct RopeTensor {
  const GLOBAL void* in;
  GLOBAL void* out;
  RopeStrides in_strides, out_strides;
  int heads;
};

/// Row r of batch entry b stands at position offsets[b] + r, or at r if there are no offsets.
struct RopeParams {
  RopeTensor tensors[2];  // Q and K
  const GLOBAL int* offsets;
  // With TABLE: each [positions, ROTARY_DIM / 2]; positions are then at least 0.
  const GLOBAL float *cosines, *sines;
  // Without TABLE: turns per position, in units of 2^-64.
  const GLOBAL unsigned INT64* frequencies;
  float factor;  // without TABLE: multiplies cosines and sines
  int rows;
  int tile_rows;  // rows that a threadgroup rotates
};

/// On a GPU: the most threads of a threadgroup, and how many heads a thread rotates by the same angles.
constexpr CONSTANT int rope_threads = 256, rope_heads = 2;

struct RopeAngle {
  float cosine, sine;
};

/// Returns cosine and sine of `turns` / 2^32 turns, within 1e-7, by minimax polynomials of the angle from the nearest
/// quarter turn.
inline RopeAngle rope_angle(unsigned turns) {
  const unsigned quarter = (turns + (1u << 29)) >> 30;
  const float v = static_cast<float>(static_cast<int>(turns - (quarter << 30))) * 0x1p-30f;  // -1/2 to 1/2
  const float w = v * v;
  const float sine = v * (((-0.00460214913f * w + 0.0796802193f) * w - 0.64596349f) * w + 1.57079637f);
  const float cosine = (((0.000906739908f * w - 0.0208615288f) * w + 0.253669411f) * w - 1.23370051f) * w + 1.0f;
  const bool swap = quarter & 1;
  const float c = swap ? sine : cosine, s = swap ? cosine : sine;
  return {(quarter + 1) & 2 ? -c : c, quarter & 2 ? -s : s};
}

/// Returns cosine and sine of the angle at a position, which may be negative. The product of frequency and position
/// wraps around, which is exact modulo one turn.
inline RopeAngle rope_angle_at(unsigned INT64 frequency, INT64 position) {
  return rope_angle(static_cast<unsigned>((frequency * static_cast<unsigned INT64>(position)) >> 32));
}
