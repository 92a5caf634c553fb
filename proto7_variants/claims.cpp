#include "proto7_variants/claims.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "common/attention/modifiers.h"
#include "common/cases/modifier_axes.h"

namespace attn {
namespace {

constexpr const char* expectation = "expectation before the first run";

using Names = std::vector<std::string>;

const std::set<std::string> tile_axes = {"block_r", "block_c"};
constexpr size_t whole_tile_sweep = 4;  // results with fewer tiles do not tell which tile is the fastest

std::set<std::string> what_varies() {
  std::set<std::string> axes = tile_axes;
  for (const auto& [axis, off] : modifier_axes()) axes.insert(axis.name);
  return axes;
}

// Of results that differ only in the tile, passes only the first to `pick`. The sweep runs several tiles for some
// modifiers only, and lists the default tile first.
Pick at_first_tiles(const Pick& pick) {
  return [pick](const Results& group) {
    Results first;
    for (const auto& [key, tiles] : group_results(group, tile_axes)) first.push_back(tiles.front());
    return pick(first);
  };
}

// Pairs results that have the same modifiers: the result with the tile that is the fastest without modifiers, and the
// fastest result with another tile.
std::vector<Results> plain_tile_and_others(const Results& group) {
  const auto by_modifiers = group_results(group, tile_axes);
  const auto plain = std::ranges::find_if(
      by_modifiers, [](const auto& tiles) { return modifiers_on(tiles.second.front()->config).empty(); });
  std::vector<Results> picks;
  if (plain == by_modifiers.end() || plain->second.size() < whole_tile_sweep) return picks;
  const Names tile(tile_axes.begin(), tile_axes.end());
  const std::string best = fastest(plain->second)->config.key(tile);
  for (const auto& [key, tiles] : by_modifiers) {
    if (key == plain->first || tiles.size() < whole_tile_sweep) continue;
    Results own, others;
    for (const Measurement* result : tiles) (result->config.key(tile) == best ? own : others).push_back(result);
    std::ranges::copy(pair(others, own), std::back_inserter(picks));
  }
  return picks;
}

bool same_names(const Names& a, const Names& b) { return std::ranges::is_permutation(a, b); }

// Pairs plain attention (without modifiers) with attention that has exactly `modifiers`, whatever their values.
Pick plain_and(const Names& modifiers) {
  return [modifiers](const Results& group) {
    Results plain, modified;
    for (const Measurement* result : group) {
      const Names on = modifiers_on(result->config);
      if (on.empty()) plain.push_back(result);
      if (same_names(on, modifiers)) modified.push_back(result);
    }
    std::vector<Results> picks;
    for (const Measurement* result : modified) {
      if (!plain.empty()) picks.push_back({fastest(plain), result});
    }
    return picks;
  };
}

// Pairs attention that has exactly the modifiers `baseline` with attention that has exactly the modifiers `contender`.
// A modifier in both lists has the same value in both results.
Pick both(const Names& baseline, const Names& contender) {
  return [baseline, contender](const Results& group) {
    Names shared;
    std::ranges::copy_if(baseline, std::back_inserter(shared),
                         [&](const std::string& name) { return std::ranges::count(contender, name) > 0; });
    std::vector<Results> picks;
    for (const Measurement* result : group) {
      if (!same_names(modifiers_on(result->config), contender)) continue;
      for (const Measurement* other : group) {
        const bool same = other->config.key(shared) == result->config.key(shared);
        if (same && same_names(modifiers_on(other->config), baseline)) picks.push_back({other, result});
      }
    }
    return picks;
  };
}

double pairs_left(const Evidence& evidence) {
  return evidence.results.back()->work->flops / evidence.results.front()->work->flops;
}

void describe(Conclusion& conclusion, const Evidence& evidence) {
  conclusion.values["cost_pct"] = 100 * (evidence.comparisons.back()->ratio.value - 1);
  conclusion.values["pairs_pct"] = 100 * pairs_left(evidence);
  for (const auto& [name, result] :
       {std::pair("baseline", evidence.results.front()), {"contender", evidence.results.back()}}) {
    for (const char* field : {"code_bytes", "registers", "spill_bytes"}) {
      conclusion.values[name][field] =
          result->pipeline.is_object() ? result->pipeline.value(field, Json(nullptr)) : Json(nullptr);
    }
  }
}

// The subject of a finding: the axes of the contender, or of the only case, sorted by name. Axes at the value that
// turns them off are left out, so a new axis leaves the keys of older claims as they are.
std::function<std::string(const Evidence&)> subject_but(const std::set<std::string>& left_out) {
  return [left_out](const Evidence& evidence) {
    const Case& config = (evidence.comparisons.empty() ? evidence.results.front() : evidence.results.back())->config;
    std::map<std::string, AxisValue> axes(config.axes().begin(), config.axes().end());
    for (const std::string& axis : left_out) axes.erase(axis);
    std::vector<std::pair<std::string, AxisValue>> off = {{"task", "attention"}, {"kv_heads_by", "index"}};
    for (const auto& known : {modifier_axes(), rotary_axes()}) {
      for (const ModifierAxis& one : known) off.emplace_back(one.axis.name, one.off);
    }
    for (const auto& [axis, value] : off) {
      if (const auto own = axes.find(axis); own != axes.end() && own->second == value) axes.erase(own);
    }
    Names words;
    for (const auto& [axis, value] : axes) words.push_back(axis + "=" + to_string(value));
    return fmt::format("{}", fmt::join(words, " "));
  };
}

std::string tile_of(const Case& config) {
  return fmt::format("{}x{}", config.integer("block_r"), config.integer("block_c"));
}

Claim same_tile() {
  return {.hypothesis = {"same_tile",
                         "With a modifier, the tile that is the fastest without takes at most 1.05 of the time of the "
                         "best other.",
                         "time of the tile that is the fastest without the modifier / time of the best other, both "
                         "with it",
                         "<=", 1.05, expectation},
          .takes = [](const Measurement& r) { return r.config.text("task") == "attention"; },
          .varies = what_varies(),
          .pick = plain_tile_and_others,
          .subject = subject_but(tile_axes),
          .title =
              "With {values.modifiers} the fastest tile of plain attention takes {compare.ratio:.3f} of the time "
              "of the best other (head_dim {values.contender.head_dim}, {values.contender.q_len} queries, causal "
              "{values.contender.causal})",
          .content =
              "With {values.modifiers}, at {values.contender.q_len} queries and head_dim "
              "{values.contender.head_dim}, {values.contender.tile} (Br x Bc), the fastest tile of plain attention, "
              "takes {compare.ratio:.4f} (95 % interval {compare.ci_lo:.4f} to {compare.ci_hi:.4f}) of the time of "
              "the best other that was tried, {values.baseline.tile}; the noise floor of the pair is "
              "{compare.aa_floor:.4f}.",
          .complete =
              [](Conclusion& conclusion, const Evidence& evidence) {
                const Case &baseline = evidence.results.front()->config, &contender = evidence.results.back()->config;
                conclusion.values["modifiers"] = contender.key(modifiers_on(contender));
                conclusion.values["baseline"]["tile"] = tile_of(baseline);
                conclusion.values["contender"]["tile"] = tile_of(contender);
              }};
}

Claim by_form(const Hypothesis& hypothesis, const std::string& form, const std::string& what) {
  return {.hypothesis = hypothesis,
          .takes = [](const Measurement& r) { return r.config.text("task") == "attention"; },
          .varies = {"score_by", "block_r", "block_c"},
          .pick = steps("score_by", {{"constant", form}}),
          .subject = subject_but(tile_axes),
          .title = what +
                   " makes attention with {values.modifiers} take {compare.ratio:.3f} of its time with constants "
                   "(head_dim {values.contender.head_dim}, {values.contender.q_len} queries, causal "
                   "{values.contender.causal})",
          .content =
              "Attention with {values.modifiers} and score_by={values.contender.score_by} takes {compare.ratio:.4f} "
              "(95 % interval {compare.ci_lo:.4f} to {compare.ci_hi:.4f}) of its time with score_by=constant, at "
              "{values.contender.q_len} queries and head_dim {values.contender.head_dim}; the noise floor of "
              "the pair is {compare.aa_floor:.4f}.",
          .complete =
              [](Conclusion& conclusion, const Evidence& evidence) {
                describe(conclusion, evidence);
                const Case& constant = evidence.results.front()->config;
                const Names on = modifiers_on(constant);
                conclusion.values["modifiers"] = on.empty() ? "no modifiers" : constant.key(on);
              }};
}

Claim cost(const std::string& id, const std::string& text, double threshold, const Names& modifiers,
           const std::string& what) {
  return {
      .hypothesis = {id, text, "time with the modifier / time without", "<=", threshold, expectation},
      .varies = what_varies(),
      .pick = plain_and(modifiers),
      .subject = subject_but(tile_axes),
      .title = what +
               " costs {values.cost_pct:.1f} % (head_dim {values.contender.head_dim}, "
               "{values.contender.q_len} queries, causal {values.contender.causal})",
      .content = "Attention with " + what +
                 " takes {compare.ratio:.4f} (95 % interval {compare.ci_lo:.4f} to {compare.ci_hi:.4f}) of the time of "
                 "plain attention, at {values.contender.q_len} queries and head_dim {values.contender.head_dim}; the "
                 "noise floor of the pair is {compare.aa_floor:.4f}.",
      .complete = describe};
}

// A rule is a modifier that hides pairs of query and key. The figure is (time with the rule / time without) / (pairs
// with the rule / pairs without).
Claim share(const std::string& id, const std::string& text, double threshold, const Names& modifiers,
            const std::string& what) {
  Claim claim = cost(id, text, threshold, modifiers, what);
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
  claim.content +=
      " The rule leaves {values.pairs_pct:.1f} % of the pairs; the time is {estimate.value:.3f} of this share.";
  return claim;
}

bool is_plain(const Measurement& r, const std::string& task, const std::string& kv_heads_by) {
  const Case& config = r.config;
  return config.text("task") == task && config.text("kv_heads_by") == kv_heads_by && modifiers_on(config).empty();
}

Claim two_ways(const std::string& id, const std::string& text, double threshold, const Names& baseline,
               const Names& contender, const std::string& what) {
  Claim claim = cost(id, text, threshold, contender, what);
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

Claim grouped() {
  return {
      .hypothesis = {"gqa_index", "Query heads that share keys by an index cost nothing.",
                     "time with shared heads / time with as many heads of each", "<=", 1.01,
                     "published study, finding 21: a copy for each group costs 0.04 to 0.09 % on M4"},
      .takes = [](const Measurement& r) { return is_plain(r, "attention", "index"); },
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
      .subject = subject_but(tile_axes),
      .title =
          "{values.contender.kv_heads} key/value heads for {values.contender.q_heads} query heads take "
          "{compare.ratio:.3f} of the time of as many key/value heads as query heads (head_dim "
          "{values.contender.head_dim})",
      .content =
          "With {values.contender.kv_heads} key/value heads for {values.contender.q_heads} query heads, each "
          "found by an index, attention takes {compare.ratio:.4f} (95 % interval {compare.ci_lo:.4f} to "
          "{compare.ci_hi:.4f}) of its time with a key/value head for each query head; the noise floor of the pair is "
          "{compare.aa_floor:.4f}.",
      .complete = describe};
}

// Pairs the fastest attention with rope=`baseline` with each attention whose `rope` is in `contender`. The axis `rope`
// tells which kernel turns Q and K (applies RoPE).
Pick turned_by(const std::string& baseline, const std::set<std::string>& contender) {
  return [=](const Results& group) {
    Results before;
    for (const Measurement* r : group) {
      if (r->config.text("task") == "attention" && r->config.text("rope") == baseline) before.push_back(r);
    }
    std::vector<Results> picks;
    for (const Measurement* r : group) {
      if (r->config.text("task") != "attention" || !contender.contains(r->config.text("rope"))) continue;
      if (!before.empty()) picks.push_back({fastest(before), r});
    }
    return picks;
  };
}

const std::set<std::string> turning = {"task", "rope", "block_r", "block_c"};

bool turns_or_is_plain(const Measurement& result) {
  const Names on = modifiers_on(result.config);
  return on.empty() || on == Names{"rope"};
}

Claim turned(const std::string& id, const std::string& text, double threshold, const std::string& baseline,
             const std::set<std::string>& contender, const std::string& metric) {
  return {.hypothesis = {id, text, metric, "<=", threshold, expectation},
          .takes = turns_or_is_plain,
          .varies = turning,
          .pick = turned_by(baseline, contender),
          .subject = subject_but(tile_axes),
          .title =
              "Attention with rope={values.contender.rope} takes {compare.ratio:.3f} of its time with "
              "rope={values.baseline.rope} (head_dim {values.contender.head_dim}, {values.contender.q_len} "
              "queries, causal {values.contender.causal})",
          .content =
              "Attention with rope={values.contender.rope} takes {compare.ratio:.4f} (95 % interval "
              "{compare.ci_lo:.4f} to {compare.ci_hi:.4f}) of its time with rope={values.baseline.rope}, at "
              "{values.contender.q_len} queries and head_dim {values.contender.head_dim}; the noise floor of the "
              "pair is {compare.aa_floor:.4f}.",
          .complete = describe};
}

Claim rope_share() {
  Claim claim = turned("rope_share", "To turn Q and K takes at most 0.01 % of attention.", 1e-4, "none", {},
                       "time of the launch that turns Q and K / time of attention");
  claim.hypothesis.origin = "published study: RoPE takes less than 0.01 % of attention on M4";
  claim.subject = subject_but({"task", "score_by", "block_r", "block_c"});
  claim.pick = [](const Results& group) {
    std::vector<Results> picks;
    const auto plain =
        std::ranges::find_if(group, [](const Measurement* r) { return modifiers_on(r->config).empty(); });
    for (const Measurement* r : group) {
      if (r->config.text("task") == "rope" && plain != group.end()) picks.push_back({*plain, r});
    }
    return picks;
  };
  claim.title =
      "RoPE of Q and K by itself takes {compare.ratio:.3f} of the time of attention (head_dim "
      "{values.contender.head_dim}, {values.contender.q_len} queries)";
  claim.content =
      "The launch that turns Q and K takes {compare.ratio:.4f} (95 % interval {compare.ci_lo:.4f} to "
      "{compare.ci_hi:.4f}) of the time of full attention, at {values.contender.q_len} queries and head_dim "
      "{values.contender.head_dim}.";
  return claim;
}

Claim rope_copy() {
  return {
      .hypothesis = {"rope_copy",
                     "To turn 64 MB of Q and K, in and out, takes no longer than to copy them, within 12 %.",
                     "share of the copy rate in the same rounds, cold", ">=", 88, expectation},
      .takes =
          [](const Measurement& r) { return r.config.text("task") == "rope" && r.work->bytes >= 64e6 && r.copy_pct; },
      .pick = each,
      .compared = false,
      .figure = [](const Evidence& evidence) { return *evidence.results.front()->copy_pct; },
      .subject = subject_but({"task", "score_by", "block_r", "block_c"}),
      .title =
          "RoPE runs at {estimate.value:.0f} % of the copy rate (head_dim {values.head_dim}, {values.q_len} rows of "
          "{values.q_heads} heads)",
      .content =
          "The launch that turns Q and K, with angles {values.rope_angles}, runs at {estimate.value:.1f} % (95 % "
          "interval "
          "{estimate.ci_lo:.1f} to {estimate.ci_hi:.1f}) of the rate of a copy that ran in the same rounds, from "
          "cold caches."};
}

constexpr const char* copy_origin = "published study, finding 21: a copy for each group costs 0.04 to 0.09 % on M4";

Claim copied() {
  return {
      .hypothesis = {"gqa_copy", "A copy of keys and values for each query head costs at most 0.09 %.",
                     "time with the copy / time with an index", "<=", 1.0009, copy_origin},
      .takes =
          [](const Measurement& r) { return is_plain(r, "attention", "index") || is_plain(r, "attention", "copy"); },
      .varies = {"kv_heads_by", "block_r", "block_c"},
      .pick = steps("kv_heads_by", {{"index", "copy"}}),
      .subject = subject_but({"kv_heads_by", "score_by", "block_r", "block_c"}),
      .title =
          "With copies of {values.contender.kv_heads} key/value heads for {values.contender.q_heads} query heads, "
          "attention takes {compare.ratio:.4f} of its time with an index (head_dim {values.contender.head_dim})",
      .content =
          "With {values.contender.kv_heads} key/value heads for {values.contender.q_heads} query heads, attention on a "
          "copy of the key/value head for each query head takes {compare.ratio:.4f} (95 % interval {compare.ci_lo:.4f} "
          "to {compare.ci_hi:.4f}) of its time with an index, the launch that makes the copies included, at "
          "{values.contender.q_len} "
          "queries and head_dim {values.contender.head_dim}; the noise floor of the pair is {compare.aa_floor:.4f}.",
      .complete = describe};
}

bool timed_hot(const Measurement& r) { return r.timing(Scope::device_hot) != nullptr; }

// ratio_of_medians() would divide the cold time of a memory-bound case by the hot time of a compute-bound case.
Estimate ratio_of_hot(const Evidence& evidence) {
  const Timing &first = *evidence.results.at(0)->timing(Scope::device_hot),
               &second = *evidence.results.at(1)->timing(Scope::device_hot);
  return {second.median_s / first.median_s, second.ci_lo_s / first.ci_hi_s, second.ci_hi_s / first.ci_lo_s};
}

Claim copies_alone() {
  return {
      .hypothesis = {"expand_share", "The copy alone takes at most 0.09 % of the time of attention.",
                     "time of the copy / time of attention, both with hot caches", "<=", 0.0009, copy_origin},
      .takes =
          [](const Measurement& r) {
            return timed_hot(r) && (is_plain(r, "attention", "index") || is_plain(r, "expand", "copy"));
          },
      .varies = {"task", "kv_heads_by", "variant", "q_len", "causal", "out_dtype", "block_r", "block_c"},
      .pick =
          [](const Results& group) {
            std::vector<Results> picks;
            for (const Measurement* attention : where(group, "task", "attention")) {
              for (const Measurement* copies : where(group, "task", "expand")) {
                picks.push_back({attention, copies});
              }
            }
            return picks;
          },
      .compared = false,
      .figure = ratio_of_hot,
      .subject = subject_but({"task", "kv_heads_by", "score_by", "block_r", "block_c"}),
      .title =
          "Copying {values.heads.kv_heads} key/value heads for {values.heads.q_heads} query heads takes "
          "{values.share_pct:.2f} % of attention (head_dim {values.heads.head_dim}, causal {values.heads.causal})",
      .content =
          "The copy of {values.heads.kv_heads} key/value heads for {values.heads.q_heads} query heads alone takes "
          "{values.copy_ms:.4f} ms, and attention with an index {values.attention_ms:.4f} ms, both with hot caches, at "
          "{values.heads.q_len} queries and head_dim {values.heads.head_dim}, causal {values.heads.causal}.",
      .complete =
          [](Conclusion& conclusion, const Evidence& evidence) {
            const Measurement &attention = *evidence.results.front(), &copies = *evidence.results.back();
            conclusion.values["heads"] = attention.config.json();
            conclusion.values["share_pct"] = 100 * ratio_of_hot(evidence).value;
            conclusion.values["attention_ms"] = 1e3 * attention.timing(Scope::device_hot)->median_s;
            conclusion.values["copy_ms"] = 1e3 * copies.timing(Scope::device_hot)->median_s;
          }};
}

}  // namespace

std::vector<Claim> variants_claims() {
  std::vector<Claim> claims = {
      cost("alibi", "ALiBi costs at most 5 %.", 1.05, {"alibi"}, "ALiBi"),
      cost("soft_cap", "A soft cap costs at most 25 %.", 1.25, {"soft_cap"}, "a soft cap"),
      cost("sinks", "Sinks cost at most 1 %.", 1.01, {"sinks"}, "sinks"),
      cost("bias", "A tensor that is added to the scores costs at most 50 %.", 1.5, {"bias"}, "an additive tensor"),
      share("window", "A window takes at most 1.5 times its share of the pairs.", 1.5, {"window_left"}, "a window"),
      share("documents", "Documents take at most 1.5 times their share of the pairs.", 1.5, {"documents"},
            "packing documents"),
      share("prefix", "A prefix that all see takes at most 1.2 times its share of the pairs.", 1.2, {"prefix"},
            "a prefix"),
      share("lengths", "Padding is free: time follows the lengths, within 20 %.", 1.2, {"lengths"},
            "sequences of unlike length"),
      share("starts", "Padding on the left is free: time follows the keys that are seen, within 20 %.", 1.2, {"starts"},
            "padding on the left"),
      cost("score_function", "A score function of the user's costs at most 25 %.", 1.25, {"score_function"},
           "the user's score function"),
      share("mask_function", "A mask by a function takes at most twice its share of the pairs.", 2, {"mask_function"},
            "the user's mask function"),
      share("together", "ALiBi, soft cap, sinks and a window together take at most twice the window's share.", 2,
            {"alibi", "soft_cap", "sinks", "window_left"}, "ALiBi, soft cap, sinks and a window"),
      share("global_tokens", "A window with global tokens takes at most 1.5 times its share of the pairs.", 1.5,
            {"window_left", "global_tokens"}, "a window with global tokens"),
      share("block_sparse", "Blocks that a table leaves take at most 1.5 times their share of the pairs.", 1.5,
            {"block_sparse"}, "block-sparse attention"),
      two_ways("window_by_list",
               "A window by lists takes at most 1.1 times as long as the same one by its range of keys.", 1.1,
               {"window_left"}, {"window_left", "window_by"}, "a window by lists, not by its range,"),
      two_ways("window_lists", "Lists take at most 0.6 of the time that a window takes pair by pair.", 0.6,
               {"window_left", "window_by", "lists"}, {"window_left", "window_by"},
               "a window by lists, not pair by pair,"),
      two_ways("sparse_lists", "Lists take at most 0.6 of the time that sparse blocks take pair by pair.", 0.6,
               {"block_sparse", "lists"}, {"block_sparse"}, "block-sparse attention by lists, not pair by pair,"),
      by_form({"score_run_time", "To branch on score modifiers at run time costs at most 5 % over constants.",
               "time with branches at run time / time with constants", "<=", 1.05, expectation},
              "run_time", "A branch at run time"),
      by_form({"score_noinline", "A call for each score takes at least 1.2 times as long as constants.",
               "time with a call for each score / time with constants", ">=", 1.2,
               "proto2_stitching: a call for each score takes 1.2 to 14 times as long"},
              "noinline", "A call for each score"),
      grouped(),
      rope_share(),
      rope_copy(),
      turned("rope_before", "A launch that turns Q and K before attention adds at most 3 %.", 1.03, "none", {"before"},
             "time with RoPE / time without"),
      turned("rope_fused", "To turn rows on the kernel's way in is faster than a launch before.", 1, "before",
             {"query", "kernel"}, "time with rows that the kernel turns / time with a launch before"),
      copied(),
      copies_alone()};
  for (Claim& claim : claims) claim.pick = at_first_tiles(claim.pick);
  claims.push_back(same_tile());
  return claims;
}

}  // namespace attn
