#include "proto5_codegen/tuning.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/attention/tuning.h"
#include "common/base/json.h"

namespace attn {
namespace {

constexpr int64_t least_accumulators = 8;  // 8 sums keep two multiply-add units with a latency of 4 cycles busy

std::vector<int64_t> range(int64_t from, int64_t to, int64_t step) {
  std::vector<int64_t> values;
  for (int64_t value = from; value <= to; value += step) values.push_back(value);
  return values;
}

SearchSpace cuda_search_space(const CodegenCase& config) {
  if (config.whole()) return {{"BLOCK_R", {64, 128, 192, 256}}, {"BLOCK_C", range(16, 256, 16)}};
  if (config.work == WORK_SOFTMAX) {
    return {{"ROW_THREADS", {32, 64, 128, 256}},
            {"THREADS", {64, 128, 256, 512}},
            {"RESIDENT", {512, 1024, 1536, 2048}},
            {"STREAMING", {0, 1}}};
  }
  const std::vector<int64_t> rows = {64, 128}, stages = range(2, 6, 1), stripe = {1, 2, 4, 8, 16};
  if (config.dtype == DType::f32) {
    if (config.work == WORK_SCORES) {
      return {{"BLOCK_R", rows}, {"BLOCK_C", {64, 128}}, {"STAGES", stages}, {"STRIPE", stripe}};
    }
    return {{"BLOCK_R", rows}, {"BLOCK_C", range(64, config.shape.head_dim, 64)}, {"STAGES", stages}};
  }
  if (config.work == WORK_SCORES) return {{"BLOCK_R", rows}, {"BLOCK_C", range(32, 128, 32)}, {"STRIPE", stripe}};
  return {{"BLOCK_R", rows}, {"BLOCK_C", {64, 128}}, {"STAGES", stages}};
}

}  // namespace

SearchSpace search_space(const CodegenCase& config, const DeviceInfo& device) {
  const std::vector<int64_t> rows = range(16, 256, 16), keys = range(16, 512, 16), vectors = {1, 2, 3, 4, 6, 8};
  if (config.generator == "search") {
    if (device.operations->ahead_of_time == "cubin") return cuda_search_space(config);
    if (config.work == WORK_SOFTMAX) return {{"BLOCK_R", range(1, 64, 1)}, {"AT_ONCE", range(1, 16, 1)}};
    SearchSpace space = {{"BLOCK_R", rows}, {"TILE_VECTORS", vectors}, {"TILE_ROWS", range(1, 14, 1)}};
    if (config.work != WORK_SCORES) space.emplace_back("BLOCK_C", keys);
    return space;
  }
  if (config.generator != "halide_tuned") return {};
  if (config.work == WORK_SOFTMAX) return {{"BLOCK_R", range(1, 64, 1)}, {"TILE_VECTORS", range(1, 16, 1)}};
  SearchSpace space = {
      {"BLOCK_R", range(16, 256, 4)}, {"TILE_VECTORS", vectors}, {"TILE_ROWS", range(1, 14, 1)}, {"UNROLL", {1, 2, 4}}};
  if (config.whole()) space.emplace_back("TILE_COLUMNS", std::vector<int64_t>{2, 4, 8, 16});
  return space;
}

namespace {

/// Whether register tiles, divided as rows_of_tile() of the kernel `tuned` divides them, end with the last of
/// `columns`.
bool tiles_end_with(int64_t columns, const FunctionConstants& constants) {
  constexpr int64_t tail = 4;
  const int64_t main = constants.at("TILE_ROWS");
  while (columns > 0) columns -= columns == main || columns >= main + tail ? main : tail;
  return columns == 0;
}

}  // namespace

std::string unfit(const CodegenCase& config, const DeviceInfo& device, const FunctionConstants& constants) {
  if (device.operations->ahead_of_time != "object" || config.work == WORK_SOFTMAX) return {};
  const int64_t lanes = constants.at("TILE_VECTORS") * device.simd_width, rows = constants.at("BLOCK_R");
  for (const char* rows_of_tile : {"TILE_ROWS", "TILE_COLUMNS"}) {
    if (!constants.contains(rows_of_tile)) continue;
    const int64_t vectors = constants.at("TILE_VECTORS"), sums = vectors * constants.at(rows_of_tile);
    if (sums < least_accumulators) return "too few sums under way";
    if (sums + vectors + 1 > device.vector_registers) return "more sums and operands than registers";
  }
  if (config.work == WORK_VALUES && config.shape.head_dim % lanes != 0) return "the columns are no multiple of a tile";
  if (config.whole() && rows % lanes != 0) return "the rows are no multiple of a tile";
  // For a whole attention the host halves the tile's width until the width divides BLOCK_R, so the search takes only
  // powers of two.
  if (config.generator == "search" && config.whole() && (lanes & (lanes - 1)) != 0)
    return "the tile's width is no power of two";
  if (config.generator == "search" && config.whole() && !tiles_end_with(config.shape.head_dim, constants))
    return "the last tile of columns would reach beyond the last column";
  if (config.generator != "halide_tuned") return {};
  if (!config.whole() && rows % constants.at("TILE_ROWS") != 0) return "the rows are no multiple of a tile";
  return {};
}

std::string tuning_key(const CodegenCase& config) {
  std::string key = work_names()[config.work];
  if (config.shape.head_dim > 0) key += fmt::format(" head_dim={}", config.shape.head_dim);
  if (config.whole()) key += fmt::format(" causal={}", config.shape.causal ? 1 : 0);
  return key + " dtype=" + std::string(name(config.dtype));
}

namespace {

/// Returns what is wrong with the constants of a winner, or an empty text.
std::string misfit(const Json& constants, const SearchSpace& space) {
  for (const auto& [name, value] : constants.items()) {
    const auto searched = std::ranges::find(space, name, [](const auto& one) { return one.first; });
    if (searched == space.end()) return name + " is no constant of this search";
    const std::vector<int64_t>& allowed = searched->second;
    const bool fits = value.is_number_integer() && std::ranges::find(allowed, value.get<int64_t>()) != allowed.end();
    if (!fits) return fmt::format("{}: {} is not allowed; one of {}", name, value.dump(), fmt::join(allowed, ", "));
  }
  return {};
}

/// Returns the entry of a case in the device's file of tuning, or null if there is none, or if the entry is damaged.
const Json* winner_of(const CodegenCase& config, const DeviceInfo& device) {
  const Json::json_pointer place = Json::json_pointer() / "generated" / config.generator / tuning_key(config);
  const Json& file = tuning(device);
  if (!file.contains(place)) return nullptr;
  const Json& winner = file.at(place);
  const std::string wrong = misfit(winner.at("constants"), search_space(config, device));
  if (wrong.empty()) return &winner;
  warn_of_tuning(device, fmt::format("{}: generated: {}: {}: {}", tuning_path(device), config.generator,
                                     tuning_key(config), wrong));
  return nullptr;
}

}  // namespace

Json search_facts(const CodegenCase& config, const DeviceInfo& device) {
  const Json* const winner = winner_of(config, device);
  if (!winner) return nullptr;
  return {{"tried", winner->at("tried")},
          {"search_s", winner->at("seconds")},
          {"searched_q_len", winner->at("q_len")},
          {"searched_heads", winner->at("heads")}};
}

CodegenCase with_searched(CodegenCase config, const DeviceInfo& device) {
  const Json* const winner = winner_of(config, device);
  if (!winner) return config;
  for (const auto& [name, value] : winner->at("constants").items()) config.constants[name] = value.get<int64_t>();
  return config;
}

}  // namespace attn
