#include <algorithm>

#include "common/backends/cpu/operations.h"
#include "common/base/divided_up.h"
#include "common/linear/kernels/recurrent_layout.h"
#include "common/linear/kernels/steps_layout.h"
#include "common/linear/launch.h"

namespace attn {
namespace {

size_t floats(int64_t count) { return static_cast<size_t>(count) * sizeof(float); }

/// The part of a matrix product that a thread accumulates in registers: `rows` rows of `vectors` vectors each. A
/// quarter of the vector registers is left for operands.
struct ProductTile {
  int64_t rows, vectors;
};
ProductTile product_tile(const DeviceInfo& device) {
  return device.vector_registers >= 32 ? ProductTile{6, 4} : ProductTile{6, 2};
}

class CpuLinear : public LinearOperation {
 public:
  std::string unable(const LinearConfig& /*config*/) const override { return {}; }

  /// Returns the length of a step: the number of tokens that a kernel processes at once. With a gate per channel a step
  /// computes the decay of each pair of tokens. The cost for a token grows with the step's length, so these steps are
  /// short. Steps are also short if the state has more than 128 x 128 elements.
  int64_t step(const LinearConfig& config) const override {
    const int64_t most = config.gate == GATE_CHANNEL || config.head_dim * config.value_dim > 128 * 128 ? 16 : 64;
    return std::min(config.chunk, most);
  }

  /// Returns how many rows of the state a threadgroup of a scan takes. With fewer rows there are more threadgroups. So
  /// the function halves the number of rows until there are scan_groups() threadgroups. The function stops earlier at
  /// an odd number of rows, and at 8 rows or fewer.
  int64_t scan_rows(const LinearConfig& config, const DeviceInfo& device) const override {
    int64_t rows = config.head_dim;
    while (rows % 2 == 0 && rows > 8 &&
           config.sequences * config.heads * (config.head_dim / rows) < scan_groups(device)) {
      rows /= 2;
    }
    return rows;
  }
  int64_t scan_groups(const DeviceInfo& device) const override { return 2 * device.units; }

  /// Returns config.segments, but at most one segment for each chunk. If config.segments is 0, there are as many
  /// segments as fill the device, but at most one for every 8 chunks. Without causal the number is always one.
  int64_t segments(const LinearConfig& config, const DeviceInfo& device) const override {
    constexpr int64_t fewest_chunks = 8;  // of a segment
    if (!config.causal) return 1;
    if (config.segments > 0) return std::min(config.segments, std::max<int64_t>(config.chunks(), 1));
    const int64_t wanted = divided_up(device.units, config.sequences * config.heads);
    return std::clamp<int64_t>(config.chunks() / fewest_chunks, 1, wanted);
  }

  Bound bound(const LinearConfig& config) const override {
    return config.variant == "recurrent" ? Bound::memory : Bound::matrix;
  }

  // A step of `fused` keeps a chunk in the first-level cache, and longer chunks take more products. `phases` writes and
  // reads a state for each chunk, so longer chunks move fewer bytes.
  int64_t chunk(const std::string& variant) const override { return variant == "fused" ? 16 : 128; }

  void complete(Launch& launch, const LinearConfig& config, const DeviceInfo& device) const override {
    const std::string& entry = launch.source.entry;
    FunctionConstants& constants = launch.source.constants;
    if (entry.starts_with("scan")) {
      launch.threadgroup_bytes = floats(constants.at("SCAN_ROWS") * (config.value_dim + 2));
    } else if (entry == "recurrent") {
      constexpr int64_t most_tokens = 16;  // the most tokens that one read of a state serves
      const int64_t tokens = std::min(config.tokens, most_tokens);
      constants["VECTOR_WIDTH"] = device.simd_width;
      constants["VECTOR_REGISTERS"] = device.vector_registers;
      constants["TOKENS"] = tokens;
      // 1 if initial and final states together are larger than the last-level cache, else 0.
      constants["STREAM"] =
          floats(2 * config.sequences * config.heads * config.state_elements()) > device.last_level_cache_bytes;
      launch.threadgroup_bytes = floats(RecurrentLayout(config.head_dim, config.value_dim, tokens).floats);
    } else {
      if (entry == "fused") {
        launch.grid.x = static_cast<uint32_t>(config.sequences * segments(config, device));
        constants["CAUSAL"] = config.causal;
        constants["CHUNK"] = config.chunk;
        constants["DELAY"] = config.delay;
      }
      const ProductTile tile = product_tile(device);
      constants["STEP"] = step(config);
      constants["VECTOR_WIDTH"] = device.simd_width;
      constants["TILE_ROWS"] = tile.rows;
      constants["TILE_VECTORS"] = tile.vectors;
      launch.threadgroup_bytes = floats(
          StepsLayout(config.head_dim, config.value_dim, step(config), device.simd_width, config.gate == GATE_CHANNEL)
              .floats);
    }
  }

  bool resets_flags() const override { return false; }
};

}  // namespace

const LinearOperation& cpu_linear() {
  static const CpuLinear operation;
  return operation;
}

}  // namespace attn
