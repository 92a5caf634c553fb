// What a sweep varies: axes, the cases they span, and why a case is left out.
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

/// An axis an experiment knows: its name, what it means and what it may be.
struct AxisInfo {
  std::string name;
  std::string help = {};
  std::vector<std::string> choices = {};  // a text axis; empty for an integer axis
  int64_t min = 1, max = 1, multiple_of = 1;
};

/// One configuration: an ordered list of axis = value.
class Case {
 public:
  int64_t integer(std::string_view axis) const;          // throws std::out_of_range where the axis is not set
  const std::string& text(std::string_view axis) const;  // likewise
  bool has(std::string_view axis) const;
  void set(std::string_view axis, AxisValue value);          // keeps the place of an axis that is there
  void set_default(std::string_view axis, AxisValue value);  // leaves an axis that is there
  const std::vector<std::pair<std::string, AxisValue>>& axes() const { return axes_; }

  /// "variant=tuned head_dim=64 ..."; with `names`, only these axes. Equal cases have equal keys.
  std::string key() const;
  std::string key(const std::vector<std::string>& names) const;
  /// All axes but `free`: what two cases must share to differ in nothing else.
  std::string key_without(const std::set<std::string>& free) const;
  nlohmann::ordered_json json() const;
  static Case from_json(const nlohmann::ordered_json& json);
  bool operator==(const Case&) const = default;

 private:
  std::vector<std::pair<std::string, AxisValue>> axes_;
};

struct Axis {
  std::string name;
  std::vector<AxisValue> values;
};
Axis integers(const std::string& name, const std::vector<int64_t>& values);
Axis texts(const std::string& name, const std::vector<std::string>& values);

/// The product of its axes.
using Block = std::vector<Axis>;

/// A union of blocks, in order; a case that two blocks span is taken once.
struct Sweep {
  std::vector<Block> blocks;
};

/// "NAME=V1,V2" or "NAME=1024:65536:pow2" (doubling from the first to at most the last) or "NAME=A:B:STEP". Throws
/// BadInput with what is allowed, for an unknown axis or value.
Axis parse_axis(std::string_view text, const std::vector<AxisInfo>& known);

/// Replaces (or adds) an axis in every block.
void override_axis(Sweep& sweep, const Axis& axis);

/// All cases. `complete` fills the axes that follow from others (kv_len from q_len, say) and runs before duplicates
/// are dropped; every case then has its axes in the order of `known`.
std::vector<Case> expand(const Sweep& sweep, const std::vector<AxisInfo>& known,
                         const std::function<void(Case&)>& complete);

/// Cases that agree on all axes but `compared`, in order of first appearance: these are measured interleaved.
std::vector<std::vector<Case>> group(const std::vector<Case>& cases, const std::vector<std::string>& compared);

/// The axes that do not have the same value in all cases.
std::vector<std::string> varying_axes(const std::vector<Case>& cases);

/// Part I of N (1-based), by whole groups; the parts are disjoint and together everything.
std::vector<std::vector<Case>> shard(const std::vector<std::vector<Case>>& groups, int i, int n);

}  // namespace attn
