#include "proto2_stitching/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "proto2_stitching/problem.h"

namespace attn {
namespace {

constexpr double worth_it = 1.01;  // the rule: a form that costs no more than this is taken
const std::set<std::string> call_axes = {"form", "grain"};

bool is_timed(const Measurement& result) { return result.status == "ok" && result.timing(Scope::device_hot); }

bool is_baseline(const Case& config) { return config.text("form") == "monolithic"; }

// The hypothesis that the form and grain of a case answer; that of `chain`, whose work is swept, is about the sweep.
std::string hypothesis_of(const Case& config) {
  const std::string &form = config.text("form"), &grain = config.text("grain");
  if (config.text("function") == "chain") return "break_even";
  if (grain == "element") return form;
  if (form_is_inlined(form)) return "inlined_grain";
  return grain == "row" ? "call_per_row" : "call_per_tile";
}

const Measurement* find(const std::vector<Measurement>& results, const Case& config) {
  const auto found =
      std::find_if(results.begin(), results.end(), [&](const Measurement& result) { return result.config == config; });
  return found == results.end() ? nullptr : &*found;
}

// What the records say of the two codes.
Json evidence(const Measurement& result) {
  Json facts = result.config.json();
  facts["calls"] = result.values.value("calls", Json(nullptr));
  facts["calls_per_tile"] = result.values.value("calls_per_tile", Json(nullptr));
  const std::optional<int64_t> left = calls_left(result.pipeline);
  facts["calls_left"] = left ? Json(*left) : Json(nullptr);
  for (const char* field : {"code_bytes", "registers", "spill_bytes"}) {
    facts[field] = result.pipeline.is_object() ? result.pipeline.value(field, Json(nullptr)) : Json(nullptr);
  }
  return facts;
}

// A conclusion about one pair, without its words.
Conclusion about(const Comparison& comparison, const std::vector<Measurement>& results) {
  Conclusion conclusion;
  const Case& contender = comparison.contender;
  conclusion.subject =
      contender.key({"form", "grain"}) + " " + contender.key_without({"form", "grain", "block_r", "block_c"});
  conclusion.tags = {"stitching", contender.text("form"), "by_" + contender.text("grain"), contender.text("function"),
                     "d" + std::to_string(contender.integer("head_dim"))};
  conclusion.estimate = comparison.ratio;
  conclusion.aa_floor = comparison.aa_floor();
  conclusion.cv = comparison.cv;
  conclusion.compare = comparison;
  for (const auto& [name, config] : {std::pair("baseline", &comparison.baseline), {"contender", &contender}}) {
    const Measurement* result = find(results, *config);
    if (!result) continue;
    conclusion.values[name] = evidence(*result);
    conclusion.measurements.push_back(result->id);
    conclusion.correct &= result->status == "ok";
  }
  conclusion.values["overhead_pct"] = 100 * (comparison.ratio.value - 1);
  return conclusion;
}

Conclusion conclude_overhead(const Comparison& comparison, const std::vector<Measurement>& results) {
  Conclusion conclusion = about(comparison, results);
  conclusion.hypothesis = comparison.hypothesis;
  conclusion.title =
      "A score function as {values.contender.form} by {values.contender.grain} costs {values.overhead_pct:.2f} % "
      "({values.contender.function}, head_dim {values.contender.head_dim})";
  conclusion.content =
      "With the score function {values.contender.function} as {values.contender.form}, called by "
      "{values.contender.grain}, attention takes {compare.ratio:.4f} (95 % interval {compare.ci_lo:.4f} to "
      "{compare.ci_hi:.4f}) of its time with the function's text in place, at {values.contender.q_len} queries and "
      "head_dim {values.contender.head_dim}; the noise floor of the pair is {compare.aa_floor:.4f}.";
  if (!conclusion.values["contender"]["calls_left"].is_null() &&
      !conclusion.values["baseline"]["calls_left"].is_null()) {
    conclusion.content +=
        " Its machine code has {values.contender.calls_left} calls and {values.contender.code_bytes} bytes, against "
        "{values.baseline.calls_left} and {values.baseline.code_bytes}.";
  }
  return conclusion;
}

// What a call costs: the time over `monolithic`, of all units, by the calls they make.
std::optional<Conclusion> conclude_call(const Comparison& comparison, const std::vector<Measurement>& results,
                                        uint32_t units) {
  const Case& contender = comparison.contender;
  const Measurement* result = find(results, contender);
  if (!result || form_is_inlined(contender.text("form"))) return std::nullopt;
  if (contender.text("grain") != "element" && contender.text("form") != "noinline") return std::nullopt;
  const double calls = result->values.is_object() ? result->values.value("calls", 0.0) : 0;
  if (calls <= 0) return std::nullopt;
  Conclusion conclusion = about(comparison, results);
  conclusion.hypothesis = "call_ns";
  const double ns_of_all = comparison.time.at(0).median_s * units / calls * 1e9;
  const auto of_ratio = [&](double ratio) { return (ratio - 1) * ns_of_all; };
  conclusion.estimate = {of_ratio(comparison.ratio.value), of_ratio(comparison.ratio.ci_lo),
                         of_ratio(comparison.ratio.ci_hi)};
  conclusion.aa_floor = 0;
  conclusion.compare = comparison;
  conclusion.values["units"] = units;
  conclusion.title =
      "A call as {values.contender.form} by {values.contender.grain} costs {estimate.value:.2f} ns of a unit "
      "({values.contender.function}, head_dim {values.contender.head_dim})";
  conclusion.content =
      "Each of {values.contender.calls} calls of {values.contender.function} as {values.contender.form} by "
      "{values.contender.grain} ({values.contender.calls_per_tile} a tile of {values.contender.block_r} x "
      "{values.contender.block_c}) costs {estimate.value:.3f} ns (95 % interval {estimate.ci_lo:.3f} to "
      "{estimate.ci_hi:.3f}) of one of {values.units} units, over the function's text in place: the call itself, and "
      "what the optimiser can no longer do across it.";
  return conclusion;
}

// From which work on a call is paid for: the least that was tried at which, and above which, the ratio is small enough.
// What no work reaches is given as twice the largest.
Conclusion conclude_break_even(const std::map<int64_t, const Comparison*>& by_work,
                               const std::vector<Measurement>& results) {
  const Comparison& largest = *by_work.rbegin()->second;
  const double beyond = 2 * static_cast<double>(by_work.rbegin()->first);
  const auto from = [&](double Estimate::* end) {
    double work = beyond;
    for (auto point = by_work.rbegin(); point != by_work.rend() && point->second->ratio.*end <= worth_it; ++point) {
      work = static_cast<double>(point->first);
    }
    return work;
  };
  Conclusion conclusion = about(largest, results);
  conclusion.hypothesis = "break_even";
  conclusion.subject = largest.contender.key({"form", "grain"}) + " " +
                       largest.contender.key_without({"form", "grain", "work", "block_r", "block_c"});
  conclusion.estimate = {from(&Estimate::value), from(&Estimate::ci_lo), from(&Estimate::ci_hi)};
  conclusion.aa_floor = 0;
  conclusion.measurements.clear();
  Json points = Json::array();
  for (const auto& [work, comparison] : by_work) {
    points.push_back({{"work", work},
                      {"ratio", comparison->ratio.value},
                      {"ci_lo", comparison->ratio.ci_lo},
                      {"ci_hi", comparison->ratio.ci_hi}});
    conclusion.cv = std::max(conclusion.cv, comparison->cv);
    for (const Case* config : {&comparison->baseline, &comparison->contender}) {
      if (const Measurement* result = find(results, *config)) {
        conclusion.measurements.push_back(result->id);
        conclusion.correct &= result->status == "ok";
      }
    }
  }
  conclusion.values["points"] = points;
  conclusion.values["least"] = by_work.begin()->first;
  conclusion.values["largest"] = by_work.rbegin()->first;
  conclusion.values["least_overhead_pct"] = 100 * (by_work.begin()->second->ratio.value - 1);
  const std::string call = "a call as {values.contender.form} by {values.contender.grain}";
  if (conclusion.estimate.value < beyond) {
    conclusion.title = "From {estimate.value:.0f} multiply-adds a score on, " + call + " costs at most 1 %";
    conclusion.content = "Of a function of {values.least} to {values.largest} multiply-adds a score, " + call +
                         " costs at most 1 % of attention from {estimate.value:.0f} on, at head_dim "
                         "{values.contender.head_dim}; with {values.least} it costs {values.least_overhead_pct:.2f} %.";
  } else {
    conclusion.title = "Up to {values.largest} multiply-adds a score, " + call + " costs more than 1 %";
    conclusion.content = "Of a function of {values.least} to {values.largest} multiply-adds a score, " + call +
                         " costs more than 1 % of attention at every cost, at head_dim {values.contender.head_dim}: "
                         "{values.least_overhead_pct:.2f} % with the least, {values.overhead_pct:.2f} % with the most.";
  }
  return conclusion;
}

// The rule: stitch if it costs no more than 1 % for any function, else compile a kernel for each.
Conclusion conclude_rule(const std::vector<const Comparison*>& stitched, const std::vector<Measurement>& results) {
  const Comparison& worst = **std::max_element(
      stitched.begin(), stitched.end(), [](const auto* a, const auto* b) { return a->ratio.value < b->ratio.value; });
  Conclusion conclusion = about(worst, results);
  conclusion.hypothesis = "stitch_or_constants";
  conclusion.subject = "";
  conclusion.tags = {"stitching", "recommendation"};
  const std::vector<Hypothesis> hypotheses = stitch_hypotheses();
  const auto rule = std::find_if(hypotheses.begin(), hypotheses.end(),
                                 [](const Hypothesis& h) { return h.id == "stitch_or_constants"; });
  const State state = judge(*rule, conclusion).state;
  conclusion.values["recommendation"] = state == State::supported ? "link score functions in before the optimiser"
                                        : state == State::refuted
                                            ? "compile a kernel for each score function"
                                            : "undecided: measure longer, or on a quieter machine";
  std::set<std::string> functions;
  for (const Comparison* comparison : stitched) functions.insert(comparison->contender.text("function"));
  conclusion.values["functions"] = functions.size();
  conclusion.values["pairs"] = stitched.size();
  conclusion.title = "Recommendation: {values.recommendation}";
  conclusion.content =
      "Over {values.pairs} pairs of shape and function ({values.functions} functions) the score function linked before "
      "the optimiser takes at most {compare.ratio:.4f} (95 % interval {compare.ci_lo:.4f} to {compare.ci_hi:.4f}) of "
      "the "
      "time with its text in place, with {values.contender.function} at head_dim {values.contender.head_dim}. The rule "
      "takes it up to 1 % and compiles a kernel for each function above: {values.recommendation}.";
  return conclusion;
}

}  // namespace

std::vector<Hypothesis> stitch_hypotheses() {
  const std::string study = "the published study on Apple M4 that this follows measured";
  const std::string metric = "time with the form / time with the text in place";
  const auto form = [&](const std::string& id, const std::string& text, const std::string& op, double threshold,
                        const std::string& origin) { return Hypothesis{id, text, metric, op, threshold, origin}; };
  const std::string as_a_call = "expectation before the first run: as any call in the inner loop; " + study + " +39 %";
  return {
      form("inline", "A helper that is always inlined costs at most 1 %.", "<=", worth_it, study + " +0.28 %"),
      form("noinline", "A call per score costs at least 39 %.", ">=", 1.39, study + " +39 %"),
      form("switch", "A branch on a uniform value costs at most 1 %.", "<=", worth_it,
           "expectation before the first run: it is predicted, or hoisted out of the loop"),
      form("pointer", "A call per score through a table in memory costs at least 39 %.", ">=", 1.39, as_a_call),
      form("stitched", "A function linked before the optimiser costs at most 1 %.", "<=", worth_it,
           "expectation written down before that study: stitching is worth it under 1 %"),
      form("stitched_nolto", "A function linked as machine code, called per score, costs at least 39 %.", ">=", 1.39,
           as_a_call),
      form("std_function", "A std::function called per score costs at least 39 %.", ">=", 1.39, as_a_call),
      form("virtual", "A virtual function called per score costs at least 39 %.", ">=", 1.39, as_a_call),
      form("inlined_grain", "A function that the optimiser sees costs at most 1 %, however many scores it takes.",
           "<=", worth_it, "expectation before the first run: the loop over scores moves from one side to the other"),
      form("call_per_row", "One call for a row of scores costs at most 5 %.", "<=", 1.05,
           "expectation before the first run: a row of 8 to 32 scores shares the call and keeps its vectors"),
      form("call_per_tile", "One call for a tile of scores costs at most 1 %.", "<=", worth_it,
           "expectation before the first run: a hundred scores and more share the call"),
      {"call_ns", "A call costs at most 5 ns of a unit.", "ns per call", "<=", 5,
       "expectation before the first run: the 10 to 20 cycles of a call, its spills and its return"},
      {"break_even", "From 64 multiply-adds a score on, a call costs at most 1 %.",
       "multiply-adds a score from which a call costs at most 1 %", "<=", 64,
       "expectation before the first run: 1 % of a row of 16 scores with 64 dependent multiply-adds each is a call"},
      {"stitch_or_constants", "Stitching costs at most 1 % with every function: it can take the place of constants.",
       "largest time stitched / time with the text in place", "<=", worth_it,
       "the rule of that study: stitch if it costs under 1 %, else compile constants in"},
  };
}

std::vector<Duel> stitch_duels(const std::vector<Measurement>& results) {
  std::map<std::string, const Measurement*> baselines;
  for (const Measurement& result : results) {
    if (is_timed(result) && is_baseline(result.config)) baselines[result.config.key_without(call_axes)] = &result;
  }
  std::vector<Duel> duels;
  for (const Measurement& result : results) {
    const auto baseline = baselines.find(result.config.key_without(call_axes));
    if (!is_timed(result) || is_baseline(result.config) || baseline == baselines.end()) continue;
    duels.push_back({hypothesis_of(result.config), baseline->second->config, result.config});
  }
  return in_turn(duels, {"break_even"});
}

std::vector<Conclusion> stitch_conclusions(const std::vector<Measurement>& results,
                                           const std::vector<Comparison>& comparisons, uint32_t units) {
  std::vector<Conclusion> conclusions;
  std::map<std::string, std::map<int64_t, const Comparison*>> sweeps;
  std::vector<const Comparison*> stitched;
  for (const Comparison& comparison : comparisons) {
    const Case& contender = comparison.contender;
    if (comparison.hypothesis == "break_even") {
      sweeps[contender.key_without({"work"})][contender.integer("work")] = &comparison;
      continue;
    }
    conclusions.push_back(conclude_overhead(comparison, results));
    if (auto call = conclude_call(comparison, results, units)) conclusions.push_back(std::move(*call));
    if (comparison.hypothesis == "stitched") stitched.push_back(&comparison);
  }
  for (const auto& [key, by_work] : sweeps) {
    if (by_work.size() >= 3) conclusions.push_back(conclude_break_even(by_work, results));
  }
  if (!stitched.empty()) conclusions.push_back(conclude_rule(stitched, results));
  return conclusions;
}

std::optional<int64_t> calls_left(const Json& pipeline) {
  if (!pipeline.is_object() || !pipeline.contains("instructions") || !pipeline["instructions"].is_object()) {
    return std::nullopt;
  }
  int64_t calls = 0;
  for (const auto& [name, count] : pipeline["instructions"].items()) {
    const bool call = name.starts_with("call") || name == "CALL" || name == "bl" || name == "blr";
    if (call) calls += count.get<int64_t>();
  }
  return calls;
}

}  // namespace attn
