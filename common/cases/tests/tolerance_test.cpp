// Tests that the tolerances pass correct kernels with a margin, and that a wrong block of keys exceeds them.
#include "common/cases/tolerance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>
#include <numeric>
#include <string>
#include <vector>

#include "common/attention/tests/flash_run.h"
#include "common/attention/tests/mutations.h"
#include "common/attention/tests/path_device.h"
#include "common/testing/some.h"

namespace attn {

inline void PrintTo(DType dtype, std::ostream* out) { *out << name(dtype); }

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

// ---- wrong blocks

constexpr int64_t block = 64;
constexpr size_t dim = 64;

/// Sums over one block of a row's keys: the weights, which add up to 1 over all blocks, and the weighted values.
struct Block {
  double weight = 0;
  std::vector<double> o = std::vector<double>(dim);           // weights and values of this block
  std::vector<double> its_values = std::vector<double>(dim);  // weights of the block before, values of this block
  std::vector<double> its_keys = std::vector<double>(dim);    // weights of this block, values of the block before
};

std::vector<Block> blocks_of(const AttentionShape& shape, const AttentionInputs& in, int64_t query, double lse) {
  std::vector<double> q(dim), k(dim), v(dim), before(dim);
  const size_t keys = static_cast<size_t>(shape.kv_len);
  std::vector<double> weights(keys);
  in.q.load(in.q.offset(0, 0, query, 0), q);
  for (size_t key = 0; key < keys; ++key) {
    in.k.load(in.k.offset(0, 0, static_cast<int64_t>(key), 0), k);
    weights[key] = std::exp(shape.effective_scale() * std::inner_product(q.begin(), q.end(), k.begin(), 0.0) - lse);
  }
  std::vector<Block> blocks(keys / block);
  for (size_t key = 0; key < keys; ++key) {
    Block& of = blocks[key / block];
    const size_t other = (key + keys - block) % keys;  // the last block counts as the block before the first
    in.v.load(in.v.offset(0, 0, static_cast<int64_t>(key), 0), v);
    in.v.load(in.v.offset(0, 0, static_cast<int64_t>(other), 0), before);
    of.weight += weights[key];
    for (size_t d = 0; d < dim; ++d) {
      of.o[d] += weights[key] * v[d];
      of.its_values[d] += weights[other] * v[d];
      of.its_keys[d] += weights[key] * before[d];
    }
  }
  return blocks;
}

/// Adds `more` to the sum of a row's weights and added(d) to the sum of its weighted values in column d. Returns the
/// largest change of an output or of the log-sum-exp as a multiple of its tolerance.
template <typename Added>
double used(const ReferenceRows& want, const AttentionTolerance& allowed, size_t row, double more, const Added& added) {
  double most = std::abs(std::log1p(more)) / allowed.lse[row];
  for (size_t d = 0; d < dim; ++d) {
    const double o = want.o[row * dim + d];
    most = std::max(most, std::abs((o + added(d)) / (1 + more) - o) / allowed.o[row * dim + d]);
  }
  return most;
}

class WrongBlocks : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(All, WrongBlocks, testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name(test.param)); });

// A wrong block is a block of keys that a kernel leaves out, counts twice, or replaces by the block before, or of which
// it replaces only the keys or only the values. For each block in the sequence at least one row must be off by more
// than twice the tolerance, so that a correct kernel's other errors, about half of the tolerance, cannot hide the wrong
// block. The bound is lower, the tolerance itself, if only the keys are replaced and the inputs have needles.
//
// Needles have 16 rows in place of 8, because half of these rows have nearly all their weight at one key. A check in an
// experiment has at least 64 rows, or all rows of a smaller shape.
TEST_P(WrongBlocks, ExceedTheToleranceOfAtLeastOneRow) {
  test::Some some(3);
  for (const int64_t keys : {64, 1024, 16384, 65536}) {
    for (const InputKind kind : {InputKind::random, InputKind::needles}) {
      if (some.skips()) continue;
      const int64_t rows = kind == InputKind::random ? 8 : 16;
      const AttentionShape shape{
          .batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = rows, .kv_len = keys, .head_dim = dim};
      const AttentionInputs in = make_inputs(config_of(shape, GetParam()), 3, kind);
      const ReferenceRows want = reference_attention(shape, in.q, in.k, in.v, all_rows(shape));
      const AttentionTolerance allowed = attention_tolerance(shape, GetParam(), GetParam(), false, want);
      const size_t count = static_cast<size_t>(keys / block);
      std::vector<double> lost(count), doubled(count), other(count), other_keys(count), other_values(count);
      for (size_t row = 0; row < want.rows.size(); ++row) {
        const std::vector<Block> blocks = blocks_of(shape, in, static_cast<int64_t>(row), want.lse[row]);
        for (size_t b = 0; b < count; ++b) {
          const Block &its = blocks[b], &before = blocks[(b + count - 1) % count];
          const auto raise = [&](double& most, double more, const auto& added) {
            most = std::max(most, used(want, allowed, row, more, added));
          };
          const double change = before.weight - its.weight;
          raise(doubled[b], its.weight, [&](size_t d) { return its.o[d]; });
          if (count == 1) continue;  // a single block cannot be left out or exchanged
          raise(lost[b], -its.weight, [&](size_t d) { return -its.o[d]; });
          raise(other[b], change, [&](size_t d) { return before.o[d] - its.o[d]; });
          raise(other_keys[b], change, [&](size_t d) { return its.its_values[d] - its.o[d]; });
          raise(other_values[b], 0, [&](size_t d) { return its.its_keys[d] - its.o[d]; });
        }
      }
      const auto least = [](const std::vector<double>& all) { return *std::min_element(all.begin(), all.end()); };
      const std::string where = fmt::format("{} {} keys", kind == InputKind::random ? "random" : "needles", keys);
      EXPECT_GT(least(doubled), 2) << where;
      if (count == 1) continue;
      EXPECT_GT(least(lost), 2) << where;
      EXPECT_GT(least(other), 2) << where;
      // The output changes little, because all values of a block have the same signature.
      EXPECT_GT(least(other_keys), kind == InputKind::random ? 2 : 1) << where;
      EXPECT_GT(least(other_values), 2) << where;
    }
  }
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
