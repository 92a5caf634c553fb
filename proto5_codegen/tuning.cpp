#include "proto5_codegen/tuning.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json.h"

namespace attn {
namespace {

constexpr int64_t least_accumulators = 8;  // 8 sums keep two multiply-add units with a latency of 4 cycles busy

/// Returns the result of read_winners(), which is called once for each arch.
const Json& winners(const DeviceInfo& device) {
  static std::mutex mutex;
  static std::map<std::string, Json> known;
  const std::lock_guard lock(mutex);
  auto place = known.find(device.arch);
  if (place == known.end()) place = known.emplace(device.arch, read_winners(device)).first;
  return place->second;
}

/// Throws BadInput unless `fits`. `place` is the path of `value` in the file of winners, `allowed` a text about the
/// values that are allowed there.
void require(bool fits, const std::string& place, const Json& value, const std::string& allowed) {
  if (fits) return;
  const std::string shown = value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 60);
  throw BadInput(fmt::format("{}: {} is not allowed; {}", place, shown, allowed));
}

/// Throws BadInput unless the winner has all fields that this file reads.
void require_winner(const Json& winner, const std::string& place) {
  const char* fields = "an object with constants, q_len, heads, tried and seconds";
  require(winner.is_object() && winner.contains("constants") && winner["constants"].is_object(), place, winner, fields);
  for (const char* field : {"q_len", "heads", "tried", "seconds"}) {
    require(winner.contains(field), place, winner, fields);
    require(winner[field].is_number() && winner[field] >= 0, place + ": " + field, winner[field], "a number from 0 on");
  }
}

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

std::string tuning_path(const DeviceInfo& device) { return "proto5_codegen/tuned/" + device.arch + ".json"; }

Json read_winners(const DeviceInfo& device) {
  const std::string path = tuning_path(device);
  const auto text = read_file(source_root() + "/" + path);
  if (!text) return Json::object();
  Json all = parse_json(*text, false);
  if (!all.is_object()) throw BadInput(path + " is no JSON object");
  for (const auto& [generator, cases] : all.items()) {
    const std::string place = path + ": " + generator;
    require(cases.is_object(), place, cases, "an object with a winner for each case");
    for (const auto& [key, winner] : cases.items()) require_winner(winner, place + ": " + key);
  }
  return all;
}

namespace {

/// Returns the entry of a case in the file of winners, or null if there is none.
const Json* winner_of(const CodegenCase& config, const DeviceInfo& device) {
  const Json& all = winners(device);
  const auto cases = all.find(config.generator);
  if (cases == all.end()) return nullptr;
  const auto found = cases->find(tuning_key(config));
  return found == cases->end() ? nullptr : &*found;
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
  const SearchSpace space = search_space(config, device);
  const std::string place = fmt::format("{}: {}: {}: ", tuning_path(device), config.generator, tuning_key(config));
  for (const auto& [name, value] : winner->at("constants").items()) {
    const auto searched = std::ranges::find(space, name, [](const auto& one) { return one.first; });
    if (searched == space.end()) throw BadInput(fmt::format("{}{} is no constant of this search", place, name));
    const std::vector<int64_t>& allowed = searched->second;
    const bool fits = value.is_number_integer() && std::ranges::find(allowed, value.get<int64_t>()) != allowed.end();
    require(fits, place + name, value, fmt::format("one of {}", fmt::join(allowed, ", ")));
    config.constants[name] = value.get<int64_t>();
  }
  return config;
}

}  // namespace attn
