#include "proto5_codegen/findings.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

namespace attn {
namespace {

constexpr const char* expectation = "expectation before the first run";

bool has(const Measurement& result, const char* axis, const std::string& value) {
  return !where({&result}, axis, value).empty();
}
bool by_hand(const Measurement& result) { return has(result, "generator", "hand"); }
bool searched(const Measurement& result) { return has(result, "generator", "search"); }
bool generated(const Measurement& result) { return !by_hand(result) && !searched(result); }
bool is_whole(const Measurement& result) { return has(result, "work", "attention") || has(result, "work", "modified"); }

const std::string shape_words =
    "{values.contender.work}, {values.contender.heads} heads, {values.contender.q_len} tokens, head_dim "
    "{values.contender.head_dim}, causal {values.contender.causal}, {values.contender.dtype}";

/// Kernels of one work and shape, measured in turn.
Claim compared(const Hypothesis& hypothesis, std::function<bool(const Measurement&)> takes, Pick pick,
               const std::string& what, const std::string& against, const Advice& advice) {
  return {.hypothesis = hypothesis,
          .takes = std::move(takes),
          .varies = {"generator"},
          .pick = std::move(pick),
          .subject = subject_without({}, {"work", "generator"}),
          .title = what + " takes {compare.ratio:.2f} of the time of " + against + " (" + shape_words + ")",
          .content = what +
                     " takes {compare.ratio:.3f} (95 % interval {compare.ci_lo:.3f} to {compare.ci_hi:.3f}) of the "
                     "time of " +
                     against + ", at " + shape_words + "; the noise floor of the pair is {compare.aa_floor:.4f}.",
          .advice = advice};
}

/// The fastest generated kernel against that of hand.
std::vector<Results> fastest_generated(const Results& group) {
  Results made;
  std::ranges::copy_if(group, std::back_inserter(made), [](const auto* one) { return generated(*one); });
  return pair(where(group, "generator", "hand"), made);
}

Claim slower() {
  return compared(
      {"slower", "The fastest generated kernel of a whole attention takes at least 1.3 of the time of hand.",
       "time of the fastest generated kernel / time of the hand-written one", ">=", 1.3,
       "expectation before the published study: 30 to 60 % slower"},
      is_whole, fastest_generated, "The fastest generated kernel, {values.contender.generator},",
      "the hand-written one",
      {"Write the kernel of a whole attention by hand.", "Try a generator before writing by hand."});
}

Claim viable() {
  Claim claim = compared(
      {"viable", "A generated kernel is viable: it takes at most 1.25 of the time of the hand-written one.",
       "time of the generated kernel / time of the hand-written one", "<=", 1.25, expectation},
      [](const Measurement& result) { return !searched(result); }, against("generator", "hand"),
      "{values.contender.generator}", "the hand-written kernel",
      {"Take the generator where the hand-written kernel is too much to keep.", "Do not take the generator here."});
  return claim;
}

}  // namespace

std::vector<Claim> codegen_claims(const DeviceInfo& /*device*/) { return {slower(), viable()}; }

}  // namespace attn
