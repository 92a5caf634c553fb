#include "common/cases/inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/temporary_folder.h"
#include "common/testing/messages.h"
#include "common/testing/tested_device.h"

namespace attn {
namespace {

FlashConfig config_of(int64_t kv_len, DType dtype = DType::f32, Layout layout = Layout::bhsd) {
  FlashConfig config;
  config.shape = {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 12, .kv_len = kv_len, .head_dim = 64};
  config.dtype = config.out_dtype = dtype;
  config.layout = layout;
  return config;
}

// Recorded results depend on these values.
TEST(InputsTest, RandomInputsAreTheStreamsOfTheSeed) {
  const AttentionInputs in = make_inputs(config_of(30, DType::bf16, Layout::bshd), 7, InputKind::random);
  EXPECT_EQ(in.q.data, random_tensor(2, 4, 12, 64, DType::bf16, Layout::bshd, 7, 0).data);
  EXPECT_EQ(in.k.data, random_tensor(2, 2, 30, 64, DType::bf16, Layout::bshd, 7, 1).data);
  EXPECT_EQ(in.v.data, random_tensor(2, 2, 30, 64, DType::bf16, Layout::bshd, 7, 2).data);
}

TEST(InputsTest, NeedlesChangeEverySecondQueryAndTheValues) {
  const AttentionInputs random = make_inputs(config_of(200), 7, InputKind::random);
  const AttentionInputs needles = make_inputs(config_of(200), 7, InputKind::needles);
  EXPECT_EQ(needles.k.data, random.k.data);
  EXPECT_NE(needles.v.data, random.v.data);
  for (int64_t q = 0; q < 12; ++q) {
    EXPECT_EQ(needles.q.at(1, 3, q, 5) == random.q.at(1, 3, q, 5), q % 2 == 0) << q;
  }
  EXPECT_NE(make_inputs(config_of(200), 8, InputKind::needles).q.data, needles.q.data);
}

TEST(InputsTest, ANumberThatIsNotFiniteInAFileIsReported) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "qkv.safetensors";
  const FlashConfig config = config_of(30);
  for (const auto& [value, shown] : {std::pair{NAN, "nan"}, {-INFINITY, "-inf"}}) {
    AttentionInputs made = make_inputs(config, 7, InputKind::random);
    made.k.set(1, 0, 5, 7, value);
    std::map<std::string, StoredTensor> stored;
    for (const auto& [name, tensor] : {std::pair{"q", &made.q}, {"k", &made.k}, {"v", &made.v}}) {
      stored[name] = {tensor->dtype, {tensor->batch, tensor->heads, tensor->seq, tensor->dim}, tensor->data};
    }
    write_safetensors(path, stored);
    test::expect_error<BadInput>([&] { FlashInputs(test::device(), config, 7, path); }, {path, "k[1, 0, 5, 7]", shown});
  }
}

TEST(InputsTest, NeedlesDoNotDependOnTheLayout) {
  const AttentionInputs a = make_inputs(config_of(200, DType::f16, Layout::bhsd), 7, InputKind::needles);
  const AttentionInputs b = make_inputs(config_of(200, DType::f16, Layout::bshd), 7, InputKind::needles);
  EXPECT_EQ(convert(b.q, DType::f16, Layout::bhsd).data, a.q.data);
  EXPECT_EQ(convert(b.v, DType::f16, Layout::bhsd).data, a.v.data);
}

// In most rows the needle outweighs all other keys together; not in all rows, because the products of a needle with the
// other keys differ.
TEST(InputsTest, NeedlesOutweighTheOtherKeysAndLieAtManyKeys) {
  for (const bool causal : {false, true}) {
    for (const int64_t keys : {64, 1024, 4096}) {
      FlashConfig config = config_of(keys, DType::bf16);
      config.shape.causal = causal;
      const AttentionInputs in = make_inputs(config, 7, InputKind::needles);
      std::vector<RowIndex> rows;
      for (const RowIndex& row : all_rows(config.shape)) {
        if (row.q % 2 == 1) rows.push_back(row);
      }
      int taken = 0;
      std::set<int64_t> needles;
      for (const RowIndex& row : rows) {
        double largest = 0;
        const ReferenceRows want =
            reference_attention(config.shape, in.q, in.k, in.v, {row}, [&](std::span<double> scores, auto...) {
              const auto at = std::max_element(scores.begin(), scores.end());
              largest = *at;
              needles.insert(at - scores.begin());
            });
        taken += largest - want.lse[0] > std::log(0.5);
      }
      EXPECT_GT(taken, static_cast<int>(rows.size()) * 3 / 4) << keys << " keys, causal " << causal;
      EXPECT_GT(needles.size(), rows.size() / 2) << keys << " keys, causal " << causal;
    }
  }
}

TEST(InputsTest, NeedlesAreFiniteWhateverTheScale) {
  for (const double scale : {1e-30, 300.0, -0.3}) {
    FlashConfig config = config_of(100, DType::f16);
    config.shape.scale = scale;
    const AttentionInputs in = make_inputs(config, 7, InputKind::needles);
    for (int64_t i = 0; i < in.q.count(); ++i) ASSERT_TRUE(std::isfinite(in.q.load(i)));
  }
}

TEST(InputsTest, QueriesWithoutKeysHaveNoNeedle) {
  FlashConfig config = config_of(4);
  config.shape.causal = true;  // the first 8 of 12 queries see no key
  const AttentionInputs random = make_inputs(config, 7, InputKind::random);
  const AttentionInputs needles = make_inputs(config, 7, InputKind::needles);
  EXPECT_EQ(needles.q.at(0, 0, 7, 0), random.q.at(0, 0, 7, 0));
  EXPECT_NE(needles.q.at(0, 0, 9, 0), random.q.at(0, 0, 9, 0));
}

class FlashInputsTest : public test::OnDevice<testing::Test> {};

TEST_F(FlashInputsTest, TheOracleRunsOnceForEachName) {
  FlashInputs inputs(test::device(), config_of(20), 7, "");
  const ReferenceRows& plain = inputs.reference();
  EXPECT_EQ(&inputs.reference(), &plain);
  std::atomic<bool> asked = false;
  const ScoreFunction zero = [&](std::span<double> scores, auto...) {
    asked = true;
    std::fill(scores.begin(), scores.end(), 0.0);
  };
  const ReferenceRows& even = inputs.reference("zero", zero);
  EXPECT_NEAR(even.lse[0], std::log(20), 1e-12);
  EXPECT_TRUE(asked);
  asked = false;
  EXPECT_EQ(&inputs.reference("zero", zero), &even);
  EXPECT_FALSE(asked);
  EXPECT_EQ(plain.rows.size(), 2u * 4 * 12);
}

}  // namespace
}  // namespace attn
