// Tests the cases of each profile, and why cases are skipped.
#include "proto2_stitching/sweep.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "common/base/error.h"
#include "common/cases/user_functions.h"
#include "common/testing/devices.h"
#include "proto2_stitching/problem.h"

namespace attn {
namespace {

std::optional<std::string> why_skipped(const Case& config, const DeviceInfo& device) {
  return skip_reason(stitch_case_plan(config, {device}), device);
}

using test::avx2;
using test::hopper;

std::vector<Case> cases(const std::string& profile, const DeviceInfo& info) {
  return expand(stitch_sweep(profile, info), stitch_axes(), [&](Case& config) { complete_stitch(config, info); });
}

TEST(StitchSweepTest, EveryFormAndGrainIsThereWithItsBaseline) {
  for (const DeviceInfo& info : {avx2(), hopper()}) {
    for (const char* profile : {"quick", "full"}) {
      std::set<std::string> forms, grains, variants;
      for (const auto& group : group(cases(profile, info), stitch_compared_axes())) {
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

TEST(StitchSweepTest, SkipsOfAVariantTellWhy) {
  const auto reason = [](const DeviceInfo& info, const std::string& variant, const std::string& form,
                         const std::string& grain) {
    Case config = cases("quick", info).front();
    config.set("variant", variant);
    config.set("form", form);
    config.set("grain", grain);
    return why_skipped(config, info).value_or("none");
  };
  const auto says = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(says(reason(hopper(), "wgmma", "noinline", "row"), "by element only"));
  EXPECT_TRUE(says(reason(hopper(), "wgmma", "stitched", "tile"), "by element only"));
  EXPECT_TRUE(says(reason(hopper(), "wgmma", "pointer", "element"), "C7506"));
  EXPECT_TRUE(says(reason(hopper(), "wgmma", "stitched_nolto", "element"), "C7504"));
  EXPECT_EQ(reason(hopper(), "wgmma", "noinline", "element"), "none");
  EXPECT_EQ(reason(hopper(), "mma_sync", "pointer", "row"), "none");
  EXPECT_TRUE(says(reason(hopper(), "tuned", "inline", "element"), "mma_sync, wgmma"));
  EXPECT_TRUE(says(reason(avx2(), "wgmma", "inline", "element"), "tuned"));
  DeviceInfo old = hopper();
  old.features = {"mma"};
  EXPECT_TRUE(says(reason(old, "wgmma", "inline", "element"), "sm_90a"));
}

TEST(StitchSweepTest, ADeviceWithoutKernelsSkips) {
  DeviceInfo other = avx2();
  other.operations = &no_operations();
  const Case config = cases("quick", avx2()).front();
  EXPECT_EQ(why_skipped(config, other), "this device has no kernel for variant tuned that calls a score function");
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

TEST(StitchSweepTest, FullHoldsQuick) {
  for (const DeviceInfo& info : {avx2(), hopper()}) {
    std::set<std::string> full;
    for (const Case& config : cases("full", info)) full.insert(config.key());
    for (const Case& config : cases("quick", info)) EXPECT_TRUE(full.contains(config.key())) << config.key();
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

TEST(StitchSweepTest, FormsOfTheHostAreSkippedOnAGpu) {
  Case config = cases("quick", hopper()).front();
  for (const std::string form : {"std_function", "virtual"}) {
    config.set("form", form);
    const auto reason = why_skipped(config, hopper());
    ASSERT_TRUE(reason);
    EXPECT_NE(reason->find(form), std::string::npos) << *reason;
    EXPECT_FALSE(form_runs_on(form, hopper()));
    EXPECT_TRUE(form_runs_on(form, avx2()));
  }
}

TEST(StitchSweepTest, TilesThatDoNotFitAreSkipped) {
  DeviceInfo small = avx2();
  small.threadgroup_memory_bytes = 1024;
  EXPECT_TRUE(why_skipped(cases("quick", avx2()).front(), small));
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
