#include "common/cases/reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <stdexcept>
#include <tuple>

namespace attn {
namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

struct Inputs {
  Tensor q, k, v;
};

Inputs random_inputs(const AttentionShape& s, DType dtype = DType::f32, Layout layout = Layout::bhsd) {
  return {random_tensor(s.batch, s.q_heads, s.q_len, s.head_dim, dtype, layout, 1, 0),
          random_tensor(s.batch, s.kv_heads, s.kv_len, s.head_dim, dtype, layout, 1, 1),
          random_tensor(s.batch, s.kv_heads, s.kv_len, s.head_dim, dtype, layout, 1, 2)};
}

ReferenceRows attention(const AttentionShape& shape, const Inputs& in, const ScoreFunction& score = {}) {
  return reference_attention(shape, in.q, in.k, in.v, all_rows(shape), score);
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance) << "element " << i;
}

/// q = (1, 2), keys (1, 0) and (0, 1): scores 0.5 * (1, 2), values (10, 20) and (30, -40).
ReferenceRows hand_computed() {
  const AttentionShape shape{1, 1, 1, 1, 2, 2, false, 0.5};
  Inputs in{Tensor::zeros(1, 1, 1, 2, DType::f32, Layout::bhsd), Tensor::zeros(1, 1, 2, 2, DType::f32, Layout::bhsd),
            Tensor::zeros(1, 1, 2, 2, DType::f32, Layout::bhsd)};
  in.q.store(0, std::vector<double>{1, 2});
  in.k.store(0, std::vector<double>{1, 0, 0, 1});
  in.v.store(0, std::vector<double>{10, 20, 30, -40});
  return attention(shape, in);
}

TEST(ReferenceTest, HandComputedCase) {
  const ReferenceRows result = hand_computed();
  const double a = std::exp(0.5), b = std::numbers::e;
  expect_near(result.o, {(10 * a + 30 * b) / (a + b), (20 * a - 40 * b) / (a + b)}, 1e-13);
  expect_near(result.lse, {std::log(a + b)}, 1e-13);
}

TEST(ReferenceTest, HandComputedSpreadSwingAndScoreSize) {
  const ReferenceRows result = hand_computed();
  const double a = std::exp(0.5) / (std::exp(0.5) + std::numbers::e), b = 1 - a;
  expect_near(result.spread, {std::hypot(10 * a, 30 * b), std::hypot(20 * a, 40 * b)}, 1e-13);
  expect_near(result.swing, {10 * a + 30 * b, std::max(20 * a, 40 * b - 20 * a)}, 1e-13);
  expect_near(result.score_size, {0.5 * std::sqrt(5.0) + 0.5 * a + b}, 1e-13);
  EXPECT_EQ(result.tiny_weights, std::vector<int64_t>{0});
}

// Three keys: the first has nearly all the weight, the second has 2^-20 of the first key's weight, and the third 2^-30.
TEST(ReferenceTest, CountsTinyWeightsAndRaisesWeightsTo2ToTheMinus14InTheSpreadOfF16) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const AttentionShape shape{1, 1, 1, 1, 3, 1, false, 1};
    Inputs in{Tensor::zeros(1, 1, 1, 1, dtype, Layout::bhsd), Tensor::zeros(1, 1, 3, 1, dtype, Layout::bhsd),
              Tensor::zeros(1, 1, 3, 1, dtype, Layout::bhsd)};
    in.v.store(0, std::vector<double>{0, 1, 1});
    const ReferenceRows result = attention(shape, in, each_score([](double, auto, auto, auto, int64_t k) {
                                             return k == 0 ? 0.0 : (k == 1 ? -20 : -30) * std::numbers::ln2;
                                           }));
    EXPECT_EQ(result.tiny_weights[0], 1) << name(dtype);
    EXPECT_NEAR(result.spread[0] / (dtype == DType::f16 ? 0x1p-14 * std::numbers::sqrt2 : 0x1p-20), 1, 1e-3)
        << name(dtype);
  }
}

TEST(ReferenceTest, DefaultScaleIsOneOverRootOfHeadDim) {
  AttentionShape shape{1, 1, 1, 3, 4, 16};
  EXPECT_EQ(shape.effective_scale(), 0.25);
  const Inputs in = random_inputs(shape);
  const ReferenceRows by_default = attention(shape, in);
  shape.scale = 0.25;
  EXPECT_EQ(attention(shape, in).o, by_default.o);
  shape.scale = -0.25;
  EXPECT_NE(attention(shape, in).o, by_default.o);
}

