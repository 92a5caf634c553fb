#include "proto5_codegen/claims.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace attn {
namespace {

constexpr const char* expectation = "expectation before the first run";

bool has(const Measurement& result, const char* axis, const std::string& value) {
  return !where({&result}, axis, value).empty();
}
bool generated(const Measurement& result) {
  return !has(result, "generator", "hand") && !has(result, "generator", "search");
}
bool by_hand_or_generated(const Measurement& result) { return !has(result, "generator", "search"); }
bool is_whole(const Measurement& result) {
  return by_hand_or_generated(result) && (has(result, "work", "attention") || has(result, "work", "modified"));
}
bool is_scores(const Measurement& result) { return by_hand_or_generated(result) && has(result, "work", "scores"); }

const std::string shape_words =
    "{values.contender.work}, {values.contender.heads} heads, {values.contender.q_len} tokens, head_dim "
    "{values.contender.head_dim}, causal {values.contender.causal}, {values.contender.dtype}";

/// Returns the counts of instructions in the inner loop of the result's kernel, or null if the record has no counts.
Json loop_of(const Measurement& result) {
  const std::vector<Json> kernels = result.kernels();
  return kernels.empty() ? Json(nullptr) : kernels.front().value("loop", Json(nullptr));
}
double multiply_add_share(const Json& loop) {
  return loop.value("multiply_add", 0.0) / loop.value("instructions", 1.0);
}
bool tells_loop(const Measurement& result) { return loop_of(result).is_object(); }

/// Adds the counts of instructions of both inner loops to the conclusion, as the reason for the times.
void add_loops(Conclusion& conclusion, const Evidence& evidence) {
  const Json baseline = loop_of(*evidence.results.front()), contender = loop_of(*evidence.results.back());
  if (!baseline.is_object() || !contender.is_object()) return;
  for (const auto& [name, loop] : {std::pair{"baseline_loop", baseline}, {"contender_loop", contender}}) {
    Json counts = loop;
    counts["multiply_add_pct"] = 100 * multiply_add_share(loop);
    int64_t loads = 0;
    for (const auto& [what, times] : loop.items()) loads += what.starts_with("load_") ? times.get<int64_t>() : 0;
    counts["loads"] = loads;
    conclusion.values[name] = counts;
  }
  conclusion.content +=
      " Of the {values.contender_loop.instructions} instructions of the inner loop "
      "{values.contender_loop.multiply_add_pct:.0f} % are multiply-adds, and {values.contender_loop.loads} are loads. "
      "Of the {values.baseline_loop.instructions} instructions of the other kernel's inner loop "
      "{values.baseline_loop.multiply_add_pct:.0f} % are multiply-adds, and {values.baseline_loop.loads} are loads.";
}

/// Adds the search that found the contender's constants, if there was one.
void add_search(Conclusion& conclusion, const Evidence& evidence) {
  const Json& facts = evidence.results.back()->values;
  if (!facts.is_object() || !facts.contains("tried")) return;
  conclusion.values["tried"] = facts.at("tried");
  conclusion.values["search_s"] = facts.at("search_s");
  conclusion.content += " A search tried {values.tried} variants in {values.search_s:.0f} s.";
}

/// Returns a claim that compares two kernels of one work and shape. The measurements of the two kernels take turns.
Claim compared(const Hypothesis& hypothesis, std::function<bool(const Measurement&)> takes, Pick pick,
               const std::string& what, const std::string& against) {
  return {.hypothesis = hypothesis,
          .takes = std::move(takes),
          .varies = {"generator"},
          .pick = std::move(pick),
          .subject = subject_without({"generator"}),
          .title = what + " takes {compare.ratio:.2f} of the time of " + against + " (" + shape_words + ")",
          .content = what +
                     " takes {compare.ratio:.3f} (95 % interval {compare.ci_lo:.3f} to {compare.ci_hi:.3f}) of the "
                     "time of " +
                     against + ", at " + shape_words + "; the noise floor of the pair is {compare.aa_floor:.4f}.",
          .complete = [](Conclusion& conclusion, const Evidence& evidence) {
            add_loops(conclusion, evidence);
            add_search(conclusion, evidence);
          }};
}

/// Returns a claim about `figure`. The figure is computed from results that were not measured in turn.
Claim figured(const Hypothesis& hypothesis, std::function<bool(const Measurement&)> takes, Pick pick, Figure figure,
              const std::string& title, const std::string& content) {
  return {
      .hypothesis = hypothesis,
      .takes = std::move(takes),
      .varies = {"generator"},
      .pick = std::move(pick),
      .compared = false,
      .figure = std::move(figure),
      .subject = [](const Evidence& evidence) { return evidence.results.back()->config.key_without({"generator"}); },
      .title = title + " (" + shape_words + ")",
      .content = content};
}

/// Pairs the hand-written kernel with the fastest generated kernel.
std::vector<Results> fastest_generated(const Results& group) {
  Results made;
  std::ranges::copy_if(group, std::back_inserter(made), [](const auto* one) { return generated(*one); });
  return pair(where(group, "generator", "hand"), made);
}

/// Pairs the hand-written kernel with the fastest kernel of the generator.
Pick of_tool(const std::string& generator) {
  return [generator](const Results& group) {
    return pair(where(group, "generator", "hand"), where(group, "generator", generator));
  };
}

// ---- rates

Claim slower() {
  Claim claim =
      compared({"slower", "The fastest generated kernel of a whole attention takes at least 1.3 of the time of hand.",
                "time of the fastest generated kernel / time of the hand-written one", ">=", 1.3,
                "expectation of the published study before its first run: 30 to 60 % slower"},
               is_whole, fastest_generated, "The fastest generated kernel, {values.contender.generator},",
               "the hand-written kernel");
  return claim;
}

/// The published study compared a generated Q K^T with a whole attention. Here a hand-written Q K^T takes the place of
/// the whole attention.
Claim published() {
  return compared({"published", "A generated Q K^T reaches at most 70 % of the rate of a hand-written one.",
                   "time of the fastest generated kernel / time of the hand-written one", ">=", 1 / 0.7,
                   "published study, claim 14: 58 to 70 % of the hand-written rate"},
                  is_scores, fastest_generated, "The fastest generated Q K^T, by {values.contender.generator},",
                  "the hand-written Q K^T");
}

Claim viable() {
  Claim claim = compared(
      {"viable", "A generated kernel is viable: it takes at most 1.25 of the time of the hand-written one.",
       "time of the generated kernel / time of the hand-written one", "<=", 1.25,
       "the rule of this experiment, registered before the first run"},
      by_hand_or_generated, against("generator", "hand"), "{values.contender.generator}", "the hand-written kernel");
  // The subject contains the generator, so each generator has a conclusion of its own.
  claim.subject = [](const Evidence& evidence) { return evidence.results.back()->config.key_without({}); };
  return claim;
}

// ---- schedules and searches

Claim schedule() {
  return compared(
      {"schedule", "A schedule written and searched by hand takes at most 0.6 of the time of an automatic one.",
       "time of halide_tuned / time of halide_auto", "<=", 0.6, expectation},
      {}, steps("generator", {{"halide_auto", "halide_tuned"}}), "Halide with a tuned schedule",
      "Halide's autoscheduler");
}

Claim autoscheduler() {
  return compared(
      {"autoscheduler", "The autoscheduler takes at most 0.7 of the time of stages that are only vectorised.",
       "time of halide_auto / time of halide_plain", "<=", 0.7, expectation},
      {}, steps("generator", {{"halide_plain", "halide_auto"}}), "Halide's autoscheduler",
      "stages that are vectorised one by one");
}

/// Whether the search ran at the result's own length and number of heads. Cases of all shapes use the constants that
/// one search found.
bool searched_here(const Measurement& result) {
  return result.values.value("searched_q_len", int64_t{0}) == result.config.integer("q_len") &&
         result.values.value("searched_heads", int64_t{0}) == result.config.integer("heads");
}

bool was_searched(const Measurement& result) {
  return result.values.is_object() && result.values.contains("searched_q_len");
}

/// Returns the claim about the shapes for which the search ran (`own_shape`), or the claim about the other shapes.
Claim search(bool own_shape) {
  const std::string where = own_shape ? "at the shape of the search" : "at a shape other than the search's";
  const Hypothesis hypothesis = {
      own_shape ? "search" : "search_elsewhere",
      own_shape ? "A search of the function constants finds a kernel that takes at most 0.97 of the time."
                : "Constants that a search found for one shape take at most 0.97 of the time at others.",
      "time with searched constants / time with the usual ones, " + where,
      "<=",
      0.97,
      own_shape ? expectation : "chosen after results: at first `search` was judged at all shapes"};
  return compared(
      hypothesis, {},
      [own_shape](const Results& group) {
        auto pairs = steps("generator", {{"hand", "search"}})(group);
        std::erase_if(pairs, [&](const Results& one) {
          return !was_searched(*one.back()) || searched_here(*one.back()) != own_shape;
        });
        return pairs;
      },
      "The hand-written kernel with searched constants", "the hand-written kernel with the usual constants");
}

// ---- inner loops, lines of source, seconds of compilation

Claim inner_loop() {
  Claim claim = figured(
      {"inner_loop",
       "In the inner loop of the fastest generated kernel multiply-adds are at most 0.9 of the share of instructions "
       "that they are in the hand-written one.",
       "share of multiply-adds of the generated inner loop / of the hand-written one", "<=", 0.9, expectation},
      [](const Measurement& result) {
        return by_hand_or_generated(result) && !has(result, "work", "softmax") && tells_loop(result);
      },
      fastest_generated,
      [](const Evidence& evidence) -> Estimate {
        const double ratio = multiply_add_share(loop_of(*evidence.results.back())) /
                             multiply_add_share(loop_of(*evidence.results.front()));
        return {ratio, ratio, ratio};
      },
      "The inner loop of {values.contender.generator} has {estimate.value:.2f} of the share of multiply-adds that the "
      "hand-written inner loop has",
      "Counted in the machine code, not measured, at " + shape_words + ".");
  claim.exact = true;
  claim.complete = add_loops;
  return claim;
}

bool tells_lines(const Measurement& result) {
  return by_hand_or_generated(result) && result.values.is_object() && result.values.contains("source_lines");
}
double lines(const Measurement& result) { return result.values.at("source_lines").get<double>(); }

Claim source(const std::string& generator, const std::string& tool) {
  Claim claim = figured(
      {"lines_" + generator, tool + " takes at most 0.25 of the lines of source for the same share of the rate.",
       "(lines / share of the hand-written rate) / lines of the hand-written kernel", "<=", 0.25, expectation},
      tells_lines, of_tool(generator),
      [](const Evidence& evidence) -> Estimate {
        const Estimate ratio = ratio_of_medians(evidence);
        const double factor = lines(*evidence.results.back()) / lines(*evidence.results.front());
        return {factor * ratio.value, factor * ratio.ci_lo, factor * ratio.ci_hi};
      },
      tool + " takes {estimate.value:.2f} of the lines of source for the same share of the rate",
      "The hand-written kernel has {values.hand_lines} lines of source, without the lines that all kernels share. The "
      "kernel of {values.contender.generator} has {values.lines} lines, and reaches {values.rate_pct:.0f} % of the "
      "rate of the hand-written kernel.");
  claim.complete = [](Conclusion& conclusion, const Evidence& evidence) {
    conclusion.values["hand_lines"] = evidence.results.front()->values.at("source_lines");
    conclusion.values["lines"] = evidence.results.back()->values.at("source_lines");
    conclusion.values["rate_pct"] = 100 / ratio_of_medians(evidence).value;
  };
  return claim;
}

/// A run spends no time on compiling a kernel that was compiled ahead of time, so the seconds of such a kernel are in
/// the record's values.
double compile_s(const Measurement& result) {
  const bool ahead = result.values.is_object() && result.values.contains("compile_s");
  return (ahead ? result.values : result.kernels().front()).at("compile_s").get<double>();
}

Claim generation() {
  Claim claim = figured(
      {"generation", "Generating a kernel takes at least 5 times as long as compiling the hand-written one.",
       "seconds to generate and compile / seconds to compile the hand-written kernel", ">=", 5, expectation},
      by_hand_or_generated, fastest_generated,
      [](const Evidence& evidence) -> Estimate {
        const double ratio = compile_s(*evidence.results.back()) / compile_s(*evidence.results.front());
        return {ratio, ratio, ratio};
      },
      "{values.contender.generator} takes {estimate.value:.1f} times as long to make its kernel as the compiler takes "
      "for the hand-written kernel",
      "From source to machine code {values.contender.generator} takes {values.generated_ms:.0f} ms, and the "
      "hand-written kernel {values.hand_ms:.0f} ms, in one compilation of each.");
  // A cache of kernels also keeps the time that the compilation took. So other processes would read the same figure.
  claim.measured_again = false;
  claim.complete = [](Conclusion& conclusion, const Evidence& evidence) {
    conclusion.values["hand_ms"] = 1e3 * compile_s(*evidence.results.front());
    conclusion.values["generated_ms"] = 1e3 * compile_s(*evidence.results.back());
  };
  return claim;
}

}  // namespace

std::vector<Claim> codegen_claims() {
  return {slower(),
          published(),
          viable(),
          search(true),
          search(false),
          inner_loop(),
          generation(),
          source("compiler", "The compiler with plain loops"),
          source("triton", "Triton"),
          source("tilelang", "TileLang"),
          source("halide_gpu", "Halide"),
          source("halide_tuned", "Halide with a tuned schedule"),
          schedule(),
          autoscheduler()};
}

}  // namespace attn
