#include "common/records/case.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

#include "common/base/error.h"
#include "common/base/json.h"
#include "common/base/nearest.h"
#include "common/base/number.h"

namespace attn {
namespace {

// A request for more is most likely a typing error, and must not fill the memory.
constexpr size_t max_values = 10000;
constexpr size_t max_cases = 1000000;

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t end; (end = text.find(separator)) != text.npos; text.remove_prefix(end + 1)) {
    parts.push_back(text.substr(0, end));
  }
  parts.push_back(text);
  return parts;
}

std::string allowed(const AxisInfo& axis) {
  if (!axis.choices.empty()) return fmt::format("one of {}", fmt::join(axis.choices, ", "));
  if (axis.multiple_of > 1) return fmt::format("a multiple of {} from {} to {}", axis.multiple_of, axis.min, axis.max);
  return fmt::format("an integer from {} to {}", axis.min, axis.max);
}

[[noreturn]] void refuse(const AxisInfo& axis, std::string_view value) {
  throw BadInput(fmt::format("axis {}: '{}' is not allowed; {}", axis.name, value, allowed(axis)));
}

/// The values of one axis, checked and without duplicates, in the order in which the text names them.
class Values {
 public:
  explicit Values(const AxisInfo& axis) : axis_(axis) {}

  void add(std::string_view item) {
    if (!axis_.choices.empty()) {
      if (std::find(axis_.choices.begin(), axis_.choices.end(), item) == axis_.choices.end()) refuse(axis_, item);
      add(AxisValue(std::string(item)));
    } else if (item.find(':') != item.npos) {
      add_range(item);
    } else {
      const auto value = to_number<int64_t>(item);
      if (!value) refuse(axis_, item);
      add_integer(*value);
    }
  }

  std::vector<AxisValue> take() { return std::move(values_); }

 private:
  void add_range(std::string_view item) {
    const auto parts = split(item, ':');
    const bool pow2 = parts.size() == 3 && parts[2] == "pow2";
    std::optional<int64_t> first, last, step;
    if (parts.size() == 3) {
      first = to_number<int64_t>(parts[0]);
      last = to_number<int64_t>(parts[1]);
      step = pow2 ? first : to_number<int64_t>(parts[2]);
    }
    if (!first || !last || !step || *step < 1) {
      throw BadInput(fmt::format(
          "axis {}: '{}' is no range; write FIRST:LAST:STEP with STEP above 0, or FIRST:LAST:pow2 with FIRST "
          "above 0",
          axis_.name, item));
    }
    if (*first > *last)
      throw BadInput(fmt::format("axis {}: '{}' runs backwards; FIRST must be at most LAST", axis_.name, item));
    for (int64_t value = *first;;) {
      add_integer(value);
      const uint64_t left = static_cast<uint64_t>(*last) - static_cast<uint64_t>(value);
      const int64_t stride = pow2 ? value : *step;  // pow2 doubles
      if (left < static_cast<uint64_t>(stride)) break;
      value += stride;
    }
  }

  void add_integer(int64_t value) {
    if (value < axis_.min || value > axis_.max || value % axis_.multiple_of != 0) refuse(axis_, std::to_string(value));
    add(AxisValue(value));
  }

  void add(AxisValue value) {
    if (!seen_.insert(value).second) return;
    values_.push_back(std::move(value));
    if (values_.size() > max_values) {
      throw BadInput(fmt::format("axis {}: more than {} values; narrow the range", axis_.name, max_values));
    }
  }

  const AxisInfo& axis_;
  std::vector<AxisValue> values_;
  std::set<AxisValue> seen_;
};

template <typename Axes>
auto find_axis(Axes& axes, std::string_view name) {
  return std::find_if(axes.begin(), axes.end(), [&](const auto& axis) { return axis.first == name; });
}

template <typename T>
const T& value_as(const Case& config, std::string_view name, std::string_view kind) {
  const auto axis = find_axis(config.axes(), name);
  if (axis == config.axes().end()) throw std::out_of_range(fmt::format("axis '{}' is not set", name));
  const T* value = std::get_if<T>(&axis->second);
  if (!value) throw std::out_of_range(fmt::format("axis '{}' is not {}", name, kind));
  return *value;
}

std::vector<Case> product(const Block& block) {
  std::vector<Case> cases(1);
  for (const Axis& axis : block) {
    if (cases.size() * axis.values.size() > max_cases) {
      throw BadInput(fmt::format("the sweep spans more than {} cases; name fewer values", max_cases));
    }
    std::vector<Case> longer;
    for (const Case& shorter : cases) {
      for (const AxisValue& value : axis.values) longer.emplace_back(shorter).set(axis.name, value);
    }
    cases = std::move(longer);
  }
  return cases;
}

}  // namespace

std::string to_string(const AxisValue& value) {
  const int64_t* integer = std::get_if<int64_t>(&value);
  return integer ? std::to_string(*integer) : std::get<std::string>(value);
}

int64_t Case::integer(std::string_view axis) const { return value_as<int64_t>(*this, axis, "an integer"); }

const std::string& Case::text(std::string_view axis) const { return value_as<std::string>(*this, axis, "a text"); }

bool Case::has(std::string_view axis) const { return find_axis(axes_, axis) != axes_.end(); }

void Case::set_default(std::string_view axis, AxisValue value) {
  if (!has(axis)) set(axis, std::move(value));
}

void Case::set(std::string_view axis, AxisValue value) {
  const auto place = find_axis(axes_, axis);
  if (place != axes_.end()) {
    place->second = std::move(value);
  } else {
    axes_.emplace_back(axis, std::move(value));
  }
}

std::string Case::key() const {
  std::string key;
  for (const auto& [axis, value] : axes_) key += fmt::format("{}{}={}", key.empty() ? "" : " ", axis, to_string(value));
  return key;
}

