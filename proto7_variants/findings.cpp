#include "proto7_variants/findings.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "proto7_variants/modifiers.h"

namespace attn {
namespace {

constexpr const char* expectation = "expectation before the first run";

using Names = std::vector<std::string>;

std::set<std::string> what_varies() {
  std::set<std::string> axes = {"block_r", "block_c"};
  for (const auto& [axis, off] : modifier_axes()) axes.insert(axis);
  return axes;
}

// Plain attention, and with exactly these modifiers, whatever their values.
Pick plain_and(const Names& modifiers) {
  return [modifiers](const Results& group) {
    Results plain, modified;
    for (const Measurement* result : group) {
      const Names on = modifiers_on(result->config);
      if (on.empty()) plain.push_back(result);
      if (on == modifiers) modified.push_back(result);
    }
    std::vector<Results> picks;
    for (const Measurement* result : modified) {
      if (!plain.empty()) picks.push_back({fastest(plain), result});
    }
    return picks;
  };
}

// With exactly these modifiers, and with exactly those others, of the same values where both have them.
Pick both(const Names& baseline, const Names& contender) {
  return [baseline, contender](const Results& group) {
    Names shared;
    std::ranges::copy_if(baseline, std::back_inserter(shared),
                         [&](const std::string& name) { return std::ranges::count(contender, name) > 0; });
    std::vector<Results> picks;
    for (const Measurement* result : group) {
      if (modifiers_on(result->config) != contender) continue;
      for (const Measurement* other : group) {
        const bool same = other->config.key(shared) == result->config.key(shared);
        if (same && modifiers_on(other->config) == baseline) picks.push_back({other, result});
      }
    }
    return picks;
  };
}

double pairs_left(const Evidence& evidence) {
  return evidence.results.back()->work->flops / evidence.results.front()->work->flops;
}

void describe(Conclusion& conclusion, const Evidence& evidence) {
  conclusion.values["cost_pct"] = 100 * (conclusion.compare->ratio.value - 1);
  conclusion.values["pairs_pct"] = 100 * pairs_left(evidence);
  for (const auto& [name, result] :
       {std::pair("baseline", evidence.results.front()), {"contender", evidence.results.back()}}) {
    for (const char* field : {"code_bytes", "registers", "spill_bytes"}) {
      conclusion.values[name][field] =
          result->pipeline.is_object() ? result->pipeline.value(field, Json(nullptr)) : Json(nullptr);
    }
  }
}

// The modifiers with their values first, then the shape.
std::string subject_of(const Evidence& evidence) {
  const Case& config = evidence.results.back()->config;
  const Names on = modifiers_on(config);
  return (on.empty() ? "" : config.key(on) + " ") + config.key_without(what_varies());
}

// Time with modifiers over time without.
Claim cost(const std::string& id, const std::string& text, double threshold, const Names& modifiers,
           const std::string& what, const Advice& advice) {
  return {.hypothesis = {id, text, "time with the modifier / time without", "<=", threshold, expectation},
          .varies = what_varies(),
          .pick = plain_and(modifiers),
          .subject = subject_of,
          .title = what +
                   " costs {values.cost_pct:.1f} % (head_dim {values.contender.head_dim}, "
                   "{values.contender.q_len} queries, causal {values.contender.causal})",
          .content = "Attention with " + what +
                     " takes {compare.ratio:.4f} (95 % interval {compare.ci_lo:.4f} to {compare.ci_hi:.4f}) of its "
                     "time without, at {values.contender.q_len} queries and head_dim {values.contender.head_dim}; the "
                     "noise floor of the pair is {compare.aa_floor:.4f}.",
          .advice = advice,
          .complete = describe};
}

// Time with a rule that hides pairs, over the share of pairs that it leaves.
Claim share(const std::string& id, const std::string& text, double threshold, const Names& modifiers,
            const std::string& what, const Advice& advice) {
  Claim claim = cost(id, text, threshold, modifiers, what, advice);
  claim.hypothesis.metric = "time with the rule / time without, over the share of pairs that it leaves";
  claim.figure = [](const Evidence& evidence) -> Estimate {
    const Estimate& ratio = evidence.comparisons.back()->ratio;
    const double left = pairs_left(evidence);
    return {ratio.value / left, ratio.ci_lo / left, ratio.ci_hi / left};
  };
  claim.title = what +
                " takes {compare.ratio:.2f} of the time for {values.pairs_pct:.0f} % of the pairs (head_dim "
                "{values.contender.head_dim}, {values.contender.q_len} queries, causal "
                "{values.contender.causal})";
  claim.content += " It leaves {values.pairs_pct:.1f} % of the pairs: {estimate.value:.3f} of that share.";
  return claim;
}

// The same mask two ways.
Claim two_ways(const std::string& id, const std::string& text, double threshold, const Names& baseline,
               const Names& contender, const std::string& what, const Advice& advice) {
  Claim claim = cost(id, text, threshold, contender, what, advice);
  claim.hypothesis.metric = "time of the one way / time of the other, to the same mask";
  claim.pick = both(baseline, contender);
  claim.title = what +
                " takes {compare.ratio:.2f} of the time (head_dim {values.contender.head_dim}, "
                "{values.contender.q_len} queries, causal {values.contender.causal})";
  claim.content = "At {values.contender.q_len} queries and head_dim {values.contender.head_dim} " + what +
                  " takes {compare.ratio:.4f} (95 % interval {compare.ci_lo:.4f} to {compare.ci_hi:.4f}) of the "
                  "time; the noise floor of the pair is {compare.aa_floor:.4f}.";
  return claim;
}

// Query heads that share a key/value head, against as many heads of each.
Claim grouped() {
  return {.hypothesis = {"gqa_index", "Query heads that share keys by an index cost nothing.",
                         "time with shared heads / time with as many heads of each", "<=", 1.01,
                         "published study, finding 21: a copy for each group costs 0.04 to 0.09 % on M4"},
          .takes = [](const Measurement& r) { return modifiers_on(r.config).empty(); },
          .varies = {"kv_heads", "block_r", "block_c"},
          .pick =
              [](const Results& group) {
                std::vector<Results> picks;
                const auto alone = std::ranges::find_if(group, [](const Measurement* r) {
                  return r->config.integer("kv_heads") == r->config.integer("q_heads");
                });
                for (const Measurement* result : group) {
                  if (alone != group.end() && result != *alone) picks.push_back({*alone, result});
                }
                return picks;
              },
          .subject = subject_without({"block_r", "block_c"}, {"kv_heads"}),
          .title =
              "{values.contender.kv_heads} key/value heads for {values.contender.q_heads} query heads take "
              "{compare.ratio:.3f} of the time of as many (head_dim {values.contender.head_dim})",
          .content =
              "With {values.contender.kv_heads} key/value heads for {values.contender.q_heads} query heads, each "
              "found by an index, attention takes {compare.ratio:.4f} (95 % interval {compare.ci_lo:.4f} to "
              "{compare.ci_hi:.4f}) of its time with a key/value head for each; the noise floor of the pair is "
              "{compare.aa_floor:.4f}.",
          .advice = {"Share heads by an index; never copy keys for a group.",
                     "Weigh what the index costs against the copy of keys for each group."},
          .complete = describe};
}

}  // namespace

std::vector<Claim> variants_claims() {
  return {
      cost("alibi", "ALiBi costs at most 5 %.", 1.05, {"alibi"}, "ALiBi",
           {"Take ALiBi as a hook of the tuned kernel.", "Count ALiBi among what attention costs."}),
      cost("soft_cap", "A soft cap costs at most 25 %.", 1.25, {"soft_cap"}, "a soft cap",
           {"Take a soft cap as a hook of the tuned kernel.", "Avoid a soft cap where the model leaves the choice."}),
      cost("sinks", "Sinks cost at most 1 %.", 1.01, {"sinks"}, "sinks",
           {"Take sinks as the softmax's first term.", "Count sinks among what attention costs."}),
      cost("bias", "A tensor that is added to the scores costs at most 50 %.", 1.5, {"bias"}, "an additive tensor",
           {"Add a tensor in the kernel.", "Compute what the tensor holds, where a function can."}),
      share("window", "A window takes at most 1.5 times its share of the pairs.", 1.5, {"window_left"}, "a window",
            {"Cut windows as short as the model allows: time follows.",
             "Expect less from a short window than its pairs."}),
      share("documents", "Documents take at most 1.5 times their share of the pairs.", 1.5, {"documents"},
            "packing documents",
            {"Pack documents into one sequence: time follows their own pairs.",
             "Pack documents only if they are much longer than a tile."}),
      share("prefix", "A prefix that all see takes at most 1.2 times its share of the pairs.", 1.2, {"prefix"},
            "a prefix", {"Take a prefix as a rule of the kernel.", "Count the prefix's tiles as whole ones."}),
      share("lengths", "Padding is free: time follows the lengths, within 20 %.", 1.2, {"lengths"},
            "sequences of unlike length",
            {"Pad sequences, and give their lengths.", "Sort sequences by length, or pack them."}),
      share("together", "ALiBi, soft cap, sinks and a window together take at most twice the window's share.", 2,
            {"alibi", "soft_cap", "sinks", "window_left"}, "ALiBi, soft cap, sinks and a window",
            {"Compose modifiers as the model wants them.", "Expect modifiers to add up."}),
      share("global_tokens", "A window with global tokens takes at most 1.5 times its share of the pairs.", 1.5,
            {"window_left", "global_tokens"}, "a window with global tokens",
            {"Give tiles lists of key blocks: masks that are no range cost their pairs.",
             "Expect global tokens to cost more than their pairs."}),
      share("block_sparse", "Blocks that a table leaves take at most 1.5 times their share of the pairs.", 1.5,
            {"block_sparse"}, "block-sparse attention",
            {"Draw sparse blocks no smaller than a tile: time follows.",
             "Expect less from sparse blocks than their pairs."}),
      two_ways("window_by_list",
               "A window by lists takes at most 1.1 times as long as the same one by its range of keys.", 1.1,
               {"window_left"}, {"window_left", "window_by"}, "a window by lists, not by its range,",
               {"Write a mask as a function: lists cost next to nothing.",
                "Write a mask as a range of keys where it is one."}),
      two_ways("window_lists", "Lists take at most 0.6 of the time that a window takes pair by pair.", 0.6,
               {"window_left", "window_by", "lists"}, {"window_left", "window_by"},
               "a window by lists, not pair by pair,",
               {"Give masks lists of key blocks.", "Leave lists out where most blocks are masked in part."}),
      two_ways("sparse_lists", "Lists take at most 0.6 of the time that sparse blocks take pair by pair.", 0.6,
               {"block_sparse", "lists"}, {"block_sparse"}, "block-sparse attention by lists, not pair by pair,",
               {"Give masks lists of key blocks.", "Leave lists out where most blocks are masked in part."}),
      grouped()};
}

}  // namespace attn