// Causal attention of query q is full attention over its first q + 1 + kv_len - q_len keys.
TEST(ReferenceTest, CausalIsAlignedToTheBottomRight) {
  for (const auto& [q_len, kv_len] : {std::pair<int64_t, int64_t>{4, 4}, {3, 7}, {1, 5}, {7, 3}, {5, 1}}) {
    const AttentionShape shape{2, 2, 1, q_len, kv_len, 4, true};
    const Inputs in = random_inputs(shape);
    const ReferenceRows causal = attention(shape, in);
    double pairs = 0;
    for (size_t i = 0; i < causal.rows.size(); ++i) {
      const RowIndex row = causal.rows[i];
      const int64_t visible = std::max<int64_t>(row.q + 1 + kv_len - q_len, 0);
      EXPECT_EQ(shape.keys_seen(row.q), visible);
      pairs += static_cast<double>(visible);
      AttentionShape full = shape;
      full.causal = false;
      const ReferenceRows want = reference_attention(
          full, in.q, in.k, in.v, {row},
          each_score([&](double score, auto, auto, auto, int64_t k) { return k < visible ? score : -inf; }));
      EXPECT_EQ(causal.lse[i], want.lse[0]) << q_len << " " << kv_len << " " << row.q;
      for (size_t d = 0; d < 4; ++d) EXPECT_EQ(causal.o[i * 4 + d], want.o[d]) << q_len << " " << kv_len;
      if (visible == 0) {
        EXPECT_EQ(causal.lse[i], -inf);
        for (size_t d = 0; d < 4; ++d) EXPECT_EQ(causal.o[i * 4 + d], 0);
      }
    }
    EXPECT_EQ(shape.unmasked_pairs(), pairs) << q_len << " " << kv_len;
  }
}

// Attention with a copy of the key/value head for each query head of its group gives the same result.
TEST(ReferenceTest, QueryHeadsReadTheKeyValueHeadOfTheirGroup) {
  for (const int64_t kv_heads : {1, 2, 3}) {
    const AttentionShape grouped{2, 6, kv_heads, 3, 5, 4};
    const Inputs in = random_inputs(grouped);
    AttentionShape expanded = grouped;
    expanded.kv_heads = 6;
    Inputs repeated = random_inputs(expanded);
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t h = 0; h < 6; ++h) {
        for (int64_t s = 0; s < 5; ++s) {
          for (int64_t d = 0; d < 4; ++d) {
            repeated.k.set(b, h, s, d, in.k.at(b, h / (6 / kv_heads), s, d));
            repeated.v.set(b, h, s, d, in.v.at(b, h / (6 / kv_heads), s, d));
          }
        }
      }
    }
    const ReferenceRows got = attention(grouped, in), want = attention(expanded, repeated);
    EXPECT_EQ(got.o, want.o) << kv_heads;
    EXPECT_EQ(got.lse, want.lse) << kv_heads;
  }
}

TEST(ReferenceTest, ScoreFunctionSeesTheScaledScoreAndEachUnmaskedPairOnce) {
  const AttentionShape shape{2, 2, 1, 3, 3, 4, true, 0.5};
  const Inputs in = random_inputs(shape);
  for (const RowIndex& row : all_rows(shape)) {
    int64_t next = 0;
    const auto see = [&](double score, int64_t b, int64_t h, int64_t q, int64_t k) {
      double want = 0;
      for (int64_t d = 0; d < 4; ++d) want += in.q.at(b, h, q, d) * in.k.at(b, 0, k, d);
      EXPECT_NEAR(score, 0.5 * want, 1e-13);
      EXPECT_EQ((RowIndex{b, h, q}), row);
      EXPECT_EQ(k, next++);
      return score;
    };
    reference_attention(shape, in.q, in.k, in.v, {row}, each_score(see));
    EXPECT_EQ(next, row.q + 1);
  }
}