std::string Case::value_text(std::string_view name) const {
  const auto axis = find_axis(axes_, name);
  return axis == axes_.end() ? "" : to_string(axis->second);
}

std::string Case::key(const std::vector<std::string>& names) const {
  Case selected;
  for (const std::string& name : names) {
    const auto axis = find_axis(axes_, name);
    if (axis != axes_.end()) selected.set(name, axis->second);
  }
  return selected.key();
}

std::string Case::key_without(const std::set<std::string>& free) const {
  std::vector<std::string> names;
  for (const auto& [name, value] : axes_) {
    if (!free.contains(name)) names.push_back(name);
  }
  return key(names);
}

bool Case::operator==(const Case& other) const {
  return std::is_permutation(axes_.begin(), axes_.end(), other.axes_.begin(), other.axes_.end());
}

Json Case::json() const {
  auto json = Json::object();
  for (const auto& [axis, value] : axes_) std::visit([&, &name = axis](const auto& v) { json[name] = v; }, value);
  return json;
}

Case Case::from_json(const Json& json) {
  if (!json.is_object()) throw BadInput("a case must be an object of axis: value");
  Case config;
  for (const auto& [axis, value] : json.items()) {
    if (value.is_number_integer()) {
      config.set(axis, value.get<int64_t>());
    } else if (value.is_string()) {
      config.set(axis, value.get<std::string>());
    } else {
      throw BadInput(fmt::format("case: axis '{}' must be an integer or a text", axis));
    }
  }
  return config;
}

Axis integers(const std::string& name, const std::vector<int64_t>& values) {
  return {name, {values.begin(), values.end()}};
}

Axis texts(const std::string& name, const std::vector<std::string>& values) {
  return {name, {values.begin(), values.end()}};
}

Axis parse_axis(std::string_view text, const std::vector<AxisInfo>& known) {
  const size_t equals = text.find('=');
  if (equals == text.npos) {
    throw BadInput(fmt::format("axis '{}' has no values; write NAME=V1,V2 or NAME=FIRST:LAST:STEP", text));
  }
  const std::string_view name = text.substr(0, equals);
  const auto info = std::find_if(known.begin(), known.end(), [&](const AxisInfo& axis) { return axis.name == name; });
  if (info == known.end()) {
    std::vector<std::string> names;
    for (const AxisInfo& axis : known) names.push_back(axis.name);
    throw BadInput(
        fmt::format("unknown axis '{}'{}; known: {}", name, did_you_mean(name, names), fmt::join(names, ", ")));
  }
  Values values(*info);
  for (std::string_view item : split(text.substr(equals + 1), ',')) values.add(item);
  return {info->name, values.take()};
}

Case in_order(const Case& config, const std::vector<AxisInfo>& known) {
  Case ordered;
  for (const AxisInfo& info : known) {
    const auto axis = find_axis(config.axes(), info.name);
    if (axis != config.axes().end()) ordered.set(info.name, axis->second);
  }
  for (const auto& [axis, value] : config.axes()) ordered.set(axis, value);
  return ordered;
}

void override_axis(Sweep& sweep, const Axis& axis) {
  for (Block& block : sweep.blocks) {
    const auto place = std::find_if(block.begin(), block.end(), [&](const Axis& a) { return a.name == axis.name; });
    if (place != block.end()) {
      *place = axis;
    } else {
      block.push_back(axis);
    }
  }
}

std::vector<Case> expand(const Sweep& sweep, const std::vector<AxisInfo>& known,
                         const std::function<void(Case&)>& complete) {
  std::vector<Case> cases;
  std::set<std::string> seen;
  for (const Block& block : sweep.blocks) {
    for (Case& config : product(block)) {
      if (complete) complete(config);
      Case ordered = in_order(config, known);
      if (!config.axes().empty() &&
          std::ranges::find(known, ordered.axes().back().first, &AxisInfo::name) == known.end()) {
        throw std::logic_error(fmt::format("the case {} has an axis that its experiment does not know", config.key()));
      }
      if (seen.insert(ordered.key()).second) cases.push_back(std::move(ordered));
    }
  }
  return cases;
}

std::vector<std::vector<Case>> group(const std::vector<Case>& cases, const std::vector<std::string>& compared) {
  const std::set<std::string> free(compared.begin(), compared.end());
  std::vector<std::vector<Case>> groups;
  std::map<std::string, size_t> places;
  for (const Case& config : cases) {
    const auto [place, added] = places.emplace(config.key_without(free), groups.size());
    if (added) groups.emplace_back();
    groups[place->second].push_back(config);
  }
  return groups;
}

std::vector<std::string> varying_axes(const std::vector<Case>& cases) {
  std::vector<std::string> axes;
  for (const Case& config : cases) {
    for (const auto& axis : config.axes()) {
      if (std::find(axes.begin(), axes.end(), axis.first) == axes.end()) axes.push_back(axis.first);
    }
  }
  std::erase_if(axes, [&](const std::string& axis) {
    return std::all_of(cases.begin(), cases.end(),
                       [&](const Case& config) { return config.key({axis}) == cases.front().key({axis}); });
  });
  return axes;
}

std::vector<std::vector<Case>> shard(const std::vector<std::vector<Case>>& groups, int i, int n) {
  if (n < 1 || i < 1 || i > n) throw BadInput(fmt::format("shard {}/{} is not allowed; I/N with 1 <= I <= N", i, n));
  std::vector<std::vector<Case>> part;
  // Shapes often grow along a sweep. With every n-th group each part gets some of the long shapes.
  for (size_t index = i - 1; index < groups.size(); index += n) part.push_back(groups[index]);
  return part;
}

}  // namespace attn
