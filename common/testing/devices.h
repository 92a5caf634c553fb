// Descriptions of devices, for tests of pure functions.
#pragma once

#include "common/backends/cpu/operations.h"
#include "common/backends/cuda/operations.h"
#include "common/backends/metal/operations.h"
#include "common/device/device.h"

namespace attn::test {

inline DeviceInfo avx2() {
  DeviceInfo info;
  info.spec = "cpu:threads=2";
  info.backend = "cpu";
  info.on_host = true;
  info.operations = &cpu_operations();
  info.units = 2;
  info.simd_width = 8;
  info.vector_registers = 16;
  info.threadgroup_memory_bytes = 512 << 10;
  return info;
}

inline DeviceInfo hopper() {
  DeviceInfo info;
  info.spec = "cuda:0";
  info.backend = "cuda";
  info.operations = &cuda_operations();
  info.arch = "sm_90a";
  info.toolchain = "NVRTC 12.0";
  info.features = {"mma", "tma", "wgmma"};
  info.units = 132;
  info.threadgroup_memory_bytes = 227 << 10;
  info.last_level_cache_bytes = 50 << 20;
  return info;
}

/// Returns an Apple GPU under the spec of the emulated device, with all features.
inline DeviceInfo metal() {
  DeviceInfo info;
  info.spec = "metal:emulated";
  info.backend = "metal";
  info.operations = &metal_operations();
  info.units = 10;
  info.features = {"metal3.2", "metal.tables", "metal.libraries", "metal.graphs"};
  info.simd_width = 32;
  info.threadgroup_memory_bytes = 32 << 10;
  info.last_level_cache_bytes = 8 << 20;
  return info;
}

/// Returns a GPU without TMA. Its launches can be made without a CUDA driver, which only TMA's tensor maps need.
inline DeviceInfo ampere() {
  DeviceInfo info = hopper();
  info.arch = "sm_80";
  info.features = {"mma"};
  info.units = 108;
  info.threadgroup_memory_bytes = 163 << 10;
  info.last_level_cache_bytes = 40 << 20;
  return info;
}

}  // namespace attn::test
