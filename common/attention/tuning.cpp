#include "common/attention/tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/source/kernel_source.h"

namespace attn {
namespace {

namespace fs = std::filesystem;

constexpr double least_cost = 1e-9;
constexpr int most_depth = 16;
constexpr int64_t most_rows = 256, most_keys = 1024, block_step = 16, most_head_dim = 256;

/// A value of the file, with its path in the file. All functions throw BadInput if the file is damaged.
class Value {
 public:
  Value(const Json& json, std::string place) : json_(json), place_(std::move(place)) {}

  void require(bool fits, std::string_view allowed) const {
    if (fits) return;
    const std::string shown = json_.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 60);
    throw BadInput(fmt::format("{}: {} is not allowed; {}", place_, shown, allowed));
  }
  Value at(const std::string& name) const {
    require(json_.is_object() && json_.contains(name), fmt::format("an object with {}", name));
    return {json_.at(name), place_ + ": " + name};
  }
  bool has(const std::string& name) const { return json_.contains(name); }
  /// Calls each(value) for each member of an object.
  template <typename Each>
  void members(const Each& each) const {
    require(json_.is_object(), "an object");
    for (const auto& [name, value] : json_.items()) each(Value(value, place_ + ": " + name));
  }
  /// Calls each(value) for each element of an array.
  template <typename Each>
  void elements(const Each& each) const {
    require(json_.is_array(), "an array");
    for (size_t i = 0; i < json_.size(); ++i) each(Value(json_[i], fmt::format("{}: {}", place_, i)));
  }
  /// As members() or elements() of the member `name`, if there is such a member.
  template <typename Each>
  void members_of(const std::string& name, const Each& each) const {
    if (has(name)) at(name).members(each);
  }
  template <typename Each>
  void elements_of(const std::string& name, const Each& each) const {
    if (has(name)) at(name).elements(each);
  }
  void integer(int64_t least, int64_t most, int64_t step = 1) const {
    const bool fits = json_.is_number_integer() && json_ >= least && json_ <= most && json_.get<int64_t>() % step == 0;
    require(fits, fmt::format("a multiple of {} from {} to {}", step, least, most));
  }
  void text() const { require(json_.is_string(), "a text"); }
  void object() const { require(json_.is_object(), "an object"); }
  void number(double least) const {
    require(json_.is_number() && json_ >= least, fmt::format("a number from {:g} on", least));
  }

 private:
  const Json& json_;
  std::string place_;
};

void check_tiles(const Value& row) {
  row.at("kernel").text();
  row.at("dtypes").elements([](const Value& dtype) { dtype.text(); });
  row.at("head_dim").integer(1, most_head_dim);
  row.at("tiles").elements([](const Value& tile) {
    tile.at("block_r").integer(block_step, most_rows, block_step);
    tile.at("block_c").integer(block_step, most_keys, block_step);
    tile.at("cost").number(least_cost);
    if (tile.has("hooked_cost")) tile.at("hooked_cost").number(least_cost);
  });
}

void check_generated(const Value& winner) {
  winner.at("constants").object();
  for (const char* field : {"q_len", "heads", "tried", "seconds"}) winner.at(field).number(0);
}

void check(const Value& file) {
  file.object();
  file.elements_of("tiles", check_tiles);
  file.members_of("generated", [](const Value& generator) { generator.members(check_generated); });
}

/// Guards the content of the files, and the list of the damaged files.
std::mutex& mutex() {
  static std::mutex one;
  return one;
}

}  // namespace

std::string tuning_path(const DeviceInfo& device) { return "findings/tuning/" + device.arch + ".json"; }

Json read_tuning(const DeviceInfo& device) {
  const std::string path = source_root() + "/" + tuning_path(device);
  const auto text = read_file(path);
  if (!text) {
    std::error_code error;
    if (!fs::exists(fs::symlink_status(path, error))) return Json::object();
    throw BadInput(tuning_path(device) + " cannot be read");
  }
  Json content = parse_shallow_json(*text, most_depth);
  if (!content.is_object()) throw BadInput(tuning_path(device) + " is no JSON object");
  check({content, tuning_path(device)});
  return content;
}

const Json& tuning(const DeviceInfo& device) {
  static std::map<std::string, Json> files;  // by path; a test changes the source root
  const std::string path = source_root() + "/" + tuning_path(device);
  std::string damage;
  const Json* content = nullptr;
  {
    const std::lock_guard lock(mutex());
    const auto [file, is_new] = files.try_emplace(path, Json::object());
    content = &file->second;
    if (is_new) {
      try {
        file->second = read_tuning(device);
      } catch (const BadInput& error) {
        damage = error.what();
      }
    }
  }
  if (!damage.empty()) warn_of_tuning(device, damage);
  return *content;
}

void warn_of_tuning(const DeviceInfo& device, const std::string& damage) {
  static std::set<std::string> warned;
  const std::lock_guard lock(mutex());
  if (warned.insert(source_root() + "/" + tuning_path(device)).second) {
    logger()->warn("{}; the rules without a file count instead", damage);
  }
}

std::vector<TunedTile> tuned_tiles(const FlashConfig& config, const DeviceInfo& device, const std::string& kernel) {
  const Json& file = tuning(device);
  if (!file.contains("tiles")) return {};
  const std::string dtype(name(config.dtype));
  for (const Json& row : file.at("tiles")) {
    const Json& dtypes = row.at("dtypes");
    const bool here = row.at("kernel") == kernel && std::ranges::find(dtypes, Json(dtype)) != dtypes.end();
    if (!here || row.at("head_dim") < config.shape.head_dim) continue;
    std::vector<TunedTile> tiles;
    for (const Json& tile : row.at("tiles")) {
      tiles.push_back({tile.at("block_r"), tile.at("block_c"), tile.at("cost"), tile.value("hooked_cost", 0.0)});
      FlashConfig whole = {.variant = kernel, .shape = config.shape, .dtype = config.dtype};
      whole.shape.head_dim = row.at("head_dim");
      whole.block_r = tiles.back().block_r;
      whole.block_c = tiles.back().block_c;
      if (const auto reason = device.operations->flash->skip_reason(whole, device)) {
        warn_of_tuning(device, fmt::format("{}: tiles: {} head_dim={}: {}", tuning_path(device), kernel,
                                           row.at("head_dim").get<int64_t>(), *reason));
        return {};
      }
    }
    return tiles;
  }
  return {};
}

}  // namespace attn
