#include "proto6_linear/claims.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "proto6_linear/crossover.h"
#include "proto6_linear/problem.h"

namespace attn {
namespace {

constexpr const char* expectation = "expectation before the first run";

bool has(const Measurement& result, const char* axis, const std::string& value) {
  return !where({&result}, axis, value).empty();
}
bool is(const Measurement& result, const char* variant) { return has(result, "variant", variant); }

/// Whether the axes below, and the axis `state`, have their default values. Axes in `but` may have other values. For
/// the variant `recurrent` the axis `state` may have any value.
bool is_plain(const Measurement& result, const std::set<std::string>& but = {}) {
  for (const auto& [axis, value] : {std::pair{"gate", "none"},
                                    {"normalised", "0"},
                                    {"feature", "identity"},
                                    {"layout", "bhsd"},
                                    {"lengths", "equal"},
                                    {"causal", "1"},
                                    {"segments", "0"}}) {
    if (!but.contains(axis) && !has(result, axis, value)) return false;
  }
  return is(result, "recurrent") || but.contains("state") || has(result, "state", "0");
}

bool scans_on_device(const Measurement& result) { return is(result, "phases") && !has(result, "scan", "host"); }

const std::string shape_words =
    "{values.contender.batch} x {values.contender.q_len} tokens, {values.contender.heads} heads, head_dim "
    "{values.contender.head_dim}, {values.contender.dtype}";

/// Returns a claim about a pair of cases that are measured in turn, on at least 1024 tokens. Shorter sequences in the
/// sweep are for other claims.
Claim compared(const Hypothesis& hypothesis, std::function<bool(const Measurement&)> takes,
               const std::set<std::string>& varies, Pick pick, const std::string& what, const std::string& against) {
  constexpr int64_t shortest = 1024;
  return {
      .hypothesis = hypothesis,
      .takes = [takes = std::move(takes)](
                   const Measurement& result) { return result.config.integer("q_len") >= shortest && takes(result); },
      .varies = varies,
      .pick = std::move(pick),
      .subject = [varies](const Evidence& evidence) { return evidence.results.back()->config.key_without(varies); },
      .title = what + " takes {compare.ratio:.3f} of the time of " + against + " (" + shape_words + ")",
      .content = what +
                 " takes {compare.ratio:.4f} (95 % interval {compare.ci_lo:.4f} to {compare.ci_hi:.4f}) of the time "
                 "of " +
                 against + ", at " + shape_words + "; the noise floor of the pair is {compare.aa_floor:.4f}."};
}

/// Returns a claim about `figure`, which is computed from results that were not measured in turn (Claim::compared).
Claim figured(const Hypothesis& hypothesis, std::function<bool(const Measurement&)> takes,
              const std::set<std::string>& varies, Pick pick, Figure figure, const std::string& title,
              const std::string& content) {
  return {.hypothesis = hypothesis,
          .takes = std::move(takes),
          .varies = varies,
          .pick = std::move(pick),
          .compared = false,
          .figure = std::move(figure),
          .subject = subject_without(varies),
          .title = title,
          .content = content};
}

/// Adds `value(evidence)` to the values of the claim's conclusions under the name `name`, for the claim's texts.
void adds(Claim& claim, const char* name, std::function<Json(const Evidence&)> value) {
  claim.complete = [name, value = std::move(value), before = claim.complete](Conclusion& conclusion,
                                                                             const Evidence& evidence) {
    if (before) before(conclusion, evidence);
    conclusion.values[name] = value(evidence);
  };
}

// ---- forms

Claim fused() {
  return compared(
      {"fused", "One pass takes at most 0.6 of the time of the three launches of phases.",
       "time of fused / time of the fastest phases", "<=", 0.6,
       "phases writes and reads a state for each chunk, one pass does not"},
      [](const Measurement& result) { return is_plain(result) && (is(result, "fused") || scans_on_device(result)); },
      {"variant", "scan", "chunk"},
      [](const Results& group) { return pair(where(group, "variant", "phases"), where(group, "variant", "fused")); },
      "One pass with chunks of {values.contender.chunk}",
      "phases with scan={values.baseline.scan} and chunks of {values.baseline.chunk}");
}

Claim scan_form() {
  return compared(
      {"scan_form", "A scan that looks back is no slower than one in passes.",
       "time of phases with scan lookback / with scan passes", "<=", 1, expectation},
      [](const Measurement& result) { return is_plain(result) && scans_on_device(result); }, {"scan"},
      steps("scan", {{"passes", "lookback"}}), "A scan that looks back", "a scan in passes");
}

Claim segments() {
  return compared(
      {"segments", "Where one sequence and head would leave the device idle, cutting it takes at most 0.8.",
       "time with segments by the rule / with one segment", "<=", 0.8, expectation},
      [](const Measurement& result) {
        return is_plain(result, {"segments"}) && is(result, "fused") &&
               result.config.integer("heads") * result.config.integer("batch") == 1;
      },
      {"segments"}, steps("segments", {{"1", "0"}}), "One pass with segments by the rule", "one segment");
}

Claim published_chunk(int64_t head_dim, int64_t chunk) {
  const std::string name = std::to_string(chunk);
  Claim claim = compared(
      {fmt::format("chunk_{}", head_dim),
       fmt::format("At head_dim {} no chunk is more than 5 % faster than one of {}.", head_dim, chunk),
       "time with the published chunk / time with the fastest other one", "<=", 1.05,
       "published study, claim 17: chunks of 32 at head_dim 64, and of 16 at 128"},
      [head_dim](const Measurement& result) {
        return is_plain(result) && result.config.integer("head_dim") == head_dim &&
               (is(result, "fused") || scans_on_device(result));
      },
      {"chunk"},
      [name](const Results& group) {
        Results others;
        for (const Measurement* result : group) {
          if (!has(*result, "chunk", name)) others.push_back(result);
        }
        return pair(others, where(group, "chunk", name));
      },
      "{values.contender.variant} with chunks of {values.contender.chunk}", "chunks of {values.baseline.chunk}");
  claim.at_least = 3;
  return claim;
}

// ---- the host's scan

double host_s(const Measurement& result) { return result.timing(Scope::host)->median_s; }

/// Returns the seconds of one part of a sample with the scan on the host. `part` names a value of the record.
double part_s(const Measurement& result, const char* part) { return result.values.at(part).get<double>(); }

/// Returns the share of the time that the copies and the scan take.
double host_share(const Evidence& evidence) {
  const Measurement& result = *evidence.results.front();
  const double host = part_s(result, "down_s") + part_s(result, "scan_s") + part_s(result, "up_s");
  return host / (host + part_s(result, "kernels_s"));
}

Claim host_scan_share() {
  Claim claim = figured(
      {"host_scan_share", "With the scan on the host, copies and scan take at least 80 % of the time.",
       "seconds of copies and scan / seconds in all", ">=", 0.8,
       "published study, claim 16: the host's prefix sum takes 300 to 380 us, the kernels 35"},
      [](const Measurement& result) {
        return is(result, "phases") && has(result, "scan", "host") && result.timing(Scope::host) &&
               result.values.is_object() && result.values.contains("kernels_s");
      },
      {}, each,
      [](const Evidence& evidence) -> Estimate {
        const double share = host_share(evidence);
        return {share, share, share};
      },
      "The host's scan and its copies take {values.share_pct:.0f} % of the time at {values.q_len} tokens, "
      "{values.heads} "
      "heads",
      "With the scan on the host, {values.batch} x {values.q_len} tokens with {values.heads} heads of head_dim "
      "{values.head_dim} take {values.wall_us:.0f} us by the wall clock: kernels {values.kernels_us:.0f}, copies to "
      "the "
      "host {values.down_us:.0f}, the scan {values.scan_us:.0f}, copies back {values.up_us:.0f}.");
  claim.complete = [](Conclusion& conclusion, const Evidence& evidence) {
    const Measurement& result = *evidence.results.front();
    conclusion.values["share_pct"] = 100 * host_share(evidence);
    conclusion.values["wall_us"] = 1e6 * host_s(result);
    for (const char* part : {"kernels", "down", "scan", "up"}) {
      conclusion.values[std::string(part) + "_us"] = 1e6 * part_s(result, (std::string(part) + "_s").c_str());
    }
  };
  return claim;
}

Claim device_scan() {
  Claim claim = figured(
      {"device_scan", "With the scan on the device phases takes at most half of the time with the scan on the host.",
       "wall time with the fastest scan of the device / with the host's", "<=", 0.5,
       "published study, claim 16: a scan on the device would give 35 to 55 us instead of 335 to 415"},
      [](const Measurement& result) { return is_plain(result) && is(result, "phases") && result.timing(Scope::host); },
      {"scan"},
      [](const Results& group) -> std::vector<Results> {
        const Results host = where(group, "scan", "host");
        Results device;
        for (const Measurement* result : group) {
          if (!has(*result, "scan", "host")) device.push_back(result);
        }
        if (host.empty() || device.empty()) return {};
        return {{host.front(), *std::ranges::min_element(device, {}, [](const auto* one) { return host_s(*one); })}};
      },
      [](const Evidence& evidence) -> Estimate {
        const Timing &host = *evidence.results.front()->timing(Scope::host),
                     &device = *evidence.results.back()->timing(Scope::host);
        return {device.median_s / host.median_s, device.ci_lo_s / host.ci_hi_s, device.ci_hi_s / host.ci_lo_s};
      },
      "With the scan on the device phases takes {estimate.value:.3f} of the wall time with the scan on the host (" +
          shape_words + ")",
      "By the wall clock phases takes {values.device_us:.0f} us with scan={values.contender.scan} and "
      "{values.host_us:.0f} us with the scan on the host, at " +
          shape_words + ", chunks of {values.contender.chunk}.");
  claim.complete = [](Conclusion& conclusion, const Evidence& evidence) {
    conclusion.values["host_us"] = 1e6 * host_s(*evidence.results.front());
    conclusion.values["device_us"] = 1e6 * host_s(*evidence.results.back());
  };
  return claim;
}

// ---- the limits: memory, products, launches

Claim floor_of_bytes() {
  Claim claim = figured(
      {"floor", "Reading Q, K and V once and writing O once would take at least 1 / 1.5 of the time.",
       "time / time of the bytes at the copy rate of the same rounds, cold", "<=", 1.5, "the goal of this project"},
      [](const Measurement& result) {
        return result.copy_pct && result.copy_pct->ci_lo > 0 && !is(result, "recurrent") && !is(result, "softmax");
      },
      {"variant", "scan", "chunk", "segments"},
      [](const Results& group) -> std::vector<Results> { return {{fastest(group)}}; },
      [](const Evidence& evidence) -> Estimate {
        const Estimate& pct = *evidence.results.front()->copy_pct;
        return {100 / pct.value, 100 / pct.ci_hi, 100 / pct.ci_lo};
      },
      "{values.variant} takes {estimate.value:.2f} times as long as a copy of its bytes ({values.batch} x "
      "{values.q_len} tokens, "
      "{values.heads} heads, head_dim {values.head_dim}, gate {values.gate})",
      "The fastest form, {values.variant} with chunks of {values.chunk}, moves {values.mb:.1f} MB in {values.us:.1f} "
      "us with cold caches. This is {estimate.value:.3f} (95 % interval {estimate.ci_lo:.3f} to {estimate.ci_hi:.3f}) "
      "of the time of a copy of as many bytes in the same rounds.");
  claim.complete = [](Conclusion& conclusion, const Evidence& evidence) {
    conclusion.values["mb"] = evidence.results.front()->work->bytes / 1e6;
    conclusion.values["us"] = 1e6 * seconds(*evidence.results.front());
  };
  return claim;
}

/// For devices on which linear attention is compute-bound.
Claim rate(int64_t head_dim, double pct) {
  Claim claim = figured(
      {fmt::format("rate_{}", head_dim),
       fmt::format("At head_dim {} the fused form in f32 reaches {:.0f} % of the rate of "
                   "multiply-adds.",
                   head_dim, pct),
       "per cent of the rate in the same rounds", ">=", pct, "the goal of this project, set after first results"},
      [head_dim](const Measurement& result) {
        return is_plain(result) && is(result, "fused") && has(result, "dtype", "f32") && result.matrix_pct &&
               !result.copy_pct && result.values.is_object() && result.values.contains("recurrence_flops") &&
               result.config.integer("head_dim") == head_dim && result.config.integer("heads") > 1;
      },
      {"chunk", "q_len"},
      [](const Results& group) -> std::vector<Results> {
        const Measurement* best =
            *std::ranges::max_element(group, {}, [](const auto* one) { return one->matrix_pct->value; });
        return {{best}};
      },
      [](const Evidence& evidence) { return *evidence.results.front()->matrix_pct; },
      "The fused form reaches {estimate.value:.1f} % of the rate of multiply-adds at head_dim {values.head_dim}",
      "With chunks of {values.chunk} on {values.q_len} tokens the fused form reaches {estimate.value:.1f} % (95 % "
      "interval "
      "{estimate.ci_lo:.1f} to {estimate.ci_hi:.1f}) of the rate of multiply-adds in the same rounds. This rate counts "
      "the recurrence and the unmasked products within chunks; the recurrence alone gives {values.recurrence_pct:.1f} "
      "%.");
  adds(claim, "recurrence_pct", [](const Evidence& evidence) -> Json {
    const Measurement& result = *evidence.results.front();
    return result.matrix_pct->value * result.values.at("recurrence_flops").get<double>() / result.work->flops;
  });
  return claim;
}

Claim scaling() {
  Claim claim = figured(
      {"scaling", "Time grows no faster than the number of tokens.", "exponent of time over tokens, from 1024 on",
       "<=", 1.1, "the recurrence takes as long for each token"},
      [](const Measurement& result) {
        return is_plain(result) && is(result, "fused") && result.config.integer("q_len") >= 1024;
      },
      {"q_len", "chunk"}, fastest_at_each("q_len", 3), exponent_over("q_len"),
      "Time grows with the {estimate.value:.2f}th power of the tokens ({values.contender.heads} heads, head_dim "
      "{values.contender.head_dim})",
      "From {values.from} to {values.contender.q_len} tokens the time of the fused form grows with the number of "
      "tokens to the power {estimate.value:.3f} (95 % interval {estimate.ci_lo:.3f} to {estimate.ci_hi:.3f}). Each "
      "length counts with its fastest chunk.");
  adds(claim, "from",
       [](const Evidence& evidence) -> Json { return evidence.results.front()->config.integer("q_len"); });
  return claim;
}

Claim published_flat() {
  Claim claim = figured(
      {"flat", "From 256 to 1024 tokens the kernels of phases take nearly the same time.",
       "exponent of time over tokens", "<=", 0.2,
       "published study, claim 16: about 35 us at any length, 15 for chunk_h and 20 for chunk_o, of one head"},
      [](const Measurement& result) {
        const int64_t tokens = result.config.integer("q_len");
        return is_plain(result) && scans_on_device(result) && tokens >= 256 && tokens <= 1024;
      },
      {"q_len", "chunk", "scan"}, fastest_at_each("q_len", 3), exponent_over("q_len"),
      "From 256 to 1024 tokens the time of phases grows with the {estimate.value:.2f}th power of the tokens",
      "With {values.contender.heads} heads of head_dim {values.contender.head_dim} the time of phases grows "
      "with the power "
      "{estimate.value:.3f} of the tokens (95 % interval {estimate.ci_lo:.3f} to {estimate.ci_hi:.3f}) from "
      "256 to 1024. At "
      "1024 tokens: {values.phases}.");
  adds(claim, "phases", [](const Evidence& evidence) -> Json {
    std::string text;
    for (const Phase& phase : evidence.results.back()->phases) {
      if (phase.time.n == 0) continue;
      text += fmt::format("{}{} {:.1f} us", text.empty() ? "" : ", ", phase.name, 1e6 * phase.time.median_s);
    }
    return text.empty() ? "phases were not timed" : text;
  });
  return claim;
}

Claim memory() {
  Claim claim = figured(
      {"memory", "What phases keeps between its launches is less than what it reads and writes.",
       "bytes of states between launches / bytes of Q, K, V and O", "<", 1,
       "a state of D x D in f32 for each chunk, against 4 D elements a token; exact, a count that follows from the "
       "shapes"},
      [](const Measurement& result) {
        return is_plain(result) && scans_on_device(result) && result.values.contains("between_bytes");
      },
      {"scan", "chunk", "q_len", "batch", "heads"},
      [](const Results& group) -> std::vector<Results> {
        const Results usual = where(group, "chunk", "64");
        return {{largest(usual.empty() ? group : usual, "q_len")}};
      },
      [](const Evidence& evidence) -> Estimate {
        const Measurement& result = *evidence.results.front();
        const double share = result.values.at("between_bytes").get<double>() / result.work->bytes;
        return {share, share, share};
      },
      "Phases keeps {estimate.value:.2f} times the bytes of its tensors between launches (chunks of {values.chunk}, "
      "head_dim {values.head_dim}, {values.dtype})",
      "With chunks of {values.chunk} at head_dim {values.head_dim} the states between launches take {values.mb:.1f} "
      "MB, "
      "{estimate.value:.2f} times the bytes of Q, K, V and O in {values.dtype}. The fused form keeps none.");
  claim.exact = true;
  claim.complete = [](Conclusion& conclusion, const Evidence& evidence) {
    conclusion.values["mb"] = evidence.results.front()->values.at("between_bytes").get<double>() / 1e6;
    conclusion.cv = 0;  // the figure is a count of bytes, not a time
  };
  return claim;
}

// ---- gates and maps

Claim gate_cost(const std::string& gate, double most) {
  return compared(
      {"gate_" + gate, fmt::format("A gate by {} costs at most {:.0f} %.", gate, 100 * (most - 1)),
       "time with the gate / time without", "<=", most, expectation},
      [](const Measurement& result) {
        return is_plain(result, {"gate"}) && (is(result, "fused") || scans_on_device(result));
      },
      {"gate", "chunk"}, steps("gate", {{"none", gate}}), "{values.contender.variant} with a gate by " + gate,
      "{values.baseline.variant} without a gate");
}

Claim channel_over_token() {
  return compared(
      {"channel_over_token", "A gate by channel takes at most twice the time of a gate by token.",
       "time with a gate by channel / by token", "<=", 2, expectation},
      [](const Measurement& result) { return is_plain(result, {"gate"}) && is(result, "fused"); }, {"gate"},
      steps("gate", {{"token", "channel"}}), "A gate by channel", "a gate by token");
}

Claim normalised() {
  return compared(
      {"normalised", "Dividing by the sum of keys costs at most 15 %.", "time normalised / time without", "<=", 1.15,
       expectation},
      [](const Measurement& result) {
        return is_plain(result, {"normalised", "feature"}) && has(result, "feature", "elu1") &&
               (is(result, "fused") || scans_on_device(result));
      },
      {"normalised", "chunk"}, steps("normalised", {{"0", "1"}}), "{values.contender.variant} with a divisor",
      "{values.baseline.variant} without a divisor");
}

Claim feature_cost() {
  return compared(
      {"feature", "The map elu + 1 costs at most 15 %.", "time with elu + 1 / time of the identity", "<=", 1.15,
       expectation},
      [](const Measurement& result) {
        return is_plain(result, {"feature"}) && (is(result, "fused") || scans_on_device(result));
      },
      {"feature", "chunk"}, steps("feature", {{"identity", "elu1"}}), "{values.contender.variant} with the map elu + 1",
      "{values.baseline.variant} with the identity");
}

// ---- decode

Claim decode_rate() {
  return figured(
      {"decode_rate", "A step of decoding runs at 80 % of the rate of memory.", "per cent of the copy rate, cold",
       ">=", 80, "it reads and writes the states, and little else"},
      [](const Measurement& result) {
        return is_plain(result) && is(result, "recurrent") && result.copy_pct && result.config.integer("q_len") == 1;
      },
      {"batch", "heads"}, [](const Results& group) -> std::vector<Results> { return {{largest(group, "batch")}}; },
      [](const Evidence& evidence) { return *evidence.results.front()->copy_pct; },
      "A step of decoding moves its states at {estimate.value:.0f} % of the copy rate ({values.batch} sequences, "
      "{values.heads} heads, head_dim {values.head_dim})",
      "One token of each of {values.batch} sequences with {values.heads} heads, head_dim {values.head_dim}, reads and "
      "writes the states at {estimate.value:.1f} % (95 % interval {estimate.ci_lo:.1f} to {estimate.ci_hi:.1f}) of the "
      "rate "
      "of a copy in the same rounds, cold.");
}

/// Returns the number of tokens whose keys and values can be read in the time of a decoding step, at the copy rate of
/// the same rounds.
double even_tokens(const Measurement& result, double copy_pct) {
  const Case& config = result.config;
  const double copy = result.work->bytes / seconds(result) / (copy_pct / 100);
  const double token = static_cast<double>(config.integer("batch") * config.integer("heads") *
                                           (config.integer("head_dim") + config.integer("value_dim"))) *
                       static_cast<double>(size_bytes(parse_dtype(config.text("dtype"))));
  return copy * seconds(result) / token;
}

Claim decode_break_even() {
  Claim claim = figured(
      {"decode_break_even", "A step from a state is faster than reading a key/value cache of 1024 tokens.",
       "tokens of a cache that are read in the time of a step", "<=", 1024,
       "a state in f32, read and written, has the bytes of 2 D tokens in f32, and of 4 D in 16 bits"},
      [](const Measurement& result) {
        return is_plain(result) && is(result, "recurrent") && result.copy_pct && result.copy_pct->ci_lo > 0 &&
               result.config.integer("q_len") == 1;
      },
      {}, each,
      [](const Evidence& evidence) -> Estimate {
        const Measurement& result = *evidence.results.front();
        const Estimate& pct = *result.copy_pct;
        return {even_tokens(result, pct.value), even_tokens(result, pct.ci_hi), even_tokens(result, pct.ci_lo)};
      },
      "A step of decoding takes as long as reading a cache of {estimate.value:.0f} tokens ({values.batch} sequences, "
      "{values.heads} heads, head_dim {values.head_dim}, {values.dtype})",
      "A step takes {values.us:.1f} us. In the same time, the keys and values of {estimate.value:.0f} tokens (95 % "
      "interval {estimate.ci_lo:.0f} to {estimate.ci_hi:.0f}) in {values.dtype} could be read at the copy rate of the "
      "same rounds. Softmax attention over a longer cache takes longer, whatever its kernel.");
  adds(claim, "us", [](const Evidence& evidence) -> Json { return 1e6 * seconds(*evidence.results.front()); });
  return claim;
}

// ---- softmax attention

/// Returns words about the softmax kernel at `tokens` tokens: its key, time and, if measured, rate.
std::string softmax_words(const Evidence& evidence, int64_t tokens) {
  for (const Measurement* result : evidence.results) {
    if (!is(*result, "softmax") || result->config.integer("q_len") != tokens) continue;
    std::string name = result->pipeline.is_object() ? result->pipeline.value("key", "") : "";
    std::string text =
        fmt::format("{} in {:.1f} us", name.empty() ? "softmax attention" : name, 1e6 * seconds(*result));
    if (result->matrix_pct) text += fmt::format(", {:.0f} % of the rate of products", result->matrix_pct->value);
    return text;
  }
  return "softmax attention";
}

Claim crossover(const std::string& id, const std::string& text, const std::string& op, double threshold,
                const std::string& origin) {
  Claim claim = {.hypothesis = {id, text, "tokens from which on linear attention is faster", op, threshold, origin}};
  claim.gather = crossover_searches;
  claim.figure = [](const Evidence& evidence) { return bracket_of(evidence.comparisons).tokens(); };
  claim.subject = [](const Evidence& evidence) { return evidence.results.back()->config.key_without({"q_len"}); };
  claim.title =
      "Linear attention, {values.contender.variant} with gate {values.contender.gate}, is faster than softmax "
      "attention "
      "from {values.where} tokens on (head_dim {values.contender.head_dim}, {values.contender.heads} heads, "
      "{values.contender.dtype}, {values.mask})";
  claim.content =
      "Linear and softmax attention were compared A B A' on the same inputs, at lengths by powers of two and then by "
      "bisection; linear attention took these shares of the time: {values.probes}. The two take the same time at "
      "{values.where} tokens (linear attention is certainly slower at {estimate.ci_lo:.0f}, and certainly faster at "
      "{estimate.ci_hi:.0f}). The softmax kernel at {values.nearest} tokens is {values.softmax}. {values.quality}";
  claim.complete = [threshold](Conclusion& conclusion, const Evidence& evidence) {
    // A difference that the noise makes is no crossing, and the crossing may lie at any longer length.
    if (const double found = conclusion.estimate.value;
        found < threshold && !faster_beyond_noise(evidence.comparisons)) {
      conclusion.floor = std::max(conclusion.floor, 2 * std::log(threshold / found));
    }
    const Bracket bracket = bracket_of(evidence.comparisons);
    const Case& config = evidence.results.back()->config;
    std::vector<const Comparison*> sorted = evidence.comparisons;
    std::ranges::sort(sorted, {}, [](const auto* one) { return one->contender.integer("q_len"); });
    std::string probes;
    for (const Comparison* one : sorted) {
      probes += fmt::format("{}{} tokens {:.3f}", probes.empty() ? "" : ", ", one->contender.integer("q_len"),
                            one->ratio.value);
    }
    const double tokens = bracket.tokens().value;
    conclusion.values["where"] = bracket.begins_faster() ? fmt::format("{:.0f} or fewer", tokens)
                                 : bracket.ends_slower() ? fmt::format("more than {:.0f}", tokens)
                                                         : fmt::format("{:.0f}", tokens);
    conclusion.values["probes"] = probes;
    conclusion.values["mask"] = config.integer("causal") != 0 ? "causal" : "full";
    conclusion.values["nearest"] = bracket.nearest();
    conclusion.values["softmax"] = softmax_words(evidence, bracket.nearest());
    std::string quality = "The outputs are not those of softmax attention.";
    for (const Measurement* result : evidence.results) {
      if (!result->values.is_object() || !result->values.contains("softmax_cosine")) continue;
      if (result->config.integer("q_len") != bracket.nearest()) continue;
      quality =
          fmt::format("The outputs are not those of softmax attention: the cosine between them is {:.2f} on average.",
                      result->values.at("softmax_cosine").get<double>());
    }
    conclusion.values["quality"] = quality;
  };
  return claim;
}

Claim equivalence() {
  Claim claim = figured(
      {"equivalence", "On the same inputs the outputs point where those of softmax attention do.",
       "mean cosine between the two outputs of a row", ">=", 0.9,
       "published study, claim 18: linear attention by default, \"quality aside\""},
      [](const Measurement& result) {
        return result.values.is_object() && result.values.contains("softmax_cosine") &&
               (is(result, "fused") || scans_on_device(result)) && result.config.integer("q_len") >= 1024;
      },
      {"variant", "scan", "chunk", "segments", "q_len", "heads", "batch", "dtype", "out_dtype"},
      [](const Results& group) -> std::vector<Results> { return {{largest(group, "q_len")}}; },
      [](const Evidence& evidence) -> Estimate {
        const double cosine = evidence.results.front()->values.at("softmax_cosine").get<double>();
        return {cosine, cosine, cosine};
      },
      "The outputs of linear attention have a mean cosine of {estimate.value:.2f} with those of softmax attention "
      "(gate "
      "{values.gate}, feature {values.feature}, normalised {values.normalised})",
      "On {values.q_len} tokens of random inputs with head_dim {values.head_dim} the oracles compute linear and "
      "softmax attention in double. The mean cosine between the two outputs of a row is {estimate.value:.3f}, and the "
      "difference of the outputs has {values.distance:.2f} times the size of the softmax output. Figures of speed "
      "compare two different functions.");
  claim.exact = true;  // the oracles compute both outputs
  claim.complete = [](Conclusion& conclusion, const Evidence& evidence) {
    conclusion.values["distance"] = evidence.results.front()->values.at("softmax_distance");
    conclusion.cv = 0;  // the figure compares outputs, not times
  };
  return claim;
}

Claim error_growth() {
  Claim claim = figured(
      {"error_growth", "In f32 the largest error grows no faster than the number of tokens, within a tenth.",
       "exponent of the largest error over tokens", "<=", 1.1,
       "outputs grow with the root of N, and so do rounding errors as a share of them; exact; the tenth was allowed "
       "after "
       "first results"},
      [](const Measurement& result) {
        return is_plain(result) && is(result, "fused") && has(result, "dtype", "f32") && result.check &&
               result.check->max_abs > 0 && result.config.integer("q_len") >= 1024;
      },
      {"q_len", "chunk"}, fastest_at_each("q_len", 3),
      [](const Evidence& evidence) -> Estimate {
        std::vector<ScalingPoint> points;
        for (const Measurement* result : evidence.results) {
          const double error = result->check->max_abs;
          points.push_back({static_cast<double>(result->config.integer("q_len")), {error, error, error}});
        }
        return scaling_exponent(points);
      },
      "The largest error grows with the {estimate.value:.2f}th power of the tokens",
      "From {values.from} to {values.contender.q_len} tokens the largest error of the fused form in f32 against the "
      "oracle "
      "grows with the number of tokens to the power {estimate.value:.2f}: {values.errors}.");
  claim.exact = true;  // the inputs and the kernel's sums are the same in every run
  claim.complete = [](Conclusion& conclusion, const Evidence& evidence) {
    std::string errors;
    for (const Measurement* result : evidence.results) {
      errors += fmt::format("{}{:.1e} at {} ({:.0f} % of the tolerance)", errors.empty() ? "" : ", ",
                            result->check->max_abs, result->config.integer("q_len"), 100 * result->check->max_used);
    }
    conclusion.values["errors"] = errors;
    conclusion.values["from"] = evidence.results.front()->config.integer("q_len");
    conclusion.cv = 0;
  };
  return claim;
}

}  // namespace

std::vector<Claim> linear_claims(const DeviceInfo& /*device*/) {
  return {fused(),
          scan_form(),
          segments(),
          published_chunk(64, 32),
          published_chunk(128, 16),
          host_scan_share(),
          device_scan(),
          published_flat(),
          floor_of_bytes(),
          rate(64, 70),
          rate(128, 75),
          scaling(),
          memory(),
          gate_cost("head", 1.1),
          gate_cost("token", 1.1),
          gate_cost("channel", 1.5),
          channel_over_token(),
          normalised(),
          feature_cost(),
          decode_rate(),
          decode_break_even(),
          crossover(crossover_hypothesis, "Linear attention is faster than softmax attention from 256 tokens on.",
                    "<=", 256, "published study, claim 15: faster at every length tested, from 256 tokens on"),
          crossover("crossover_4096", "Linear attention is faster than softmax attention only from 4096 tokens on.",
                    ">=", 4096, "published study, claim 15: 4096 to 8192 was expected"),
          equivalence(),
          error_growth()};
}

}  // namespace attn