TEST(ReferenceTest, TheValueOfAMaskedPairIsNotRead) {
  const AttentionShape shape{1, 1, 1, 2, 3, 2};
  Inputs in = random_inputs(shape);
  const ScoreFunction without_key_1 =
      each_score([](double score, auto, auto, auto, int64_t k) { return k == 1 ? -inf : score; });
  const ReferenceRows want = attention(shape, in, without_key_1);
  in.v.set(0, 0, 1, 0, std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(attention(shape, in, without_key_1).o, want.o);
}

TEST(ReferenceTest, FullyMaskedRowsAreZero) {
  const AttentionShape shape{1, 1, 1, 2, 3, 2};
  const auto without_query_0 =
      each_score([](double score, auto, auto, int64_t q, auto) { return q == 0 ? -inf : score; });
  const ReferenceRows result = attention(shape, random_inputs(shape), without_query_0);
  EXPECT_EQ(result.o[0], 0);
  EXPECT_EQ(result.o[1], 0);
  EXPECT_EQ(result.lse[0], -inf);
  EXPECT_TRUE(std::isfinite(result.lse[1]));
  EXPECT_NE(result.o[2], 0);

  const AttentionShape no_keys{1, 1, 1, 2, 0, 2};
  const ReferenceRows empty = attention(no_keys, random_inputs(no_keys));
  EXPECT_EQ(empty.o, std::vector<double>(4, 0.0));
  EXPECT_EQ(empty.lse, std::vector<double>(2, -inf));
}

// The output of a row of equal, finite scores is the mean of V, whatever the size of the scores.
TEST(ReferenceTest, FiniteScoresOfAnySizeHideNoPair) {
  const AttentionShape shape{1, 1, 1, 1, 3, 2};
  const Inputs in = random_inputs(shape);
  for (const double size : {0.0, -1e30, double{std::numeric_limits<float>::lowest()}, 1e38}) {
    const ReferenceRows result = attention(shape, in, each_score([&](double, auto...) { return size; }));
    for (int64_t d = 0; d < 2; ++d) {
      EXPECT_NEAR(result.o[static_cast<size_t>(d)],
                  (in.v.at(0, 0, 0, d) + in.v.at(0, 0, 1, d) + in.v.at(0, 0, 2, d)) / 3, 1e-12)
          << size;
    }
    EXPECT_EQ(result.lse[0], size + std::log(3.0));
  }
}

TEST(ReferenceTest, NonFiniteValuesReachTheRowsThatSeeThem) {
  const AttentionShape shape{1, 1, 1, 2, 2, 2, true};
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), inf}) {
    Inputs in = random_inputs(shape);
    in.v.set(0, 0, 1, 0, value);
    const ReferenceRows result = attention(shape, in);
    EXPECT_TRUE(std::isfinite(result.o[0]) && std::isfinite(result.o[1]) && std::isfinite(result.o[3]));
    EXPECT_TRUE(std::isnan(value) ? std::isnan(result.o[2]) : result.o[2] == inf);
    EXPECT_TRUE(std::isfinite(result.lse[1]));
  }
  const AttentionShape one_row{1, 1, 1, 1, 3, 2};
  const auto expect_nan = [](const ReferenceRows& result) {
    EXPECT_TRUE(std::isnan(result.o[0]) && std::isnan(result.o[1]) && std::isnan(result.lse[0]));
  };
  Inputs in = random_inputs(one_row);
  expect_nan(
      attention(one_row, in, each_score([](double s, auto, auto, auto, int64_t k) { return k == 1 ? inf : s; })));
  for (const int64_t key : {0, 1, 2}) {
    in.k.set(0, 0, key, 0, std::numeric_limits<double>::quiet_NaN());
    expect_nan(attention(one_row, in));
  }
}

TEST(ReferenceTest, LayoutDoesNotMatterAndDtypeOnlyRounds) {
  const AttentionShape shape{2, 4, 2, 5, 6, 8, true};
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const Inputs in = random_inputs(shape, dtype);
    const ReferenceRows want = attention(shape, in);
    EXPECT_EQ(attention(shape, random_inputs(shape, dtype, Layout::bshd)).o, want.o) << name(dtype);
    // The oracle computes in double from the stored values.
    const Inputs wide{convert(in.q, DType::f32, Layout::bshd), convert(in.k, DType::f32, Layout::bhsd),
                      convert(in.v, DType::f32, Layout::bshd)};
    EXPECT_EQ(attention(shape, wide).o, want.o) << name(dtype);
  }
  EXPECT_NE(attention(shape, random_inputs(shape, DType::bf16)).o, attention(shape, random_inputs(shape)).o);
}

TEST(ReferenceTest, RowsMayComeInAnyOrder) {
  const AttentionShape shape{2, 4, 2, 3, 300, 8};
  const Inputs in = random_inputs(shape);
  const ReferenceRows all = attention(shape, in);
  std::vector<RowIndex> order = {{1, 3, 2}, {0, 0, 0}, {1, 0, 1}, {0, 3, 1}, {0, 0, 0}};
  const ReferenceRows some = reference_attention(shape, in.q, in.k, in.v, order);
  EXPECT_EQ(some.rows, order);
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t j = static_cast<size_t>(std::find(all.rows.begin(), all.rows.end(), order[i]) - all.rows.begin());
    EXPECT_EQ(some.lse[i], all.lse[j]);
    for (size_t d = 0; d < 8; ++d) EXPECT_EQ(some.o[i * 8 + d], all.o[j * 8 + d]);
  }
}

