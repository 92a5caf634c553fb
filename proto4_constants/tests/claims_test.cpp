// The claims on made-up results.
#include "proto4_constants/claims.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/testing/claims.h"
#include "proto4_constants/sweep.h"

namespace attn {
namespace {

// A variant of `naive` compiles in 80 ms, of another kernel in 30 ms.
double constants_seconds(const Measurement& result) {
  const Case& config = result.config;
  const std::string& task = config.text("task");
  const auto variants = static_cast<double>(config.integer("variants"));
  if (task == "run") return config.text("run_time") == "none" ? 1e-3 : 1.2e-3;
  if (task.starts_with("start")) return task == "start_compile" ? 0.3 : 0.1;
  if (task == "archive_create") return 70e-3;
  if (task == "archive_load") return 6.5e-3;
  if (task == "memory") return 150e-9 * variants;
  if (task == "disk") return 0.7e-3 * variants;
  if (task == "archive") return 0.5e-3 * variants;
  return variants * (config.text("kernel") == "naive" ? 80e-3 : 30e-3) * (config.integer("workers") > 1 ? 0.55 : 1) *
         (config.integer("pch") == 1 ? 0.85 : 1);
}

test::MadeUp constants_on(const DeviceInfo& device) {
  return {
      .spec = constants_experiment(), .device = device, .seconds = constants_seconds, .also = [](Measurement& result) {
        const auto variants = static_cast<double>(result.config.integer("variants"));
        const bool read = result.config.text("run_time") != "none";
        result.pipeline = {{"key", "k"}, {"code_bytes", read ? 1200 : 1000}};
        result.pipeline["registers"] = read ? Json() : Json(40);
        result.values = {{"front_end_s", 0.01 * variants},
                         {"optimizer_s", 0.02 * variants},
                         {"code_generation_s", 0.04 * variants},
                         {"load_s", 0.001 * variants},
                         {"archive_bytes", 123456}};
      }};
}

TEST(ConstantsClaimsTest, OfMadeUpResults) {
  DeviceInfo newer = test::hopper();
  newer.features.emplace_back("pch");
  const test::MadeUp cpu = constants_on(test::avx2()), gpu = constants_on(newer);
  test::expect_claims({test::Judged(cpu, "full"), test::Judged(gpu, "full")},
                      {{"cost", "", "refuted supported"},
                       {"scaling", "", "supported"},
                       {"memory_hit", "", "supported"},
                       {"disk_hit", "", "supported"},
                       {"archive_create", "", "supported"},
                       {"archive_load", "", "refuted"},
                       {"startup_100ms", "", "refuted supported"},
                       {"startup_1s", "", "refuted supported"},
                       {"run_time", "run_time", "refuted"},
                       {"start_disk", "task", "supported"},
                       {"start_archive", "task", "supported"},
                       {"disk_speedup", "task", "supported"},
                       {"archive_speedup", "task", "supported"},
                       {"workers", "workers", "supported"},
                       {"pch", "pch", "supported"}});
}

TEST(ConstantsClaimsTest, FiguresFollowFromTheTimes) {
  struct Row {
    const char *claim, *subject;
    double figure;
    const char* says;  // in the title or the content
  };
  const test::MadeUp made = constants_on(test::avx2());
  const std::vector<Conclusion> all = made.conclusions(made.results("full"));
  for (const auto& [claim, subject, figure, says] : std::vector<Row>{
           {"cost", "kernel=tuned dtype=f32 variants=500", 30, "optimiser 20 ms, code generation 40 ms, loading 1 ms"},
           {"cost", "kernel=naive", 80, "compil"},
           {"cost", "head_dim=128", 30, "At head_dim 128 the tile"},
           {"scaling", "kernel=tuned", 1, "From 1 to 500 variants of tuned"},
           {"memory_hit", "", 150, "is found in memory"},
           {"disk_hit", "", 0.7, "of which loading takes 1 ms"},
           {"archive_create", "", 70, "123456 bytes, is written"},
           {"archive_load", "", 6.5, "123456 bytes, is read and checked"},
           {"startup_1s", "from=compile kernel=tuned dtype=f32", 1000. / 30, "33 variants (no cache: all compiled)"},
           {"startup_100ms", "from=disk", 100 / 0.7, "142 variants"},
           {"startup_100ms", "from=archive", 100 / 0.5, "200 variants"},
           {"run_time", "read=causal", 1.2, "1200 bytes, with causal compiled in 1000 bytes; registers: not told"},
           {"disk_speedup", "kernel=tuned", 30 / 0.7, "30 ms a variant against 0.7 ms"}}) {
    int found = 0;
    for (const Conclusion& conclusion : all) {
      const bool workers = conclusion.subject.find("workers=") != std::string::npos;
      if (conclusion.hypothesis != claim || conclusion.subject.find(subject) == std::string::npos || workers) continue;
      ++found;
      EXPECT_NEAR(conclusion.estimate.value, figure, 1e-6 * figure) << claim << " of " << conclusion.subject;
      const Json finding = made.finding(conclusion);
      const std::string text = finding.at("title").get<std::string>() + "\n" + finding.at("content").get<std::string>();
      EXPECT_NE(text.find(says), std::string::npos) << claim << ": " << text;
    }
    EXPECT_GT(found, 0) << claim << " of " << subject;
  }
}

// A sample of task=compile compiles all variants of its case, so pairs have few variants.
TEST(ConstantsClaimsTest, PairsHaveAtMostTenVariants) {
  const test::MadeUp made = constants_on(test::avx2());
  for (const Duel& duel : duels(made.claims(), made.results("full"))) {
    if (duel.hypothesis.ends_with("_speedup") || duel.hypothesis == "workers" || duel.hypothesis == "pch") {
      EXPECT_EQ(duel.baseline.integer("variants"), 10) << duel.hypothesis;
    }
  }
}

}  // namespace
}  // namespace attn
