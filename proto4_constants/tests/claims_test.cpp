// Runs the claims on made-up results: the claims choose duels (pairs of cases that are measured again) and draw
// conclusions.
#include "proto4_constants/claims.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "common/records/finding.h"
#include "common/testing/advice.h"
#include "common/testing/made_up.h"

namespace attn {
namespace {

/// Returns a result of the host, in which getting all variants takes `seconds`.
Measurement result(const std::string& task, int64_t variants, double seconds, int64_t workers = 1, int64_t pch = 0) {
  Measurement made;
  const std::pair<const char*, AxisValue> axes[] = {{"task", task},
                                                    {"kernel", std::string("tuned")},
                                                    {"dtype", std::string("f32")},
                                                    {"variants", variants},
                                                    {"workers", workers},
                                                    {"pch", pch},
                                                    {"q_heads", int64_t{0}},
                                                    {"q_len", int64_t{0}},
                                                    {"head_dim", int64_t{0}},
                                                    {"block_r", int64_t{0}},
                                                    {"block_c", int64_t{0}},
                                                    {"causal", int64_t{0}},
                                                    {"run_time", std::string("none")}};
  for (const auto& [name, value] : axes) made.config.set(name, value);
  made.id = task + std::to_string(variants) + "w" + std::to_string(workers) + "p" + std::to_string(pch);
  made.time = {{.scope = Scope::host,
                .n = 10,
                .rounds = 10,
                .median_s = seconds,
                .ci_lo_s = 0.99 * seconds,
                .ci_hi_s = 1.01 * seconds,
                .cv = 0.01,
                .min_s = 0.9 * seconds,
                .stop = "ci"}};
  made.pipeline = {{"key", "k"}, {"code_bytes", 1000}, {"registers", nullptr}};
  return made;
}

Measurement launch(const std::string& kernel, const std::string& run_time, int64_t causal = 0) {
  Measurement made = result("run", 0, 1e-3);
  made.config.set("kernel", kernel);
  made.config.set("run_time", run_time);
  made.config.set("causal", causal);
  made.config.set("head_dim", int64_t{64});
  made.time[0].scope = Scope::device_hot;
  made.id = kernel + run_time + std::to_string(causal);
  return made;
}

std::vector<Conclusion> conclude(const std::vector<Measurement>& results,
                                 const std::vector<Comparison>& comparisons = {}) {
  return conclude(constants_claims(), results, comparisons, test::steady_processes());
}

Conclusion only(const std::vector<Conclusion>& all, const std::string& hypothesis, const std::string& part = "") {
  std::vector<Conclusion> found;
  std::copy_if(all.begin(), all.end(), std::back_inserter(found), [&](const Conclusion& conclusion) {
    return conclusion.hypothesis == hypothesis && conclusion.subject.find(part) != std::string::npos;
  });
  EXPECT_EQ(found.size(), 1u) << hypothesis;
  return found.empty() ? Conclusion() : found.front();
}

State verdict(const Conclusion& conclusion) {
  for (const Hypothesis& hypothesis : hypotheses(constants_claims())) {
    if (hypothesis.id == conclusion.hypothesis) return judge(hypothesis, conclusion).state;
  }
  ADD_FAILURE() << conclusion.hypothesis << " is not registered";
  return State::inconclusive;
}

/// Returns the title, the content and the advice of a finding. Throws if a template names a missing value.
std::string text(const Conclusion& conclusion) {
  Hypothesis hypothesis;
  for (const Hypothesis& registered : hypotheses(constants_claims())) {
    if (registered.id == conclusion.hypothesis) hypothesis = registered;
  }
  const Json finding = make_finding("proto4_constants", "fake", hypothesis, conclusion, "r");
  return finding.at("title").get<std::string>() + "\n" + finding.at("content").get<std::string>() + "\n" +
         finding.at("data").at("advice").get<std::string>();
}

bool contains(const std::string& whole, const std::string& part) { return whole.find(part) != std::string::npos; }

TEST(ConstantsFindings, CostComesFromTheMostVariantsAndTheRuleDecides) {
  Measurement slow = result("compile", 50, 50 * 0.08);
  slow.values = {{"front_end_s", 0.5}, {"optimizer_s", 1.0}, {"code_generation_s", 2.0}, {"load_s", 0.05}};
  auto all = conclude({result("compile", 1, 0.01), slow, result("compile", 10, 0.1, 2)});
  Conclusion cost = only(all, "cost");
  EXPECT_NEAR(cost.estimate.value, 80, 1e-9);
  EXPECT_EQ(cost.measurements, std::vector<std::string>{slow.id});
  EXPECT_EQ(verdict(cost), State::refuted);
  EXPECT_TRUE(contains(text(cost), "front end 10 ms, optimiser 20 ms, code generation 40 ms, loading 1 ms"))
      << text(cost);
  EXPECT_TRUE(contains(text(cost), "Compile ahead")) << text(cost);

  all = conclude({result("compile", 50, 50 * 0.03)});
  EXPECT_EQ(verdict(only(all, "cost")), State::supported);
  EXPECT_TRUE(contains(text(only(all, "cost")), "Use function constants"));
  Measurement one = result("compile_one", 1, 0.06);
  one.config.set("head_dim", int64_t{128});
  all = conclude({one, result("compile", 50, 50 * 0.03)});
  EXPECT_NEAR(only(all, "cost", "head_dim=128").estimate.value, 60, 1e-9);
  EXPECT_TRUE(contains(text(only(all, "cost", "head_dim=128")), "At head_dim 128 the tile"))
      << "the title does not name the tile of the only variant";
  EXPECT_NEAR(only(all, "cost", "variants=50").estimate.value, 30, 1e-9);
  all = conclude({result("compile", 50, 50 * 0.05)});
  EXPECT_EQ(verdict(only(all, "cost")), State::inconclusive);
  EXPECT_TRUE(text(only(all, "cost")).ends_with('\n')) << "an undecided rule gives advice";
}

TEST(ConstantsFindings, TimeIsAPowerOfTheNumberOfVariants) {
  const std::vector<Measurement> results = {result("compile", 1, 0.1), result("compile", 10, 1),
                                            result("compile", 100, 10), result("compile", 10, 0.6, 2)};
  const Conclusion scaling = only(conclude(results), "scaling");
  EXPECT_NEAR(scaling.estimate.value, 1, 1e-9);
  EXPECT_EQ(scaling.measurements.size(), 3u);
  EXPECT_EQ(verdict(scaling), State::supported);
  EXPECT_TRUE(contains(text(scaling), "From 1 to 100 variants of tuned (3 counts, 1 workers)")) << text(scaling);
}

TEST(ConstantsFindings, FiguresOfHitsInMemoryOnDiskAndInAnArchive) {
  Measurement disk = result("disk", 72, 72 * 0.7e-3), archive = result("archive_load", 72, 6.5e-3);
  disk.values = {{"load_s", 72 * 0.4e-3}};
  archive.values = {{"archive_bytes", 123456}};
  const auto all = conclude({result("memory", 72, 72 * 150e-9), disk, archive, result("archive_create", 72, 81e-3)});
  EXPECT_NEAR(only(all, "memory_hit").estimate.value, 150, 1e-9);
  EXPECT_EQ(verdict(only(all, "memory_hit")), State::supported);
  EXPECT_NEAR(only(all, "disk_hit").estimate.value, 0.7, 1e-9);
  EXPECT_TRUE(contains(text(only(all, "disk_hit")), "of which loading takes 0.4 ms"));
  EXPECT_EQ(verdict(only(all, "archive_load")), State::refuted);
  EXPECT_TRUE(
      contains(text(only(all, "archive_load")), "72 variants of tuned, 123456 bytes, is read and checked in 6.5 ms"));
  EXPECT_NEAR(only(all, "archive_create").estimate.value, 81, 1e-9);
}

TEST(ConstantsFindings, StartUpHasAConclusionForEachWayToGetVariants) {
  const auto all = conclude({result("compile", 10, 0.55), result("disk", 72, 72e-3), result("archive", 72, 36e-3)});
  const Conclusion compiled = only(all, "startup_1s", "from=compile"), disk = only(all, "startup_100ms", "from=disk");
  EXPECT_NEAR(compiled.estimate.value, 18.18, 0.01);
  EXPECT_LT(compiled.estimate.ci_lo, compiled.estimate.value);
  EXPECT_GT(compiled.estimate.ci_hi, compiled.estimate.value);
  EXPECT_TRUE(contains(text(compiled), "1000 ms are enough for 18 variants (no cache: all compiled)"))
      << text(compiled);
  EXPECT_NEAR(disk.estimate.value, 100, 1e-9);
  EXPECT_EQ(verdict(disk), State::supported);
  EXPECT_EQ(verdict(compiled), State::refuted);
  EXPECT_EQ(verdict(only(all, "startup_100ms", "from=archive")), State::supported);
}

TEST(ConstantsFindings, DuelsDifferInOneAxis) {
  std::vector<Measurement> results = {
      result("compile", 10, 1),         result("compile", 5, 0.5),        result("compile", 10, 0.6, 2),
      result("compile", 10, 0.9, 1, 1), result("compile", 100, 10),       result("compile", 100, 6, 2),
      result("disk", 10, 0.01),         result("disk", 72, 0.07),         result("archive", 5, 0.01),
      result("archive", 10, 0.01),      result("start_compile", 72, 0.3), result("start_disk", 72, 0.1),
      result("start_archive", 72, 0.1), launch("tiled_vector", "none"),   launch("tiled_vector", "all"),
      launch("tiled_vector", "causal"), launch("tuned", "none", 1),       launch("tuned", "causal", 0)};
  results.push_back(launch("tiled_vector", "head_dim"));
  results.back().status = "wrong";
  std::map<std::string, std::vector<std::string>> pairs;
  for (const Duel& duel : duels(constants_claims(), results)) {
    pairs[duel.hypothesis].push_back(duel.baseline.key({"task", "kernel", "variants", "workers", "pch", "run_time"}) +
                                     " -> " + duel.contender.key({"task", "workers", "pch", "run_time"}));
  }
  using Pairs = std::vector<std::string>;
  EXPECT_EQ(pairs["disk_speedup"], Pairs{"task=disk kernel=tuned variants=10 workers=1 pch=0 run_time=none -> "
                                         "task=compile workers=1 pch=0 run_time=none"});
  EXPECT_EQ(pairs["archive_speedup"], Pairs{"task=archive kernel=tuned variants=10 workers=1 pch=0 run_time=none -> "
                                            "task=compile workers=1 pch=0 run_time=none"});
  EXPECT_EQ(pairs["workers"], Pairs{"task=compile kernel=tuned variants=10 workers=1 pch=0 run_time=none -> "
                                    "task=compile workers=2 pch=0 run_time=none"});
  EXPECT_EQ(pairs["pch"], Pairs{"task=compile kernel=tuned variants=10 workers=1 pch=0 run_time=none -> task=compile "
                                "workers=1 pch=1 run_time=none"});
  EXPECT_EQ(pairs["start_disk"].size(), 1u);
  EXPECT_EQ(pairs["start_archive"].size(), 1u);
  EXPECT_EQ(pairs["run_time"].size(), 2u) << "the wrong result or the result with another mask is in a duel";
}

TEST(ConstantsFindings, ComparisonsSayWhatWasMeasured) {
  std::vector<Measurement> results = {launch("tiled_vector", "none"), launch("tiled_vector", "causal"),
                                      result("compile", 10, 1), result("disk", 10, 0.01)};
  results[0].pipeline["registers"] = 40;
  results[1].pipeline["code_bytes"] = 1200;
  const auto comparison = [&](const std::string& hypothesis, size_t from, size_t to, double ratio) {
    Comparison made;
    made.hypothesis = hypothesis;
    made.baseline = results[from].config;
    made.contender = results[to].config;
    made.ratio = {ratio, 0.99 * ratio, 1.01 * ratio};
    made.aa = {1, 0.999, 1.001};
    made.time = {results[from].time[0], results[to].time[0]};
    return made;
  };
  const auto all = conclude(results, {comparison("run_time", 0, 1, 1.2), comparison("disk_speedup", 3, 2, 100)});
  const Conclusion run_time = only(all, "run_time"), disk = only(all, "disk_speedup");
  EXPECT_EQ(verdict(run_time), State::refuted);
  EXPECT_EQ(run_time.subject.substr(0, 31), "read=causal kernel=tiled_vector");
  EXPECT_EQ(run_time.measurements.size(), 2u);
  EXPECT_TRUE(contains(text(run_time),
                       "Code: 1200 bytes, with causal compiled in 1000 bytes; registers: not told, compiled in 40"))
      << text(run_time);
  EXPECT_EQ(verdict(disk), State::supported);
  EXPECT_TRUE(contains(text(disk), "100 ms a variant against 1 ms")) << text(disk);
}

TEST(ConstantsFindings, EveryHypothesisHasAnOrigin) {
  std::map<std::string, int> ids;
  for (const Hypothesis& hypothesis : hypotheses(constants_claims())) {
    EXPECT_EQ(++ids[hypothesis.id], 1) << hypothesis.id;
    EXPECT_FALSE(hypothesis.origin.empty());
    EXPECT_FALSE(hypothesis.metric.empty());
  }
}

// For each claim the table has words of the advice for a figure below the claim's threshold, and words of the advice
// for a figure above the threshold.
TEST(ConstantsFindings, AdviceFitsFiguresBelowAndAboveTheThreshold) {
  using test::Choice;
  test::expect_advice(
      constants_claims(),
      {
          {"cost", {"Use function constants"}, {"Compile ahead"}},
          {"scaling", {"Plan with the time of one variant"}, {"Expect many variants to take more"}},
          {"memory_hit", {"Look a variant up for every launch"}, {"Look a variant up once"}},
          {"disk_hit", {"when they are needed"}, {"before they are needed"}},
          {"archive_create", {"Write the archive anew whenever"}, {"not while somebody waits"}},
          {"archive_load", {"Read the whole archive at start-up"}, {"Divide the archive"}},
          {"startup_100ms", {"Do not plan to get 72"}, {"Get 72 variants"}},
          {"startup_1s", {"Do not plan to get 72"}, {"Get 72 variants"}},
          {"run_time",
           {"Read this value at run time", Choice::second},
           {"Compile this value in as a constant", Choice::first},
           true},
          {"start_disk", {"Keep the cache folder", Choice::second}, {"Do not expect a cache folder"}},
          {"start_archive", {"Ship an archive", Choice::second}, {"Do not expect an archive"}},
          {"disk_speedup", {"Do not expect variants from disk"}, {"Keep compiled variants on disk", Choice::first}},
          {"archive_speedup",
           {"Do not expect variants from an archive"},
           {"Keep compiled variants in an archive", Choice::first}},
          {"workers", {"Compile on all cores", Choice::second}, {"Do not expect all cores"}},
          {"pch", {"keep precompiled headers", Choice::second}, {"Do not expect precompiled headers"}},
      });
}

}  // namespace
}  // namespace attn
