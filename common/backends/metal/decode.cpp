#include "common/paged/decode.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/backends/metal/operations.h"
#include "common/paged/kernels/decode_metal.h"

namespace attn {
namespace {

MetalDecodeLayout layout_with(const DecodeConfig& config, int64_t rows) {
  return {static_cast<int>(config.shape.head_dim), static_cast<int>(rows), static_cast<int>(size_bytes(config.dtype))};
}

class MetalDecode : public DecodeOperation {
 public:
  std::string unable(const DecodeConfig& config) const override {
    if (config.cache_dtype == config.dtype || has_scales(config.cache_dtype) || config.dtype == DType::f32) return {};
    return fmt::format("cache_dtype {}: on Metal it must be the type of Q, {}, or a type of 8 bits",
                       name(config.cache_dtype), name(config.dtype));
  }

  std::string unable_block(const DecodeConfig& config, const DeviceInfo& device) const override {
    if (config.join_last && !device.has(metal_3_2)) {
      return "reduce=last: it needs Metal 3.2 (macOS 15); reduce=launch needs Metal 3.1";
    }
    constexpr int64_t step = 32;  // the most keys that the simdgroups of a threadgroup process at once
    if (config.block_c % step == 0) return "";
    return fmt::format("block_c {}: on Metal it must be a multiple of {}", config.block_c, step);
  }

  /// Returns the rows of a tile: 8, 16 or 32. The number doubles until a tile holds all query rows of a key/value head,
  /// or until a larger tile would not fit threadgroup memory.
  int64_t tile_rows(const DecodeConfig& config, const DeviceInfo& /*device*/) const override {
    constexpr int64_t most = 32;
    constexpr int most_bytes = 32768;
    int64_t rows = 8;
    while (rows < std::min(config.rows(), most) && layout_with(config, 2 * rows).bytes <= most_bytes) rows *= 2;
    return rows;
  }

  int64_t workers_at_once(const DecodeConfig& config, const DeviceInfo& device) const override {
    const size_t at_once = device.threadgroup_memory_bytes / threadgroup_bytes(config, device);
    return device.units * static_cast<int64_t>(std::clamp<size_t>(at_once, 1, 4));
  }

  size_t threadgroup_bytes(const DecodeConfig& config, const DeviceInfo& device) const override {
    return static_cast<size_t>(layout_with(config, tile_rows(config, device)).bytes);
  }

  void complete(Launch& attend, const DecodeConfig& config, const DeviceInfo& device) const override {
    attend.threads = static_cast<uint32_t>(layout_with(config, tile_rows(config, device)).threads);
    if (config.join_last) attend.source.assembler = as_metal_3_2;
  }

  size_t join_bytes(size_t attend_bytes) const override { return attend_bytes; }

  void complete_merge(Launch& merge, const DecodeConfig& config, const DeviceInfo& /*device*/) const override {
    merge.threads = static_cast<uint32_t>(config.shape.head_dim / 4);
  }
};

}  // namespace

const DecodeOperation& metal_decode() {
  static const MetalDecode operation;
  return operation;
}

}  // namespace attn
