// What the device reaches in this run: the copy rate, the matrix rate per dtype, and whether its caches can be flushed.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "common/device/device.h"
#include "common/device/pipeline_cache.h"
#include "common/records/measurement.h"

namespace attn {

/// Best rates of many repetitions of about 2 ms on all units, within about `budget_s` seconds in all.
///   copy    GB/s, read plus written, of buffers far larger than the last-level cache, with and without non-temporal
///           loads and stores, the better of both. (On the cpu at most 128 MiB each, in parts.)
///   f32     TFLOP/s of fused multiply-adds in registers.
///   bf16    cpu: products of tile registers (amx-bf16) or of pairs (avx512bf16) where it has them, else, or where that
///           is more, as f32.
///           cuda: the matrix units, by wgmma or mma.sync, on random data.
///   f16     cpu: as f32, since kernels widen f16 to f32, which is the best accumulation a cpu has. cuda: as bf16.
///   tf32    cuda: as bf16. The cpu has none: 0.
Ceilings measure_ceilings(Device& device, PipelineCache& pipelines, double budget_s);

/// The arithmetic of a ceiling as one more subject of interleaved rounds: what the device reaches in the same moments.
class MatrixCeiling {
 public:
  /// A launch of about `launch_s` seconds at the rate that was measured for the dtype.
  MatrixCeiling(Device& device, PipelineCache& pipelines, DType dtype, const Ceilings& measured, double launch_s);
  /// Seconds of a launch.
  double sample() const;
  /// Of a launch.
  double flops() const { return flops_; }

 private:
  Device& device_;
  Buffer result_;
  CommandEncoder encoder_;
  double flops_;
};

/// Pushes everything else out of the caches, by a fill of twice the last-level cache.
class CacheFlush {
 public:
  /// Throws OutOfMemory.
  explicit CacheFlush(Device& device);
  void encode(CommandEncoder& encoder) const { encoder.fill(buffer_.data(), 0, buffer_.bytes()); }

 private:
  Buffer buffer_;
};

/// A copy between large buffers, or a read of one, behind a flush of the caches, as one more subject of interleaved
/// rounds.
class MemoryCeiling {
 public:
  enum class Access { copy, read };
  /// The faster of the kernels with and without non-temporal loads and stores.
  MemoryCeiling(Device& device, PipelineCache& pipelines, Access access, const CacheFlush& flush);
  /// Seconds of a launch.
  double sample() const;
  /// Read plus written by a launch.
  double bytes() const { return bytes_; }

 private:
  Device& device_;
  Buffer source_, target_;
  CommandEncoder encoder_;
  double bytes_ = 0;
};

/// Of two measurements of one device the better: a noisy neighbour makes a ceiling too low, never too high.
Ceilings max(const Ceilings& a, const Ceilings& b);

/// The proof that a flush works: copying half a last-level cache takes longer after it.
struct FlushTest {
  double hot_s = 0, cold_s = 0;  // medians
  bool ok = false;               // cold at least 1.2 times hot
  nlohmann::ordered_json json() const;
};
FlushTest test_flush(Device& device, PipelineCache& pipelines, const CacheFlush& flush);

}  // namespace attn
