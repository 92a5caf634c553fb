#include "common/records/spread.h"

#include "common/base/file.h"
#include "common/source/kernel_source.h"

namespace attn {

std::string without_units(const std::string& device) {
  const size_t comma = device.rfind(", ");
  return comma != device.npos && device.ends_with(" units") ? device.substr(0, comma) : device;
}

std::string kind_of_device(const std::string& device) { return device.starts_with("NVIDIA") ? "cuda" : "cpu"; }

std::string name(FigureKind kind) { return kind == FigureKind::ratio ? "ratio" : "figure"; }

Spread default_spread(const std::string& device) {
  return {.scale = kind_of_device(device) == "cuda" ? 0.01 : 0.05, .freedom = 2};
}

Spread spread_in(const Json& fitted, const std::string& device, const std::string& experiment, FigureKind kind) {
  for (const auto& [owner, of] :
       {std::pair{without_units(device), experiment}, std::pair{without_units(device), std::string("*")},
        std::pair{kind_of_device(device), std::string("*")}}) {
    const Json::json_pointer place = Json::json_pointer() / owner / of / name(kind);
    if (fitted.contains(place)) return {.scale = fitted[place].at("scale"), .freedom = fitted[place].at("freedom")};
  }
  return default_spread(device);
}

Spread spread_of(const std::string& device, const std::string& experiment, FigureKind kind) {
  static const Json fitted = [] {
    const Json read = Json::parse(read_file(source_root() + "/findings/spread.json").value_or("{}"), nullptr, false);
    return read.is_object() ? read : Json::object();
  }();
  return spread_in(fitted, device, experiment, kind);
}

}  // namespace attn
