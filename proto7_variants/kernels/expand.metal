// Copies the key/value heads of K and V for each query head: out[b, h, s] = in[b, h / group, s] for the sequence b, the
// query head h and the row s. The kernel has not run on Apple hardware yet.
//
// Function constant: ROW_BYTES (the bytes of head_dim elements, a multiple of 16). Addresses and strides are multiples
// of 16 bytes. Grid: (tiles of rows, heads of K and then of V, batch). Any number of threads is allowed.
#include "common/kernel/metal.h"
#include "proto7_variants/kernels/expand.h"

constexpr constant int VECTORS = ROW_BYTES / 16;

INLINE long byte_of(constant ExpandStrides& strides, int batch, int head, int row) {
  return batch * strides.batch + head * strides.head + row * strides.row;
}

kernel void expand_heads(constant ExpandParams& p [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_index_in_threadgroup]], uint3 threads [[threads_per_threadgroup]]) {
  const int index = static_cast<int>(group.y), head = index % p.kv_heads, batch = static_cast<int>(group.z);
  constant ExpandTensor& t = p.tensors[index < p.kv_heads ? 0 : 1];
  for (int i = static_cast<int>(thread_index); i < p.tile_rows * VECTORS; i += static_cast<int>(threads.x)) {
    const int row = static_cast<int>(group.x) * p.tile_rows + i / VECTORS, vector = i % VECTORS;
    if (row >= p.rows) break;
    const device uchar* const in = static_cast<const device uchar*>(t.in) + byte_of(t.in_strides, batch, head, row);
    const uint4 value = reinterpret_cast<const device uint4*>(in)[vector];
    for (int copy = 0; copy < p.group; ++copy) {
      device uchar* const out =
          static_cast<device uchar*>(t.out) + byte_of(t.out_strides, batch, head * p.group + copy, row);
      reinterpret_cast<device uint4*>(out)[vector] = value;
    }
  }
}
