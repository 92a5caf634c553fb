// Tests that the tolerances pass correct kernels with a margin. That a wrong block of keys exceeds them is shown with
// broken kernels: BlockMutations in common/attention/tests/mutation_test.cpp.
#include "common/cases/tolerance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "common/attention/tests/flash_run.h"
#include "common/attention/tests/mutations.h"
#include "common/attention/tests/path_device.h"
#include "common/testing/some.h"

namespace attn {
namespace {

AttentionTolerance tolerance(const AttentionShape& shape, const AttentionInputs& in, DType dtype, DType out_dtype,
                             bool hooked = false) {
  return attention_tolerance(shape, dtype, out_dtype, hooked,
                             reference_attention(shape, in.q, in.k, in.v, all_rows(shape)));
}

FlashConfig config_of(const AttentionShape& shape, DType dtype) {
  FlashConfig config;
  config.shape = shape;
  config.dtype = config.out_dtype = dtype;
  return config;
}

TEST(ToleranceTest, FollowsTheTypesAndTheHook) {
  const AttentionShape shape{.batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 4, .kv_len = 1000, .head_dim = 64};
  const AttentionInputs in = make_inputs(config_of(shape, DType::f32), 1, InputKind::random);
  const auto largest = [&](DType dtype, DType out_dtype, bool hooked = false) {
    const std::vector<double> o = tolerance(shape, in, dtype, out_dtype, hooked).o;
    return *std::max_element(o.begin(), o.end());
  };
  EXPECT_LT(largest(DType::f32, DType::f32), largest(DType::f32, DType::f16) / 10);
  EXPECT_LT(largest(DType::f32, DType::f16), largest(DType::f32, DType::bf16) / 5);
  EXPECT_LT(largest(DType::f32, DType::bf16), largest(DType::bf16, DType::bf16));
  EXPECT_LT(largest(DType::f16, DType::f32), largest(DType::bf16, DType::f32) / 5);
  EXPECT_LT(largest(DType::f32, DType::f32), largest(DType::f32, DType::f32, true));
}

TEST(ToleranceTest, ShrinksWithTheOutputs) {
  double before = 1;
  for (const int64_t keys : {64, 1024, 16384}) {
    const AttentionShape shape{.batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 2, .kv_len = keys, .head_dim = 64};
    const AttentionInputs in = make_inputs(config_of(shape, DType::bf16), 1, InputKind::random);
    const std::vector<double> o = tolerance(shape, in, DType::bf16, DType::bf16).o;
    const double mean = std::accumulate(o.begin(), o.end(), 0.0) / static_cast<double>(o.size());
    EXPECT_LT(mean, before / 3) << keys;
    before = mean;
  }
}

TEST(ToleranceTest, TheToleranceOfTheLogSumExpIsSmall) {
  for (const int64_t keys : {1, 64, 1024, 16384}) {
    const AttentionShape shape{.batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 4, .kv_len = keys, .head_dim = 64};
    const AttentionInputs in = make_inputs(config_of(shape, DType::f32), 1, InputKind::random);
    for (const double lse : tolerance(shape, in, DType::f32, DType::f32).lse) EXPECT_LT(lse, 4e-5);
    for (const double lse : tolerance(shape, in, DType::bf16, DType::bf16).lse) EXPECT_LT(lse, 2.5e-4);
  }
}

TEST(ToleranceTest, TheToleranceOfARowWithoutKeysIsNearlyZero) {
  const AttentionShape shape{
      .batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 2, .kv_len = 1, .head_dim = 8, .causal = true};
  const AttentionInputs in = make_inputs(config_of(shape, DType::bf16), 1, InputKind::random);
  for (size_t i = 0; i < 8; ++i) EXPECT_LE(tolerance(shape, in, DType::bf16, DType::bf16).o[i], 1e-30);
}

TEST(ToleranceTest, TheToleranceOfARowOfNaNIsNaN) {
  const AttentionShape shape{.batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 1, .kv_len = 2, .head_dim = 8};
  AttentionInputs in = make_inputs(config_of(shape, DType::f32), 1, InputKind::random);
  in.k.set(0, 0, 0, 0, std::nan(""));
  const AttentionTolerance allowed = tolerance(shape, in, DType::f32, DType::f32);
  EXPECT_TRUE(std::isnan(allowed.o[0]) && std::isnan(allowed.lse[0]));
}

// ---- correct kernels

class Margins : public test::OnPath<test::KernelPath> {
 protected:
  const test::KernelPath& path() const override { return GetParam(); }

  double most_used(InputKind kind) {
    double most = 0;
    for (const int64_t keys : {1, 7, 64, 1024, test::Some::all() ? 16384 : 4096}) {
      for (uint64_t seed = 1; seed <= (keys > 1024 ? 1 : 4); ++seed) {
        FlashConfig config = test::block_mutation_config(path());
        config.shape.q_heads = config.shape.kv_heads = 2;
        config.shape.kv_len = keys;
        config.shape.causal = seed == 3;
        if (seed == 2) config.out_dtype = DType::f32;
        const Check check =
            test::run(config, std::make_shared<FlashInputs>(on(), config, seed, "", kind), {}, on(), pipelines());
        EXPECT_TRUE(check.ok) << test::describe(config) << ": " << check.worst;
        most = std::max(most, check.max_used);
      }
    }
    RecordProperty(kind == InputKind::random ? "random_uses" : "needles_use", std::to_string(most));
    return most;
  }
};
INSTANTIATE_TEST_SUITE_P(All, Margins, testing::ValuesIn(test::kernel_paths(test::on_cuda)),
                         [](const auto& test) { return test.param.name; });

TEST_P(Margins, KernelsUseAtMostHalfOfTheTolerance) {
  const double random = most_used(InputKind::random), needles = most_used(InputKind::needles);
  if (test::on_cuda) return;  // most_used() has checked that the kernels pass
  EXPECT_LE(random, 0.5);
  EXPECT_LE(needles, 0.5);
}

}  // namespace
}  // namespace attn
