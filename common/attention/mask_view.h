// A caller's mask.
#pragma once

#include <cstdint>

namespace attn {

/// A mask [batch, q_heads, q_len, kv_len] on the device, a byte for each pair of a query and a key: the query sees the
/// key if the byte is not 0. Along an axis whose size is 1 or whose stride is 0, all positions have the same bytes.
/// Strides are in bytes. If `data` is null, there is no mask.
struct MaskView {
  const unsigned char* data = nullptr;
  int64_t sizes[4] = {};
  int64_t strides[4] = {};

  /// Whether positions along the axis have bytes of their own.
  bool has(int axis) const { return sizes[axis] > 1 && strides[axis] != 0; }
};

}  // namespace attn
