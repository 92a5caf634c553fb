#include <fmt/format.h>

#include <algorithm>

#include "common/attention/launch.h"
#include "proto5_codegen/generators.h"

namespace attn {
namespace {

constexpr int64_t values_keys = 64;    // whose values stay in the first cache
constexpr int64_t product_rows = 128;  // of a threadgroup of scores or values
constexpr int64_t softmax_rows = 16;

int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The register tile of the products, by the registers that there are: accumulators leave a quarter to operands.
void add_register_tile(FunctionConstants& constants, const DeviceInfo& device) {
  const bool many = device.vector_registers >= 32;
  const int64_t vectors = many ? 4 : 2;
  constants["VECTOR_WIDTH"] = device.simd_width;
  constants["TILE_VECTORS"] = vectors;
  constants["TILE_ROWS"] = (many ? 24 : 12) / vectors;
}

Launch hand_launch(const CodegenCase& config, const DeviceInfo& device) {
  Launch launch;
  FunctionConstants& constants = launch.source.constants;
  const std::string work = work_names()[config.work];
  launch.phase = work;
  launch.source.path = fmt::format("proto5_codegen/kernels/{}.cpu.cpp", work);
  launch.source.entry = "codegen_" + work;
  if (config.work == WORK_SOFTMAX) {
    constants = {{"BLOCK_R", softmax_rows}, {"VECTOR_WIDTH", device.simd_width}, {"AT_ONCE", 4}};
  } else {
    constants = {{"BLOCK_R", product_rows}, {"HEAD_DIM", config.shape.head_dim}};
    if (config.work == WORK_VALUES) constants["BLOCK_C"] = values_keys;
    add_register_tile(constants, device);
  }
  const int64_t rows = constants.at("BLOCK_R");
  launch.grid = {static_cast<uint32_t>(divided_up(config.shape.q_len, rows)), static_cast<uint32_t>(config.heads()), 1};
  if (config.work == WORK_SCORES) {
    const int64_t panel = constants.at("TILE_VECTORS") * constants.at("VECTOR_WIDTH");
    launch.threadgroup_bytes = static_cast<size_t>((config.shape.head_dim + rows) * panel) * sizeof(float);
  }
  return launch;
}

Launch plain_launch(const CodegenCase& config) {
  Launch launch;
  launch.phase = work_names()[config.work];
  launch.source = {.path = "proto5_codegen/kernels/plain.cpu.cpp", .entry = "codegen_plain"};
  launch.source.constants["WORK"] = config.work;
  if (config.work != WORK_SOFTMAX) launch.source.constants["HEAD_DIM"] = config.shape.head_dim;
  if (config.whole()) {
    launch.source.constants["CAUSAL"] = config.shape.causal;
    launch.threadgroup_bytes = static_cast<size_t>(config.shape.kv_len) * sizeof(float);
  }
  launch.grid = {static_cast<uint32_t>(config.shape.q_len), static_cast<uint32_t>(config.heads()), 1};
  return launch;
}

}  // namespace

Plan cpu_codegen_plan(const CodegenCase& config, const DeviceInfo& device) {
  if (config.dtype != DType::f32) return {.unable = "dtype bf16: the generators of this device are asked for f32"};
  if (is_flash(config)) {
    const ModifiedAttention attention(config.modifiers(), config.flash(device));
    const AttentionHooks texts = attention.texts();
    return attention_plan(config.flash(device), device, config.work == WORK_MODIFIED ? &texts : nullptr);
  }
  if (config.generator == "hand") return {.launches = {hand_launch(config, device)}};
  if (config.generator == "compiler") return {.launches = {plain_launch(config)}};
  return {.unable = fmt::format("generator {}: it has no kernel of {}", config.generator, work_names()[config.work])};
}

}  // namespace attn
