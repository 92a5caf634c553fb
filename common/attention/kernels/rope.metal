// RoPE: rotates pairs of elements of the rows of Q and K by angles that grow with the row's position. A unit of a row
// is a pair, or an element that is only copied. A thread takes units, and rotates a pair in up to rope_heads heads by
// the same angle. The kernel has not run on Apple hardware yet.
//
// GROUP is 1: a thread loads and rotates one pair at a time. Grid: (groups of rope_heads heads of Q, then of K; tiles
// of rows; batch); any number of threads. Accumulators of a lane: 4.
#include "common/attention/kernels/rope.h"
#include "common/kernel/metal.h"

static_assert(GROUP == 1, "a thread turns single pairs");

constexpr constant int HALF = ROTARY_DIM / 2;
constexpr constant int UNITS = HEAD_DIM - HALF;  // units of a row: HALF pairs, and elements that are only copied

INLINE long index_of(constant RopeStrides& strides, int batch, int head, int row) {
  return batch * strides.batch + static_cast<long>(head) * strides.head + static_cast<long>(row) * strides.row;
}

kernel void rope_rotate(constant RopeParams& p [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                        uint thread_index [[thread_index_in_threadgroup]], uint3 threads [[threads_per_threadgroup]]) {
  const int q_blocks = (p.tensors[0].heads + rope_heads - 1) / rope_heads, block = static_cast<int>(group.x);
  constant RopeTensor& t = p.tensors[block < q_blocks ? 0 : 1];
  const int first_head = (block < q_blocks ? block : block - q_blocks) * rope_heads;
  const int batch = static_cast<int>(group.z), first_row = static_cast<int>(group.y) * p.tile_rows;
  const int offset = p.offsets ? p.offsets[batch] : 0;
  for (int i = static_cast<int>(thread_index); i < p.tile_rows * UNITS; i += static_cast<int>(threads.x)) {
    const int row = first_row + i / UNITS, unit = i % UNITS;
    if (row >= p.rows) break;
    if (unit >= HALF) {
      const int d = unit + HALF;
      for (int head = first_head; head < min(first_head + rope_heads, t.heads) && t.in != t.out; ++head) {
        const float x = load_float<IN_TYPE>(t.in, index_of(t.in_strides, batch, head, row) + d);
        store_float<IN_TYPE>(t.out, index_of(t.out_strides, batch, head, row) + d, x);
      }
      continue;
    }
    const long position = static_cast<long>(offset) + row;
    RopeAngle angle;
    if (TABLE) {
      angle.cosine = p.cosines[position * HALF + unit];
      angle.sine = p.sines[position * HALF + unit];
    } else {
      angle = rope_angle_at(p.frequencies[unit], position);
      angle.cosine *= p.factor;
      angle.sine *= p.factor;
    }
    const int first = INTERLEAVED ? 2 * unit : unit, second = INTERLEAVED ? first + 1 : unit + HALF;
    for (int head = first_head; head < min(first_head + rope_heads, t.heads); ++head) {
      const long from = index_of(t.in_strides, batch, head, row), to = index_of(t.out_strides, batch, head, row);
      const float x = load_float<IN_TYPE>(t.in, from + first), y = load_float<IN_TYPE>(t.in, from + second);
      store_float<IN_TYPE>(t.out, to + first, x * angle.cosine - y * angle.sine);
      store_float<IN_TYPE>(t.out, to + second, y * angle.cosine + x * angle.sine);
    }
  }
}
