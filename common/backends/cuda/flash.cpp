#include "common/attention/flash.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <memory>
#include <numbers>
#include <utility>
#include <vector>

#include "common/attention/kernels/mma_sync.h"
#include "common/attention/kernels/naive.h"
#include "common/attention/kernels/round_up.h"
#include "common/attention/kernels/wgmma.h"
#include "common/attention/tuning.h"
#include "common/backends/cuda/operations.h"
#include "common/backends/cuda/tensor_map.h"
#include "common/backends/cuda/wgmma_schedule.h"
#include "common/kernel/types.h"

namespace attn {
namespace {

constexpr float log2_e = std::numbers::log2e_v<float>;
// The least scale that a kernel applies inside the exponential. There the kernel multiplies hidden scores (-infinity)
// by the scale. A negative scale would make them +infinity. A scale of 0, or a denormal scale, would make them NaN.
constexpr double least_folded_scale = 1e-10;
constexpr size_t naive_static_bytes = naive_threads * sizeof(float);  // threadgroup memory in addition to the scores
constexpr size_t reserved_bytes = 1024;  // bytes that a multiprocessor reserves for each threadgroup

// Whether tensor copies (TMA) can read tiles of 64 or 128 keys from pages of `page_size` keys. The part of a tile that
// lies on a page is then one box, or several boxes.
bool in_boxes(int64_t page_size) { return page_size >= 8 && std::has_single_bit(static_cast<uint64_t>(page_size)); }

// Returns the kernel of a variant. The kernel of `tuned` is `wgmma` if the device, the element type and the pages allow
// it, else `mma_sync`.
std::string kernel_of(const FlashConfig& config, const DeviceInfo& device) {
  if (config.variant != "tuned") return config.variant;
  const bool boxes = config.page_size == 0 || in_boxes(config.page_size);
  return config.dtype != DType::f32 && boxes && device.has("wgmma") ? "wgmma" : "mma_sync";
}

// Returns about how many registers a thread of a consumer (a warpgroup that computes 64 rows) needs: outputs, scores,
// weights (two in a register), and 28 others. proto1_flash/tests/cuda_compile_test.cpp checks this function against the
// compiler.
int64_t wgmma_registers(const FlashConfig& config) {
  return round_up(config.shape.head_dim, 16) / 2 + config.block_c / 2 + config.block_c / 4 + 28;
}
// Returns how many threadgroups a multiprocessor can run at the same time, as far as the kernel's registers allow.
size_t wgmma_threadgroups(const FlashConfig& config) {
  return config.block_r == 64 && config.shape.head_dim <= 128 ? 2 : 1;
}
// Returns how many registers a thread of a consumer may use.
int64_t wgmma_register_limit(const FlashConfig& config) {
  if (config.block_r == 256) return 112;
  if (config.block_r == 192) return 160;
  return (wgmma_threadgroups(config) == 2 ? 232 : 240) - (config.page_size > 0 ? 8 : 0);
}

// Returns how many threadgroups of this layout fit the memory of a multiprocessor at the same time.
size_t that_fit(const WgmmaLayout& layout, const DeviceInfo& device) {
  return (device.threadgroup_memory_bytes + reserved_bytes) / (static_cast<size_t>(layout.bytes) + reserved_bytes);
}

// Whether the scale is applied inside the exponential. Two conditions must hold: the scale is at least
// least_folded_scale, and no hook changes the scores. The kernel `wgmma` also allows a linear hook.
bool folds_scale(const FlashConfig& config, const std::string& kernel, const AttentionHooks* hooks) {
  const ScoreChange change = hooks ? hooks->change : ScoreChange::none;
  const bool by_products = change == ScoreChange::none || (change == ScoreChange::linear && kernel == "wgmma");
  return by_products && config.shape.effective_scale() >= least_folded_scale;
}

// K and V have three buffers each, because short rows gain from a third buffer. Two uses of memory gain more time than
// a third buffer: a second threadgroup on the multiprocessor, and the panels (64 columns each) of 16-bit outputs
// (common/attention/kernels/log.md). If a third buffer leaves no memory for one of these uses, K and V have two buffers
// each. K and V have one buffer each if two buffers do not fit.
WgmmaLayout wgmma_layout(const FlashConfig& config, const DeviceInfo& device, const AttentionHooks* hooks) {
  const bool numbers = hooks && hooks->change == ScoreChange::linear && folds_scale(config, "wgmma", hooks);
  const auto layout_with = [&](int64_t stages, int64_t out_panels) {
    return WgmmaLayout(config.shape.head_dim, config.block_r, config.block_c, stages, out_panels, numbers);
  };
  const int64_t panels = config.out_dtype == DType::f32 ? 0 : layout_with(1, 0).panels;
  for (size_t threadgroups = wgmma_threadgroups(config); threadgroups > 0; --threadgroups) {
    for (int64_t out_panels = panels; out_panels >= 0; --out_panels) {
      for (const int64_t stages : {3, 2}) {
        if (that_fit(layout_with(stages, out_panels), device) >= threadgroups) return layout_with(stages, out_panels);
      }
    }
  }
  return layout_with(1, 0);
}

// Returns how many threadgroups a multiprocessor runs at the same time.
int64_t wgmma_at_once(const FlashConfig& config, const DeviceInfo& device, const AttentionHooks* hooks) {
  return static_cast<int64_t>(
      std::clamp<size_t>(that_fit(wgmma_layout(config, device, hooks), device), 1, wgmma_threadgroups(config)));
}

// Whether consumers take turns at issuing products (PING_PONG). Turns save time if the exponentials take as long as the
// products. If the products take longer, turns save a little time, but only without a causal mask, and only if the
// outputs leave enough registers (common/attention/kernels/log.md).
bool wgmma_ping_pong(const FlashConfig& config) {
  const AttentionShape& shape = config.shape;
  return config.block_r > 64 && (shape.head_dim <= 64 || (shape.head_dim <= 128 && !shape.causal));
}

class CudaFlash : public FlashOperation {
 public:
  std::vector<std::string> variants() const override { return {"naive", "mma_sync", "wgmma", "tuned"}; }

