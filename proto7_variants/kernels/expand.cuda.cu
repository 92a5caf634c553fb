// Copies the key/value heads of K and V for each query head: out[b, h, s] = in[b, h / group, s] for the sequence b, the
// query head h and the row s. The kernel is memory-bound. To have several loads in flight, a thread loads 16 bytes of
// each of expand_rows rows before it writes them.
//
// Function constant: ROW_BYTES (the bytes of head_dim elements, a multiple of 16). Addresses and strides are multiples
// of 16 bytes. Grid: (tiles of rows, heads of K and then of V, batch). Threads: (tile_rows / expand_rows) * VECTORS.
//
// Checked: expand_heads[ROW_BYTES=256] without spills
// Checked: expand_heads[ROW_BYTES=1024] without spills
// Checked: expand_heads[ROW_BYTES=80] without spills
// Checked: expand_heads[ROW_BYTES=16] without spills
#include "common/kernel/cuda.h"
#include "proto7_variants/kernels/expand.h"

namespace {

constexpr int VECTORS = ROW_BYTES / static_cast<int>(sizeof(uint4));

DEVICE long long offset_bytes(const ExpandStrides& strides, int head, int row) {
  return blockIdx.z * strides.batch + head * strides.head + row * strides.row;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(expand_threads) expand_heads(const __grid_constant__ ExpandParams p) {
  const int index = blockIdx.y;
  const ExpandTensor& t = p.tensors[index < p.kv_heads ? 0 : 1];
  const int head = index % p.kv_heads;
  const int rows_at_once = p.tile_rows / expand_rows;
  const int vector = threadIdx.x % VECTORS, first_row = blockIdx.x * p.tile_rows + threadIdx.x / VECTORS;
  const char* const in = static_cast<const char*>(t.in) + offset_bytes(t.in_strides, head, first_row);
  char* out = static_cast<char*>(t.out) + offset_bytes(t.out_strides, head * p.group, first_row);
  const long long in_step = rows_at_once * t.in_strides.row, out_step = rows_at_once * t.out_strides.row;
  // The number of rows from first_row to the last row, in steps of rows_at_once. The thread copies at most expand_rows
  // of these rows.
  const int rows = (p.rows - first_row + rows_at_once - 1) / rows_at_once;
  uint4 values[expand_rows];
  UNROLL for (int i = 0; i < expand_rows; ++i) {
    if (i < rows) values[i] = reinterpret_cast<const uint4*>(in + i * in_step)[vector];
  }
  for (int copy = 0; copy < p.group; ++copy, out += t.out_strides.head) {
    UNROLL for (int i = 0; i < expand_rows; ++i) {
      if (i < rows) reinterpret_cast<uint4*>(out + i * out_step)[vector] = values[i];
    }
  }
}
