// Joins the parts of a tile that several workers left.
#pragma once

#include "common/paged/kernels/decode/rows.h"
#include "common/paged/kernels/decode/setup.h"

namespace {

/// Joins the parts of a tile, four rows at a time, and writes the tile's rows. All threads call this function. Each
/// slice of HEAD_DIM / 4 threads adds up some of the parts; then the slices' sums are added up through
/// layout.join_bytes of threadgroup memory. Returns whether all results are finite.
DEVICE bool join(const Params& p, const Line& line, const Place& place, const Parts& parts, void* scratch) {
  constexpr int units = HEAD_DIM / 4, slices = THREADS / units, rows_at_once = 4;
  static_assert(sizeof(Joined) * slices * rows_at_once * units <= layout.join_bytes);
  auto* const shared = static_cast<Joined(*)[rows_at_once][units]>(scratch);  // [slices]
  const int rows = min(ROWS, p.q_heads / p.kv_heads * p.q_len - place.tile * ROWS);
  const int slice = threadIdx.x / units, unit = threadIdx.x % units;
  bool exact = true;
  for (int first = 0; first < rows; first += rows_at_once) {
    Joined joined[rows_at_once];
    if (slice < slices) {
#pragma unroll 2
      for (int worker = parts.first + slice; worker <= parts.last; worker += slices) {
        // A thread loads its elements of four rows before it uses the first row. In place of a row beyond the tile's
        // last row, the thread loads the last row.
        float2 stats[rows_at_once];
        float4 part[rows_at_once];
        UNROLL for (int i = 0; i < rows_at_once; ++i) {
          const long long at = part_number(worker, worker == parts.first) * ROWS + min(first + i, rows - 1);
          stats[i] = __ldcg(reinterpret_cast<const float2*>(p.part_stats) + at);
          part[i] = __ldcg(reinterpret_cast<const float4*>(p.part_o + at * HEAD_DIM) + unit);
        }
        UNROLL for (int i = 0; i < rows_at_once; ++i) joined[i].add(stats[i].x, stats[i].y, part[i]);
      }
      UNROLL for (int i = 0; i < rows_at_once; ++i) shared[slice][i][unit] = joined[i];
    }
    __syncthreads();
    float zeros = 0;  // NaN where a result is not finite
    for (int i = slice; i < rows_at_once && slice < slices && first + i < rows; i += slices) {
      Joined all = shared[0][i][unit];
      for (int other = 1; other < slices; ++other) {
        const Joined& its = shared[other][i][unit];
        all.add(its.shift, its.sum, make_float4(its.o[0], its.o[1], its.o[2], its.o[3]));
      }
      const Row row = row_of(p, place, first + i);
      const float factor = finish_row(p, line, place, row, all.shift, all.sum, unit == 0);
      UNROLL for (int column = 0; column < 4; ++column) {
        store_float<OUT_TYPE>(p.o, output_at(p, place, row) + unit * 4 + column, all.o[column] * factor);
        zeros += 0 * (all.o[column] * factor);
      }
    }
    exact = __syncthreads_and(zeros == 0) && exact;
  }
  return exact;
}

}  // namespace