  Launch kernel(const FlashConfig& config, const DeviceInfo& device, const AttentionHooks* hooks) const override {
    const AttentionShape& shape = config.shape;
    const std::string name = kernel_of(config, device);
    Launch kernel;
    kernel.source.entry = "flash_forward";
    kernel.source.path = fmt::format("common/attention/kernels/{}.cuda.cu", name);
    kernel.source.constants = {{"HEAD_DIM", shape.head_dim},
                               {"CAUSAL", shape.causal},
                               {"IN_TYPE", element_type(config.dtype)},
                               {"OUT_TYPE", element_type(config.out_dtype)}};
    const int64_t tiles = name == "naive" ? shape.q_len : config.row_tiles();
    kernel.grid = {static_cast<uint32_t>(tiles), static_cast<uint32_t>(shape.q_heads),
                   static_cast<uint32_t>(shape.batch)};
    if (name == "naive") {
      kernel.threads = naive_threads;
      // Rounded up to 16 bytes, because the compiled kernel reads four scores at a time, even at the end.
      kernel.threadgroup_bytes = static_cast<size_t>(round_up(shape.kv_len, 4)) * sizeof(float);
      return kernel;
    }
    kernel.source.constants["BLOCK_R"] = config.block_r;
    kernel.source.constants["BLOCK_C"] = config.block_c;
    kernel.source.constants["FOLD_SCALE"] = folds_scale(config, name, hooks);
    if (name == "wgmma") {
      // -O1 keeps instructions in the order of the kernel's text; -O3 does not. With -O1 the kernel is at least as fast
      // as with -O3, and compiles in a tenth less time.
      kernel.source.assembler = "-O1";
      const WgmmaLayout layout = wgmma_layout(config, device, hooks);
      kernel.source.constants["STAGES"] = layout.stages;
      kernel.source.constants["OUT_PANELS"] = layout.out_panels;
      kernel.source.constants["PING_PONG"] = wgmma_ping_pong(config);
      const auto at_once = static_cast<uint64_t>(device.units * wgmma_at_once(config, device, hooks));
      kernel.grid = {static_cast<uint32_t>(std::min<uint64_t>(kernel.grid.count(), at_once))};
      kernel.threads = static_cast<uint32_t>((1 + config.block_r / 64) * 128);
      kernel.threadgroup_bytes = static_cast<size_t>(layout.bytes);
    } else {
      const MmaSyncLayout layout(shape.head_dim, config.block_r, config.block_c,
                                 static_cast<int>(element_type(config.dtype)));
      kernel.threads = static_cast<uint32_t>(layout.threads);
      kernel.threadgroup_bytes = static_cast<size_t>(layout.bytes);
    }
    return kernel;
  }

