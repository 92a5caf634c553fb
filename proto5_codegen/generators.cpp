#include "proto5_codegen/generators.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "common/attention/launch.h"
#include "common/base/divided_up.h"
#include "common/base/error.h"
#include "common/cases/modified_attention.h"

namespace attn {

std::vector<std::string> work_names() { return {"scores", "softmax", "values", "attention", "modified"}; }

std::vector<std::string> generator_names() {
  return {"hand",         "search",     "compiler", "halide_plain", "halide_auto",
          "halide_tuned", "halide_gpu", "triton",   "tilelang"};
}

std::vector<std::string> generators_of(const DeviceInfo& device) {
  std::vector<std::string> all = {"hand", "search", "compiler"};
  const auto add = [&](std::initializer_list<const char*> more) { all.insert(all.end(), more.begin(), more.end()); };
  if (device.operations->ahead_of_time == "object") add({"halide_plain", "halide_auto", "halide_tuned"});
  if (device.operations->ahead_of_time == "cubin") add({"halide_gpu", "triton", "tilelang"});
  return all;
}

CodegenCase CodegenCase::from(const Case& config) {
  CodegenCase one;
  const std::vector<std::string> works = work_names();
  const auto work = std::ranges::find(works, config.text("work"));
  if (work == works.end()) throw BadInput(fmt::format("work '{}' is unknown", config.text("work")));
  one.work = static_cast<CodegenWork>(work - works.begin());
  one.generator = config.text("generator");
  const int64_t heads = config.integer("heads"), tokens = config.integer("q_len");
  one.shape = {.batch = config.integer("batch"),
               .q_heads = heads,
               .kv_heads = heads,
               .q_len = tokens,
               .kv_len = tokens,
               .head_dim = config.integer("head_dim"),
               .causal = config.integer("causal") != 0};
  one.dtype = parse_dtype(config.text("dtype"));
  return one;
}

Work CodegenCase::amount() const {
  const double pairs = shape.unmasked_pairs();
  const auto rows = static_cast<double>(heads() * shape.q_len), keys = static_cast<double>(shape.kv_len);
  const auto dim = static_cast<double>(shape.head_dim), element = static_cast<double>(size_bytes(dtype));
  switch (work) {
    case WORK_SCORES:
      return {.flops = 2 * dim * pairs, .bytes = rows * (2 * dim + keys) * element, .dtype = dtype};
    case WORK_SOFTMAX:  // 4 flops a pair: subtraction, exponential, sum, division; a memory-bound case
      return {.flops = 4 * pairs, .bytes = 2 * rows * keys * element, .bound = Bound::memory, .dtype = dtype};
    case WORK_VALUES:
      return {.flops = 2 * dim * pairs, .bytes = rows * (2 * dim + keys) * element, .dtype = dtype};
    default:
      return {.flops = 4 * dim * pairs, .bytes = 4 * rows * dim * element, .dtype = dtype};
  }
}

FlashConfig CodegenCase::flash(const DeviceInfo& device) const {
  FlashConfig flash{.variant = "tuned", .shape = shape, .dtype = dtype, .out_dtype = dtype};
  TileHints hints;
  if (work == WORK_MODIFIED) hints.change = ScoreChange::any;
  const auto found = [&](const char* name) { return constants.contains(name) ? constants.at(name) : 0; };
  flash.block_r = found("BLOCK_R");
  flash.block_c = found("BLOCK_C");
  flash.tile_vectors = found("TILE_VECTORS");
  flash.tile_rows = found("TILE_ROWS");
  choose_tile(flash, device, hints);
  return flash;
}

Modifiers CodegenCase::modifiers() const {
  Modifiers modifiers;
  if (work != WORK_MODIFIED) return modifiers;
  modifiers.alibi = true;
  modifiers.soft_cap = soft_cap;
  return modifiers;
}

bool CodegenCase::same_inputs(const CodegenCase& other) const {
  return work == other.work && shape == other.shape && dtype == other.dtype;
}

namespace {

/// Returns the number of lines of the function `source.entry` in a Python program, without comments, blank lines and
/// the blocks of other schedules.
int64_t function_lines(const KernelSource& source) {
  constexpr const char* blocks[] = {"if w.plain:", "if w.auto:", "if w.tuned:"};
  std::istringstream text(read_source(source, source.path));
  int64_t lines = 0;
  size_t left_out = std::string::npos;  // lines with a larger indent belong to another schedule
  bool within = false;
  for (std::string line; std::getline(text, line);) {
    const size_t indent = line.find_first_not_of(' ');
    if (indent == std::string::npos || line[indent] == '#') continue;
    if (indent == 0) within = line.starts_with("def " + source.entry + "(");
    if (!within || indent > left_out) continue;
    const auto* const block = std::ranges::find(blocks, line.substr(indent));
    const bool other = block != std::end(blocks) && block - std::begin(blocks) != source.constants.at("SCHEDULE");
    left_out = other ? indent : std::string::npos;
    lines += !other;
  }
  return lines;
}

Plan metal_codegen_plan(const CodegenCase& config, const DeviceInfo& device) {
  if (config.generator == "search")
    return {.unable = "generator search: a search measures times, and the emulated Metal device has no times"};
  if (is_flash(config)) return flash_plan(config, device);
  if (config.generator == "compiler") return {.launches = {plain_launch(config, device)}};
  return {.unable = fmt::format("generator {}: on Metal only attention and modified attention are written by hand",
                                config.generator)};
}

}  // namespace

int64_t source_lines(const KernelSource& source) {
  for (const KernelSource& fragment : source.fragments) {
    if (is_program(fragment.path)) return function_lines(fragment);
  }
  KernelSource own = source;
  for (const SourceFile& file : reached_sources(source)) {
    if (file.path.starts_with("common/kernel/")) own.includes[file.path] = "";
  }
  return std::ranges::count(expanded_text(own), '\n');
}

bool is_flash(const CodegenCase& config) {
  return config.whole() && (config.generator == "hand" || config.generator == "search");
}

Plan flash_plan(const CodegenCase& config, const DeviceInfo& device) {
  const AttentionHooks texts = modifier_hooks(config.modifiers(), config.dtype);
  return attention_plan(config.flash(device), device, config.work == WORK_MODIFIED ? &texts : nullptr);
}

Launch plain_launch(const CodegenCase& config, const DeviceInfo& device) {
  constexpr int64_t threads = 128;
  const AttentionShape& shape = config.shape;
  Launch launch;
  launch.phase = work_names()[config.work];
  launch.source = {.path = device.operations->kernel_file("proto5_codegen/kernels/plain"), .entry = "codegen_plain"};
  launch.source.constants = {{"WORK", config.work}, {"IN_TYPE", element_type(config.dtype)}};
  if (config.work != WORK_SOFTMAX) launch.source.constants["HEAD_DIM"] = shape.head_dim;
  if (config.whole()) launch.source.constants["CAUSAL"] = shape.causal;
  const auto heads = static_cast<uint32_t>(config.heads());
  const auto groups = [](int64_t length) { return static_cast<uint32_t>(divided_up(length, threads)); };
  if (config.work == WORK_SCORES || config.work == WORK_VALUES) {
    launch.grid = {groups(config.columns()), static_cast<uint32_t>(shape.q_len), heads};
  } else {
    launch.grid = {groups(shape.q_len), heads, 1};
  }
  launch.threads = threads;
  return launch;
}

Plan codegen_plan(const CodegenCase& config, const DeviceInfo& device) {
  const std::vector<std::string> known = generators_of(device);
  if (std::ranges::find(known, config.generator) == known.end()) {
    return {.unable = fmt::format("generator {}: it makes no kernels for {}", config.generator, device.backend)};
  }
  Plan plan{.unable = no_kernel_for("work " + work_names()[config.work])};
  if (device.operations->ahead_of_time == "object") plan = cpu_codegen_plan(config, device);
  if (device.operations->ahead_of_time == "cubin") plan = cuda_codegen_plan(config, device);
  if (device.operations->kernel_ending == "metal") plan = metal_codegen_plan(config, device);
  plan.work = config.amount();
  return plan;
}

}  // namespace attn
