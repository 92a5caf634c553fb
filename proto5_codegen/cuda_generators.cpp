#include <fmt/format.h>

#include <algorithm>

#include "common/attention/launch.h"
#include "common/cases/modified_attention.h"
#include "common/kernel/types.h"
#include "proto5_codegen/compiled_ahead.h"
#include "proto5_codegen/generators.h"
#include "proto5_codegen/kernels/products_f32.h"

namespace attn {
namespace {

uint32_t tiles_of(int64_t length, int64_t tile) { return static_cast<uint32_t>((length + tile - 1) / tile); }

/// Returns the value that a search found for the constant `name`, or `usual` if no search found one.
int64_t constant(const CodegenCase& config, const char* name, int64_t usual) {
  return config.constants.contains(name) ? config.constants.at(name) : usual;
}

ElementType element_of(const CodegenCase& config) { return config.dtype == DType::f32 ? F32 : BF16; }

Launch generated_launch(const CodegenCase& config, const std::string& file, const std::string& entry) {
  Launch launch;
  launch.phase = work_names()[config.work];
  launch.source = {.path = fmt::format("proto5_codegen/kernels/{}.cuda.cu", file), .entry = "codegen_" + entry};
  return launch;
}

// Usually a row gets the fewest threads (32, 64, 128 or 256) that leave each thread at most 16 elements. A longer row
// gets 256 threads.
Plan softmax_plan(const CodegenCase& config) {
  constexpr int64_t usual_threads = 128, most_row_threads = 256, few_elements = 16, most_units = 16;
  constexpr int64_t all_threads = 2048, fewer_threads = 1536;
  const auto element_bytes = static_cast<int64_t>(size_bytes(config.dtype));
  const int64_t unit_elements = 16 / element_bytes, units = (config.shape.kv_len + unit_elements - 1) / unit_elements;
  const bool whole_units = config.shape.kv_len % unit_elements == 0;
  int64_t row_threads = 32;
  while (row_threads < most_row_threads && row_threads * few_elements < config.shape.kv_len) row_threads *= 2;
  row_threads = constant(config, "ROW_THREADS", row_threads);
  const int64_t threads = std::max(constant(config, "THREADS", usual_threads), row_threads);
  const int64_t own = tiles_of(units, row_threads);
  if (own > most_units) {
    return {.unable = fmt::format("generator {}: its softmax takes rows of at most {} keys", config.generator,
                                  most_units * most_row_threads * unit_elements)};
  }
  // A multiprocessor must have registers for `resident` threads. If a row has whole units and a thread at most 16
  // elements of 16 bits, the registers suffice for all threads of a multiprocessor. But a kernel with eight warps for a
  // row would then spill, because it adds up eight sums.
  const bool few = whole_units && element_bytes == 2 && own * unit_elements <= few_elements;
  const int64_t resident = !few ? threads : row_threads < most_row_threads ? all_threads : fewer_threads;
  Launch launch = generated_launch(config, "softmax", "softmax");
  launch.source.constants = {{"IN_TYPE", element_of(config)},
                             {"RESIDENT", constant(config, "RESIDENT", resident)},
                             {"ROW_THREADS", row_threads},
                             {"STREAMING", constant(config, "STREAMING", 0)},
                             {"THREADS", threads},
                             {"UNITS", own},
                             {"WHOLE_UNITS", whole_units}};
  launch.grid = {tiles_of(config.shape.q_len, threads / row_threads), static_cast<uint32_t>(config.heads()), 1};
  launch.threads = static_cast<uint32_t>(threads);
  return {.launches = {launch}};
}

Plan no_wgmma(const CodegenCase& config, const DeviceInfo& device) {
  return {.unable = fmt::format("generator {}: its products of {} need sm_90a, {} has {}", config.generator,
                                name(config.dtype), device.spec, device.arch)};
}

/// The rows of a product's tile, and the number of adjacent tiles that a threadgroup computes one after another.
struct ProductTiles {
  int64_t rows, stripe;
};

// Usually a tile has 128 rows, and a threadgroup computes four tiles of S. Small problems get fewer rows and fewer
// tiles, so that more multiprocessors get a threadgroup.
ProductTiles product_tiles(const CodegenCase& config, const DeviceInfo& device, int64_t tile_columns) {
  const auto threadgroups = [&](int64_t rows, int64_t stripe) {
    return config.heads() * tiles_of(config.shape.q_len, rows) * tiles_of(config.columns(), tile_columns * stripe);
  };
  const int64_t rows = constant(config, "BLOCK_R", threadgroups(128, 1) < device.units ? 64 : 128);
  if (config.work != WORK_SCORES) return {rows, 1};
  int64_t stripe = 4;
  while (stripe > 1 && threadgroups(rows, stripe) < device.units) stripe /= 2;
  return {rows, constant(config, "STRIPE", stripe)};
}

Plan product_f32_plan(const CodegenCase& config, const DeviceInfo& device) {
  constexpr int64_t whole_unit = 4;
  if (!device.has("wgmma")) return no_wgmma(config, device);
  const AttentionShape& shape = config.shape;
  const int64_t columns = constant(config, "BLOCK_C", config.work == WORK_SCORES ? 128 : 64);
  const int64_t stages = constant(config, "STAGES", 2);
  const auto [rows, stripe] = product_tiles(config, device, columns);
  const ProductF32Layout layout(config.work, static_cast<int>(rows), static_cast<int>(columns),
                                static_cast<int>(stages));
  Launch launch = generated_launch(config, "products_f32", "products");
  launch.source.constants = {{"WORK", config.work},
                             {"HEAD_DIM", shape.head_dim},
                             {"BLOCK_R", rows},
                             {"BLOCK_C", columns},
                             {"STAGES", stages},
                             {"STRIPE", stripe},
                             {"WHOLE_UNITS", shape.kv_len % whole_unit == 0}};
  launch.grid = {tiles_of(config.columns(), columns * stripe), tiles_of(shape.q_len, rows),
                 static_cast<uint32_t>(config.heads())};
  launch.threads = static_cast<uint32_t>(rows * 2);
  launch.threadgroup_bytes = static_cast<size_t>(layout.bytes);
  return {.launches = {launch}};
}

Plan product_plan(const CodegenCase& config, const DeviceInfo& device) {
  constexpr int64_t alignment = 8, element_bytes = 2;
  const AttentionShape& shape = config.shape;
  if (!device.has("wgmma")) return no_wgmma(config, device);
  if (shape.kv_len % alignment != 0) {
    return {.unable = fmt::format("generator {}: its products of bf16 take multiples of {} keys", config.generator,
                                  alignment)};
  }
  const bool scores = config.work == WORK_SCORES;
  const int64_t keys = constant(config, "BLOCK_C", scores ? 128 : 64);
  const auto [rows, stripe] = product_tiles(config, device, scores ? keys : shape.head_dim);
  const std::string work = work_names()[config.work];
  Launch launch = generated_launch(config, work, work);
  FunctionConstants& constants = launch.source.constants;
  constants = {{"BLOCK_R", rows}, {"BLOCK_C", keys}, {"HEAD_DIM", shape.head_dim}, {"IN_TYPE", BF16}};
  const auto heads = static_cast<uint32_t>(config.heads());
  const uint32_t row_tiles = tiles_of(shape.q_len, rows);
  int64_t elements = 0;
  if (scores) {
    constants["STRIPE"] = stripe;
    launch.grid = {tiles_of(shape.kv_len, keys * stripe), row_tiles, heads};
    elements = (rows + 2 * keys) * shape.head_dim;
  } else {
    const int64_t stages = constant(config, "STAGES", shape.head_dim <= 64 ? 4 : 3);
    constants["STAGES"] = stages;
    launch.grid = {row_tiles, heads, 1};
    elements = stages * (rows + shape.head_dim) * keys;
  }
  launch.threads = static_cast<uint32_t>(rows * 2);
  launch.threadgroup_bytes = static_cast<size_t>(elements * element_bytes);
  return {.launches = {launch}};
}

Plan hand_plan(const CodegenCase& config, const DeviceInfo& device) {
  if (config.work == WORK_SOFTMAX) return softmax_plan(config);
  return config.dtype == DType::f32 ? product_f32_plan(config, device) : product_plan(config, device);
}

}  // namespace

int64_t threadgroups_at_once(const Binary& binary, const Launch& launch, const DeviceInfo& device) {
  // Each quarter of a multiprocessor has `registers` registers. A warp gets registers in granules.
  constexpr int64_t warp = 32, quarters = 4, registers = 16384, granule = 256;
  constexpr int64_t most_warps = 64, most_threadgroups = 32, reserved_bytes = 1024;
  const int64_t warps = tiles_of(launch.threads, warp);
  const int64_t warp_registers = tiles_of(std::max(binary.registers, 1) * warp, granule) * granule;
  const int64_t bytes = binary.threadgroup_bytes + static_cast<int64_t>(launch.threadgroup_bytes) + reserved_bytes;
  const int64_t all_bytes = static_cast<int64_t>(device.threadgroup_memory_bytes) + reserved_bytes;
  return std::min(
      {std::min(registers / warp_registers * quarters, most_warps) / warps, all_bytes / bytes, most_threadgroups});
}

Plan cuda_codegen_plan(const CodegenCase& config, const DeviceInfo& device) {
  if (is_flash(config)) return flash_plan(config, device);
  if (is_ahead(config.generator)) return ahead_plan(config, device);
  if (config.generator == "hand" || config.generator == "search") return hand_plan(config, device);
  if (config.generator == "compiler") return {.launches = {plain_launch(config, device)}};
  return {.unable = fmt::format("generator {}: it has no kernel of {}", config.generator, work_names()[config.work])};
}

}  // namespace attn
