// Devices that the tests of pure functions make up.
#pragma once

#include "common/device.h"

namespace attn::test {

inline DeviceInfo avx2() {
  DeviceInfo info;
  info.spec = "cpu:threads=2";
  info.units = 2;
  info.simd_width = 8;
  info.vector_registers = 16;
  info.threadgroup_memory_bytes = 512 << 10;
  return info;
}

}  // namespace attn::test
