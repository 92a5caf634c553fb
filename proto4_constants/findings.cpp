#include "proto4_constants/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace attn {
namespace {

constexpr double rule_ms = 50;  // per variant: below, constants are compiled when they are needed; above, ahead

std::string task_of(const Measurement& result) { return result.config.text("task"); }
int64_t variants_of(const Measurement& result) { return result.config.integer("variants"); }

Results timed(const std::vector<Measurement>& results) {
  Results found;
  for (const Measurement& result : results) {
    if (result.status == "ok" && result.main_timing()) found.push_back(&result);
  }
  return found;
}

// Where results differ in `axis` alone: the one that has `baseline` there against the one that has `contender`.
void duel(const std::string& hypothesis, const Results& results, const std::string& axis, const AxisValue& baseline,
          const AxisValue& contender, std::vector<Duel>& duels) {
  const auto value_of = [&](const Measurement* result) {
    const auto& axes = result->config.axes();
    return std::find_if(axes.begin(), axes.end(), [&](const auto& named) { return named.first == axis; })->second;
  };
  for (const auto& [key, group] : grouped(results, {axis})) {
    const auto find = [&](const AxisValue& value) {
      return std::find_if(group.begin(), group.end(), [&](const auto* result) { return value_of(result) == value; });
    };
    const auto from = find(baseline), to = find(contender);
    if (from != group.end() && to != group.end()) duels.push_back({hypothesis, (*from)->config, (*to)->config});
  }
}

// Of the duels of a hypothesis those over the most variants, up to `most`: a sample takes as long as compiling them
// all.
void keep_most_variants(const std::string& hypothesis, int64_t most, std::vector<Duel>& duels) {
  int64_t kept = 0;
  for (const Duel& duel : duels) {
    const int64_t variants = duel.baseline.integer("variants");
    if (duel.hypothesis == hypothesis && variants <= most) kept = std::max(kept, variants);
  }
  std::erase_if(duels, [&](const Duel& duel) {
    return duel.hypothesis == hypothesis && duel.baseline.integer("variants") != kept;
  });
}

// What a claim about getting variants is about.
std::string subject_of(const Case& config) {
  if (config.text("task") == "compile_one")
    return config.key_without({"task", "variants", "workers", "pch", "run_time"});
  std::vector<std::string> names = {"kernel", "dtype"};
  if (config.integer("workers") > 1) names.emplace_back("workers");
  if (config.integer("pch") != 0) names.emplace_back("pch");
  return config.key(names);
}

struct Wording {
  std::string title, content;
};

const std::map<std::string, Wording>& wordings() {
  static const std::map<std::string, Wording> all = {
      {"disk_speedup",
       {"Compiling variants takes {compare.ratio:.4g} times as long as finding them on disk",
        "Compiling {values.baseline.variants} variants of {values.baseline.kernel} takes {compare.ratio:.4g} "
        "({compare.ci_lo:.4g} to {compare.ci_hi:.4g}) times as long as getting them where they lie on disk, one file "
        "each: {values.contender_ms:.4g} ms a variant against {values.baseline_ms:.4g} ms."}},
      {"archive_speedup",
       {"Compiling variants takes {compare.ratio:.4g} times as long as getting them from an archive",
        "Compiling {values.baseline.variants} variants of {values.baseline.kernel} takes {compare.ratio:.4g} "
        "({compare.ci_lo:.4g} to {compare.ci_hi:.4g}) times as long as getting them where one archive has them, "
        "reading "
        "it included: {values.contender_ms:.4g} ms a variant against {values.baseline_ms:.4g} ms."}},
      {"workers",
       {"{values.contender.workers} workers compile in {compare.ratio:.3f} of the time of one",
        "{values.baseline.variants} variants of {values.baseline.kernel} take {values.contender.workers} workers "
        "{compare.ratio:.3f} ({compare.ci_lo:.3f} to {compare.ci_hi:.3f}) of the time that one takes."}},
      {"pch",
       {"With precompiled headers variants take {compare.ratio:.3f} of the time",
        "{values.baseline.variants} variants of {values.baseline.kernel} take {compare.ratio:.3f} "
        "({compare.ci_lo:.3f} to {compare.ci_hi:.3f}) of the time where the compiler keeps what it made of headers "
        "that "
        "read no function constant."}},
      {"start_disk",
       {"With its kernel on disk a process has its first result in {compare.ratio:.3f} of the time",
        "From the start of a process to the first result of {values.baseline.kernel} it takes {compare.ratio:.3f} "
        "({compare.ci_lo:.3f} to {compare.ci_hi:.3f}) of the time where a cache folder has the kernel: "
        "{values.contender_total_ms:.4g} ms against {values.baseline_total_ms:.4g} ms."}},
      {"start_archive",
       {"With its kernel in an archive a process has its first result in {compare.ratio:.3f} of the time",
        "From the start of a process to the first result of {values.baseline.kernel} it takes {compare.ratio:.3f} "
        "({compare.ci_lo:.3f} to {compare.ci_hi:.3f}) of the time where an archive of {values.baseline.variants} "
        "variants has the kernel: {values.contender_total_ms:.4g} ms against {values.baseline_total_ms:.4g} ms."}},
      {"run_time",
       {"Read at run time, {values.contender.run_time} makes {values.baseline.kernel} take {compare.ratio:.3f} times "
        "as long",
        "The kernel {values.baseline.kernel} takes {compare.ratio:.4f} ({compare.ci_lo:.4f} to {compare.ci_hi:.4f}) "
        "times as long where it reads {values.contender.run_time} at run time, at head_dim {values.baseline.head_dim} "
        "and {values.baseline.q_len} queries, causal {values.baseline.causal}; the noise floor of the pair is "
        "{compare.aa_floor:.4f}. Code: {values.contender_code_bytes} bytes, {values.baseline_code_bytes} where it is a "
        "constant; registers: {values.contender_registers}, {values.baseline_registers}."}}};
  return all;
}

const Measurement* measurement_of(const std::vector<Measurement>& results, const Case& config) {
  const auto found = std::find_if(results.rbegin(), results.rend(),
                                  [&](const Measurement& result) { return result.config == config; });
  return found == results.rend() ? nullptr : &*found;
}

Conclusion conclude_comparison(const Comparison& comparison, const std::vector<Measurement>& results) {
  const Wording& wording = wordings().at(comparison.hypothesis);
  const Case &baseline = comparison.baseline, &contender = comparison.contender;
  Conclusion conclusion;
  conclusion.hypothesis = comparison.hypothesis;
  conclusion.title = wording.title;
  conclusion.content = wording.content;
  conclusion.tags = {"function_constants", comparison.hypothesis, baseline.text("kernel")};
  conclusion.estimate = comparison.ratio;
  conclusion.aa_floor = comparison.aa_floor();
  conclusion.cv = comparison.cv;
  conclusion.compare = comparison;
  conclusion.values = {{"baseline", baseline.json()}, {"contender", contender.json()}};
  if (comparison.hypothesis == "run_time") {
    conclusion.subject = "read=" + contender.text("run_time") + " " +
                         baseline.key_without({"task", "variants", "workers", "pch", "run_time"});
  } else {
    conclusion.subject = subject_of(comparison.hypothesis == "workers" ? contender : baseline);
    conclusion.subject += fmt::format(" variants={}", baseline.integer("variants"));
  }
  for (const auto& [name, config, index] :
       {std::tuple("baseline", &baseline, 0), std::tuple("contender", &contender, 1)}) {
    const double ms = 1e3 * comparison.time.at(static_cast<size_t>(index)).median_s;
    const auto variants = static_cast<double>(config->integer("variants"));
    conclusion.values[std::string(name) + "_total_ms"] = ms;
    conclusion.values[std::string(name) + "_ms"] = variants > 0 ? ms / variants : ms;
    if (const Measurement* result = measurement_of(results, *config)) {
      conclusion.measurements.push_back(result->id);
      conclusion.correct &= result->status == "ok";
      if (!result->pipeline.is_object()) continue;
      for (const char* figure : {"code_bytes", "registers"}) {
        const Json told = result->pipeline.value(figure, Json());
        conclusion.values[fmt::format("{}_{}", name, figure)] =
            told.is_number() ? std::to_string(told.get<int64_t>()) : "not told";
      }
    }
  }
  return conclusion;
}

// A conclusion from one measurement: `scale` / time or time * `scale`, with the interval of the time.
Conclusion about(const std::string& hypothesis, const Measurement& result, double scale, bool inverse) {
  const Timing& time = *result.main_timing();
  Conclusion conclusion;
  conclusion.hypothesis = hypothesis;
  conclusion.subject = subject_of(result.config) + fmt::format(" variants={}", variants_of(result));
  conclusion.tags = {"function_constants", hypothesis, result.config.text("kernel")};
  conclusion.estimate = inverse ? Estimate{scale / time.median_s, scale / time.ci_hi_s, scale / time.ci_lo_s}
                                : Estimate{scale * time.median_s, scale * time.ci_lo_s, scale * time.ci_hi_s};
  conclusion.cv = time.cv;
  conclusion.values = result.config.json();
  conclusion.values["total_ms"] = 1e3 * time.median_s;
  conclusion.measurements = {result.id};
  return conclusion;
}

// Milliseconds of a phase per variant, from the record; summed over workers.
double phase_ms(const Measurement& result, const char* name) {
  const double seconds = result.values.is_object() ? result.values.value(name, 0.0) : 0.0;
  return 1e3 * seconds / static_cast<double>(variants_of(result));
}

// Of results that differ in the number of variants alone, the one with the most.
Results with_most_variants(const Results& results) {
  Results most;
  for (const auto& [key, group] : grouped(results, {"variants"})) {
    most.push_back(*std::max_element(group.begin(), group.end(),
                                     [](const auto* a, const auto* b) { return variants_of(*a) < variants_of(*b); }));
  }
  return most;
}

Results of_task(const Results& results, const std::string& task) {
  Results found;
  std::copy_if(results.begin(), results.end(), std::back_inserter(found),
               [&](const Measurement* result) { return task_of(*result) == task; });
  return found;
}

void conclude_cost(const Results& results, std::vector<Conclusion>& conclusions) {
  Results compiled = with_most_variants(of_task(results, "compile"));
  for (const Measurement* result : of_task(results, "compile_one")) compiled.push_back(result);
  for (const Measurement* result : compiled) {
    if (result->config.integer("workers") != 1) continue;
    Conclusion conclusion = about("cost", *result, 1e3 / static_cast<double>(variants_of(*result)), false);
    conclusion.title = "A variant of {values.kernel} compiles in {estimate.value:.4g} ms: {values.recommendation}";
    conclusion.content =
        "Compiling {values.variants} variants of {values.kernel} ({values.dtype}) takes one worker "
        "{estimate.value:.4g} ms each";
    if (task_of(*result) == "compile_one") {
      conclusion.title =
          "At head_dim {values.head_dim} the tile {values.block_r}x{values.block_c} of {values.kernel} compiles in "
          "{estimate.value:.4g} ms: {values.recommendation}";
      conclusion.content =
          "Compiling {values.kernel} ({values.dtype}) at head_dim {values.head_dim} with the tile "
          "{values.block_r}x{values.block_c} takes one worker {estimate.value:.4g} ms";
    }
    conclusion.content +=
        " (95 % interval {estimate.ci_lo:.4g} to {estimate.ci_hi:.4g}): front end "
        "{values.front_end_ms:.3g} ms, optimiser {values.optimizer_ms:.3g} ms, code generation "
        "{values.code_generation_ms:.3g} ms, loading {values.load_ms:.3g} ms. By the rule of {values.rule_ms:g} ms a "
        "variant: {values.recommendation}.";
    for (const char* phase : {"front_end", "optimizer", "code_generation", "load"}) {
      conclusion.values[std::string(phase) + "_ms"] = phase_ms(*result, (std::string(phase) + "_s").c_str());
    }
    conclusion.values["rule_ms"] = rule_ms;
    conclusion.values["recommendation"] =
        conclusion.estimate.ci_hi < rule_ms    ? "use function constants, compiled when they are needed"
        : conclusion.estimate.ci_lo >= rule_ms ? "compile ahead, and ship an archive or fill the cache on disk"
                                               : "too close to the rule to tell";
    conclusions.push_back(std::move(conclusion));
  }
}

void conclude_scaling(const Results& results, std::vector<Conclusion>& conclusions) {
  for (const auto& [key, group] : grouped(of_task(results, "compile"), {"variants"})) {
    std::map<int64_t, const Measurement*> by_count;
    for (const Measurement* result : group) {
      by_count[variants_of(*result)] = result;
    }
    if (by_count.size() < 3) continue;
    std::vector<ScalingPoint> points;
    Conclusion conclusion;
    for (const auto& [count, result] : by_count) {
      points.push_back({static_cast<double>(count), result->main_timing()->median()});
      conclusion.measurements.push_back(result->id);
      conclusion.cv = std::max(conclusion.cv, result->main_timing()->cv);
    }
    const Case& config = by_count.begin()->second->config;
    conclusion.hypothesis = "scaling";
    conclusion.subject = subject_of(config);
    conclusion.title = "Compiling grows with the number of variants to the power {estimate.value:.3f}";
    conclusion.content =
        "From {values.fewest} to {values.most} variants of {values.kernel} ({values.points} counts, {values.workers} "
        "workers) the time grows with their number to the power {estimate.value:.3f} (95 % interval "
        "{estimate.ci_lo:.3f} to {estimate.ci_hi:.3f}).";
    conclusion.tags = {"function_constants", "scaling", config.text("kernel")};
    conclusion.estimate = scaling_exponent(points);
    conclusion.values = {{"kernel", config.text("kernel")},
                         {"workers", config.integer("workers")},
                         {"fewest", by_count.begin()->first},
                         {"most", by_count.rbegin()->first},
                         {"points", by_count.size()}};
    conclusions.push_back(std::move(conclusion));
  }
}

void conclude_hits(const Results& results, std::vector<Conclusion>& conclusions) {
  for (const Measurement* result : results) {
    const std::string task = task_of(*result);
    if (result->config.integer("workers") != 1) continue;
    const auto per_variant = 1 / static_cast<double>(std::max<int64_t>(1, variants_of(*result)));
    if (task == "memory") {
      Conclusion conclusion = about("memory_hit", *result, 1e9 * per_variant, false);
      conclusion.title = "A variant that is loaded is found in {estimate.value:.4g} ns";
      conclusion.content =
          "Among {values.variants} variants one is found in memory in {estimate.value:.4g} ns (95 % interval "
          "{estimate.ci_lo:.4g} to {estimate.ci_hi:.4g}), by all of its constants.";
      conclusions.push_back(std::move(conclusion));
    } else if (task == "disk") {
      Conclusion conclusion = about("disk_hit", *result, 1e3 * per_variant, false);
      conclusion.title = "A variant on disk is ready in {estimate.value:.4g} ms";
      conclusion.content =
          "Each of {values.variants} variants is read from disk (from the system's page cache, as a second run finds "
          "it), checked and loaded in {estimate.value:.4g} ms (95 % interval {estimate.ci_lo:.4g} to "
          "{estimate.ci_hi:.4g}), of which loading takes {values.load_ms:.3g} ms.";
      conclusion.values["load_ms"] = phase_ms(*result, "load_s");
      conclusions.push_back(std::move(conclusion));
    } else if (task == "archive_create" || task == "archive_load") {
      Conclusion conclusion = about(task, *result, 1e3, false);
      const std::string done = task == "archive_create" ? "written" : "read and checked";
      conclusion.title = "An archive of {values.variants} variants is " + done + " in {estimate.value:.4g} ms";
      conclusion.content =
          "An archive of {values.variants} variants of {values.kernel}, {values.archive_bytes} bytes, is " + done +
          " in {estimate.value:.4g} ms (95 % interval {estimate.ci_lo:.4g} to {estimate.ci_hi:.4g}).";
      conclusion.values["archive_bytes"] = result->values.is_object() ? result->values.value("archive_bytes", 0) : 0;
      conclusions.push_back(std::move(conclusion));
    }
  }
}

// How many variants a start-up has time for, by the way they are got.
void conclude_startup(const Results& results, std::vector<Conclusion>& conclusions) {
  for (const char* task : {"compile", "disk", "archive"}) {
    for (const Measurement* result : with_most_variants(of_task(results, task))) {
      for (const auto& [hypothesis, budget_s] : {std::pair("startup_100ms", 0.1), std::pair("startup_1s", 1.0)}) {
        Conclusion conclusion = about(hypothesis, *result, budget_s * static_cast<double>(variants_of(*result)), true);
        conclusion.subject = fmt::format("from={} ", task) + subject_of(result->config);
        conclusion.title = "{values.budget_ms:.0f} ms are enough for {values.fit} variants ({values.way})";
        conclusion.content =
            "Within {values.budget_ms:.0f} ms {values.workers} worker(s) get {values.fit} variants of {values.kernel} "
            "({values.way}; 95 % interval {estimate.ci_lo:.4g} to {estimate.ci_hi:.4g}), at the rate of "
            "{values.variants} variants in {values.total_ms:.4g} ms.";
        conclusion.values["budget_ms"] = 1e3 * budget_s;
        conclusion.values["fit"] = static_cast<int64_t>(std::floor(conclusion.estimate.value));
        conclusion.values["way"] = std::string(task) == "compile" ? "no cache: all compiled"
                                   : std::string(task) == "disk"  ? "a file each in the cache folder"
                                                                  : "one archive";
        conclusions.push_back(std::move(conclusion));
      }
    }
  }
}

}  // namespace

