// Copies the key/value heads of K and V for each query head: out[b, h, s] = in[b, h / group, s] for the sequence b, the
// query head h and the row s. The kernel is memory-bound. It reads each row of a tile from memory for the first copy,
// and from the L1 cache for the other copies.
//
// Function constants: ROW_BYTES (the bytes of head_dim elements), VECTOR_BYTES (the bytes of a load or a store; divides
// ROW_BYTES). Grid: (tiles of rows, heads of K and then of V, batch).
#include "proto7_variants/kernels/expand.h"

#include "common/kernel/cpu.h"

namespace {

using Bytes = Vector<unsigned char, VECTOR_BYTES>;

INLINE void copy_row(unsigned char* out, const unsigned char* in) {
  for (int i = 0; i < ROW_BYTES; i += VECTOR_BYTES) store(out + i, load<Bytes>(in + i));
}

}  // namespace

extern "C" void expand_heads(const ExpandParams* params, const Threadgroup* group) {
  const ExpandParams& p = *params;
  const int first = static_cast<int>(group->index[0]) * p.tile_rows;
  const int rows = p.rows - first < p.tile_rows ? p.rows - first : p.tile_rows;
  const int index = static_cast<int>(group->index[1]);
  const ExpandTensor& t = p.tensors[index < p.kv_heads ? 0 : 1];
  const long long head = index % p.kv_heads, batch = group->index[2];
  const ExpandStrides &from = t.in_strides, &to = t.out_strides;
  const unsigned char* in =
      static_cast<const unsigned char*>(t.in) + batch * from.batch + head * from.head + first * from.row;
  unsigned char* out =
      static_cast<unsigned char*>(t.out) + batch * to.batch + head * p.group * to.head + first * to.row;
  // Writes the rows in the order in which the copies lie in memory.
  const bool heads_first = to.head < to.row;
  const int outer_count = heads_first ? rows : p.group, inner_count = heads_first ? p.group : rows;
  for (int outer = 0; outer < outer_count; ++outer) {
    for (int inner = 0; inner < inner_count; ++inner) {
      const int copy = heads_first ? inner : outer, row = heads_first ? outer : inner;
      copy_row(out + copy * to.head + row * to.row, in + row * from.row);
    }
  }
}
