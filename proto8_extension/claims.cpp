#include "proto8_extension/claims.h"

#include <string>
#include <utility>

#include "proto8_extension/sweep.h"

namespace attn {
namespace {

using Takes = std::function<bool(const Measurement&)>;

/// Takes the results of calls of `op` with `q_len` tokens.
Takes calls(const std::string& op, int64_t q_len) {
  return [=](const Measurement& result) {
    const Case& config = result.config;
    return config.text("task") == "call" && config.text("op") == op && config.integer("q_len") == q_len;
  };
}

/// Returns how many more microseconds a call by the contender's path takes than a call by the baseline's path.
Estimate microseconds_more(const Evidence& evidence) {
  const Comparison& pair = *evidence.comparisons.back();
  const double us = 1e6 * pair.time.front().median_s;
  return {us * (pair.ratio.value - 1), us * (pair.ratio.ci_lo - 1), us * (pair.ratio.ci_hi - 1)};
}

void add_times(Conclusion& conclusion, const Evidence& evidence) {
  const Comparison& pair = *evidence.comparisons.back();
  conclusion.values["baseline_us"] = 1e6 * pair.time.at(0).median_s;
  conclusion.values["contender_us"] = 1e6 * pair.time.at(1).median_s;
}

std::string shape_of(const Evidence& evidence) {
  return evidence.results.front()->config.key({"op", "dtype", "q_heads", "q_len", "head_dim"});
}

/// Returns a claim about the time that a call by the path `to` takes in addition to a call by the path `from`. `words`
/// names the path `to` in the conclusion's text.
Claim overhead(Hypothesis hypothesis, Takes takes, const std::string& from, const std::string& to,
               const std::string& words) {
  return {.hypothesis = std::move(hypothesis),
          .takes = std::move(takes),
          .varies = {"path"},
          .pick = steps("path", {{from, to}}),
          .figure = microseconds_more,
          .subject = shape_of,
          .title = words + " adds {estimate.value:.3f} us to a call",
          .content = words +
                     " adds {estimate.value:.3f} us ({estimate.ci_lo:.3f} to {estimate.ci_hi:.3f}) to a call of "
                     "{values.baseline.op} on {values.baseline.q_len} tokens, {values.baseline.q_heads} heads "
                     "({values.baseline.dtype}): {values.contender_us:.3f} us against {values.baseline_us:.3f} us.",
          .complete = add_times};
}

/// Returns the seconds of a result, times `scale`.
Estimate time_in(double scale, const Evidence& evidence) {
  const Timing& time = *evidence.results.front()->main_timing();
  return {scale * time.median_s, scale * time.ci_lo_s, scale * time.ci_hi_s};
}

/// Returns a claim about the time of an engine's first call. `from` says where the kernel comes from, and `words` says
/// the same in the conclusion's text.
Claim first_call(Hypothesis hypothesis, const std::string& from, const std::string& words) {
  return {.hypothesis = std::move(hypothesis),
          .takes = [=](const Measurement& result) { return result.config.text("from") == from; },
          .pick = each,
          .compared = false,
          .figure = [](const Evidence& evidence) { return time_in(1e3, evidence); },
          .subject = shape_of,
          .title = "The first call takes {estimate.value:.4g} ms with its kernel " + words,
          .content = "The first call of an engine that is open, with its kernel " + words +
                     ", takes {estimate.value:.4g} ms ({estimate.ci_lo:.4g} to {estimate.ci_hi:.4g}) on {values.q_len} "
                     "tokens ({values.dtype})."};
}

}  // namespace

std::vector<Claim> extension_claims() {
  const std::string goal = "goal before the first run";
  const std::string study = "the published study on Apple M4 that this follows";
  std::vector<Claim> claims = {
      overhead({"c_overhead", "A call of attn.h costs at most 1 us more than its kernel encoded directly.",
                "us a call, attn_flash - AttentionLaunch", "<=", 1, goal},
               calls("flash", one_tile), "direct", "c", "The C interface"),
      overhead({"dlpack_overhead", "Tensors that are described anew for each call cost at most 2 us in all.",
                "us a call, attn_flash with four new descriptions - AttentionLaunch", "<=", 2,
                study + " measured 2 to 17 us for its bridge"},
               calls("flash", one_tile), "direct", "dlpack", "The C interface with tensors described anew"),
      overhead({"concept_overhead", "A C++ backend with attention costs at most 0.1 us more than the engine.",
                "us a call, WithAttention::attention - Engine::flash", "<=", 0.1, goal + ": it is inlined"},
               calls("flash", one_tile), "engine", "concept", "The wrapper of a backend"),
      overhead({"torch_overhead", "PyTorch's operator costs at most 3 us more than the kernel encoded directly.",
                "us a call, attn::flash through the dispatcher - AttentionLaunch", "<=", 3,
                goal + "; the dispatcher and the allocation of the output are in it"},
               calls("flash", one_tile), "direct", "torch", "PyTorch's operator"),
      overhead(
          {"copies_overhead", "A bridge that copies costs at least 2 us for short tensors.",
           "us a call, attn_flash with copies - AttentionLaunch", ">=", 2,
           study + " measured 2 to 17 us for its bridge, most of it copies"},
          [](const Measurement& result) {  // 64 tokens of 8 heads; on one head the lengths of the study
            const int64_t tokens = result.config.integer("q_len"), heads = result.config.integer("q_heads");
            return calls("flash", tokens)(result) && (tokens == 64 || (heads == 1 && tokens >= 256));
          },
          "direct", "copies", "Copying the tensors"),
      {.hypothesis = {"dispatch", "A dispatch costs at most 100 us.",
                      "us a dispatch of a kernel that does nothing, until it is done", "<=", 100,
                      study + " measured 100 to 200 us unless several are batched"},
       .takes =
           [](const Measurement& result) {
             return calls("empty", one_tile)(result) && result.config.text("path") == "waited";
           },
       .pick = each,
       .compared = false,
       .figure = [](const Evidence& evidence) { return time_in(1e6, evidence); },
       .subject = shape_of,
       .title = "A dispatch takes {estimate.value:.3g} us until it is done",
       .content = "A launch of a kernel that does nothing, encoded directly, takes {estimate.value:.3g} us "
                  "({estimate.ci_lo:.3g} to {estimate.ci_hi:.3g}) if each launch is waited for."},
      {.hypothesis = {"allocations", "A call of attn.h allocates no more than its kernel encoded directly.",
                      "allocations a call, attn_flash - AttentionLaunch", "<=", 0, goal},
       .takes = calls("flash", one_tile),
       .varies = {"path"},
       .pick = steps("path", {{"direct", "c"}}),
       .compared = false,
       .figure = [](const Evidence& evidence) -> Estimate {
         const auto allocated = [](const Measurement& result) { return result.values.value("allocations", 0.0); };
         const double more = allocated(*evidence.results.back()) - allocated(*evidence.results.front());
         return {more, more, more};
       },
       .exact = true,
       .subject = shape_of,
       .title = "A call of attn.h makes {values.contender_allocations:g} allocations, a direct call "
                "{values.baseline_allocations:g}",
       .content = "A call of attn.h makes {values.contender_allocations:g} allocations on the host. The same kernel "
                  "encoded directly makes {values.baseline_allocations:g}.",
       .complete =
           [](Conclusion& conclusion, const Evidence& evidence) {
             conclusion.values["baseline_allocations"] = evidence.results.front()->values.value("allocations", 0.0);
             conclusion.values["contender_allocations"] = evidence.results.back()->values.value("allocations", 0.0);
           }},
      {.hypothesis = {"break_even", "From 1024 tokens on the C interface costs at most 1 % of a call.",
                      "time of attn_flash / time of AttentionLaunch", "<=", 1.01,
                      goal + "; that it is about lengths from 1024 on was chosen after first results"},
       .takes =
           [](const Measurement& result) {
             const Case& config = result.config;
             return config.text("task") == "call" && config.text("op") == "flash" && config.integer("q_len") >= 1024;
           },
       .varies = {"path"},
       .pick = steps("path", {{"direct", "c"}}),
       .subject = shape_of,
       .title =
           "At {values.baseline.q_len} tokens a call of attn.h takes {compare.ratio:.4f} of the time of a direct call",
       .content =
           "On {values.baseline.q_len} tokens and {values.baseline.q_heads} heads ({values.baseline.dtype}) a call "
           "of attn.h takes {compare.ratio:.4f} ({compare.ci_lo:.4f} to {compare.ci_hi:.4f}) of the time of its "
           "kernel encoded directly: {values.contender_us:.2f} us against {values.baseline_us:.2f} us. The calls ran "
           "one after the other, and were timed until the device had done all calls.",
       .complete = add_times},
      first_call({"first_call_archive", "A first call takes at most 20 ms where an archive has its kernel.", "ms",
                  "<=", 20, goal},
                 "archive", "from an archive"),
      first_call(
          {"first_call_disk", "A first call takes at most 20 ms where the cache has its kernel.", "ms", "<=", 20, goal},
          "disk", "from the cache on disk"),
      first_call({"first_call_compiler", "A first call takes at most 500 ms where its kernel is compiled.", "ms",
                  "<=", 500, "proto4_constants measured 57 to 373 ms for a variant"},
                 "compiler", "compiled"),
  };
  return claims;
}

}  // namespace attn
