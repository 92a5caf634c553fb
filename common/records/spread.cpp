#include "common/records/spread.h"

#include <set>
#include <string_view>

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/source/kernel_source.h"

namespace attn {

std::string without_units(const std::string& device) {
  const size_t comma = device.rfind(", ");
  return comma != device.npos && device.ends_with(" units") ? device.substr(0, comma) : device;
}

std::string with_one_unit(std::string text) {
  constexpr std::string_view recorded = ", 1 units";
  for (size_t at = 0; (at = text.find(recorded, at)) != text.npos;) {
    at += recorded.size();
    text.erase(--at, 1);
  }
  return text;
}

std::string kind_of_device(const std::string& device) { return device.starts_with("NVIDIA") ? "cuda" : "cpu"; }

std::string name(FigureKind kind) {
  constexpr const char* names[] = {"ratio", "share", "absolute"};
  return names[static_cast<size_t>(kind)];
}

FigureKind kind_of(bool compared, const std::string& metric) {
  static const std::set<std::string> units = {"s", "ms", "us", "ns", "GB/s", "variants", "tokens"};
  if (units.contains(metric.substr(0, metric.find(' ')))) return FigureKind::absolute;
  return compared ? FigureKind::ratio : FigureKind::share;
}

Spread spread_in(const Json& fitted, const std::string& device, const std::string& experiment,
                 const std::string& hypothesis, FigureKind kind) {
  const std::string all = kind_of_device(device), claim = experiment + "/" + hypothesis;
  for (const auto& [owner, topic] : {std::pair{without_units(device), claim}, std::pair{all, claim},
                                     std::pair{all, experiment}, std::pair{all, std::string("*")}}) {
    const Json::json_pointer place = Json::json_pointer() / "spread" / owner / topic / name(kind);
    if (fitted.contains(place)) return {.scale = fitted[place].at("scale")};
  }
  return {.scale = all == "cuda" ? 0.01 : 0.05};
}

Spread spread_of(const std::string& device, const std::string& experiment, const std::string& hypothesis,
                 FigureKind kind) {
  static const Json fitted = [] {
    const Json read = parse_json(read_file(source_root() + "/findings/spread.json").value_or("{}"), false);
    return read.is_object() ? read : Json::object();
  }();
  return spread_in(fitted, device, experiment, hypothesis, kind);
}

}  // namespace attn