TEST(ReferenceTest, TensorsThatDoNotFitTheShapeAreRefused) {
  const AttentionShape shape{1, 4, 2, 3, 5, 8};
  const Inputs in = random_inputs(shape);
  EXPECT_THROW(reference_attention(shape, in.k, in.k, in.v, {}), std::invalid_argument);
  EXPECT_THROW(reference_attention(shape, in.q, in.q, in.v, {}), std::invalid_argument);
  EXPECT_THROW(reference_attention(shape, in.q, in.k, in.q, {}), std::invalid_argument);
  for (const RowIndex row : {RowIndex{1, 0, 0}, {0, 4, 0}, {0, 0, 3}, {-1, 0, 0}, {0, -1, 0}, {0, 0, -1}}) {
    EXPECT_THROW(reference_attention(shape, in.q, in.k, in.v, {row}), std::invalid_argument);
  }
  AttentionShape uneven = shape;
  uneven.q_heads = 3;
  EXPECT_THROW(reference_attention(uneven, random_inputs(uneven).q, in.k, in.v, {}), std::invalid_argument);
  uneven.kv_heads = 0;
  EXPECT_THROW(attention(uneven, random_inputs(uneven)), std::invalid_argument);
}

TEST(ReferenceTest, AnExceptionOfTheScoreFunctionReachesTheCaller) {
  const AttentionShape shape{1, 1, 1, 64, 8, 4};
  EXPECT_THROW(attention(shape, random_inputs(shape), [](auto...) { throw std::domain_error("bad"); }),
               std::domain_error);
}

auto key(const RowIndex& row) { return std::tuple(row.batch, row.head, row.q); }

TEST(RowsTest, SamplesHaveTheCornersInOrderAndNoDuplicates) {
  const AttentionShape shape{2, 3, 1, 50, 5, 64};
  for (const int64_t count : {4, 5, 64, 299}) {
    const std::vector<RowIndex> rows = sample_rows(shape, count, 11);
    EXPECT_EQ(static_cast<int64_t>(rows.size()), count);
    for (size_t i = 1; i < rows.size(); ++i) EXPECT_LT(key(rows[i - 1]), key(rows[i]));
    for (const RowIndex corner : {RowIndex{0, 0, 0}, {0, 0, 49}, {1, 2, 0}, {1, 2, 49}}) {
      EXPECT_NE(std::find(rows.begin(), rows.end(), corner), rows.end()) << count;
    }
    for (const RowIndex& row : rows) {
      EXPECT_TRUE(row.batch >= 0 && row.batch < 2 && row.head >= 0 && row.head < 3 && row.q >= 0 && row.q < 50);
    }
  }
}

TEST(RowsTest, SampleIsAtMostAllRowsAndAtLeastTheCorners) {
  const AttentionShape shape{1, 2, 1, 4, 5, 64};
  const std::vector<RowIndex> all = {{0, 0, 0}, {0, 0, 1}, {0, 0, 2}, {0, 0, 3},
                                     {0, 1, 0}, {0, 1, 1}, {0, 1, 2}, {0, 1, 3}};
  EXPECT_EQ(all_rows(shape), all);
  for (const int64_t count : {8, 1000}) EXPECT_EQ(sample_rows(shape, count, 1), all);
  EXPECT_EQ(sample_rows(shape, 0, 1).size(), 4u);
  EXPECT_EQ(sample_rows({1, 1, 1, 1, 5, 64}, 0, 1).size(), 1u);
  EXPECT_EQ(sample_rows({1, 1, 1, 9, 5, 64}, 1, 1).size(), 2u);
  EXPECT_TRUE(sample_rows({1, 1, 1, 0, 5, 64}, 3, 1).empty());
}

TEST(RowsTest, SampleFollowsTheSeedAndSpreads) {
  const AttentionShape shape{2, 4, 1, 1000, 5, 64};
  const std::vector<RowIndex> rows = sample_rows(shape, 400, 5);
  EXPECT_EQ(sample_rows(shape, 400, 5), rows);
  EXPECT_NE(sample_rows(shape, 400, 6), rows);
  std::map<int64_t, int> per_head;
  for (const RowIndex& row : rows) ++per_head[row.batch * 4 + row.head];
  EXPECT_EQ(per_head.size(), 8u);
  for (const auto& [head, count] : per_head) EXPECT_NEAR(count, 50, 35) << head;
}

}  // namespace
}  // namespace attn