  std::optional<std::string> skip_reason(const FlashConfig& config, const DeviceInfo& device,
                                         const AttentionHooks* hooks) const override {
    const std::string name = kernel_of(config, device);
    if (name == "naive") {
      return device.lacks_threadgroup_memory(static_cast<size_t>(config.shape.kv_len) * sizeof(float) +
                                             naive_static_bytes);
    }
    const int64_t most_rows = name == "wgmma" ? 256 : 192;
    if (config.block_r % 64 != 0 || config.block_r > most_rows) {
      return fmt::format("block_r={}: {} works on multiples of 64 rows up to {}", config.block_r, name, most_rows);
    }
    if (name == "mma_sync") return std::nullopt;
    if (!device.has("wgmma")) return fmt::format("wgmma needs sm_90a, {} has {}", device.spec, device.arch);
    if (config.dtype == DType::f32) return "wgmma takes f16 and bf16; f32 runs on mma_sync";
    if (hooks && hooks->rotation == Rotation::all) return "wgmma has a rotate hook for queries, and none for keys";
    if (config.block_c > 256) return fmt::format("block_c={}: wgmma takes at most 256 keys", config.block_c);
    if (const int64_t page = config.page_size; page > 0) {
      const int64_t larger = std::max(page, config.block_c), smaller = std::min(page, config.block_c);
      if (smaller % 8 != 0 || larger % smaller != 0) {
        return fmt::format(
            "page_size={}: wgmma takes a page_size that divides block_c={} or is a multiple of it; the smaller of the "
            "two must be a multiple of 8",
            page, config.block_c);
      }
      // With four consumers, the producer has no registers for looking up pages that are shorter than a tile.
      if (config.block_r == 256 && page < config.block_c) {
        return fmt::format("page_size={}: with block_r=256, wgmma takes a page_size of at least block_c={}", page,
                           config.block_c);
      }
    }
    const int64_t needed = wgmma_registers(config), limit = wgmma_register_limit(config);
    if (needed > limit) return fmt::format("needs about {} registers a thread; a thread has {}", needed, limit);
    return std::nullopt;
  }

  void choose_tile(FlashConfig& config, const DeviceInfo& device, const TileHints& hints) const override {
    const FlashConfig given = config;
    std::vector<TunedTile> candidates = tiles(given, device);
    const auto differs = [&](const TunedTile& tile) {
      return (given.block_r != 0 && given.block_r != tile.block_r) ||
             (given.block_c != 0 && given.block_c != tile.block_c);
    };
    if (!std::ranges::all_of(candidates, differs)) std::erase_if(candidates, differs);
    // With more than two consumers, threads have no registers for the numbers that a hook reads.
    const auto crowded = [&](const TunedTile& tile) { return hints.reads && tile.block_r > 128; };
    if (!std::ranges::all_of(candidates, crowded)) std::erase_if(candidates, crowded);
    // Tiles that cannot run have an infinite time. If no tile can run, the last tile is chosen.
    double least = std::numeric_limits<double>::infinity();
    for (const TunedTile& tile : candidates) {
      FlashConfig candidate = given;
      if (given.block_r == 0) candidate.block_r = tile.block_r;
      if (given.block_c == 0) candidate.block_c = tile.block_c;
      const double hooked = tile.hooked_cost > 0 ? tile.hooked_cost : 1.8 * tile.cost;
      const double cost = hints.change == ScoreChange::any ? hooked : tile.cost;
      const double time = runs(candidate, device) ? expected_time(candidate, device, cost, hints.window)
                                                  : std::numeric_limits<double>::infinity();
      if (time <= least) {
        least = time;
        config = candidate;
      }
    }
  }

