#include "proto6_linear/crossover.h"

#include <algorithm>
#include <cmath>
#include <ranges>
#include <set>
#include <string>

#include "common/experiment/sweep_span.h"
#include "proto6_linear/problem.h"

namespace attn {
namespace {

constexpr int64_t last_of_small = 8192, last_of_large = 65536;
// Shares of the remaining budget that a probe may take: for the measurements of its two cases together, and for the
// comparison of the two.
constexpr double share_of_cases = 1.0 / 400, share_of_comparison = 1.0 / 200;

bool may_be_equal(const Estimate& ratio) { return ratio.ci_lo <= 1 && ratio.ci_hi >= 1; }

std::string setting_of(const Case& config) { return config.key_without({"q_len", "chunk"}); }

/// The two cases of a search, before their lengths are set.
struct Pair {
  Case softmax, linear;
};

/// Returns one pair for each setting of the linear cases in groups that also have softmax attention, with the first
/// linear case of the setting that the device can run.
std::vector<Pair> pairs_of(const std::vector<std::vector<Case>>& groups, const Setting& setting) {
  std::vector<Pair> pairs;
  std::set<std::string> known;
  for (const std::vector<Case>& group : groups) {
    const auto softmax =
        std::ranges::find_if(group, [](const Case& config) { return config.text("variant") == "softmax"; });
    if (softmax == group.end()) continue;
    for (const Case& linear : group) {
      if (linear.text("variant") != "fused" && linear.text("variant") != "phases") continue;
      if (skip_reason(linear_case_plan(linear, setting), setting.device)) continue;
      const std::string key = linear.key_without({"q_len", "chunk", "variant", "scan", "segments"});
      if (known.insert(key).second) pairs.push_back({*softmax, linear});
    }
  }
  return pairs;
}

/// Returns the time of linear attention / the time of softmax attention at a length, or nothing if one of the two cases
/// cannot run or the budget is spent.
std::optional<Estimate> probe(Experiment& lab, Pair pair, int64_t tokens) {
  for (Case* config : {&pair.softmax, &pair.linear}) config->set("q_len", tokens);
  const std::vector<Case> missing = lab.unmeasured({pair.softmax, pair.linear});
  if (!missing.empty()) lab.measure({missing}, share_of_cases);
  const size_t before = lab.comparisons().size();
  lab.compare({{crossover_hypothesis, pair.softmax, pair.linear}}, share_of_comparison);
  if (lab.comparisons().size() == before) return std::nullopt;
  return lab.comparisons().back().ratio;
}

}  // namespace

std::optional<int64_t> Bracket::faster_side() const {
  std::optional<int64_t> faster;
  for (const auto& [tokens, ratio] : ratios_ | std::views::reverse) {
    if (!(ratio.value < 1)) break;
    faster = tokens;
  }
  return faster;
}

std::optional<int64_t> Bracket::slower_side() const {
  const std::optional<int64_t> faster = faster_side();
  std::optional<int64_t> slower;
  for (const auto& [tokens, ratio] : ratios_) {
    if (!faster || tokens < *faster) slower = tokens;
  }
  return slower;
}

bool Bracket::begins_faster() const { return faster_side() == first; }

bool Bracket::ends_slower() const { return !faster_side(); }

std::optional<int64_t> Bracket::next() const {
  if (ratios_.empty()) return first;
  const auto& [longest, its_ratio] = *ratios_.rbegin();
  if (!(its_ratio.value < clearly_faster) && longest < last_) return std::min(2 * longest, last_);
  const std::optional<int64_t> faster = faster_side(), slower = slower_side();
  if (!faster || !slower || *faster - *slower <= std::max(grain, *slower / 8)) return std::nullopt;
  if (may_be_equal(ratios_.at(*faster)) && may_be_equal(ratios_.at(*slower))) return std::nullopt;
  return (*slower + *faster) / 2 / grain * grain;
}

Estimate Bracket::tokens() const {
  const std::optional<int64_t> faster = faster_side(), slower = slower_side();
  const auto only = [](int64_t tokens) {
    const auto value = static_cast<double>(tokens);
    return Estimate{value, value, value};
  };
  if (!faster) return only(*slower);
  if (!slower) return only(*faster);
  const double above = std::log(ratios_.at(*slower).value), below = std::log(ratios_.at(*faster).value);
  const auto low = static_cast<double>(*slower), high = static_cast<double>(*faster);
  Estimate found{low * std::pow(high / low, above > below ? above / (above - below) : 0.5), first, 0};
  for (const auto& [tokens, ratio] : ratios_) {
    if (tokens < *faster && ratio.ci_lo > 1) found.ci_lo = static_cast<double>(tokens);
    if (tokens > *slower && ratio.ci_hi < 1 && found.ci_hi == 0) found.ci_hi = static_cast<double>(tokens);
  }
  if (found.ci_hi == 0) found.ci_hi = static_cast<double>(last_);
  return found;
}

int64_t Bracket::nearest() const {
  const std::optional<int64_t> faster = faster_side();
  return faster ? *faster : *slower_side();
}

std::vector<std::vector<const Comparison*>> crossover_searches(const std::vector<Comparison>& comparisons) {
  std::vector<std::vector<const Comparison*>> searches;
  std::vector<std::string> settings;
  for (const Comparison& comparison : comparisons) {
    if (comparison.hypothesis != crossover_hypothesis) continue;
    const std::string setting = setting_of(comparison.contender);
    const auto place = static_cast<size_t>(std::ranges::find(settings, setting) - settings.begin());
    if (place == settings.size()) {
      settings.push_back(setting);
      searches.emplace_back();
    }
    searches[place].push_back(&comparison);
  }
  return searches;
}

Bracket bracket_of(const std::vector<const Comparison*>& comparisons) {
  int64_t longest = Bracket::first;
  for (const Comparison* comparison : comparisons) {
    longest = std::max(longest, comparison->contender.integer("q_len"));
  }
  Bracket bracket(longest);
  for (const Comparison* comparison : comparisons) {
    bracket.add(comparison->contender.integer("q_len"), comparison->ratio);
  }
  return bracket;
}

bool faster_beyond_noise(const std::vector<const Comparison*>& comparisons) {
  return std::ranges::any_of(comparisons, [](const Comparison* one) {
    return one->ratio.ci_hi < 1 && std::log(one->ratio.value) + one->aa_floor() < 0;
  });
}

int run_with_crossovers(Experiment& lab) {
  if (lab.wants(crossover_hypothesis) || lab.wants("crossover_4096")) {
    const int64_t last = sweep_span(lab.info()).large() ? last_of_large : last_of_small;
    for (const Pair& pair : pairs_of(lab.groups(), {lab.info(), lab.files()})) {
      Bracket bracket(last);
      while (const std::optional<int64_t> tokens = bracket.next()) {
        const std::optional<Estimate> ratio = probe(lab, pair, *tokens);
        if (!ratio) break;
        bracket.add(*tokens, *ratio);
      }
    }
  }
  std::vector<std::vector<Case>> groups;
  for (const std::vector<Case>& cases : lab.groups()) {
    if (const std::vector<Case> missing = lab.unmeasured(cases); !missing.empty()) groups.push_back(missing);
  }
  lab.measure(groups);
  return lab.compare_and_conclude();
}

}  // namespace attn
