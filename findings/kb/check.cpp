#include "findings/kb/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "common/base/json.h"
#include "findings/kb/schema.h"

namespace attn::kb {

namespace {

/// Finds axes whose integer is written with a fraction. JSON Schema takes 64.0 for an integer, but 64.0 and 64
/// would be different values of an axis.
void check_axes(const Json& record, std::vector<std::string>& problems) {
  for (const char* path : {"/case", "/data/compare/baseline", "/data/compare/contender"}) {
    const Json config = record.value(Json::json_pointer(path), Json::object());
    for (const auto& [axis, value] : config.items()) {
      if (!value.is_number_float()) continue;
      std::string place = std::string(path).substr(1) + "." + axis;
      std::replace(place.begin(), place.end(), '/', '.');
      problems.push_back(place + ": " + value.dump() + " is not allowed; an integer is written without a fraction");
    }
  }
}

/// Refuses findings, times, rates and clocks of an emulated device: the records of such a device say only whether
/// results are correct.
void check_emulated(const Json& record, std::vector<std::string>& problems) {
  const auto refuse = [&](const char* place) {
    problems.push_back(fmt::format("{}: a record of an emulated device has no times and no findings", place));
  };
  const auto device_at = [&](const char* path) {
    const Json device = record.value(Json::json_pointer(path), Json());
    return device.is_string() && is_emulated(device.get<std::string>());
  };
  if (device_at("/data/device")) refuse("data.device");
  if (!device_at("/device")) return;
  if (!record.value("time", Json::array()).empty()) refuse("time");
  for (const char* path : {"rate", "clocks"}) {
    if (!record.value(path, Json()).is_null()) refuse(path);
  }
  if (!record.value("/pipeline/compile_s"_json_pointer, Json()).is_null()) refuse("pipeline.compile_s");
}

}  // namespace

bool is_emulated(std::string_view device) { return device == "emulated" || device.starts_with("emulated, "); }

std::vector<std::string> check_schema(const Json& record) {
  static const Json text = parse_json(record_schema);
  static const Schema schema(text);
  const Json& known = text.at("/properties/schema/enum"_json_pointer);
  const Json stated = record.is_object() ? record.value("schema", Json()) : Json();
  if (stated.is_string() && std::find(known.begin(), known.end(), stated) == known.end()) {
    return {fmt::format("{} is not known; kb knows {}", stated.get<std::string>().substr(0, 60),
                        fmt::join(known.get<std::vector<std::string>>(), ", "))};
  }
  std::vector<std::string> problems = schema.problems(record);
  if (problems.empty()) check_axes(record, problems);
  if (problems.empty()) check_emulated(record, problems);
  return problems;
}

namespace {

/// A name that has one of the words `quantities` is the name of a quantity. Such a name must end with one of the words
/// `endings`: units, and words for figures without a unit.
const std::set<std::string_view> quantities = {"time",  "duration", "latency",   "bandwidth", "throughput",
                                               "power", "memory",   "frequency", "clock",     "temperature"};
const std::set<std::string_view> endings = {"s",     "ms",  "us",      "ns",       "bytes", "mhz",
                                            "w",     "c",   "gbps",    "tflops",   "flops", "ratio",
                                            "share", "pct", "percent", "exponent", "factor"};

std::vector<std::string_view> words(std::string_view name) {
  std::vector<std::string_view> parts;
  for (size_t end; (end = name.find('_')) != name.npos; name.remove_prefix(end + 1)) {
    parts.push_back(name.substr(0, end));
  }
  parts.push_back(name);
  return parts;
}

void walk_units(const Json& json, const std::string& path, std::vector<std::string>& problems) {
  for (const auto& [key, value] : json.items()) {
    const std::string place = path.empty() ? key : path + "." + key;
    if (value.is_structured()) {
      // The names of axes have no units. The numbers of `instructions` are counts.
      if (key == "case" || key == "cases" || key == "baseline" || key == "contender" || key == "instructions") continue;
      walk_units(value, place, problems);
    } else if (value.is_number() && json.is_object()) {
      const auto parts = words(key);
      const bool quantity =
          std::any_of(parts.begin(), parts.end(), [](auto part) { return quantities.contains(part); });
      if (quantity && !endings.contains(parts.back())) {
        problems.push_back(place +
                           ": a quantity without a unit; its name must end in a unit, such as _s, _bytes, _mhz, _w, "
                           "_c or _gbps");
      }
    }
  }
}

}  // namespace

std::vector<std::string> check_units(const Json& record) {
  std::vector<std::string> problems;
  walk_units(record, "", problems);
  return problems;
}

}  // namespace attn::kb
