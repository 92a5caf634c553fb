#include <fmt/format.h>

#include "common/attention/launch.h"
#include "common/base/divided_up.h"
#include "common/cases/modified_attention.h"
#include "common/source/python.h"
#include "proto5_codegen/generators.h"

namespace attn {
namespace {

// The keys of a block of P V: few enough that their rows of V stay in the L2 cache, enough that the kernel reads long
// pieces of each row of P.
constexpr int64_t values_keys = 256;
constexpr int64_t product_rows = 128;  // the rows of a threadgroup for scores or values
constexpr int64_t softmax_rows = 16;
constexpr int64_t halide_rows = 64;      // the rows of a threadgroup, if the schedule names no other number
constexpr int64_t expected_keys = 1024;  // the number of keys that the autoscheduler plans for
// Rows of a threadgroup that register tiles of 2, 3, 4, 6, 8 and 12 rows divide.
constexpr int64_t whole_tiles = 96;

/// Adds the constants of the products' register tile, whose sums take three quarters of the vector registers.
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
  for (const auto& [name, value] : config.constants) constants[name] = value;
  const int64_t rows = constants.at("BLOCK_R");
  launch.grid = {static_cast<uint32_t>(divided_up(config.shape.q_len, rows)), static_cast<uint32_t>(config.heads()), 1};
  if (config.work == WORK_SCORES) {
    const int64_t panel = constants.at("TILE_VECTORS") * constants.at("VECTOR_WIDTH");
    launch.threadgroup_bytes = static_cast<size_t>((config.shape.head_dim + rows) * panel) * sizeof(float);
  }
  return launch;
}

enum HalideSchedule { HALIDE_PLAIN, HALIDE_AUTO, HALIDE_TUNED };  // the constant SCHEDULE of halide_pipelines.py

/// Returns the constants of the Halide program that depend on the schedule. The usual tuned schedule has the register
/// tile of the hand-written kernels; constants that a search found replace it.
FunctionConstants halide_schedule(const CodegenCase& config, const DeviceInfo& device, HalideSchedule schedule) {
  FunctionConstants constants = {
      {"SCHEDULE", schedule}, {"BLOCK_R", halide_rows}, {"MULTIPLE", halide_rows}, {"VECTOR_WIDTH", device.simd_width}};
  if (schedule == HALIDE_AUTO) {
    constants["AUTOSCHEDULER"] = 0;
    constants["LENGTH"] = expected_keys;
  }
  if (schedule != HALIDE_TUNED) return constants;
  FunctionConstants usual;
  add_register_tile(usual, device);
  usual["UNROLL"] = 2;
  if (config.whole()) usual["TILE_COLUMNS"] = 4;
  if (config.work == WORK_SOFTMAX) {
    for (const char* constant : {"TILE_ROWS", "UNROLL"}) usual.erase(constant);
  }
  const bool by_rows = config.work == WORK_SCORES || config.work == WORK_VALUES;
  constants["BLOCK_R"] = by_rows ? whole_tiles : halide_rows;
  for (const auto& [name, value] : config.constants) constants[name] = value;
  constants.merge(usual);
  const bool key_columns = config.work == WORK_SCORES || config.work == WORK_SOFTMAX;
  constants["MULTIPLE"] = key_columns ? constants.at("TILE_VECTORS") * device.simd_width : config.shape.head_dim;
  return constants;
}

Launch halide_launch(const CodegenCase& config, const FunctionConstants& schedule) {
  Launch launch;
  launch.phase = work_names()[config.work];
  KernelSource shell{.path = "proto5_codegen/kernels/halide.cpu.cpp", .entry = "codegen_halide"};
  KernelSource pipeline{.path = "proto5_codegen/kernels/halide_pipelines.py",
                        .entry = "halide_" + work_names()[config.whole() ? WORK_ATTENTION : config.work],
                        .constants = schedule};
  pipeline.constants["HALIDE"] = python_package("halide");
  const int64_t rows = schedule.at("BLOCK_R"), multiple = schedule.at("MULTIPLE");
  shell.constants = {{"WORK", config.work}, {"BLOCK_R", rows}, {"MULTIPLE", multiple}};
  for (KernelSource* source : {&shell, &pipeline}) {
    if (config.work != WORK_SOFTMAX) source->constants["HEAD_DIM"] = config.shape.head_dim;
    if (config.whole()) source->constants["CAUSAL"] = config.shape.causal;
  }
  if (config.whole()) pipeline.constants["MODIFIED"] = config.work == WORK_MODIFIED;
  shell.fragments = {pipeline};
  shell.linking = Linking::after_code_generation;
  launch.source = shell;
  launch.grid = {static_cast<uint32_t>(divided_up(config.shape.q_len, rows)), static_cast<uint32_t>(config.heads()), 1};
  if (config.shape.q_len % rows != 0 || config.columns() % multiple != 0) {
    launch.threadgroup_bytes =
        static_cast<size_t>(rows * divided_up(config.columns(), multiple) * multiple) * sizeof(float);
  }
  return launch;
}

Launch plain_row_launch(const CodegenCase& config) {
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
  if (config.dtype != DType::f32) return {.unable = "dtype bf16: on a cpu the generators make only kernels of f32"};
  if (is_flash(config)) return flash_plan(config, device);
  if (config.generator == "hand" || config.generator == "search") return {.launches = {hand_launch(config, device)}};
  if (config.generator == "compiler") return {.launches = {plain_row_launch(config)}};
  if (python_package("halide") == 0)
    return {.unable = "generator " + config.generator +
                      ": the Python package halide is missing (scripts/tools/venv "
                      "proto5_codegen/tools/requirements.txt installs it)"};
  const HalideSchedule schedule = config.generator == "halide_plain"  ? HALIDE_PLAIN
                                  : config.generator == "halide_auto" ? HALIDE_AUTO
                                                                      : HALIDE_TUNED;
  return {.launches = {halide_launch(config, halide_schedule(config, device, schedule))}};
}

}  // namespace attn
