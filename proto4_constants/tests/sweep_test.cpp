// Tests the grid of variants (sets of constants of a kernel), the axes and the skipped cases. The tests use
// descriptions of devices, and need no device.
#include "proto4_constants/sweep.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "common/testing/claims.h"
#include "common/testing/planned_cases.h"
#include "proto4_constants/problem.h"

namespace attn {
namespace {

std::string why_skipped(const Case& config, const DeviceInfo& device) {
  return skip_reason(constants_plan(config, {device}), device).value_or("");
}

using test::avx2;
using test::hopper;

std::vector<Case> cases_of(const std::string& profile, const DeviceInfo& device,
                           const std::vector<std::string>& axes = {}) {
  Sweep sweep = constants_sweep(profile, device);
  for (const std::string& axis : axes) override_axis(sweep, parse_axis(axis, constants_axes()));
  return test::MadeUp{constants_experiment(), device, {}}.cases(sweep);
}

// The first 72 variants are the whole base grid.
TEST(VariantGrid, BeginsWithTheBaseGrid) {
  for (const auto& [device, dtype] : {std::pair(avx2(), DType::f32), std::pair(hopper(), DType::bf16)}) {
    const std::vector<Variant> grid = variant_grid("tuned", dtype, device);
    EXPECT_GE(grid.size(), 500u) << device.spec;
    std::set<std::string> keys;
    std::map<std::string, std::set<int64_t>> base;
    for (size_t i = 0; i < grid.size(); ++i) {
      const KernelSource source = grid[i].source(device);
      EXPECT_TRUE(keys.insert(source.key()).second) << source.key();
      EXPECT_FALSE(FlashOperation::of(device).skip_reason(grid[i].config, device)) << source.key();
      if (i >= base_variants) continue;
      for (const char* name : {"HEAD_DIM", "BLOCK_R", "BLOCK_C", "CAUSAL", "ALIBI"}) {
        base[name].insert(source.constants.at(name));
      }
    }
    EXPECT_EQ(base["HEAD_DIM"], (std::set<int64_t>{64, 128, 256}));
    EXPECT_EQ(base["BLOCK_R"].size() * base["BLOCK_C"].size(), 6u);
    EXPECT_EQ(base["CAUSAL"].size() * base["ALIBI"].size(), 4u);
  }
}

// The first few variants must stand for all variants.
TEST(VariantGrid, FirstFewAreSpread) {
  for (const auto& [device, dtype] : {std::pair(avx2(), DType::f32), std::pair(hopper(), DType::bf16)}) {
    const std::vector<Variant> grid = variant_grid("tuned", dtype, device);
    std::map<std::string, std::set<int64_t>> values;
    for (size_t i = 0; i < 10; ++i) {
      for (const auto& [name, value] : grid.at(i).source(device).constants) {
        values[std::string(name)].insert(value);
      }
    }
    for (const char* name : {"HEAD_DIM", "BLOCK_R", "BLOCK_C", "CAUSAL", "ALIBI"}) {
      EXPECT_GT(values[name].size(), 1u) << device.spec << " " << name;
    }
  }
}

TEST(VariantGrid, LeavesOutTilesThatDoNotFit) {
  DeviceInfo small = avx2();
  small.threadgroup_memory_bytes = 64 << 10;
  const std::vector<Variant> grid = variant_grid("tuned", DType::f32, small);
  EXPECT_LT(grid.size(), base_variants);
  EXPECT_GT(grid.size(), 0u);
  small.threadgroup_memory_bytes = 1;
  EXPECT_TRUE(variant_grid("tuned", DType::f32, small).empty());
}

TEST(VariantGrid, TheHookAndTheReferenceUseTheSameSlopes) {
  Variant variant = variant_grid("tuned", DType::f32, avx2()).front();
  variant.alibi = true;
  variant.config.shape.q_heads = 8;
  const AttentionHooks hook = variant.hook();
  std::array<float, 8> slopes{};
  ASSERT_EQ(hook.data.size(), sizeof slopes);
  std::memcpy(slopes.data(), hook.data.data(), sizeof slopes);
  EXPECT_EQ(slopes[0], 0.5f);
  EXPECT_EQ(slopes[7], 1.0f / 256);
  std::vector<double> scores(6, 1.0);
  hook.reference(scores, 0, 0, 2);
  EXPECT_DOUBLE_EQ(scores[5], 1 - 1.5);
  scores.assign(6, 1.0);
  hook.reference(scores, 0, 7, 5);
  EXPECT_DOUBLE_EQ(scores[2], 1 - 3.0 / 256);
  EXPECT_EQ(hook.change, ScoreChange::any);
  variant.alibi = false;
  scores.assign(6, 1.0);
  variant.hook().reference(scores, 0, 0, 2);
  EXPECT_EQ(scores, std::vector<double>(6, 1.0));
  EXPECT_EQ(variant.hook().change, ScoreChange::none);
}

TEST(ConstantsSweep, CasesAreWhole) { test::expect_sweep(constants_experiment(), false); }

TEST(ConstantsPlanTest, ProblemsRunTheirPlans) {
  test::expect_problems_run_their_plans(constants_experiment(), "task=run q_len=48 q_heads=1");
}

TEST(ConstantsSweep, FullProfileCompiles1To500Variants) {
  std::set<int64_t> counts;
  for (const Case& config : cases_of("full", avx2())) {
    if (config.text("task") == "compile" && config.text("kernel") == "tuned") counts.insert(config.integer("variants"));
  }
  EXPECT_EQ(counts, (std::set<int64_t>{1, 10, 50, 100, 500}));
}

TEST(ConstantsSweep, SkipsNoCaseWithoutPch) {
  for (const DeviceInfo& device : {avx2(), hopper()}) {
    for (const char* profile : {"quick", "full"}) {
      std::set<std::string> tasks, read;
      for (const Case& config : cases_of(profile, device)) {
        if (config.integer("pch") == 0) {
          EXPECT_EQ(why_skipped(config, device), "") << config.key();
        }
        tasks.insert(config.text("task"));
        if (config.text("task") == "run") read.insert(config.text("run_time"));
      }
      EXPECT_EQ(tasks.size(), 11u) << device.spec << " " << profile;
      EXPECT_GE(read.size(), 5u) << device.spec << " " << profile;
    }
  }
}

TEST(ConstantsSweep, AnAxisThatTheTaskDoesNotUseAddsNoCases) {
  EXPECT_EQ(cases_of("quick", avx2(), {"task=memory"}).size(),
            cases_of("quick", avx2(), {"task=memory", "head_dim=64,128"}).size());
  for (const Case& config : cases_of("quick", avx2(), {"task=run", "run_time=none,causal"})) {
    EXPECT_GT(config.integer("head_dim"), 0) << config.key();
    EXPECT_EQ(config.integer("variants"), 0);
    EXPECT_EQ(why_skipped(config, avx2()), "") << config.key();
  }
  for (const Case& config : cases_of("quick", avx2(), {"task=compile", "variants=3"})) {
    EXPECT_EQ(config.integer("head_dim"), 0);
    EXPECT_EQ(config.text("run_time"), "none");
  }
}

TEST(ConstantsSweep, CompileOneTakesTheDefaultTile) {
  const auto tile = [](const DeviceInfo& device, std::vector<std::string> axes) {
    axes.insert(axes.end(), {"task=compile_one", "q_heads=32", "causal=1", "alibi=0"});
    const std::vector<Case> cases = cases_of("quick", device, axes);
    EXPECT_EQ(cases.size(), 1u);
    EXPECT_EQ(cases.front().integer("variants"), 1);
    EXPECT_EQ(why_skipped(cases.front(), device), "");
    return std::pair(cases.front().integer("block_r"), cases.front().integer("block_c"));
  };
  EXPECT_EQ(tile(hopper(), {"kernel=tuned", "dtype=bf16", "head_dim=128", "q_len=4096"}), std::pair(192l, 80l));
  EXPECT_EQ(tile(hopper(), {"kernel=tuned", "dtype=bf16", "head_dim=64", "q_len=4096"}), std::pair(192l, 128l));
  EXPECT_EQ(tile(avx2(), {"kernel=naive", "dtype=f32", "head_dim=64", "q_len=512"}), std::pair(0l, 0l));
}

TEST(ConstantsSweep, SaysWhyACaseIsLeftOut) {
  struct Row {
    std::vector<std::string> axes;
    DeviceInfo device;
    const char* says;
  };
  for (const auto& [axes, device, says] : std::vector<Row>{
           {{"task=compile", "kernel=tuned", "variants=5000", "dtype=f32"}, avx2(), "tuned has 540 variants"},
           {{"task=compile", "kernel=wgmma", "dtype=f32"}, avx2(), "no kernel for variant wgmma"},
           {{"task=compile", "kernel=tuned", "variants=1", "pch=1"}, hopper(), "does not precompile headers"},
           {{"task=run", "kernel=tuned", "run_time=head_dim"}, avx2(), "at run time it can read causal"},
           {{"task=run", "kernel=naive", "run_time=block_r"}, avx2(), "it can read head_dim, causal, alibi"},
           {{"task=run", "kernel=wgmma", "run_time=causal", "dtype=bf16"}, hopper(), "can read no constant"},
           {{"task=run", "kernel=tuned", "run_time=all"}, avx2(), "so this case is run_time=causal"}}) {
    const std::string why = why_skipped(cases_of("quick", device, axes).front(), device);
    EXPECT_NE(why.find(says), std::string::npos) << why;
  }
}

}  // namespace
}  // namespace attn
