// Elements of one byte, in the Metal dialect.
#pragma once

#include "common/kernel/byte_types.h"
#include "common/kernel/metal.h"

/// E4M3 has no infinities. half, bfloat and float can hold every number of E4M3 exactly.
INLINE float float_of_e4m3(uchar byte) {
  const uint exponent = byte >> 3 & 15, fraction = byte & 7;
  if (exponent == 15 && fraction == 7) return not_a_number();
  const float size = exponent == 0 ? static_cast<float>(fraction) * 0.001953125f  // 2^-9
                                   : as_type<float>((exponent + 120) << 23 | fraction << 20);
  return byte & 0x80 ? -size : size;
}

/// Does what load_float() does. TYPE may also be E4M3 or INT8.
template <int TYPE>
INLINE float load_element(const device void* tensor, long index) {
  if (TYPE == E4M3) return float_of_e4m3(static_cast<const device uchar*>(tensor)[index]);
  if (TYPE == INT8) return static_cast<float>(static_cast<const device char*>(tensor)[index]);
  return load_float<TYPE>(tensor, index);
}
