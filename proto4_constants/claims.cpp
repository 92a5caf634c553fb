#include "proto4_constants/claims.h"

#include <fmt/format.h>

#include <cmath>
#include <set>
#include <string>

namespace attn {
namespace {

// The rule: if a variant compiles in less than this time, compile it when it is needed; else compile it ahead.
constexpr double rule_ms = 50;
constexpr int64_t most = 10;  // in claims with Claim::longest, a pair has at most this number of variants

using Takes = std::function<bool(const Measurement&)>;

int64_t variants_of(const Measurement& result) { return result.config.integer("variants"); }

Takes task(const std::set<std::string>& tasks) {
  return [=](const Measurement& result) { return tasks.contains(result.config.text("task")); };
}

Takes one_worker(const std::set<std::string>& tasks) {
  return [=](const Measurement& result) { return task(tasks)(result) && result.config.integer("workers") == 1; };
}

std::vector<Results> most_variants(const Results& group) { return {{largest(group, "variants")}}; }

std::vector<Results> one_and_all_workers(const Results& group) {
  const Measurement* all = largest(group, "workers");
  if (all->config.integer("workers") == 1) return {};
  return pair(where(group, "workers", "1"), {all});
}

std::string subject_of(const Case& config) {
  if (config.text("task") == "compile_one")
    return config.key_without({"task", "variants", "workers", "pch", "run_time"});
  std::vector<std::string> names = {"kernel", "dtype"};
  if (config.integer("workers") > 1) names.emplace_back("workers");
  if (config.integer("pch") != 0) names.emplace_back("pch");
  return config.key(names);
}

std::string subject_with_variants(const Evidence& evidence) {
  const Measurement& first = *evidence.results.front();
  return subject_of(first.config) + fmt::format(" variants={}", variants_of(first));
}

Estimate scaled(const Evidence& evidence, double scale) {
  const Timing& time = *evidence.results.front()->main_timing();
  return {scale * time.median_s, scale * time.ci_lo_s, scale * time.ci_hi_s};
}

Figure per_variant(double scale) {
  return [=](const Evidence& evidence) {
    return scaled(evidence, scale / static_cast<double>(variants_of(*evidence.results.front())));
  };
}

// Returns a figure that the experiment recorded with a result, or 0 if it recorded none.
double told(const Measurement& result, const std::string& name) {
  return result.values.is_object() ? result.values.value(name, 0.0) : 0;
}

void add_phases(Conclusion& conclusion, const Evidence& evidence) {
  const Measurement& result = *evidence.results.front();
  for (const std::string phase : {"front_end", "optimizer", "code_generation", "load"}) {
    // The recorded time of a phase is the sum over all variants, whichever worker compiled them.
    conclusion.values[phase + "_ms"] = 1e3 * told(result, phase + "_s") / static_cast<double>(variants_of(result));
  }
}

void describe_cost(Conclusion& conclusion, const Evidence& evidence) {
  add_phases(conclusion, evidence);
  conclusion.values["rule_ms"] = rule_ms;
  if (conclusion.values["task"] == "compile_one") {
    const std::string tile =
        "t head_dim {values.head_dim} the tile {values.block_r}x{values.block_c} of "
        "{values.kernel} ({values.dtype}) ";
    conclusion.title = "A" + tile + "compiles in {estimate.value:.4g} ms";
    conclusion.content = "A" + tile + "takes one worker {estimate.value:.4g} ms to compile" +
                         conclusion.content.substr(conclusion.content.find(" (95"));
  }
}

void describe_counts(Conclusion& conclusion, const Evidence& evidence) {
  const Case& config = evidence.results.front()->config;
  conclusion.values = {{"kernel", config.text("kernel")},
                       {"workers", config.integer("workers")},
                       {"fewest", config.integer("variants")},
                       {"most", variants_of(*evidence.results.back())},
                       {"points", evidence.results.size()}};
}

void describe_pair(Conclusion& conclusion, const Evidence& evidence) {
  const Comparison& pair = *evidence.comparisons.front();
  for (const size_t i : {0, 1}) {
    const Measurement& result = *evidence.results.at(i);
    const std::string name = i == 0 ? "baseline" : "contender";
    const double ms = 1e3 * pair.time.at(i).median_s;
    conclusion.values[name + "_total_ms"] = ms;
    conclusion.values[name + "_ms"] = ms / static_cast<double>(std::max<int64_t>(1, variants_of(result)));
    for (const char* figure : {"code_bytes", "registers"}) {
      const Json found = result.pipeline.is_object() ? result.pipeline.value(figure, Json()) : Json();
      conclusion.values[fmt::format("{}_{}", name, figure)] = found.is_number() ? found.dump() : "not told";
    }
  }
}

// Returns a claim about the time to write or to read a whole archive. The name of the task is the id of the hypothesis.
Claim archive(const Hypothesis& hypothesis, const std::string& done) {
  return {.hypothesis = hypothesis,
          .takes = one_worker({hypothesis.id}),
          .pick = each,
          .compared = false,
          .figure = [](const Evidence& evidence) { return scaled(evidence, 1e3); },
          .title = "An archive of {values.variants} variants is " + done + " in {estimate.value:.4g} ms",
          .content = "An archive of {values.variants} variants of {values.kernel}, {values.archive_bytes} bytes, is " +
                     done + " in {estimate.value:.4g} ms (95 % interval {estimate.ci_lo:.4g} to {estimate.ci_hi:.4g}).",
          .complete =
              [](Conclusion& conclusion, const Evidence& evidence) {
                conclusion.values["archive_bytes"] =
                    static_cast<int64_t>(told(*evidence.results.front(), "archive_bytes"));
              }};
}

// Returns the number of variants that a program gets within `budget_s`.
Estimate variants_within(double budget_s, const Evidence& evidence) {
  const Timing& time = *evidence.results.front()->main_timing();
  const double scale = budget_s * static_cast<double>(variants_of(*evidence.results.front()));
  return {scale / time.median_s, scale / time.ci_hi_s, scale / time.ci_lo_s};
}

// Returns a claim about how many variants a program can get within `budget_s` at start-up.
Claim startup(const Hypothesis& hypothesis, double budget_s) {
  return {.hypothesis = hypothesis,
          .takes = task({"compile", "disk", "archive"}),
          .varies = {"variants"},
          .pick = most_variants,
          .compared = false,
          .figure = [=](const Evidence& evidence) { return variants_within(budget_s, evidence); },
          .subject =
              [](const Evidence& evidence) {
                const Case& config = evidence.results.front()->config;
                return fmt::format("from={} {}", config.text("task"), subject_of(config));
              },
          .title = "{values.budget_ms:.0f} ms are enough for {values.fit} variants ({values.way})",
          .content =
              "Within {values.budget_ms:.0f} ms {values.workers} worker(s) get {values.fit} variants of "
              "{values.kernel} ({values.way}; 95 % interval {estimate.ci_lo:.4g} to {estimate.ci_hi:.4g}), at the rate "
              "of {values.variants} variants in {values.total_ms:.4g} ms.",
          .complete =
              [=](Conclusion& conclusion, const Evidence& evidence) {
                const std::string way = conclusion.values["task"];
                conclusion.values["total_ms"] = 1e3 * seconds(*evidence.results.front());
                conclusion.values["budget_ms"] = 1e3 * budget_s;
                conclusion.values["fit"] = static_cast<int64_t>(std::floor(variants_within(budget_s, evidence).value));
                conclusion.values["way"] = way == "compile" ? "no cache: all compiled"
                                           : way == "disk"  ? "a file each in the cache folder"
                                                            : "one archive";
              }};
}

}  // namespace

std::vector<Claim> constants_claims() {
  const std::string study = "the published study on Apple M4 that this follows";
  const std::string expected = "expectation before the first run";
  std::vector<Claim> claims = {
      {.hypothesis = {"cost", "A variant compiles in less than 50 ms.",
                      "ms per variant, compiled by one worker without any cache", "<", rule_ms,
                      "rule of " + study + " (constants if below, else compile ahead), which measured 34 to 63 us"},
       .takes = one_worker({"compile", "compile_one"}),
       .varies = {"variants"},
       .pick = most_variants,
       .compared = false,
       .figure = per_variant(1e3),
       .title = "A variant of {values.kernel} compiles in {estimate.value:.4g} ms",
       .content = "Compiling {values.variants} variants of {values.kernel} ({values.dtype}) takes one worker "
                  "{estimate.value:.4g} ms each (95 % interval {estimate.ci_lo:.4g} to {estimate.ci_hi:.4g}): front "
                  "end {values.front_end_ms:.3g} ms, optimiser {values.optimizer_ms:.3g} ms, code generation "
                  "{values.code_generation_ms:.3g} ms, loading {values.load_ms:.3g} ms. The rule: if a variant takes "
                  "less than {values.rule_ms:g} ms, compile variants when they are needed, else ahead.",
       .complete = describe_cost},
      {.hypothesis = {"scaling", "The time to compile grows no faster than the number of variants.",
                      "exponent of time over number of variants", "<=", 1.05, expected + ": nothing is shared"},
       .takes = task({"compile"}),
       .varies = {"variants"},
       .pick = fastest_at_each("variants", 3),
       .compared = false,
       .figure = exponent_over("variants"),
       .subject = [](const Evidence& evidence) { return subject_of(evidence.results.front()->config); },
       .title = "Compiling grows with the number of variants to the power {estimate.value:.3f}",
       .content = "From {values.fewest} to {values.most} variants of {values.kernel} ({values.points} counts, "
                  "{values.workers} workers) the time grows with their number to the power {estimate.value:.3f} (95 % "
                  "interval {estimate.ci_lo:.3f} to {estimate.ci_hi:.3f}).",
       .complete = describe_counts},
      {.hypothesis = {"memory_hit", "A variant that is loaded is found within 200 ns.", "ns per look-up", "<=", 200,
                      study + " measured 178 ns a hit"},
       .takes = one_worker({"memory"}),
       .pick = each,
       .compared = false,
       .figure = per_variant(1e9),
       .title = "A variant that is loaded is found in {estimate.value:.4g} ns",
       .content = "One of {values.variants} variants is found in memory in {estimate.value:.4g} ns (95 % interval "
                  "{estimate.ci_lo:.4g} to {estimate.ci_hi:.4g}). The look-up compares all constants of the variant."},
      {.hypothesis = {"disk_hit", "A variant on disk is ready within 1 ms.",
                      "ms per variant, reading, checking and loading", "<=", 1,
                      expected + ": two orders below compiling"},
       .takes = one_worker({"disk"}),
       .pick = each,
       .compared = false,
       .figure = per_variant(1e3),
       .title = "A variant on disk is ready in {estimate.value:.4g} ms",
       .content = "Each of {values.variants} variants is read from disk (from the system's page cache, as a second run "
                  "finds it), checked and loaded in {estimate.value:.4g} ms (95 % interval {estimate.ci_lo:.4g} to "
                  "{estimate.ci_hi:.4g}), of which loading takes {values.load_ms:.3g} ms.",
       .complete = add_phases},
      archive({"archive_create", "An archive is made within 82 ms.", "ms", "<=", 82, study + " measured 82 ms"},
              "written"),
      archive({"archive_load", "An archive is read within 5.9 ms.", "ms", "<=", 5.9, study + " measured 5.9 ms"},
              "read and checked"),
      startup({"startup_100ms", "100 ms of start-up are enough for 72 variants.", "variants within 100 ms", ">=", 72,
               expected + ": from an archive or a cache, not by compiling"},
              0.1),
      startup({"startup_1s", "1 s of start-up is enough for 72 variants.", "variants within 1 s", ">=", 72,
               expected + ": from an archive or a cache, not by compiling"},
              1),
      // The claims from here on compare pairs. The claims with the slowest pairs come last, because each round of pairs
      // is measured in the order of the claims (in_turn()).
      {.hypothesis = {"run_time", "A constant that is read at run time costs at most 1 %.",
                      "time with it read at run time / time with it compiled in", "<=", 1.01,
                      study + " measured 0 % at run time for its function constants against code written for one "
                              "variant"},
       .varies = {"run_time"},
       .pick = against("run_time", "none"),
       .subject =
           [](const Evidence& evidence) {
             return "read=" + evidence.results.back()->config.text("run_time") + " " +
                    evidence.results.front()->config.key_without({"task", "variants", "workers", "pch", "run_time"});
           },
       .title = "Read at run time, {values.contender.run_time} makes {values.baseline.kernel} take "
                "{compare.ratio:.3f} times as long",
       .content = "The kernel {values.baseline.kernel} takes {compare.ratio:.4f} ({compare.ci_lo:.4f} to "
                  "{compare.ci_hi:.4f}) times as long if it reads {values.contender.run_time} at run time, at head_dim "
                  "{values.baseline.head_dim} and {values.baseline.q_len} queries, causal "
                  "{values.baseline.causal}; the noise floor of the pair is {compare.aa_floor:.4f}. Code: "
                  "{values.contender_code_bytes} bytes, with {values.contender.run_time} compiled in "
                  "{values.baseline_code_bytes} bytes; registers: {values.contender_registers}, compiled in "
                  "{values.baseline_registers}."},
      {.hypothesis = {"start_disk", "A cache on disk takes a fifth off the time from process start to first result.",
                      "time with the kernel on disk / time without", "<=", 0.8, expected},
       .varies = {"task"},
       .pick = steps("task", {{"start_compile", "start_disk"}}),
       .title = "With its kernel on disk a process has its first result in {compare.ratio:.3f} of the time",
       .content = "If a cache folder has the kernel {values.baseline.kernel}, a process takes {compare.ratio:.3f} "
                  "({compare.ci_lo:.3f} to {compare.ci_hi:.3f}) of the time from its start to its first result: "
                  "{values.contender_total_ms:.4g} ms against {values.baseline_total_ms:.4g} ms."},
      {.hypothesis = {"start_archive", "An archive takes a fifth off the time from process start to first result.",
                      "time with the kernel in an archive / time without", "<=", 0.8, expected},
       .varies = {"task"},
       .pick = steps("task", {{"start_compile", "start_archive"}}),
       .title = "With its kernel in an archive a process has its first result in {compare.ratio:.3f} of the time",
       .content =
           "If an archive of {values.baseline.variants} variants has the kernel {values.baseline.kernel}, a process "
           "takes {compare.ratio:.3f} ({compare.ci_lo:.3f} to {compare.ci_hi:.3f}) of the time from its start to its "
           "first result: {values.contender_total_ms:.4g} ms against {values.baseline_total_ms:.4g} ms."},
      {.hypothesis = {"disk_speedup", "From disk, variants are there at least 10 times as fast as by compiling them.",
                      "time of compiling / time from disk", ">=", 10, expected},
       .varies = {"task"},
       .pick = steps("task", {{"disk", "compile"}}),
       .longest = "variants",
       .title = "Compiling variants takes {compare.ratio:.4g} times as long as finding them on disk",
       .content = "Compiling {values.baseline.variants} variants of {values.baseline.kernel} takes {compare.ratio:.4g} "
                  "({compare.ci_lo:.4g} to {compare.ci_hi:.4g}) times as long as reading the variants from disk, one "
                  "file each: {values.contender_ms:.4g} ms a variant against {values.baseline_ms:.4g} ms."},
      {.hypothesis = {"archive_speedup",
                      "From an archive, variants are there at least 10 times as fast as by compiling them.",
                      "time of compiling / time from an archive", ">=", 10,
                      study + " saw no speed-up by a binary archive"},
       .varies = {"task"},
       .pick = steps("task", {{"archive", "compile"}}),
       .longest = "variants",
       .title = "Compiling variants takes {compare.ratio:.4g} times as long as getting them from an archive",
       .content = "Compiling {values.baseline.variants} variants of {values.baseline.kernel} takes {compare.ratio:.4g} "
                  "({compare.ci_lo:.4g} to {compare.ci_hi:.4g}) times as long as reading the archive that has the "
                  "variants and loading them: {values.contender_ms:.4g} ms a variant against {values.baseline_ms:.4g} "
                  "ms."},
      {.hypothesis = {"workers",
                      "As many workers as there are cores, up to 16, compile in at most 0.6 of the time of one.",
                      "time with all workers / time with one", "<=", 0.6,
                      expected + ": two cores, with a fifth lost to memory and locks"},
       .takes = task({"compile"}),
       .varies = {"workers"},
       .pick = one_and_all_workers,
       .longest = "variants",
       .subject =
           [](const Evidence& evidence) {
             const Case& contender = evidence.results.back()->config;
             return subject_of(contender) + fmt::format(" variants={}", contender.integer("variants"));
           },
       .title = "{values.contender.workers} workers compile in {compare.ratio:.3f} of the time of one",
       .content =
           "{values.contender.workers} workers compile {values.baseline.variants} variants of {values.baseline.kernel} "
           "in {compare.ratio:.3f} ({compare.ci_lo:.3f} to {compare.ci_hi:.3f}) of the time of one worker."},
      {.hypothesis = {"pch", "Precompiled headers save at least a tenth.",
                      "time with precompiled headers / time without", "<=", 0.9,
                      expected + ": the kernels include no standard headers, so little"},
       .varies = {"pch"},
       .pick = steps("pch", {{"0", "1"}}),
       .longest = "variants",
       .title = "With precompiled headers variants take {compare.ratio:.3f} of the time",
       .content = "If the compiler precompiles the headers that read no function constant, {values.baseline.variants} "
                  "variants of {values.baseline.kernel} take {compare.ratio:.3f} ({compare.ci_lo:.3f} to "
                  "{compare.ci_hi:.3f}) of the time."},
  };
  for (Claim& claim : claims) {
    claim.limit = most;  // a sample of task=compile compiles all variants of its case
    if (!claim.subject) claim.subject = subject_with_variants;
    if (claim.compared) {
      claim.complete = describe_pair;
    } else {
      claim.complete = [own = claim.complete](Conclusion& conclusion, const Evidence& evidence) {
        conclusion.values["total_ms"] = 1e3 * seconds(*evidence.results.front());
        if (own) own(conclusion, evidence);
      };
    }
    claim.tags = [id = claim.hypothesis.id](const Evidence& evidence) {
      return std::vector<std::string>{"function_constants", id, evidence.results.front()->config.text("kernel")};
    };
  }
  return claims;
}

}  // namespace attn
