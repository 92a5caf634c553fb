// O = P V, written by hand. One threadgroup computes BLOCK_R rows of one head, with BLOCK_C keys at a time. The values
// of these keys stay in a cache while the kernel multiplies the weights of all rows with them.
//
// Grid: (row tiles, heads). HEAD_DIM is a multiple of PANEL, the columns of a register tile (products.h).
#include "proto5_codegen/kernels/generated.h"
#include "proto5_codegen/kernels/products.h"

static_assert(HEAD_DIM % PANEL == 0);

extern "C" void codegen_values(const CodegenParams* params, const Threadgroup* group) {
  const CodegenParams& p = *params;
  const int first = static_cast<int>(group->index[0]) * BLOCK_R, rows = smaller(p.q_len - first, BLOCK_R);
  const long head = group->index[1], row = head * p.q_len + first;
  const float* const in = static_cast<const float*>(p.in) + row * p.kv_len;
  const float* const v = static_cast<const float*>(p.v) + head * p.kv_len * HEAD_DIM;
  float* const out = static_cast<float*>(p.out) + row * HEAD_DIM;
  for (int key = 0; key < p.kv_len; key += BLOCK_C) {
    const int keys = smaller(p.kv_len - key, BLOCK_C);
    for (int column = 0; column < HEAD_DIM; column += PANEL) {
      const float* const block = v + static_cast<long>(key) * HEAD_DIM + column;
      if (key == 0) {
        product<false>(rows, out + column, HEAD_DIM, in, p.kv_len, block, HEAD_DIM, keys);
      } else {
        product<true>(rows, out + column, HEAD_DIM, in + key, p.kv_len, block, HEAD_DIM, keys);
      }
    }
  }
}
