#include "common/paged/decode.h"

#include "common/backends/cpu/operations.h"
#include "common/base/divided_up.h"

namespace attn {
namespace {

class CpuDecode : public DecodeOperation {
 public:
  std::string unable(const DecodeConfig& /*config*/) const override { return {}; }
  std::string unable_block(const DecodeConfig& /*config*/, const DeviceInfo& /*device*/) const override { return {}; }

  /// Returns how many rows a tile has. Tiles of most_rows rows would give the fewest tiles; the result is the smallest
  /// size that gives equally few. Only the last tile may have fewer rows.
  int64_t tile_rows(const DecodeConfig& config, const DeviceInfo& /*device*/) const override {
    return divided_up(config.rows(), divided_up(config.rows(), most_rows));
  }

  int64_t workers_at_once(const DecodeConfig& /*config*/, const DeviceInfo& device) const override {
    return device.units;
  }

  size_t threadgroup_bytes(const DecodeConfig& config, const DeviceInfo& device) const override {
    const AttentionShape& shape = config.shape;
    const CpuDecodeLayout layout(static_cast<int>(shape.head_dim), static_cast<int>(tile_rows(config, device)),
                                 static_cast<int>(config.block_c), config.appends ? static_cast<int>(shape.q_len) : 0);
    return static_cast<size_t>(layout.floats) * sizeof(float);
  }

  void complete(Launch& attend, const DecodeConfig& /*config*/, const DeviceInfo& device) const override {
    attend.source.constants["VECTOR_WIDTH"] = device.simd_width;
    attend.source.constants["VECTOR_REGISTERS"] = device.vector_registers;
  }

  size_t join_bytes(size_t attend_bytes) const override { return attend_bytes; }

  void complete_merge(Launch& merge, const DecodeConfig& /*config*/, const DeviceInfo& device) const override {
    merge.source.constants["VECTOR_WIDTH"] = device.simd_width;
  }
};

}  // namespace

const DecodeOperation& cpu_decode() {
  static const CpuDecode operation;
  return operation;
}

}  // namespace attn
