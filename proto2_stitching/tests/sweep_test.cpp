// Tests the cases of each profile, and why cases are skipped.
#include "proto2_stitching/sweep.h"

#include <gtest/gtest.h>

#include <set>

#include "common/base/error.h"
#include "common/cases/user_functions.h"
#include "common/testing/claims.h"
#include "common/testing/planned_cases.h"
#include "proto2_stitching/problem.h"

namespace attn {
namespace {

std::optional<std::string> why_skipped(const Case& config, const DeviceInfo& device) {
  return skip_reason(stitch_case_plan(config, {device}), device);
}

using test::avx2;
using test::hopper;

std::vector<Case> cases(const std::string& profile, const DeviceInfo& info) {
  return test::MadeUp{stitch_experiment(), info, {}}.cases(stitch_sweep(profile, info));
}

TEST(StitchSweepTest, EveryFormAndGrainIsThereWithItsBaseline) {
  for (const DeviceInfo& info : {avx2(), hopper()}) {
    for (const char* profile : {"quick", "full"}) {
      std::set<std::string> forms, grains, variants;
      for (const auto& group : group(cases(profile, info), {"form", "grain"})) {
        int baselines = 0;
        for (const Case& config : group) {
          forms.insert(config.text("form"));
          grains.insert(config.text("grain"));
          baselines += config.text("form") == "monolithic";
          const bool calls = config.text("grain") != "element" || config.text("form") == "pointer" ||
                             config.text("form") == "stitched_nolto";
          const bool skipped = config.text("variant") == "wgmma" && (calls || config.text("dtype") == "f32");
          EXPECT_EQ(why_skipped(config, info).has_value(), skipped) << config.key();
          variants.insert(config.text("variant"));
        }
        EXPECT_EQ(baselines, 1) << group.front().key() << " " << profile;
        EXPECT_GT(group.size(), 1u) << group.front().key();
      }
      EXPECT_EQ(forms.size(), info.backend == "cuda" ? 7u : 9u);
      EXPECT_EQ(grains.size(), 3u);
      const std::vector<std::string> known = stitch_variants(info);
      EXPECT_EQ(variants, std::set<std::string>(known.begin(), known.end()));
    }
  }
}

TEST(StitchSweepTest, SkipsTellWhy) {
  DeviceInfo old = hopper(), other = avx2(), small = avx2();
  old.features = {"mma"};
  other.operations = &no_operations();
  small.threadgroup_memory_bytes = 1024;
  struct Row {
    DeviceInfo device;
    const char *variant, *form, *grain, *says;
  };
  for (const auto& [device, variant, form, grain, says] : std::vector<Row>{
           {hopper(), "wgmma", "noinline", "row", "by element only"},
           {hopper(), "wgmma", "stitched", "tile", "by element only"},
           {hopper(), "wgmma", "pointer", "element", "C7506"},
           {hopper(), "wgmma", "stitched_nolto", "element", "C7504"},
           {hopper(), "wgmma", "noinline", "element", ""},
           {hopper(), "mma_sync", "pointer", "row", ""},
           {hopper(), "mma_sync", "std_function", "element", "std_function"},
           {hopper(), "mma_sync", "virtual", "element", "virtual"},
           {hopper(), "mma_sync", "stitched_graph", "element", "MTLFunctionStitchingGraph"},
           {avx2(), "tuned", "stitched_graph", "element", "MTLFunctionStitchingGraph"},
           {hopper(), "tuned", "inline", "element", "mma_sync, wgmma"},
           {avx2(), "wgmma", "inline", "element", "tuned"},
           {old, "wgmma", "inline", "element", "sm_90a"},
           {other, "tuned", "inline", "element", "no kernel for variant tuned that calls a score function"},
           {small, "tuned", "inline", "element", "threadgroup memory"}}) {
    Case config = cases("quick", device.backend == "cuda" ? hopper() : avx2()).front();
    config.set("variant", std::string(variant));
    config.set("form", std::string(form));
    config.set("grain", std::string(grain));
    const std::string reason = why_skipped(config, device).value_or("");
    EXPECT_EQ(reason.empty(), *says == 0) << variant << " " << form << ": " << reason;
    EXPECT_NE(reason.find(says), std::string::npos) << variant << " " << form << ": " << reason;
  }
  EXPECT_FALSE(stitch_sweep("quick", other).blocks.empty());
}

TEST(StitchSweepTest, ACaseWithoutAVariantGetsTheFirst) {
  for (const DeviceInfo& info : {avx2(), hopper()}) {
    const Case named = cases("quick", info).front();
    Case config;
    for (const auto& [axis, value] : named.axes()) {
      if (axis != "variant") config.set(axis, value);
    }
    EXPECT_EQ(StitchConfig::from(config, info).flash.variant, info.backend == "cuda" ? "mma_sync" : "tuned");
    complete_stitch(config, info);
    EXPECT_EQ(config.text("variant"), info.backend == "cuda" ? "mma_sync" : "tuned");
  }
}

TEST(StitchSweepTest, FullHoldsQuick) { test::expect_sweep(stitch_experiment()); }

TEST(StitchPlanTest, ProblemsRunTheirPlans) {
  for (const DeviceInfo& info : {avx2(), test::ampere()}) {
    test::expect_problems_run_their_plans(
        stitch_experiment(), info,
        "q_len=48 q_heads=1 batch=1 head_dim=64 function=alibi grain=element variant=" + default_variant(info));
  }
}

TEST(StitchSweepTest, OnlyChainHasWorkAndMonolithicHasOneGrain) {
  for (const Case& config : cases("full", avx2())) {
    if (config.text("function") != "chain") {
      EXPECT_EQ(config.integer("work"), 0) << config.key();
    } else {
      EXPECT_GT(config.integer("work"), 0) << config.key();
    }
    if (config.text("form") == "monolithic") {
      EXPECT_EQ(config.text("grain"), "element") << config.key();
    }
    EXPECT_GT(config.integer("block_r"), 0);
  }
}

TEST(StitchSweepTest, AFileTakesThePlaceOfEveryFunction) {
  EXPECT_THROW(score_function_axes("/no/such/file"), BadInput);
  Sweep sweep = stitch_sweep("quick", avx2());
  const std::string path = source_root() + "/proto2_stitching/functions/alibi.cpp";
  for (const Axis& axis : score_function_axes(path)) override_axis(sweep, axis);
  const auto all = expand(sweep, stitch_axes(), [&](Case& config) { complete_stitch(config, avx2()); });
  EXPECT_GT(all.size(), 10u);
  for (const Case& config : all) {
    EXPECT_EQ(config.text("function"), read_function(FunctionKind::score, path).text_name());
    EXPECT_EQ(config.integer("work"), 0);
  }
}

TEST(StitchSweepTest, CallsOfAFullTileByElementAreAboutAsManyAsPairs) {
  for (const DeviceInfo& info : {avx2(), hopper()}) {
    for (const Case& config : cases("quick", info)) {
      StitchConfig stitch = StitchConfig::from(config, info);
      stitch.grain = "element";
      const int64_t pairs = stitch.flash.block_r * stitch.flash.block_c;
      // On a GPU the 32 threads of a warp make one call together.
      const int64_t at_once = info.backend == "cuda" ? 32 : 1;
      EXPECT_GE(count_calls(stitch, info).calls_per_tile * at_once, pairs) << config.key();
      EXPECT_LE(count_calls(stitch, info).calls_per_tile * at_once, pairs * 11 / 10) << config.key();
      if (stitch.flash.variant == "wgmma") continue;
      const int64_t elements = count_calls(stitch, info).calls;
      stitch.grain = "row";
      const int64_t rows = count_calls(stitch, info).calls;
      stitch.grain = "tile";
      EXPECT_LT(rows, elements);
      EXPECT_LT(count_calls(stitch, info).calls, rows);
    }
  }
}

}  // namespace
}  // namespace attn
