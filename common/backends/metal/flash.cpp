#include "common/attention/flash.h"

#include <fmt/format.h>

#include <vector>

#include "common/attention/kernels/naive.h"
#include "common/attention/kernels/tuned_metal.h"
#include "common/attention/tuning.h"
#include "common/backends/metal/operations.h"

namespace attn {
namespace {

MetalTunedLayout tuned_layout(const FlashConfig& config) {
  return {static_cast<int>(config.shape.head_dim), static_cast<int>(config.block_r), static_cast<int>(config.block_c),
          static_cast<int>(element_type(config.dtype))};
}

// Returns the bytes of threadgroup memory of `naive`: the scores, and three numbers for each simdgroup.
size_t naive_bytes(const AttentionShape& shape) {
  constexpr int64_t simdgroups = naive_threads / 32;
  return metal_threadgroup_bytes(static_cast<size_t>(shape.kv_len + 3 * simdgroups) * sizeof(float));
}

/// Returns about how many registers a thread of `tuned` needs: outputs, scores, weights, Q if Q stays in registers, and
/// metal_other_registers.
int64_t tuned_registers(const FlashConfig& config) {
  const int64_t dim = config.shape.head_dim;
  const int64_t per_register = config.dtype == DType::f32 ? 1 : 2;  // elements in a register
  return dim / 4 + config.block_c / 4 + config.block_c / 4 / per_register +
         (tuned_layout(config).q_registers ? dim / 4 / per_register : 0) + metal_other_registers;
}

class MetalFlash : public FlashOperation {
 public:
  std::vector<std::string> variants() const override { return {"naive", "tuned"}; }

  Launch kernel(const FlashConfig& config, const DeviceInfo& /*device*/,
                const AttentionHooks* /*hooks*/) const override {
    const AttentionShape& shape = config.shape;
    const bool naive = config.variant == "naive";
    Launch kernel;
    kernel.source.entry = "flash_forward";
    kernel.source.path = fmt::format("common/attention/kernels/{}.metal", config.variant);
    kernel.source.constants = {{"HEAD_DIM", shape.head_dim},
                               {"CAUSAL", shape.causal},
                               {"IN_TYPE", element_type(config.dtype)},
                               {"OUT_TYPE", element_type(config.out_dtype)}};
    kernel.grid = {static_cast<uint32_t>(naive ? shape.q_len : config.row_tiles()),
                   static_cast<uint32_t>(shape.q_heads), static_cast<uint32_t>(shape.batch)};
    if (naive) {
      kernel.threads = naive_threads;
      kernel.threadgroup_bytes = naive_bytes(shape);
    } else {
      kernel.source.constants["BLOCK_R"] = config.block_r;
      kernel.source.constants["BLOCK_C"] = config.block_c;
      kernel.threads = static_cast<uint32_t>(tuned_layout(config).threads);
      kernel.threadgroup_bytes = static_cast<size_t>(tuned_layout(config).bytes);
    }
    return kernel;
  }

  std::optional<std::string> skip_reason(const FlashConfig& config, const DeviceInfo& device,
                                         const AttentionHooks* hooks) const override {
    if (config.variant == "naive") return device.lacks_threadgroup_memory(naive_bytes(config.shape));
    constexpr int64_t most_rows = 64;
    if (config.block_r % 8 != 0 || config.block_r > most_rows) {
      return fmt::format("block_r={}: tuned works on multiples of 8 rows up to {}", config.block_r, most_rows);
    }
    if (config.block_c % 8 != 0) return fmt::format("block_c={}: tuned works on multiples of 8 keys", config.block_c);
    if (const int64_t needed = tuned_registers(config); needed > metal_registers) {
      return fmt::format("needs about {} registers a thread; a thread has about {}", needed, metal_registers);
    }
    if (hooks && hooks->includes.contains("common/attention/kernels/before.h")) {
      return "on Metal no threadgroup may wait for another, so tuned cannot append keys and values; a launch before "
             "tuned must append them";
    }
    return std::nullopt;
  }

  // Sets block_r and block_c where they are 0: from the first tile that fits, or from the last tile if none fits.
  void choose_tile(FlashConfig& config, const DeviceInfo& device, const TileHints& /*hints*/) const override {
    const FlashConfig given = config;
    std::vector<TunedTile> tiles = tuned_tiles(config, device, config.variant);
    if (tiles.empty()) tiles = {{32, 32}, {32, 16}, {16, 32}, {16, 16}, {16, 8}, {8, 8}};
    for (const TunedTile& tile : tiles) {
      if (given.block_r == 0) config.block_r = tile.block_r;
      if (given.block_c == 0) config.block_c = tile.block_c;
      const bool fits = static_cast<size_t>(tuned_layout(config).bytes) <= device.threadgroup_memory_bytes;
      if (fits && !skip_reason(config, device, nullptr)) return;
    }
  }
};

}  // namespace

const FlashOperation& metal_flash() {
  static const MetalFlash operation;
  return operation;
}

}  // namespace attn