std::vector<Hypothesis> constants_hypotheses() {
  const std::string study = "the published study on Apple M4 that this follows";
  return {
      {"cost", "A variant compiles in less than 50 ms.", "ms per variant, compiled by one worker without any cache",
       "<", rule_ms, "rule of " + study + " (constants if below, else compile ahead), which measured 34 to 63 us"},
      {"scaling", "The time to compile grows no faster than the number of variants.",
       "exponent of time over number of variants", "<=", 1.05, "expectation before the first run: nothing is shared"},
      {"workers", "As many workers as there are cores, up to 16, compile in at most 0.6 of the time of one.",
       "time with all workers / time with one", "<=", 0.6,
       "expectation before the first run: two cores, with a fifth lost to memory and locks"},
      {"pch", "Precompiled headers save at least a tenth.", "time with precompiled headers / time without", "<=", 0.9,
       "expectation before the first run: the kernels include no standard headers, so little"},
      {"memory_hit", "A variant that is loaded is found within 200 ns.", "ns per look-up", "<=", 200,
       study + " measured 178 ns a hit"},
      {"disk_hit", "A variant on disk is ready within 1 ms.", "ms per variant, reading, checking and loading", "<=", 1,
       "expectation before the first run: two orders below compiling"},
      {"disk_speedup", "From disk, variants are there at least 10 times as fast as by compiling them.",
       "time of compiling / time from disk", ">=", 10, "expectation before the first run"},
      {"archive_speedup", "From an archive, variants are there at least 10 times as fast as by compiling them.",
       "time of compiling / time from an archive", ">=", 10, study + " saw no speed-up by a binary archive"},
      {"archive_create", "An archive is made within 82 ms.", "ms", "<=", 82, study + " measured 82 ms"},
      {"archive_load", "An archive is read within 5.9 ms.", "ms", "<=", 5.9, study + " measured 5.9 ms"},
      {"start_disk", "A cache on disk takes a fifth off the time from process start to first result.",
       "time with the kernel on disk / time without", "<=", 0.8, "expectation before the first run"},
      {"start_archive", "An archive takes a fifth off the time from process start to first result.",
       "time with the kernel in an archive / time without", "<=", 0.8, "expectation before the first run"},
      {"run_time", "A constant that is read at run time costs at most 1 %.",
       "time with it read at run time / time with it compiled in", "<=", 1.01,
       study + " measured 0 % at run time for its function constants against code written for one variant"},
      {"startup_100ms", "100 ms of start-up are enough for 72 variants.", "variants within 100 ms", ">=", 72,
       "expectation before the first run: from an archive or a cache, not by compiling"},
      {"startup_1s", "1 s of start-up is enough for 72 variants.", "variants within 1 s", ">=", 72,
       "expectation before the first run: from an archive or a cache, not by compiling"},
  };
}

