#include "common/paged/decode.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/backends/cuda/operations.h"

namespace attn {
namespace {

/// How threadgroups share a multiprocessor. `stages` is the number of a threadgroup's buffers for keys: the largest
/// number, up to four, that leaves room for two threadgroups, or else for one. `bytes` is the memory of a threadgroup.
/// `threadgroups` is how many threadgroups run on a multiprocessor at the same time. With 8-bit keys the arithmetic for
/// a block of keys takes longer than the copy of the block, and threadgroups can hide each other's latency. So with
/// 8-bit keys three threadgroups share a multiprocessor, if registers and memory allow three.
struct Share {
  int64_t stages, bytes, threadgroups;
};

class CudaDecode : public DecodeOperation {
 public:
  std::string unable(const DecodeConfig& config) const override {
    if (has_scales(config.cache_dtype)) {
      if (config.dtype == DType::f32) {
        return fmt::format("cache_dtype {}: on a GPU it needs Q of f16 or bf16", name(config.cache_dtype));
      }
      if (config.shape.head_dim % 16 != 0) {
        return fmt::format("head_dim {}: on a GPU it must be a multiple of 16 if the cache has 8 bits",
                           config.shape.head_dim);
      }
    } else if (config.cache_dtype != config.dtype) {
      return fmt::format("cache_dtype {}: on a GPU it must be the type of Q, {}", name(config.cache_dtype),
                         name(config.dtype));
    }
    return {};
  }

  std::string unable_block(const DecodeConfig& config) const override {
    const int64_t step = 16 * 64 / std::max<int64_t>(tile_rows(config), 16);
    if (config.block_c % step == 0) return {};
    return fmt::format("block_c {}: on a GPU it must be a multiple of {} for tiles of {} rows", config.block_c, step,
                       tile_rows(config));
  }

  /// Tiles have 8, 16, 32 or 64 rows.
  int64_t tile_rows(const DecodeConfig& config) const override {
    int64_t rows = 8;
    while (rows < std::min(config.rows(), most_rows)) rows *= 2;
    return rows;
  }

  int64_t workers_at_once(const DecodeConfig& config, const DeviceInfo& device) const override {
    return device.units * share(config, device).threadgroups;
  }

  size_t threadgroup_bytes(const DecodeConfig& config, const DeviceInfo& device) const override {
    return static_cast<size_t>(share(config, device).bytes);
  }

  void complete(Launch& attend, const DecodeConfig& config, const DeviceInfo& device) const override {
    const Share taken = share(config, device);
    attend.source.constants["STAGES"] = taken.stages;
    attend.source.constants["THREADGROUPS"] = taken.threadgroups;
    attend.threads = threads;
  }

  size_t join_bytes(size_t /*attend_bytes*/) const override { return DecodeLayout::join_bytes; }

  void complete_merge(Launch& merge, const DecodeConfig& config, const DeviceInfo& /*device*/) const override {
    merge.threads = static_cast<uint32_t>(config.shape.head_dim / 4);
  }

 private:
  static constexpr uint32_t threads = 128;

  Share share(const DecodeConfig& config, const DeviceInfo& device) const {
    // The driver reserves `reserved` bytes for a threadgroup. Registers allow at most `most_threadgroups` threadgroups.
    constexpr int64_t reserved = 1024, most_threadgroups = 4;
    const auto memory = static_cast<int64_t>(device.threadgroup_memory_bytes) + reserved;
    const int64_t rows = tile_rows(config);
    const auto share_with = [&](int64_t stages) -> Share {
      const DecodeLayout layout(static_cast<int>(config.shape.head_dim), static_cast<int>(rows),
                                static_cast<int>(config.block_c), static_cast<int>(stages),
                                static_cast<int>(size_bytes(config.dtype)),
                                static_cast<int>(size_bytes(config.cache_dtype)));
      return {stages, layout.bytes, std::clamp<int64_t>(memory / (layout.bytes + reserved), 1, most_threadgroups)};
    };
    const bool room_for_three = has_scales(config.cache_dtype) && rows == 8 && config.shape.head_dim <= 128;
    for (int64_t threadgroups = room_for_three ? 3 : 2; threadgroups >= 1; --threadgroups) {
      for (int64_t stages = 4; stages >= 2; --stages) {
        if (stages == 2 && threadgroups == 1) break;
        if (const Share found = share_with(stages); memory / (found.bytes + reserved) >= threadgroups) return found;
      }
    }
    return share_with(2);
  }
};

}  // namespace

const DecodeOperation& cuda_decode() {
  static const CudaDecode operation;
  return operation;
}

}  // namespace attn
