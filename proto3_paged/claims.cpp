#include "proto3_paged/claims.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/cases/modifier_axes.h"
#include "proto3_paged/problem.h"

namespace attn {
namespace {

constexpr const char* expectation = "expectation before the first run";
constexpr int64_t published_memory = 32 << 10;  // threadgroup memory of an M4, in bytes

bool has(const Measurement& result, const char* axis, const std::string& value) {
  return !where({&result}, axis, value).empty();
}

/// Returns whether the axes below have their default values. The axes in `but` may have any value.
bool is_plain(const Measurement& result, const std::set<std::string>& but) {
  for (const auto& [axis, value] : {std::pair{"task", "decode"},
                                    {"page_order", "identity"},
                                    {"cache_layout", "nhd"},
                                    {"workers", "0"},
                                    {"reduce", "last"},
                                    {"append", "none"},
                                    {"cascade", "0"},
                                    {"block_c", "64"}}) {
    if (!but.contains(axis) && !has(result, axis, value)) return false;
  }
  for (const std::string& axis : modifiers_on(result.config)) {  // `lengths` is no modifier in this experiment
    if (!but.contains(axis) && axis != "lengths") return false;
  }
  return true;
}

/// Returns a claim that compares the values of `axis` with the baseline `value`. A caller that replaces `pick` and the
/// texts may leave `value` and `what` empty.
Claim against_one(const Hypothesis& hypothesis, const std::string& axis, const std::string& value,
                  const std::string& what) {
  const std::string shape =
      "{values.contender.batch} x {values.contender.kv_len} tokens, {values.contender.q_heads} query heads on "
      "{values.contender.kv_heads}, head_dim {values.contender.head_dim}, {values.contender.cache_dtype}";
  return {.hypothesis = hypothesis,
          .takes = [axis](const Measurement& result) { return is_plain(result, {axis}); },
          .varies = {axis},
          .pick = against(axis, value),
          .subject =
              [axis](const Evidence& evidence) {
                const Case& config = evidence.results.back()->config;
                return config.key({axis}) + " " + config.key_without({axis});
              },
          .title = what + " takes {compare.ratio:.3f} of the time of " + axis + "=" + value + " (" + shape + ")",
          .content = what +
                     " takes {compare.ratio:.4f} (95 % interval {compare.ci_lo:.4f} to {compare.ci_hi:.4f}) of the "
                     "time of " +
                     axis + "=" + value + ", at " + shape +
                     ", lengths {values.contender.lengths}; the noise floor of the pair is {compare.aa_floor:.4f}."};
}

Claim paging() {
  return against_one({"paging", "A paged cache costs at most 10 %.", "time with pages / time of a contiguous cache",
                      "<=", 1.1, expectation},
                     "page_size", "0", "A cache on pages of {values.contender.page_size}");
}

/// All rows of a key/value head are in one tile, so a key is read once for all new tokens.
Claim several_tokens() {
  return against_one({"several_tokens", "Decoding 2 to 16 new tokens takes at most 6 % longer than decoding one.",
                      "time with several new tokens / time with one", "<=", 1.06, expectation},
                     "q_len", "1", "Decoding {values.contender.q_len} new tokens");
}

/// Returns a claim of the published study about pages of 16 tokens. The claim uses the comparisons of `paging`, and
/// those of `prefill_paging` on whole prompts of at most 2048 tokens and one head, as the study had them. In a replay
/// of the claim (--replay) the comparison has the claim's own id.
Claim published_paging(const std::string& id, const std::string& text, const std::string& op, double threshold,
                       const std::string& origin) {
  Claim claim = paging();
  claim.hypothesis = {id, text, "time with pages of 16 / time of a contiguous cache", op, threshold, origin};
  claim.takes = {};
  claim.pick = {};
  claim.gather = [id](const std::vector<Comparison>& comparisons) {
    std::vector<std::vector<const Comparison*>> found;
    for (const Comparison& comparison : comparisons) {
      const Case& config = comparison.contender;
      const bool prompt = comparison.hypothesis == "prefill_paging" && config.integer("q_heads") == 1 &&
                          config.integer("q_len") == config.integer("kv_len") && config.integer("kv_len") <= 2048;
      const bool own = (comparison.hypothesis == "paging" || prompt) && config.integer("page_size") == 16;
      if (own || comparison.hypothesis == id) found.push_back({&comparison});
    }
    return found;
  };
  return claim;
}

/// Returns the claim with prefill in place of decoding. Compared cases may also differ in `block_c`.
Claim of_prefill(Claim claim, const std::string& axis) {
  claim.takes = [axis](const Measurement& result) {
    return has(result, "task", "prefill") && is_plain(result, {axis, "task", "block_c"});
  };
  claim.varies.insert(claim.varies.end(), {"block_c"});
  return claim;
}

Claim prefill_paging() {
  return of_prefill(
      against_one({"prefill_paging", "Over a paged cache prefill takes at most 3 % longer.",
                   "time with pages / time of a contiguous cache", "<=", 1.03, expectation},
                  "page_size", "0",
                  "Prefill of {values.contender.q_len} queries each over pages of {values.contender.page_size}"),
      "page_size");
}

Claim order() {
  return against_one({"page_order", "Where pages lie in the pool costs at most 5 %.",
                      "time with pages in another order / time with pages in order", "<=", 1.05, expectation},
                     "page_order", "identity",
                     "Pages of {values.contender.page_size} in the order {values.contender.page_order}");
}

Claim layout() {
  return against_one({"cache_layout", "Heads before tokens are no slower than tokens before heads, within 5 %.",
                      "time of hnd / time of nhd", "<=", 1.05, expectation},
                     "cache_layout", "nhd",
                     "The layout {values.contender.cache_layout} of page_size {values.contender.page_size}");
}

Claim second_launch() {
  return against_one({"reduce", "A second launch that joins costs at most 5 %.",
                      "time with a second launch / time where the last worker joins", "<=", 1.05, expectation},
                     "reduce", "last", "A launch that joins the parts");
}

/// Compares the rule's number of workers (`workers=0`) with the fastest number that was tried. The sweep's shortest
/// time may be chance, so the rule and the fastest number are measured again.
Claim rule() {
  Claim claim = against_one({"workers", "No number of workers is more than 5 % faster than the rule.",
                             "time by the rule / time of the fastest number", "<=", 1.05, expectation},
                            "workers", "0", "");
  claim.at_least = 3;
  claim.pick = [](const Results& group) {
    const Results by_rule = where(group, "workers", "0");
    Results others;
    for (const Measurement* result : group) {
      if (result->config.integer("workers") != 0) others.push_back(result);
    }
    return pair(others, by_rule);
  };
  claim.subject = subject_without({"workers"});
  claim.title =
      "The rule for workers takes {compare.ratio:.3f} of the time of {values.baseline.workers} workers, the best tried "
      "({values.contender.batch} x {values.contender.kv_len} tokens, {values.contender.lengths})";
  claim.content =
      "By the rule for workers decoding takes {compare.ratio:.4f} (95 % interval {compare.ci_lo:.4f} to "
      "{compare.ci_hi:.4f}) of the time with {values.baseline.workers} workers, the fastest number that was tried; the "
      "noise floor of the pair is {compare.aa_floor:.4f}.";
  return claim;
}

Claim packing() {
  Claim claim =
      against_one({"packing", "Query heads that share keys cost at most 10 % more than one query head for each.",
                   "time with shared heads / time with as many query heads as key/value heads", "<=", 1.1, expectation},
                  "q_heads", "", "");
  claim.pick = [](const Results& group) {
    std::vector<Results> picks;
    for (const Measurement* alone : group) {
      if (alone->config.integer("q_heads") != alone->config.integer("kv_heads")) continue;
      for (const Measurement* result : group) {
        if (result != alone) picks.push_back({alone, result});
      }
    }
    return picks;
  };
  claim.title =
      "{values.contender.q_heads} query heads on {values.contender.kv_heads} take {compare.ratio:.3f} of the time of "
      "{values.baseline.q_heads} ({values.contender.batch} x {values.contender.kv_len} tokens)";
  claim.content =
      "With {values.contender.q_heads} query heads on {values.contender.kv_heads} key/value heads decoding takes "
      "{compare.ratio:.4f} (95 % interval {compare.ci_lo:.4f} to {compare.ci_hi:.4f}) of its time with one query head "
      "for each; the noise floor of the pair is {compare.aa_floor:.4f}.";
  return claim;
}

Claim eight_bits() {
  Claim claim = against_one({"eight_bits", "An 8-bit cache takes half the time of a 16-bit one, within 15 %.",
                             "time with an 8-bit cache / time with a 16-bit cache", "<=", 0.58, expectation},
                            "cache_dtype", "", "");
  claim.pick = [](const Results& group) {
    std::vector<Results> picks;
    for (const char* wide : {"f16", "bf16"}) {
      for (const char* narrow : {"e4m3", "int8"}) {
        const auto picked = pair(where(group, "cache_dtype", wide), where(group, "cache_dtype", narrow));
        picks.insert(picks.end(), picked.begin(), picked.end());
      }
    }
    return picks;
  };
  claim.title =
      "A cache of {values.contender.cache_dtype} takes {compare.ratio:.3f} of the time of one of "
      "{values.baseline.cache_dtype} ({values.contender.batch} x {values.contender.kv_len} tokens, "
      "{values.contender.q_heads} query heads on {values.contender.kv_heads}, Q in {values.contender.dtype})";
  claim.content =
      "Decoding over a cache of {values.contender.cache_dtype} with a scale for each page and head takes "
      "{compare.ratio:.4f} (95 % interval {compare.ci_lo:.4f} to {compare.ci_hi:.4f}) of its time over a cache of "
      "{values.baseline.cache_dtype}, with page_size={values.contender.page_size}; the noise floor of the pair is "
      "{compare.aa_floor:.4f}.";
  return claim;
}

/// Returns the claim about a modifier of the scores.
Claim score_cost(const std::string& axis, const std::string& what) {
  return against_one(
      {axis, what + " costs decoding at most 5 %.", "time with the modifier / time without", "<=", 1.05, expectation},
      axis, "0", what + " ({values.contender." + axis + "})");
}

/// The bound is above 1 because the launch and the join of parts take their time with any window.
Claim window() {
  Claim claim =
      against_one({"window", "With a window decoding takes at most 1.5 of the share of keys that it leaves.",
                   "time with a window / time without, over the share of keys that it leaves", "<=", 1.5, expectation},
                  "window_left", "-1", "A window of {values.contender.window_left} keys");
  const auto share = [](const Evidence& evidence) {
    return evidence.results.back()->work->flops / evidence.results.front()->work->flops;
  };
  claim.figure = [share](const Evidence& evidence) -> Estimate {
    const Estimate& ratio = evidence.comparisons.back()->ratio;
    const double left = share(evidence);
    return {ratio.value / left, ratio.ci_lo / left, ratio.ci_hi / left};
  };
  claim.content +=
      " The window leaves {values.keys_pct:.2f} % of the keys; the time is {estimate.value:.3f} of this share.";
  claim.complete = [share](Conclusion& conclusion, const Evidence& evidence) {
    conclusion.values["keys_pct"] = 100 * share(evidence);
  };
  return claim;
}

/// Returns the number of layers of the sweep's model that has the heads of the case, or 0 if there is none.
int64_t layers_of(const Case& config) {
  const auto is = [&](int64_t q_heads, int64_t kv_heads, int64_t head_dim) {
    return config.integer("q_heads") == q_heads && config.integer("kv_heads") == kv_heads &&
           config.integer("head_dim") == head_dim;
  };
  return is(32, 4, 64) ? 22 : is(32, 8, 128) ? 32 : 0;
}

/// Returns a claim that compares the value `contender` of the axis `append` with the value `baseline`. The conclusion's
/// text adds the time of a layer and, if layers_of() knows the model, of a token in all layers.
Claim append(const Hypothesis& hypothesis, const char* contender, const char* baseline, const std::string& what) {
  Claim claim = against_one(hypothesis, "append", baseline, what);
  claim.pick = [contender, baseline](const Results& group) {
    return pair(where(group, "append", baseline), where(group, "append", contender));
  };
  claim.content += " {values.of_layer}";
  claim.complete = [](Conclusion& conclusion, const Evidence& evidence) {
    const Measurement &other = *evidence.results.front(), &own = *evidence.results.back();
    const auto us = [](const Measurement& result) { return 1e6 * result.main_timing()->median_s; };
    const auto launches = [](const Measurement& result) { return std::max<size_t>(result.phases.size(), 1); };
    std::string text =
        fmt::format("A layer takes {:.1f} us, {:.1f} MB and launches: {}; against {:.1f} us, {:.1f} MB and {}.",
                    us(own), own.work->bytes / 1e6, launches(own), us(other), other.work->bytes / 1e6, launches(other));
    if (const int64_t layers = layers_of(own.config); layers > 0) {
      const auto tokens = static_cast<double>(own.config.integer("batch") * own.config.integer("q_len"));
      const auto of_token = [&](const Measurement& result) {
        return us(result) * static_cast<double>(layers) / tokens;
      };
      text += fmt::format(" In the {} layers of {} that is {:.3g} us for each token, against {:.3g} us.", layers,
                          layers == 22 ? "TinyLlama-1.1B" : "Llama-3-8B", of_token(own), of_token(other));
    }
    conclusion.values["of_layer"] = text;
  };
  return claim;
}

Claim append_fused() {
  return append({"append_fused", "Fused decoding is three times as fast as the chain of separate kernels, or faster.",
                 "time of the fused launch / time of a chain that turns, writes and attends", "<=", 1.0 / 3,
                 "the published study expected 3 to 5 times"},
                "fused", "chain", "Decoding that turns and writes new tokens itself");
}

/// The bound of 13 % comes from FlashAttention-3 on an H200: with 16 sequences of 4096 tokens FlashAttention-3 takes 95
/// us if it appends, and 84 us if it does not.
Claim append_cost() {
  return append({"append_cost", "Turning and writing new tokens adds at most 13 % to decoding.",
                 "time of the fused launch / time where the tokens are in the cache", "<=", 1.13,
                 "chosen after results: FlashAttention-3 on an H200 takes 95 us with, and 84 us without"},
                "fused", "none", "Decoding that turns and writes new tokens itself");
}

Claim prefill_fused() {
  return of_prefill(
      append({"prefill_fused", "Fused prefill is twice as fast as the chain of separate kernels, or faster.",
              "time of the fused launch / time of a chain that turns, writes and attends", "<=", 0.5,
              "the published study expected 2 to 3 times"},
             "fused", "chain", "Prefill that turns and writes new tokens itself"),
      "append");
}

/// All sequences begin with the same tokens. A cascade reads these tokens once, plain decoding reads them for each
/// sequence. If the hardware caches hold the tokens, reading them again may cost little.
Claim cascade() {
  Claim claim =
      against_one({"cascade", "Reading a shared prefix once takes at most 1.1 times the bytes' share of the time.",
                   "time with the prefix read once / time where each sequence reads it, over the same ratio of bytes",
                   "<=", 1.1, expectation},
                  "cascade", "0", "");
  claim.takes = [](const Measurement& result) { return is_plain(result, {"cascade", "page_order"}); };
  claim.figure = [](const Evidence& evidence) {
    const Measurement& each = *evidence.results.front();
    const double share =
        evidence.results.back()->work->bytes / (each.work->bytes + repeated_bytes(PagedConfig::from(each.config)));
    const Estimate& ratio = evidence.comparisons.back()->ratio;
    return Estimate{ratio.value / share, ratio.ci_lo / share, ratio.ci_hi / share};
  };
  claim.title =
      "A cascade takes {compare.ratio:.3f} of the time where {values.contender.batch} sequences share "
      "{values.contender.shared_pct} % of {values.contender.kv_len} tokens";
  claim.content =
      "Where {values.contender.batch} sequences share {values.contender.shared_pct} % of {values.contender.kv_len} "
      "tokens, reading these once takes {compare.ratio:.4f} (95 % interval {compare.ci_lo:.4f} to {compare.ci_hi:.4f}) "
      "of the time in which each sequence reads them; the noise floor of the pair is {compare.aa_floor:.4f}.";
  return claim;
}

double cache_error(const Measurement& result) { return result.values.at("cache_error").get<double>(); }

/// The values are normally distributed, and the largest value of a page is 3 to 4 standard deviations. So int8 has
/// steps of about 1/36 of a standard deviation, and errs by 0.008 of a standard deviation. e4m3 errs by 0.026 of each
/// value.
Claim int8_error() {
  Claim claim = {
      .hypothesis = {"int8_error", "On normal keys and values int8 errs at most half as much as e4m3.",
                     "error of O with an int8 cache / with an e4m3 cache", "<=", 0.5,
                     "the steps of the two types on normal values; exact, and the same in every run: it can fail only "
                     "with another quantiser"},
      .takes = [](const Measurement& result) { return is_plain(result, {}) && result.values.contains("cache_error"); },
      .varies = {"cache_dtype"},
      .pick =
          [](const Results& group) {
            return pair(where(group, "cache_dtype", "e4m3"), where(group, "cache_dtype", "int8"));
          },
      .compared = false,
      .figure =
          [](const Evidence& evidence) {
            const double share = cache_error(*evidence.results.back()) / cache_error(*evidence.results.front());
            return Estimate{share, share, share};
          },
      .exact = true,
      .subject = subject_without({"cache_dtype"}),
      .title =
          "O errs by {values.int8_pct:.2f} % with an int8 cache, by {values.e4m3_pct:.2f} % with e4m3 "
          "(page_size={values.contender.page_size}, {values.contender.kv_len} tokens)",
      .content =
          "The root of the mean square error of O, against the keys and values before they were stored, is "
          "{values.int8_pct:.3f} % of the root mean square of O with an int8 cache, and {values.e4m3_pct:.3f} % with "
          "an e4m3 cache. The error with int8 is {estimate.value:.3f} of the error with e4m3. Keys and values are "
          "normally distributed, without outliers; "
          "page_size={values.contender.page_size}, head_dim {values.contender.head_dim}."};
  claim.complete = [](Conclusion& conclusion, const Evidence& evidence) {
    conclusion.values["e4m3_pct"] = 100 * cache_error(*evidence.results.front());
    conclusion.values["int8_pct"] = 100 * cache_error(*evidence.results.back());
  };
  return claim;
}

/// Returns a claim about the share of the memory's copy rate or read rate that decoding reaches. `name` is "copy" or
/// "read". Decoding itself only reads.
Claim rate(const std::string& id, const std::string& name, std::optional<Estimate> Measurement::* share) {
  return {.hypothesis = {id,
                         fmt::format("Decoding reads a cache of 16 MB and more at 85 % of the rate of a {}, or faster.",
                                     name),
                         fmt::format("share of the {} rate in the same rounds, cold", name), ">=", 85, expectation},
          .takes =
              [share](const Measurement& result) {
                return is_plain(result, {}) && result.work->bytes >= 16e6 && result.*share;
              },
          .pick = each,
          .compared = false,
          .figure = [share](const Evidence& evidence) { return *(evidence.results.front()->*share); },
          .subject = subject_without({}),
          .title = "Decoding with page_size={values.page_size} runs at {estimate.value:.0f} % of the " + name +
                   " rate "
                   "({values.batch} x {values.kv_len} tokens, {values.q_heads} query heads on {values.kv_heads})",
          .content =
              "Decoding with page_size={values.page_size} over {values.batch} x {values.kv_len} tokens, "
              "{values.lengths} lengths, runs at {estimate.value:.1f} % (95 % interval {estimate.ci_lo:.1f} to "
              "{estimate.ci_hi:.1f}) of the rate of a " +
              name + " that ran in the same rounds, from cold caches."};
}

double empty_share(const Measurement& result) { return result.values.at("waste").get<double>(); }

Claim waste() {
  Claim claim = {
      .hypothesis = {"waste", "Pages of 16 tokens leave at most 4 % of their slots empty.",
                     "slots without a token / slots of the pages in use", "<=", 0.04,
                     "Kwon et al. 2023 (PagedAttention): under 4 % in practice; exact, a count that follows from the "
                     "sweep's lengths: it cannot fail on them"},
      .takes =
          [](const Measurement& result) {
            return is_plain(result, {}) && has(result, "page_size", "16") && !has(result, "lengths", "equal") &&
                   result.values.contains("waste");
          },
      .pick = each,
      .compared = false,
      .figure =
          [](const Evidence& evidence) {
            const double share = empty_share(*evidence.results.front());
            return Estimate{share, share, share};
          },
      .exact = true,
      .subject = subject_without({}),
      .title =
          "Pages of 16 leave {values.waste_pct:.2g} % of their slots empty, a contiguous cache "
          "{values.contiguous_pct:.0f} % ({values.batch} x {values.kv_len} tokens, {values.lengths} lengths)",
      .content =
          "Of {values.batch} sequences of up to {values.kv_len} tokens, {values.lengths} lengths, pages of 16 "
          "leave {values.waste_pct:.3g} % of their slots empty. By page size: {values.by_page_size}. A "
          "contiguous cache with {values.kv_len} slots for each sequence leaves {values.contiguous_pct:.1f} % "
          "empty."};
  claim.complete = [](Conclusion& conclusion, const Evidence& evidence) {
    PagedConfig config = PagedConfig::from(evidence.results.front()->config);
    const auto percent = [&](int64_t page_size) {
      config.decode.page_size = page_size;
      return 100 * pool_figures(config).waste;
    };
    std::string by_page_size;
    for (const int64_t page_size : {1, 8, 16, 32, 64, 128, 256}) {
      if (!by_page_size.empty()) by_page_size += ", ";
      by_page_size += fmt::format("{}: {:.2g} %", page_size, percent(page_size));
    }
    conclusion.values["by_page_size"] = by_page_size;
    conclusion.values["contiguous_pct"] = percent(0);
    conclusion.values["waste_pct"] = 100 * empty_share(*evidence.results.front());
    conclusion.cv = 0;  // slots are counted, not timed
  };
  return claim;
}

/// Returns the tokens of the published kernel's largest page (a power of two) that fits into `bytes` of threadgroup
/// memory, or 0 if no page fits.
int64_t largest_published_page(int64_t bytes, int64_t head_dim) {
  int64_t page_size = 1;
  while (published_page_bytes(page_size, head_dim) <= bytes) page_size *= 2;
  return page_size / 2;
}

/// Returns the claim about pages that the published kernel cannot hold in 32 KB.
Claim viability(const DeviceInfo& device) {
  Claim claim = {
      .hypothesis =
          {"viability", "A page that 32 KB of threadgroup memory cannot hold takes no more than them.",
           "bytes of threadgroup memory / 32768", "<=", 1,
           "published study, claim 9: its kernel holds a page, so that on an M4 a page has at most 32 tokens "
           "at head_dim 64, and 16 at 128; this kernel holds a block of keys, whatever the page; exact, a count that "
           "follows from the kernel's block: no run changes it"},
      .takes =
          [](const Measurement& result) {
            const int64_t page_size = result.config.integer("page_size");
            return is_plain(result, {}) && page_size > 0 && result.values.contains("threadgroup_bytes") &&
                   published_page_bytes(page_size, result.config.integer("head_dim")) > published_memory;
          },
      .varies = {"page_size", "batch", "kv_len", "lengths", "cache_dtype"},
      .pick = [](const Results& group) -> std::vector<Results> { return {{largest(group, "page_size")}}; },
      .compared = false,
      .figure =
          [](const Evidence& evidence) {
            const double share = evidence.results.front()->values.at("threadgroup_bytes").get<double>() /
                                 static_cast<double>(published_memory);
            return Estimate{share, share, share};
          },
      .exact = true,
      .subject = subject_without({"page_size", "batch", "kv_len", "lengths", "cache_dtype"}),
      .title =
          "Pages of {values.page_size} take {values.threadgroup_bytes} bytes of threadgroup memory at head_dim "
          "{values.head_dim}, where the published kernel would take {values.published_bytes}",
      .content =
          "Decoding with pages of {values.page_size} at head_dim {values.head_dim} takes "
          "{values.threadgroup_bytes} bytes of threadgroup memory, {estimate.value:.2f} of 32 KB: a block of "
          "{values.block_c} keys at a time, whatever the page. The published kernel holds a page of keys and one "
          "of values, by page size: {values.by_page_size}. Its largest page has {values.page_in_32_kb} tokens in "
          "32 KB, and {values.page_here} in the {values.device_bytes} bytes of this device."};
  claim.complete = [bytes = static_cast<int64_t>(device.threadgroup_memory_bytes)](Conclusion& conclusion,
                                                                                   const Evidence& evidence) {
    const Measurement& result = *evidence.results.front();
    const int64_t head_dim = result.config.integer("head_dim");
    std::string by_page_size;
    for (const int64_t page_size : {8, 16, 32, 64, 128, 256}) {
      if (!by_page_size.empty()) by_page_size += ", ";
      by_page_size += fmt::format("{}: {:.3g} KB", page_size,
                                  static_cast<double>(published_page_bytes(page_size, head_dim)) / 1024);
    }
    conclusion.values["by_page_size"] = by_page_size;
    conclusion.values["threadgroup_bytes"] = result.values.at("threadgroup_bytes");
    conclusion.values["published_bytes"] = published_page_bytes(result.config.integer("page_size"), head_dim);
    conclusion.values["page_in_32_kb"] = largest_published_page(published_memory, head_dim);
    conclusion.values["page_here"] = largest_published_page(bytes, head_dim);
    conclusion.values["device_bytes"] = bytes;
    conclusion.cv = 0;  // bytes are counted, not timed
  };
  return claim;
}

}  // namespace

int64_t published_page_bytes(int64_t page_size, int64_t head_dim) {
  constexpr int64_t queries = 16;
  return static_cast<int64_t>(sizeof(float)) * (queries * head_dim + 2 * page_size * head_dim + queries * page_size);
}

std::vector<Claim> paged_claims(const DeviceInfo& device) {
  const std::string expected = "published study, claim 27: expected before it measured, 10 to 25 %";
  return {paging(),
          prefill_paging(),
          several_tokens(),
          published_paging("paging_10", "Pages of 16 tokens cost at least 10 %.", ">=", 1.1, expected),
          published_paging("paging_25", "Pages of 16 tokens cost at most 25 %.", "<=", 1.25, expected),
          published_paging("paging_9", "Pages of 16 tokens cost at most 9 %.", "<=", 1.09,
                           "published study, claim 8: measured on an M4 with 256 to 512 tokens"),
          rate("rate", "copy", &Measurement::copy_pct),
          rate("read_rate", "read", &Measurement::read_pct),
          rule(),
          second_launch(),
          layout(),
          order(),
          packing(),
          eight_bits(),
          int8_error(),
          score_cost("alibi", "ALiBi"),
          score_cost("soft_cap", "A soft cap"),
          window(),
          append_fused(),
          append_cost(),
          prefill_fused(),
          cascade(),
          waste(),
          viability(device)};
}

}  // namespace attn
