#include "proto2_stitching/claims.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "proto2_stitching/problem.h"

namespace attn {
namespace {

using Comparisons = std::vector<const Comparison*>;

constexpr double worth_it = 1.01;  // a form is cheap enough if (its time) / (the time of `monolithic`) is at most this

bool is_baseline(const Case& config) { return config.text("form") == "monolithic"; }

// Returns the id of the hypothesis about a case. The work of `chain` is swept, so all its cases belong to `break_even`.
std::string hypothesis_of(const Case& config) {
  const std::string &form = config.text("form"), &grain = config.text("grain");
  if (config.text("function") == "chain") return "break_even";
  if (grain == "element") return form;
  if (form_is_inlined(form)) return "inlined_grain";
  return grain == "row" ? "call_per_row" : "call_per_tile";
}

// Adds what the records of the two cases say about the calls and the machine code.
void describe_pair(Conclusion& conclusion, const Evidence& evidence) {
  const Results last(evidence.results.end() - 2, evidence.results.end());
  for (const auto& [name, result] : {std::pair("baseline", last[0]), {"contender", last[1]}}) {
    Json& facts = conclusion.values[name];
    const auto add = [&](const Json& known, const char* field) {
      facts[field] = known.is_object() ? known.value(field, Json(nullptr)) : Json(nullptr);
    };
    for (const char* field : {"calls", "calls_per_tile"}) add(result->values, field);
    for (const char* field : {"code_bytes", "registers", "spill_bytes"}) add(result->pipeline, field);
    const std::optional<int64_t> left = calls_left(result->pipeline);
    facts["calls_left"] = left ? Json(*left) : Json(nullptr);
  }
  conclusion.values["overhead_pct"] = 100 * (evidence.comparisons.back()->ratio.value - 1);
}

void describe_overhead(Conclusion& conclusion, const Evidence& evidence) {
  describe_pair(conclusion, evidence);
  if (conclusion.values["contender"]["calls_left"].is_null() || conclusion.values["baseline"]["calls_left"].is_null()) {
    return;
  }
  conclusion.content +=
      " The machine code has {values.contender.calls_left} calls and {values.contender.code_bytes} bytes, and with the "
      "text in place {values.baseline.calls_left} calls and {values.baseline.code_bytes} bytes.";
}

bool of_wgmma(const Case& config) { return config.has("variant") && config.text("variant") == "wgmma"; }

// The subject names the variant only for wgmma: when the first findings were recorded, each device had one kernel, and
// subjects did not name it.
std::string subject_of(const Evidence& evidence, std::set<std::string> left_out) {
  const Case& contender = evidence.results.back()->config;
  left_out.insert({"form", "grain", "block_r", "block_c"});
  if (!of_wgmma(contender)) left_out.insert("variant");
  return contender.key({"form", "grain"}) + " " + contender.key_without(left_out);
}

// How much longer does attention take with a form than with the form `monolithic`?
Claim form(const std::string& id, const std::string& text, const std::string& op, double threshold,
           const std::string& origin) {
  return {.hypothesis = {id, text, "time with the form / time with the text in place", op, threshold, origin},
          .takes = [id](const Measurement& r) { return is_baseline(r.config) || hypothesis_of(r.config) == id; },
          .varies = {"form", "grain"},
          .pick = against("form", "monolithic"),
          .title =
              "A score function as {values.contender.form} by {values.contender.grain} costs "
              "{values.overhead_pct:.2f} % ({values.contender.function}, head_dim {values.contender.head_dim})",
          .content =
              "With the score function {values.contender.function} as {values.contender.form}, called by "
              "{values.contender.grain}, attention takes {compare.ratio:.4f} (95 % interval {compare.ci_lo:.4f} to "
              "{compare.ci_hi:.4f}) of its time with the function's text in place, at {values.contender.q_len} queries "
              "and head_dim {values.contender.head_dim}; the noise floor of the pair is {compare.aa_floor:.4f}.",
          .complete = describe_overhead};
}

// The cost of a call: (time of the form - time of `monolithic`) * units / (calls of all units).
Claim call_cost(uint32_t units) {
  return {
      .hypothesis = {"call_ns", "A call costs at most 5 ns of a unit.", "ns per call", "<=", 5,
                     "expectation before the first run: the 10 to 20 cycles of a call, its spills and its return"},
      .gather =
          [](const std::vector<Comparison>& comparisons) {
            std::vector<Comparisons> calls;
            for (const Comparison& comparison : comparisons) {
              const Case& config = comparison.contender;
              const bool calls_each = config.text("grain") == "element" || config.text("form") == "noinline";
              if (calls_each && !form_is_inlined(config.text("form")) && hypothesis_of(config) != "break_even") {
                calls.push_back({&comparison});
              }
            }
            return calls;
          },
      .figure = [units](const Evidence& evidence) -> Estimate {
        const Comparison& pair = *evidence.comparisons.front();
        const double calls = evidence.results.back()->values.value("calls", 0.0);
        const double ns_of_all = pair.time.at(0).median_s * units / calls * 1e9;
        return {(pair.ratio.value - 1) * ns_of_all, (pair.ratio.ci_lo - 1) * ns_of_all,
                (pair.ratio.ci_hi - 1) * ns_of_all};
      },
      .title =
          "A call as {values.contender.form} by {values.contender.grain} costs {estimate.value:.2f} ns of a "
          "unit ({values.contender.function}, head_dim {values.contender.head_dim})",
      .content =
          "Each of {values.contender.calls} calls of {values.contender.function} as {values.contender.form} by "
          "{values.contender.grain} ({values.contender.calls_per_tile} a tile of {values.contender.block_r} x "
          "{values.contender.block_c}) costs {estimate.value:.3f} ns (95 % interval {estimate.ci_lo:.3f} to "
          "{estimate.ci_hi:.3f}) of one of {values.units} units, more than the function's text in place. The cost has "
          "two parts: the call itself, and what the optimiser can no longer do across the call.",
      .complete =
          [units](Conclusion& conclusion, const Evidence& evidence) {
            describe_pair(conclusion, evidence);
            conclusion.values["units"] = units;
          }};
}

// Returns the sweeps over the work of `chain` with at least three comparisons, in order of work.
std::vector<Comparisons> sweeps_of_work(const std::vector<Comparison>& comparisons) {
  std::map<std::string, std::map<int64_t, const Comparison*>> sweeps;
  for (const Comparison& comparison : comparisons) {
    if (comparison.hypothesis != "break_even") continue;
    sweeps[comparison.contender.key_without({"work"})][comparison.contender.integer("work")] = &comparison;
  }
  std::vector<Comparisons> found;
  for (const auto& [key, by_work] : sweeps) {
    if (by_work.size() < 3) continue;
    found.emplace_back();
    for (const auto& [work, comparison] : by_work) found.back().push_back(comparison);
  }
  return found;
}

int64_t work_of(const Comparison& comparison) { return comparison.contender.integer("work"); }

// The figure of a sweep in which the call is not cheap enough even at the largest work.
double beyond(const Comparisons& by_work) { return 2 * static_cast<double>(work_of(*by_work.back())); }

// Returns the least work from which on the ratio of the sweep is at most worth_it. The ends of the interval follow in
// the same way from the ends of the ratios' intervals.
Estimate least_paid_work(const Evidence& evidence) {
  const Comparisons& by_work = evidence.comparisons;
  const auto from = [&](double Estimate::* end) {
    double work = beyond(by_work);
    for (auto point = by_work.rbegin(); point != by_work.rend() && (*point)->ratio.*end <= worth_it; ++point) {
      work = static_cast<double>(work_of(**point));
    }
    return work;
  };
  return {from(&Estimate::value), from(&Estimate::ci_lo), from(&Estimate::ci_hi)};
}

void describe_break_even(Conclusion& conclusion, const Evidence& evidence) {
  describe_pair(conclusion, evidence);
  const Comparisons& by_work = evidence.comparisons;
  conclusion.values["points"] = Json::array();
  for (const Comparison* point : by_work) {
    conclusion.values["points"].push_back({{"work", work_of(*point)},
                                           {"ratio", point->ratio.value},
                                           {"ci_lo", point->ratio.ci_lo},
                                           {"ci_hi", point->ratio.ci_hi}});
  }
  conclusion.values["least"] = work_of(*by_work.front());
  conclusion.values["largest"] = work_of(*by_work.back());
  conclusion.values["least_overhead_pct"] = 100 * (by_work.front()->ratio.value - 1);
  const std::string call = "a call as {values.contender.form} by {values.contender.grain}";
  if (least_paid_work(evidence).value < beyond(by_work)) {
    conclusion.title = "From about {estimate.value:.0f} multiply-adds a score on, " + call + " costs at most 1 %";
    conclusion.content =
        "A function of {values.least} to {values.largest} multiply-adds a score was measured at "
        "head_dim {values.contender.head_dim}. From {estimate.value:.0f} multiply-adds on (95 % "
        "interval {estimate.ci_lo:.0f} to {estimate.ci_hi:.0f}) " +
        call +
        " costs at most 1 % of the time of attention, with {values.least} multiply-adds "
        "{values.least_overhead_pct:.2f} %.";
  } else {
    conclusion.title = "Up to {values.largest} multiply-adds a score, " + call + " costs more than 1 %";
    conclusion.content =
        "A function of {values.least} to {values.largest} multiply-adds a score was measured at "
        "head_dim {values.contender.head_dim}. With every number of multiply-adds " +
        call +
        " costs more than 1 % of the time of attention: {values.least_overhead_pct:.2f} % with "
        "{values.least}, {values.overhead_pct:.2f} % with {values.largest}.";
  }
}

Claim break_even() {
  Claim claim = form(
      "break_even", "From 64 multiply-adds a score on, a call costs at most 1 %.", "<=", 64,
      "expectation before the first run: 1 % of a row of 16 scores with 64 dependent multiply-adds each is a call");
  claim.hypothesis.metric = "multiply-adds a score from which a call costs at most 1 %";
  claim.gather = sweeps_of_work;
  claim.figure = least_paid_work;
  claim.subject = [](const Evidence& evidence) { return subject_of(evidence, {"work"}); };
  claim.complete = describe_break_even;
  return claim;
}

// Returns the pairs in which the contender's function is linked before the optimiser: a list for wgmma, and a list for
// the other kernels. The last pair has the largest ratio: a replay measures only this pair.
std::vector<Comparisons> stitched_pairs(const std::vector<Comparison>& comparisons) {
  std::map<bool, Comparisons> kernels;
  for (const Comparison& comparison : comparisons) {
    if (comparison.hypothesis == "stitched" || comparison.hypothesis == "stitch_or_constants") {
      kernels[of_wgmma(comparison.contender)].push_back(&comparison);
    }
  }
  std::vector<Comparisons> found;
  for (auto& [wgmma, pairs] : kernels) {
    std::stable_sort(pairs.begin(), pairs.end(),
                     [](const auto* a, const auto* b) { return a->ratio.value < b->ratio.value; });
    found.push_back(std::move(pairs));
  }
  return found;
}

Claim rule() {
  return {.hypothesis = {"stitch_or_constants",
                         "Stitching costs at most 1 % with every function: it can take the place of constants.",
                         "largest time stitched / time with the text in place", "<=", worth_it,
                         "the rule of that study: stitch if it costs under 1 %, else compile constants in"},
          .gather = stitched_pairs,
          .subject =
              [](const Evidence& evidence) {
                return std::string(of_wgmma(evidence.results.back()->config) ? "variant=wgmma" : "");
              },
          .tags = [](const Evidence&) { return std::vector<std::string>{"stitching", "recommendation"}; },
          .title =
              "Linked before the optimiser, a score function takes at most {compare.ratio:.4f} of the time with "
              "its text in place",
          .content =
              "Over {values.pairs} pairs of shape and function ({values.functions} functions) the score function "
              "linked before the optimiser takes at most {compare.ratio:.4f} (95 % interval {compare.ci_lo:.4f} to "
              "{compare.ci_hi:.4f}) of the time with its text in place, with {values.contender.function} at head_dim "
              "{values.contender.head_dim}. The rule is: link functions before the optimiser if this costs at most 1 "
              "%, else compile a kernel for each function.",
          .complete =
              [](Conclusion& conclusion, const Evidence& evidence) {
                describe_pair(conclusion, evidence);
                std::set<std::string> functions;
                for (const Comparison* pair : evidence.comparisons) functions.insert(pair->contender.text("function"));
                conclusion.values["functions"] = functions.size();
                conclusion.values["pairs"] = evidence.comparisons.size();
              }};
}

}  // namespace

std::vector<Claim> stitch_claims(uint32_t units) {
  const std::string study = "the published study on Apple M4 that this follows measured";
  const std::string as_a_call = "expectation before the first run: as any call in the inner loop; " + study + " +39 %";
  std::vector<Claim> claims = {
      form("inline", "A helper that is always inlined costs at most 1 %.", "<=", worth_it, study + " +0.28 %"),
      form("noinline", "A call per score costs at least 39 %.", ">=", 1.39, study + " +39 %"),
      form("switch", "A branch on a uniform value costs at most 1 %.", "<=", worth_it,
           "expectation before the first run: it is predicted, or hoisted out of the loop"),
      form("pointer", "A call per score through a table in memory costs at least 39 %.", ">=", 1.39, as_a_call),
      form("stitched", "A function linked before the optimiser costs at most 1 %.", "<=", worth_it,
           "expectation written down before that study: stitching is worth it under 1 %"),
      form("stitched_graph", "A function of a stitching graph costs at most 1 %.", "<=", worth_it,
           "expectation before the first run: the graph's functions are linked before the optimiser too"),
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
      call_cost(units),
      break_even(),
      rule()};
  for (Claim& claim : claims) {
    if (!claim.subject) claim.subject = [](const Evidence& evidence) { return subject_of(evidence, {}); };
    if (claim.tags) continue;
    claim.tags = [](const Evidence& evidence) {
      const Case& contender = evidence.results.back()->config;
      return std::vector<std::string>{"stitching", contender.text("form"), "by_" + contender.text("grain"),
                                      contender.text("function"), "d" + std::to_string(contender.integer("head_dim"))};
    };
  }
  return claims;
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