  int64_t first_query(const FlashConfig& config, const DeviceInfo& device) const override {
    return kernel_of(config, device) == "wgmma" ? wgmma_first_query(config) : 0;
  }

  EncodeFunction encode_function(Device& device, const FlashConfig& config, const Launch& launch, const Kernel& kernel,
                                 Lists lists) const override {
    if (kernel_of(config, device.info()) != "wgmma") return plain_encode_function(launch, kernel, std::move(lists));
    const std::vector<WgmmaTile> schedule = wgmma_schedule(config, device.info());
    const auto tiles = std::make_shared<Buffer>(device, schedule.size() * sizeof(WgmmaTile));
    tiles->upload(schedule.data(), tiles->bytes());
    const unsigned zeros[2] = {};
    const auto counters = std::make_shared<Buffer>(device, sizeof zeros);
    counters->upload(zeros, sizeof zeros);
    const int64_t before = -wgmma_first_query(config);
    const int64_t sixteens = round_up(before + config.shape.q_len, config.block_r) / 16;
    const auto next_kept = std::make_shared<Buffer>(
        device, static_cast<size_t>(config.shape.batch * config.shape.q_heads * sixteens) * sizeof(int));
    return [config, launch, &kernel, lists = std::move(lists), tiles, counters, next_kept, before, sixteens](
               CommandEncoder& encoder, const AttentionParams& params) {
      const AttentionShape& shape = config.shape;
      const int64_t panels = wgmma_panels(shape.head_dim), dim = shape.head_dim;
      const DType in = config.dtype;
      const auto keys = [&](const void* base, const TensorStrides& strides) -> GroupedMap {
        if (config.page_size == 0) {
          return {panel_map(base, in, dim, shape.batch, shape.kv_heads, shape.kv_len, strides, config.block_c, panels),
                  0};
        }
        const int64_t rows = std::min(config.page_size, config.block_c);
        if (rows < config.block_c && panels > 1 && dim % 64 == 0) {
          return grouped_map(base, in, dim, config.pool_pages, shape.kv_heads, rows, strides);
        }
        return {panel_map(base, in, dim, config.pool_pages, shape.kv_heads, config.page_size, strides, rows,
                          rows < config.block_c ? 1 : panels),
                0};
      };
      const GroupedMap k = keys(params.k, params.k_strides), v = keys(params.v, params.v_strides);
      WgmmaParams wgmma{};
      wgmma.attention = params;
      wgmma.q = panel_map(params.q, in, dim, shape.batch, shape.q_heads, shape.q_len, params.q_strides, 64, panels);
      wgmma.k = k.map;
      wgmma.v = v.map;
      wgmma.k_page_groups = k.page_groups;
      wgmma.v_page_groups = v.page_groups;
      if (const int64_t out = launch.source.constants.at("OUT_PANELS"); out > 0) {
        wgmma.o = panel_map(params.o, config.out_dtype, dim, shape.batch, shape.q_heads, shape.q_len, params.o_strides,
                            64, out);
      }
      wgmma.scale_log2 = params.scale * log2_e;
      wgmma.tiles = static_cast<const WgmmaTile*>(tiles->data());
      wgmma.tile_count = static_cast<unsigned>(tiles->bytes() / sizeof(WgmmaTile));
      wgmma.counters = static_cast<unsigned*>(counters->data());
      wgmma.next_kept = static_cast<int*>(next_kept->data());
      wgmma.sixteens = static_cast<int>(sixteens);
      wgmma.sixteens_before = static_cast<int>(before / 16);
      const auto dispatch = [&](const auto& all) {
        encoder.dispatch(kernel, launch.grid, launch.threads, launch.threadgroup_bytes, all);
      };
      if (lists) {
        dispatch(WithLists<WgmmaParams>{wgmma, lists(params)});
      } else {
        dispatch(wgmma);
      }
    };
  }

