// Sweeps: axes, their values, and the cases that they span.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace attn {

using AxisValue = std::variant<int64_t, std::string>;
std::string to_string(const AxisValue& value);

/// An axis that an experiment knows.
struct AxisInfo {
  std::string name;
  std::string help = {};
  std::vector<std::string> choices = {};  // the values of a text axis; empty for an integer axis
  int64_t min = 1, max = 1, multiple_of = 1;
};

/// One configuration: a list of axis = value. The order of the axes is the order in texts and in JSON; cases are equal
/// whatever their order.
class Case {
 public:
  int64_t integer(std::string_view axis) const;          // throws std::out_of_range if the axis is unset or a text
  const std::string& text(std::string_view axis) const;  // throws std::out_of_range if the axis is unset or an integer
  std::string value_text(std::string_view axis) const;   // of an integer or a text; empty if the axis is unset
  bool has(std::string_view axis) const;
  void set(std::string_view axis, AxisValue value);          // an axis that is already set keeps its position
  void set_default(std::string_view axis, AxisValue value);  // an axis that is already set keeps its value
  const std::vector<std::pair<std::string, AxisValue>>& axes() const { return axes_; }

  /// "variant=tuned head_dim=64 ..."; with `names`, only these axes, in this order. Equal cases have equal keys if
  /// their axes have one order, as the cases of expand() do.
  std::string key() const;
  std::string key(const std::vector<std::string>& names) const;
  /// The key of all axes except `free`. Cases that differ only in `free` axes have equal keys.
  std::string key_without(const std::set<std::string>& free) const;
  nlohmann::ordered_json json() const;
  static Case from_json(const nlohmann::ordered_json& json);
  bool operator==(const Case& other) const;

 private:
  std::vector<std::pair<std::string, AxisValue>> axes_;
};

struct Axis {
  std::string name;
  std::vector<AxisValue> values;
};
Axis integers(const std::string& name, const std::vector<int64_t>& values);
Axis texts(const std::string& name, const std::vector<std::string>& values);

/// The cases of a block are all combinations of the axes' values.
using Block = std::vector<Axis>;

/// The union of its blocks, in order. A case that two blocks span appears once.
struct Sweep {
  std::vector<Block> blocks;
};

/// Parses "NAME=V1,V2,...". Each V is a value, "1024:65536:pow2" (doubling from 1024 to at most 65536) or "A:B:STEP"
/// (from A to at most B). Throws BadInput with a message that says what is allowed.
Axis parse_axis(std::string_view text, const std::vector<AxisInfo>& known);

/// Returns the case with its axes in the order of `known`; axes that `known` lacks come last.
Case in_order(const Case& config, const std::vector<AxisInfo>& known);

/// Replaces the axis of the same name in every block, or adds the axis to the block.
void override_axis(Sweep& sweep, const Axis& axis);

/// Returns all cases of a sweep. `complete` sets the axes that follow from other axes (kv_len from q_len, for example)
/// and runs before duplicates are dropped. Every returned case has its axes in the order of `known`.
std::vector<Case> expand(const Sweep& sweep, const std::vector<AxisInfo>& known,
                         const std::function<void(Case&)>& complete);

/// Returns the cases in groups, in the order of the groups' first cases. The cases of a group differ only in the axes
/// `compared`, and take turns while they are measured.
std::vector<std::vector<Case>> group(const std::vector<Case>& cases, const std::vector<std::string>& compared);

/// The axes that do not have the same value in all cases.
std::vector<std::string> varying_axes(const std::vector<Case>& cases);

/// Returns part i of n; i counts from 1. A part has whole groups, and each group is in one part.
std::vector<std::vector<Case>> shard(const std::vector<std::vector<Case>>& groups, int i, int n);

}  // namespace attn
