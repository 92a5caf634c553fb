// Checks of an experiment's claims, sweep and answer, the same for every experiment, on made-up results.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/experiment/experiment.h"
#include "common/records/decisions.h"
#include "common/testing/devices.h"
#include "common/testing/made_up.h"

namespace attn::test {

/// A made-up device: what a run of the experiment would measure on it.
struct MadeUp {
  ExperimentSpec spec;
  DeviceInfo device;
  /// The time of a case. The result has a config and, if the plan of the case can run, a work.
  std::function<double(const Measurement& result)> seconds;
  std::function<void(Measurement& result)> also = {};  // sets what else claims read: values, ceilings, pipeline

  std::vector<Claim> claims() const { return spec.claims(device); }
  std::vector<Case> cases(const Sweep& sweep) const {
    return expand(sweep, spec.axes, [&](Case& config) { spec.complete(config, device); });
  }
  /// The interval of the time is 1 % of the time on both sides.
  Measurement result(const Case& config, size_t number = 0) const {
    Measurement made;
    made.id = fmt::format("{:016x}", number);
    made.config = config;
    made.check = Check{};
    if (const CasePlan plan = spec.plan(config, {device}); !skip_reason(plan, device)) {
      made.work = plan.work;
      const bool memory = plan.work.bound == Bound::memory;
      const double time = seconds(made);
      const auto timing = [&](Scope scope) {
        return Timing{scope, 10, 10, time, 0.99 * time, 1.01 * time, 0.01, time, "ci"};
      };
      if (memory && !plan.host) made.time.push_back(timing(Scope::device_cold));
      if (!plan.host) made.time.push_back(timing(Scope::device_hot));
      made.time.push_back(timing(Scope::host));
    }
    if (also) also(made);
    return made;
  }
  /// Results of the cases that the device can run.
  std::vector<Measurement> results(const Sweep& sweep) const {
    std::vector<Measurement> all;
    for (const Case& config : cases(sweep)) {
      if (Measurement made = result(config, all.size()); !made.time.empty()) all.push_back(std::move(made));
    }
    return all;
  }
  std::vector<Measurement> results(const std::string& profile) const { return results(spec.sweep(profile, device)); }

  /// The comparison of two results, with narrow intervals. With one memory-bound case both times are with cold caches.
  static Comparison comparison(const std::string& hypothesis, const Measurement& baseline,
                               const Measurement& contender) {
    const Timing one = *baseline.main_timing(), other = *contender.main_timing();
    Comparison made = made_up_comparison({hypothesis, baseline.config, contender.config}, one.median_s, other.median_s);
    const bool cold = one.scope == Scope::device_cold || other.scope == Scope::device_cold;
    for (Timing& time : made.time) time.scope = cold ? Scope::device_cold : one.scope;
    return made;
  }
  std::vector<Comparison> comparisons(const std::vector<Measurement>& results) const {
    std::map<std::string, const Measurement*> of;
    for (const Measurement& result : results) of[result.config.key()] = &result;
    std::vector<Comparison> all;
    for (const Duel& duel : duels(claims(), results)) {
      all.push_back(comparison(duel.hypothesis, *of.at(duel.baseline.key()), *of.at(duel.contender.key())));
    }
    return all;
  }
  /// The conclusions of one claim, or of all claims.
  std::vector<Conclusion> conclusions(const std::vector<Measurement>& results,
                                      const std::vector<Comparison>& comparisons, const std::string& only = "") const {
    std::vector<Conclusion> all = conclude(claims(), results, comparisons, steady_processes());
    if (!only.empty()) std::erase_if(all, [&](const Conclusion& one) { return one.hypothesis != only; });
    return all;
  }
  std::vector<Conclusion> conclusions(const std::vector<Measurement>& results, const std::string& only = "") const {
    return conclusions(results, comparisons(results), only);
  }
  const Hypothesis& hypothesis(const std::string& id) const {
    static std::map<std::string, Hypothesis> known;
    for (const Claim& claim : claims()) known.insert_or_assign(claim.hypothesis.id, claim.hypothesis);
    return known.at(id);
  }
  State verdict(const Conclusion& conclusion) const {
    return judge(hypothesis(conclusion.hypothesis), conclusion).state;
  }
  Json finding(const Conclusion& conclusion) const {
    return make_finding(spec.name, "made up", hypothesis(conclusion.hypothesis), conclusion, "r");
  }
};

/// A row of an experiment's table of claims. It names neither operator nor threshold, so the check finds a wrong
/// operator.
struct ClaimRow {
  std::string id;
  /// The axes in which the two cases of the claim's pairs differ; empty: the claim compares no pairs.
  std::string differ_in;
  std::string verdicts;  // on the made-up results: "supported", "refuted", "inconclusive", or several of them
};

/// What the claims of a made-up device made of its results.
struct Judged {
  const MadeUp& made;
  std::vector<Measurement> results;
  std::vector<Comparison> comparisons;