 private:
  bool runs(const FlashConfig& config, const DeviceInfo& device) const {
    return !skip_reason(config, device, nullptr) &&
           kernel(config, device, nullptr).threadgroup_bytes <= device.threadgroup_memory_bytes;
  }

  // Returns the tiles of the device's file of tuning, or else tiles with relative costs. The last tiles of each list
  // are for devices with less memory.
  static std::vector<TunedTile> tiles(const FlashConfig& config, const DeviceInfo& device) {
    const int64_t dim = config.shape.head_dim;
    const std::string kernel = kernel_of(config, device);
    std::vector<TunedTile> tuned = tuned_tiles(config, device, kernel);
    if (!tuned.empty()) return tuned;
    if (kernel == "mma_sync") {
      if (config.dtype == DType::f32) {
        const int64_t keys = dim <= 64 ? 32 : dim <= 128 ? 64 : dim <= 192 ? 32 : 16;
        return {{128, keys, 20}, {64, 32, 11}, {64, 16, 12}};
      }
      return {{128, dim <= 64 ? 128 : dim <= 96 ? 96 : 64, 20}, {64, dim <= 64 ? 64 : 32, 11}, {64, 16, 12}};
    }
    if (dim <= 128) return {{192, 80, 29}, {128, 128, 20}, {64, 128, 16}, {64, 64, 24}, {64, 16, 50}};
    return {{128, 64, 20}, {64, 64, 13}, {64, 16, 25}};
  }

  // Returns the relative time of a launch. A tile takes time for its keys, and a constant time for its start and its
  // end (`ends`, in keys). A multiprocessor that is free takes the next tile. Every multiprocessor gets about an equal
  // share of causal tiles, because the tiles with the most keys come first. With a window most rows of a tile see the
  // same number of keys, but not the same keys. So a tile reads more keys than each of its rows sees: for each end of
  // the window, half as many additional keys as the tile has rows. With a causal mask only one end counts.
  static double expected_time(const FlashConfig& config, const DeviceInfo& device, double cost_of_key, int64_t window) {
    const AttentionShape& shape = config.shape;
    const bool persistent = kernel_of(config, device) == "wgmma";
    const int64_t per_unit = persistent ? wgmma_at_once(config, device, nullptr) : 1;
    const int64_t at_once = static_cast<int64_t>(device.units) * per_unit;
    const int64_t tiles = config.row_tiles() * shape.q_heads * shape.batch;
    const double ends = 75 + 1.5 * static_cast<double>(config.block_c);
    const bool short_window = window > 0 && window < shape.kv_len;
    const int64_t most_keys = short_window ? std::min(window + config.block_r, shape.kv_len) : shape.kv_len;
    const double longest = static_cast<double>(round_up(most_keys, config.block_c)) + ends;
    // The time of a tile that has the multiprocessor to itself. The time of a tile among per_unit tiles is 1.
    const double alone = per_unit == 1 ? 1 : 0.75;
    if (persistent && !shape.causal && !short_window) {
      const int64_t turns = tiles / at_once, rest = tiles % at_once;
      const double last = rest == 0 ? 0 : rest <= static_cast<int64_t>(device.units) ? alone : 1;
      return cost_of_key * longest * (static_cast<double>(turns) + last);
    }
    const double rows = static_cast<double>(shape.batch * shape.q_heads * shape.q_len);
    const double share = static_cast<double>(tiles) / static_cast<double>(at_once);
    double keys = shape.unmasked_pairs() / rows;
    if (short_window) {  // with a causal mask the first rows see fewer keys than the window has
      const auto w = static_cast<double>(window);
      const double least = shape.causal ? w - w * w / (2 * static_cast<double>(shape.kv_len)) : w;
      keys = std::min(keys, least) + static_cast<double>(config.block_r) * (shape.causal ? 0.5 : 1);
    }
    return cost_of_key * std::max(alone * longest, share * (keys + ends));
  }
};

}  // namespace

const FlashOperation& cuda_flash() {
  static const CudaFlash operation;
  return operation;
}

}  // namespace attn
