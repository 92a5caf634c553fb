#include "findings/kb/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "common/base/json.h"

namespace attn::kb {
namespace {

/// A name that has one of the words `quantities` is the name of a quantity. Such a name must end with one of the words
/// `endings`: units, and words for figures without a unit.
const std::set<std::string_view> quantities = {"time",  "duration", "latency",   "bandwidth", "throughput",
                                               "power", "memory",   "frequency", "clock",     "temperature"};
const std::set<std::string_view> endings = {"s",     "ms",  "us",      "ns",       "bytes", "mhz",
                                            "w",     "c",   "gbps",    "tflops",   "flops", "ratio",
                                            "share", "pct", "percent", "exponent", "factor"};

/// A JSON pointer as messages write it: "data.compare" for "/data/compare".
std::string dotted(std::string pointer) {
  std::ranges::replace(pointer, '/', '.');
  return pointer.substr(1);
}

/// Finds axes whose integer is written with a fraction. JSON Schema takes 64.0 for an integer, but 64.0 and 64
/// would be different values of an axis.
void check_axes(const Json& record, std::vector<std::string>& problems) {
  for (const char* path : {"/case", "/data/compare/baseline", "/data/compare/contender"}) {
    const Json config = value_at(record, path);
    for (const auto& [axis, value] : config.items()) {
      if (!value.is_number_float()) continue;
      problems.push_back(fmt::format("{}.{}: {} is not allowed; an integer is written without a fraction", dotted(path),
                                     axis, value.dump()));
    }
  }
}

/// Refuses findings, times, rates and clocks of an emulated device: the records of such a device say only whether
/// results are correct.
void check_emulated(const Json& record, std::vector<std::string>& problems) {
  const auto refuse = [&](const char* path) {
    problems.push_back(dotted(path) + ": a record of an emulated device has no times and no findings");
  };
  if (is_emulated(text_at(record, "/data/device"))) refuse("/data/device");
  if (!is_emulated(text_at(record, "/device"))) return;
  for (const char* path : {"/time", "/rate", "/clocks", "/pipeline/compile_s"}) {
    if (const Json value = value_at(record, path); !value.is_null() && value != Json::array()) refuse(path);
  }
}

/// Whether a name has the word of a quantity, but does not end with a unit.
bool lacks_unit(std::string_view name) {
  bool quantity = false;
  for (size_t end; (end = name.find('_')) != name.npos; name.remove_prefix(end + 1)) {
    quantity |= quantities.contains(name.substr(0, end));
  }
  return (quantity || quantities.contains(name)) && !endings.contains(name);
}

void walk_units(const Json& json, const std::string& path, std::vector<std::string>& problems) {
  for (const auto& [key, value] : json.items()) {
    const std::string place = path.empty() ? key : path + "." + key;
    if (value.is_structured()) {
      // The names of axes have no units. The numbers of `instructions` are counts.
      if (key == "case" || key == "cases" || key == "baseline" || key == "contender" || key == "instructions") continue;
      walk_units(value, place, problems);
    } else if (value.is_number() && json.is_object() && lacks_unit(key)) {
      problems.push_back(place +
                         ": a quantity without a unit; its name must end in a unit, such as _s, _bytes, _mhz, _w, "
                         "_c or _gbps");
    }
  }
}

}  // namespace

std::string first_of(const std::vector<std::string>& problems) {
  return problems.size() == 1 ? problems[0] : fmt::format("{} (and {} more)", problems[0], problems.size() - 1);
}

bool is_emulated(std::string_view device) { return device == "emulated" || device.starts_with("emulated, "); }

std::vector<std::string> check_schema(const Json& record) {
  static const Json schema = parse_json(record_schema);
  const Json& known = schema.at("/properties/schema/enum"_json_pointer);
  const std::string stated = text_at(record, "/schema");
  if (!stated.empty() && std::ranges::find(known, Json(stated)) == known.end()) {
    return {fmt::format("{} is not known; kb knows {}", stated.substr(0, 60),
                        fmt::join(known.get<std::vector<std::string>>(), ", "))};
  }
  std::vector<std::string> problems = deviations(schema, record);
  if (problems.empty()) check_axes(record, problems);
  if (problems.empty()) check_emulated(record, problems);
  return problems;
}

std::vector<std::string> check_units(const Json& record) {
  std::vector<std::string> problems;
  walk_units(record, "", problems);
  return problems;
}

}  // namespace attn::kb
