// Measures the rates that the device reaches in this run, and flushes the device's caches.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "common/device/device.h"
#include "common/device/pipeline_cache.h"
#include "common/records/measurement.h"

namespace attn {

/// Measures the best rates among many repetitions on all units of the device (all SMs of a GPU, for example), in about
/// `budget_s` seconds. A repetition of arithmetic takes about 2 ms.
///   copy    GB/s, read plus written. The better rate of copies with and without non-temporal loads and stores, between
///           buffers of CeilingKernels::copy_bytes.
///   f32     TFLOP/s of fused multiply-adds in registers.
///   bf16    Products of matrices: on cuda wgmma or mma.sync, on random data; on metal simdgroup matrices; on the cpu
///           tile registers (amx-bf16), else dot products of pairs (avx512bf16). At least the rate of f32.
///   f16     As bf16, but on the cpu the rate of f32, because kernels widen f16 to f32.
///   tf32    Products of matrices, on metal in f32. The cpu has no tf32: 0.
Ceilings measure_ceilings(Device& device, PipelineCache& pipelines, double budget_s);

/// The arithmetic of a ceiling, as a launch that takes turns with the measured kernels, so that its rate is of the same
/// time as theirs.
class MatrixCeiling {
 public:
  /// A launch takes about `launch_s` seconds at the rate of `measured` for the dtype.
  MatrixCeiling(Device& device, PipelineCache& pipelines, DType dtype, const Ceilings& measured, double launch_s);
  /// Seconds of a launch.
  double sample() const;
  /// Floating-point operations of a launch. Three products of tf32 that replace a product of f32 count once.
  double flops() const { return flops_; }

 private:
  Device& device_;
  Buffer result_;
  CommandEncoder encoder_;
  double flops_;
};

/// Evicts other data from the caches, by filling a buffer of twice the size of the last-level cache.
class CacheFlush {
 public:
  /// Throws OutOfMemory.
  explicit CacheFlush(Device& device);
  void encode(CommandEncoder& encoder) const { encoder.fill(buffer_.data(), 0, buffer_.bytes()); }

 private:
  Buffer buffer_;
};

/// A copy or a read of large buffers, as a launch that takes turns with the measured kernels, after a flush of the
/// caches.
class MemoryCeiling {
 public:
  enum class Access { copy, read };
  /// Takes the faster of the kernels with and without non-temporal loads and stores.
  MemoryCeiling(Device& device, PipelineCache& pipelines, Access access, const CacheFlush& flush);
  /// Seconds of a launch.
  double sample() const;
  /// Bytes that a launch reads plus bytes that it writes.
  double bytes() const { return bytes_; }

 private:
  Device& device_;
  Buffer source_, target_;
  CommandEncoder encoder_;
  double bytes_ = 0;
};

/// The larger value of each rate: another program that uses the device makes a measured ceiling too low, never too
/// high.
Ceilings max(const Ceilings& a, const Ceilings& b);
/// Each measured ceiling multiplied by `factor`.
Ceilings scaled(const Ceilings& ceilings, double factor);

/// The test copies between buffers that fit in the caches. If the flush works, the copy takes longer after a flush.
struct FlushTest {
  double hot_s = 0, cold_s = 0;  // medians of the copy's time without and with a flush
  bool ok = false;               // cold_s is at least 1.2 times hot_s
  nlohmann::ordered_json json() const;
};
FlushTest test_flush(Device& device, PipelineCache& pipelines, const CacheFlush& flush);

}  // namespace attn