std::vector<Duel> constants_duels(const std::vector<Measurement>& results) {
  const Results all = timed(results);
  constexpr int64_t most = 10;  // variants that are compiled for one sample of a pair
  std::vector<Duel> duels;
  // What takes longest comes last.
  for (const char* read : {"head_dim", "block_r", "block_c", "causal", "alibi", "all"}) {
    duel("run_time", all, "run_time", std::string("none"), std::string(read), duels);
  }
  for (const char* start : {"start_disk", "start_archive"}) {
    duel(start, all, "task", std::string("start_compile"), std::string(start), duels);
  }
  for (const auto& [hypothesis, way] : {std::pair("disk_speedup", "disk"), {"archive_speedup", "archive"}}) {
    duel(hypothesis, all, "task", std::string(way), std::string("compile"), duels);
    keep_most_variants(hypothesis, most, duels);
  }
  int64_t workers = 1;
  for (const Measurement* result : all) workers = std::max(workers, result->config.integer("workers"));
  if (workers > 1) duel("workers", of_task(all, "compile"), "workers", int64_t{1}, workers, duels);
  keep_most_variants("workers", most, duels);
  duel("pch", all, "pch", int64_t{0}, int64_t{1}, duels);
  keep_most_variants("pch", most, duels);
  return duels;
}

std::vector<Conclusion> constants_conclusions(const std::vector<Measurement>& results,
                                              const std::vector<Comparison>& comparisons) {
  std::vector<Conclusion> conclusions;
  const Results all = timed(results);
  conclude_cost(all, conclusions);
  conclude_scaling(all, conclusions);
  conclude_hits(all, conclusions);
  for (const Comparison& comparison : comparisons) conclusions.push_back(conclude_comparison(comparison, results));
  conclude_startup(all, conclusions);
  return conclusions;
}

}  // namespace attn
