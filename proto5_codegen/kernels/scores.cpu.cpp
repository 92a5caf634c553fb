// S = scale Q K^T, written by hand. A threadgroup computes BLOCK_R rows of one head. It transposes PANEL keys at a time
// (the columns of a register tile, products.h), so that keys lie in the lanes of vectors, and multiplies all its rows
// with these keys.
//
// Threadgroup memory, in floats: panel [HEAD_DIM][PANEL], edge [BLOCK_R][PANEL]. Grid: (row tiles, heads).
#include "proto5_codegen/kernels/generated.h"
#include "proto5_codegen/kernels/products.h"

namespace {

using Quad = Vector<float, 4>;

/// Transposes four rows of four floats.
INLINE void turn(Quad (&rows)[4]) {
  const Quad a = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
  const Quad b = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
  const Quad c = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
  const Quad d = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
  rows[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
  rows[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
  rows[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
  rows[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

/// Writes panel[d][key] = scale * k[key][d], and zeros for the keys from `keys` on.
INLINE void turn_keys(float* panel, const float* k, int keys, float scale) {
  for (int key = 0; key < PANEL; key += 4) {
    for (int d = 0; d < HEAD_DIM; d += 4) {
      Quad rows[4];
      UNROLL for (int i = 0; i < 4; ++i) {
        rows[i] = key + i < keys ? load<Quad>(k + (key + i) * HEAD_DIM + d) * scale : Quad{};
      }
      turn(rows);
      UNROLL for (int i = 0; i < 4; ++i) store(panel + (d + i) * PANEL + key, rows[i]);
    }
  }
}

}  // namespace

extern "C" void codegen_scores(const CodegenParams* params, const Threadgroup* group) {
  const CodegenParams& p = *params;
  float* const panel = reinterpret_cast<float*>(group->memory);
  float* const edge = panel + HEAD_DIM * PANEL;
  const int first = static_cast<int>(group->index[0]) * BLOCK_R, rows = smaller(p.q_len - first, BLOCK_R);
  const long head = group->index[1], row = head * p.q_len + first;
  const float* const q = static_cast<const float*>(p.q) + row * HEAD_DIM;
  const float* const k = static_cast<const float*>(p.k) + head * p.kv_len * HEAD_DIM;
  float* const out = static_cast<float*>(p.out) + row * p.kv_len;
  for (int key = 0; key < p.kv_len; key += PANEL) {
    const int keys = smaller(p.kv_len - key, PANEL);
    turn_keys(panel, k + static_cast<long>(key) * HEAD_DIM, keys, p.scale);
    if (keys == PANEL) {
      product<false>(rows, out + key, p.kv_len, q, HEAD_DIM, panel, PANEL, HEAD_DIM);
      continue;
    }
    product<false>(rows, edge, PANEL, q, HEAD_DIM, panel, PANEL, HEAD_DIM);
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < keys; ++c) out[r * static_cast<long>(p.kv_len) + key + c] = edge[r * PANEL + c];
    }
  }
}
