// The end of a chunk of `fused`: its outputs go from shared memory to device memory, after rows with a result that is
// not finite have been computed anew.
#pragma once

#include "common/linear/kernels/fused/warpgroup.h"

namespace {

struct Epilogue : Warpgroup {
  using Warpgroup::Warpgroup;

  // Whether V of the chunk has an infinity or a NaN.
  DEVICE bool some_value_not_finite(const unsigned char* stage) const {
    float zeros = 0;
#pragma unroll 1
    for (int i = lane; i < PANEL_BYTES / 16; i += 32) {
      each_of_eight(reinterpret_cast<const uint4*>(values_of(stage))[i], [&](float x) { return zeros += 0 * x; });
    }
    return some_not_finite(zeros);
  }

  // Returns the address of an element of a panel of 64 columns, in the order of tensor copies.
  DEVICE static unsigned short* element(unsigned char* panel, int row, int column) {
    return reinterpret_cast<unsigned short*>(panel + row * PANEL_ROW_BYTES + (column / 8 ^ row % 8) * 16) + column % 8;
  }

  // Computes the warp's 16 rows of the panel of outputs anew (exact_tokens.h).
  DEVICE void write_rows_anew(const Task& task, int chunk, const float (&scale)[2]) const {
    const ExactTokens tokens{p.linear, task.batch, task.head, static_cast<long long>(task.first_row) + chunk * CHUNK};
    const int first = first_column(task), end = min(first + 64, p.value_dim);
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
      const int token = warp * 16 + i;
      if (chunk * CHUNK + token >= task.tokens) break;
      const float factor = __shfl_sync(~0u, i < 8 ? scale[0] : scale[1], i % 8 * 4);
      float outputs[2];
      tokens.outputs(
          token, token + 1, first, end,
          [&](int d, int column) {
            return load_float<IN_TYPE>(
                element(state_copy() + d / 64 * PANEL_BYTES, position_of(d) % 64, column - first), 0);
          },
          outputs);
      UNROLL for (int c = 0; c < 2; ++c) {
        store_float<IN_TYPE>(element(out_panel(), token, lane + c * 32), 0, outputs[c] * factor);
      }
    }
  }

  // Does what write_rows_anew() does, and is not inlined, because by channel the loop over chunks needs all registers.
  static NOINLINE void write_rows_apart(const FusedParams& params, int number, const Task& task, int chunk, float first,
                                        float second) {
    Epilogue(params, number).write_rows_anew(task, chunk, {first, second});
  }

  // Copies the warp's 16 rows of the chunk's outputs from shared memory to device memory.
  DEVICE void store_output(const Task& task, int chunk) {
    const unsigned char* const from = out_panel() + warp * 16 * PANEL_ROW_BYTES;
    const int token = chunk * CHUNK + warp * 16, first = first_column(task);
    if (!p.linear.starts || token + 16 <= task.tokens) {
      if (lane == 0) {
        store_box(p.o, from, first, task.first_row + token, task.head, task.batch, 0);
        commit_stores();
      }
      return;
    }
    // The end of a sequence; another sequence follows in memory.
    const LinearParams& a = p.linear;
    const int r = lane / 2;
    if (token + r < task.tokens) {
      unsigned short* const to = static_cast<unsigned short*>(a.o) + task.batch * a.o_strides.batch +
                                 task.head * a.o_strides.head + (task.first_row + token + r) * a.o_strides.row;
      UNROLL for (int i = 0; i < 4; ++i) {
        const int group = lane % 2 * 4 + i, to_column = first + group * 8;
        if (to_column >= p.value_dim) break;
        *reinterpret_cast<uint4*>(to + to_column) =
            *reinterpret_cast<const uint4*>(from + r * PANEL_ROW_BYTES + (group ^ r % 8) * 16);
      }
    }
    __syncwarp();
  }
};

}  // namespace