  Judged(const MadeUp& device, std::vector<Measurement> all)
      : made(device), results(std::move(all)), comparisons(device.comparisons(results)) {}
  Judged(const MadeUp& device, const std::string& profile) : Judged(device, device.results(profile)) {}
};

/// Checks that each claim of the devices has a row, that its pairs differ as the row says, that its conclusions render
/// and have verdicts as the row says.
inline void expect_claims(const std::vector<Judged>& devices, const std::vector<ClaimRow>& table) {
  std::map<std::string, std::set<std::string>> varied, verdicts;
  std::set<std::string> known;
  for (const auto& [made, results, comparisons] : devices) {
    SCOPED_TRACE(made.device.spec);
    const std::vector<Claim> claims = made.claims();
    std::set<std::string> own, keys;
    for (const Claim& claim : claims) {
      SCOPED_TRACE(claim.hypothesis.id);
      EXPECT_TRUE(own.insert(claim.hypothesis.id).second) << "two claims have this id";
      EXPECT_TRUE((std::set<std::string>{"<", "<=", ">", ">="}.contains(claim.hypothesis.op)));
      EXPECT_FALSE(claim.hypothesis.origin.empty() || claim.hypothesis.metric.empty());
      EXPECT_NE(std::ranges::find(table, claim.hypothesis.id, &ClaimRow::id), table.end()) << "the claim has no row";
    }
    known.insert(own.begin(), own.end());
    for (const Duel& duel : duels(claims, results)) {
      EXPECT_NE(duel.baseline, duel.contender) << duel.hypothesis;
      for (const auto& [axis, value] : duel.baseline.axes()) {
        if (duel.contender.value_text(axis) != to_string(value)) varied[duel.hypothesis].insert(axis);
      }
    }
    for (const Conclusion& conclusion : made.conclusions(results, comparisons)) {
      SCOPED_TRACE(conclusion.hypothesis + " of " + conclusion.subject);
      verdicts[conclusion.hypothesis].insert(std::string(name(made.verdict(conclusion))));
      const Json finding = made.finding(conclusion);
      for (const char* text : {"title", "content"}) {
        EXPECT_EQ(finding.at(text).get<std::string>().find('{'), std::string::npos) << finding.at(text);
      }
      EXPECT_FALSE(conclusion.measurements.empty());
      EXPECT_EQ(std::set(conclusion.tags.begin(), conclusion.tags.end()).size(), conclusion.tags.size());
      EXPECT_TRUE(keys.insert(finding.at("claim_key")).second) << "two findings would be pooled as two runs";
    }
    // A claim does not judge a case by the samples that picked the case.
    for (const Claim& claim : claims) {
      const bool again =
          !claim.compared && !claim.exact && claim.measured_again && verdicts.contains(claim.hypothesis.id);
      if (again && !made.conclusions(results, comparisons, claim.hypothesis.id).empty()) {
        EXPECT_FALSE(cases_of_claims({claim}, results).empty()) << claim.hypothesis.id;
      }
    }
  }
  for (const ClaimRow& row : table) {
    EXPECT_TRUE(known.contains(row.id)) << row.id << " is no claim";
    EXPECT_EQ(fmt::format("{}", fmt::join(varied[row.id], " ")), row.differ_in) << row.id;
    EXPECT_EQ(fmt::format("{}", fmt::join(verdicts[row.id], " ")), row.verdicts) << row.id;
  }
}

/// Checks that the profile `study` has only cases of the study: f32, head_dim 64 (of chunks also 128), 256 to 2048
/// tokens, and one head, or eight heads in groups. A value of 0 says that the case has no such axis. The device runs
/// some of the cases.
inline void expect_study_cases(const MadeUp& made) {
  ASSERT_TRUE(made.spec.study_sweep);
  int run = 0;
  for (const Case& config : made.cases(made.spec.study_sweep(made.device))) {
    SCOPED_TRACE(config.key());
    EXPECT_EQ(config.text("dtype"), "f32");
    const int64_t width = config.has("head_dim") ? config.integer("head_dim") : 0;
    EXPECT_TRUE(width == 64 || width == 0 || (width == 128 && config.has("chunk")));
    const int64_t tokens = config.has("kv_len") ? config.integer("kv_len") : config.integer("q_len");
    const bool empty = config.has("op") && config.text("op") == "empty";
    EXPECT_TRUE(tokens == 0 || empty || (256 <= tokens && tokens <= 2048));
    const int64_t heads = config.integer(config.has("heads") ? "heads" : "q_heads");
    EXPECT_TRUE(heads <= 1 || (heads == 8 && config.has("kv_heads_by")));
    run += !skip_reason(made.spec.plan(config, {made.device}), made.device);
  }
  EXPECT_GT(run, 0);
}

/// Checks that the full sweep holds the quick one if `holds`, and that each case has a value for each axis.
inline void expect_sweep(const ExperimentSpec& spec, bool holds = true) {
  for (const DeviceInfo& device : {avx2(), hopper(), metal()}) {
    SCOPED_TRACE(device.spec);
    const MadeUp made{spec, device, {}};
    std::set<std::string> full;
    for (const Case& config : made.cases(spec.sweep("full", device))) {
      full.insert(config.key());
      for (const AxisInfo& axis : spec.axes) EXPECT_TRUE(config.has(axis.name)) << axis.name << " of " << config.key();
    }
    int run = 0;
    for (const Case& config : made.cases(spec.sweep("quick", device))) {
      EXPECT_TRUE(!holds || full.contains(config.key())) << config.key();
      run += !skip_reason(spec.plan(config, {device}), device);
    }
    EXPECT_GT(run, 0);
    expect_study_cases(made);
  }
}

/// Returns the options that the answer recommends, where it does not call all options as good.
inline std::set<std::string> taken(const Json& answer) {
  std::set<std::string> options;
  for (const Json& row : answer.at("rows")) {
    if (row.at("options") > row.at("as_good").size() + 1) options.insert(row.at("take"));
  }
  return options;
}
inline Json answer_of(const MadeUp& made, const std::vector<Measurement>& results) {
  const MeasuredRun run = {.id = "run", .results = results};
  return decisions({.experiment = made.spec.name, .device = "made up", .runs = {&run}, .complete = [&](Case& config) {
                      made.spec.complete(config, made.device);
                    }});
}
/// The options that the answer recommends if cases with these values of axes ("form=noinline grain=row") take half of
/// the others' time.
inline std::set<std::string> taken_if_fast(const ExperimentSpec& spec, const std::string& values) {
  std::vector<std::string> axes;
  std::istringstream words(values);
  for (std::string word; words >> word;) axes.push_back(word.substr(0, word.find('=')));
  const MadeUp made{spec, avx2(),
                    [&](const Measurement& result) { return result.config.key(axes) == values ? 1e-3 : 2e-3; }};
  return taken(answer_of(made, made.results("quick")));
}

}  // namespace attn::test
