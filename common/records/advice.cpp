#include "common/records/advice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "common/base/json.h"
#include "common/base/text_table.h"
#include "common/records/spread.h"

namespace attn {
namespace {

constexpr size_t most_values = 4;  // the most values of an axis in a list

using Names = std::set<std::string>;

/// The claims of a topic: the experiment's hypotheses with these ids; without ids, all others of the experiment.
struct Topic {
  std::string name, experiment;
  Names hypotheses = {};
};
const std::vector<Topic>& topic_list() {
  static const std::vector<Topic> list = {
      {"Tile", "proto1_flash", {"default_tile", "worst_tile", "best_tile", "bc80"}},
      {"Element type", "proto1_flash", {"bf16", "ceiling_16_bit", "ceiling"}},
      {"Layout", "proto1_flash", {"layout"}},
      {"Causal mask", "proto1_flash", {"causal", "ceiling_causal", "ceiling_16_bit_causal"}},
      {"Kernel, heads and length", "proto1_flash"},
      {"Calls of score functions", "proto2_stitching"},
      {"Compiled variants", "proto4_constants"},
      {"Key/value cache", "proto3_paged"},
      {"Linear attention", "proto6_linear"},
      {"Modifiers, RoPE and grouped heads", "proto7_variants"},
      {"Generated kernels", "proto5_codegen"},
      {"Calls from a framework", "proto8_extension"}};
  return list;
}

/// The unit of a claim's figures: "x" for a ratio of times; else a unit after a space, such as " %", or "".
std::string unit_of(const std::string& metric) {
  const std::string first = metric.substr(0, metric.find(' '));
  if (first == "%" || kind_of(false, metric) == FigureKind::absolute) return " " + first;
  const bool of_times = metric.find("time") != metric.npos && metric.find(" / ") != metric.npos;
  return of_times ? "x" : "";
}

std::map<std::string, std::string> axes_of(const std::string& subject) {
  std::map<std::string, std::string> axes;
  std::istringstream words(subject);
  for (std::string word; words >> word;) {
    if (const size_t at = word.find('='); at != word.npos) axes[word.substr(0, at)] = word.substr(at + 1);
  }
  return axes;
}

bool have_a_common_value(const Names& a, const Names& b) {
  return std::ranges::any_of(a, [&](const std::string& value) { return b.contains(value); });
}

/// Says which of all cases of a claim are in `some`: by the first axis whose values tell `some` from the other cases,
/// or else, for a single case, by all axes in which the case differs; else by the number of cases.
std::string where(const std::vector<Judged>& some, const std::vector<Judged>& all) {
  if (some.size() == all.size()) {
    return some.size() == 1 ? "" : some.size() == 2 ? "in both cases" : fmt::format("in all {} cases", some.size());
  }
  const auto values = [&](const std::string& axis, bool mine) {
    Names found;
    for (const Judged& one : all) {
      const bool is_mine = std::ranges::find(some, one.subject, &Judged::subject) != some.end();
      const auto axes = axes_of(one.subject);
      if (is_mine == mine) found.insert(axes.contains(axis) ? axes.at(axis) : "");
    }
    return found;
  };
  std::istringstream words(all.front().subject);
  // `named`: the axes whose values differ between `some` and the other cases; `differing`: the same with a value in
  // `some`.
  std::vector<std::string> named, differing;
  for (std::string word; words >> word;) {
    const std::string axis = word.substr(0, word.find('='));
    const Names mine = values(axis, true);
    // Whether this axis always has the value of an axis in `named`, as kv_len may have that of q_len.
    const bool follows = std::ranges::any_of(named, [&](const std::string& before) {
      return std::ranges::all_of(all, [&](const Judged& one) {
        const auto axes = axes_of(one.subject);
        return axes.contains(axis) && axes.contains(before) && axes.at(axis) == axes.at(before);
      });
    });
    if (!follows && mine != values(axis, false)) {
      named.push_back(axis);
      differing.push_back(fmt::format("{} {}", axis, *mine.begin()));
    }
    if (mine.contains("") || mine.size() > most_values || have_a_common_value(mine, values(axis, false))) continue;
    return fmt::format("at {} {}", axis, fmt::join(mine, ", "));
  }
  if (some.size() == 1 && !differing.empty()) return fmt::format("at {}", fmt::join(differing, ", "));
  return fmt::format("in {} of {} cases", some.size(), all.size());
}

}  // namespace

State state_of(const std::string& text) {
  return text == name(State::supported) ? State::supported
         : text == name(State::refuted) ? State::refuted
                                        : State::inconclusive;
}

Judged judged(const Json& pooled) {
  const double value = pooled.at("/estimate/value"_json_pointer);
  const bool advised = pooled.value("advised", false);
  return {.subject = pooled.at("subject"),
          .state = advised ? state_of(pooled.at("/verdict/state"_json_pointer)) : State::inconclusive,
          .low = value,
          .high = value,
          .id = pooled.value("latest", "")};
}

void add_lines(ClaimLines& lines, const Hypothesis& hypothesis, const Advice& advice, const std::vector<Judged>& cases,
               bool without_words) {
  for (const State state : {State::supported, State::refuted, State::inconclusive}) {
    std::vector<Judged> some;
    std::ranges::copy_if(cases, std::back_inserter(some), [&](const Judged& one) { return one.state == state; });
    if (some.empty()) continue;
    Json line = {{"hypothesis", hypothesis.id},
                 {"metric", hypothesis.metric},
                 {"cases", some.size()},
                 {"of", cases.size()},
                 {"low", std::ranges::min(some, {}, &Judged::low).low},
                 {"high", std::ranges::max(some, {}, &Judged::high).high},
                 {"unit", unit_of(hypothesis.metric)}};
    if (state == State::inconclusive) {
      line["contradicted"] = std::ranges::count(some, true, &Judged::contradicted);
      lines.undecided.push_back(std::move(line));
      continue;
    }
    const std::string& words = state == State::supported ? advice.holds : advice.refuted;
    if (words.empty() && !without_words) continue;
    line["advice"] = words.empty() ? fmt::format("{}: \"{}\"", name(state), hypothesis.text) : words;
    line["state"] = name(state);
    line["where"] = where(some, cases);
    line["id"] = some.front().id;
    lines.advised.push_back(std::move(line));
  }
}

/// The unit is said once unless it is "x". A time is shown in the unit that fits the highest. Only noise makes a time
/// negative: it is shown as 0.
std::string range_text(const Json& line) {
  std::string unit = line.at("unit");
  double low = line.at("low"), high = line.at("high");
  const std::vector<std::pair<std::string, double>> times = {{" s", 1}, {" ms", 1e-3}, {" us", 1e-6}, {" ns", 1e-9}};
  if (const auto own = std::ranges::find(times, unit, &std::pair<std::string, double>::first); own != times.end()) {
    low = std::max(0.0, low * own->second);
    high = std::max(0.0, high * own->second);
    const auto fits = std::ranges::find_if(times, [&](const auto& time) { return high >= 0.9995 * time.second; });
    const auto& shown = fits == times.end() ? times.back() : *fits;
    low /= shown.second;
    high /= shown.second;
    unit = shown.first;
  }
  const bool whole = low == std::round(low) && high == std::round(high) && unit != "x";
  const auto text = [&](double value) {
    return whole || value == 0 ? fmt::format("{:.0f}", value) : three_digits(value);
  };
  const std::string first = text(low), last = text(high);
  if (first == last) return first + unit;
  return first + (unit == "x" ? "x to " : " to ") + last + unit;
}

std::string advice_text(const Json& line) {
  std::string words = line.at("advice");
  if (words.ends_with('.')) words.pop_back();
  const std::string place = line.at("where"), id = line.at("hypothesis");
  return fmt::format("{}{}{}: {} [{}]", words, place.empty() ? "" : ", ", place, range_text(line), id);
}

std::string topic_of(const std::string& experiment, const std::string& hypothesis) {
  for (const Topic& topic : topic_list()) {
    if (topic.experiment != experiment) continue;
    if (topic.hypotheses.empty() || topic.hypotheses.contains(hypothesis)) return topic.name;
  }
  return experiment;
}

const std::vector<std::string>& topics() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Topic& topic : topic_list()) list.push_back(topic.name);
    return list;
  }();
  return names;
}

}  // namespace attn
