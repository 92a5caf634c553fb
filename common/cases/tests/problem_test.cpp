// Tests the flash attention kernels of the device under test against the oracle.
#include "common/cases/problem.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <string_view>

#include "common/attention/tests/flash_run.h"
#include "common/base/error.h"
#include "common/base/temporary_folder.h"
#include "common/testing/some.h"
#include "common/testing/tested_device.h"

namespace attn {
namespace {

using test::describe;
using test::device;
using test::on_cuda;
using test::OnDevice;
using test::pipelines;
using test::random_inputs;
using test::run;
using test::runs;
using test::skip_reason;
using test::small;

// The number of a test's configurations that the device could run.
int configurations = 0;

// Leaves out configurations that the device cannot run.
void expect_correct(const FlashConfig& config, const std::optional<AttentionHooks>& hook = {}, int launches = 1) {
  if (!runs(config)) return;
  ++configurations;
  const Check check = run(config, random_inputs(config), hook, device(), pipelines(), launches);
  EXPECT_TRUE(check.ok) << describe(config) << ": " << check.worst;
  EXPECT_GT(check.rows_checked, 0);
}

std::vector<std::string> variants() {
  if (on_cuda) return {"naive", "mma_sync", "wgmma"};
  return {"naive", "tiled_scalar", "tiled_vector", "tuned"};
}

// A test is skipped if the device cannot run the variant, or none of the test's configurations.
class Variants : public OnDevice<testing::TestWithParam<std::string>> {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    configurations = 0;
    if (const auto reason = skip_reason(small(GetParam()))) GTEST_SKIP() << *reason;
  }
  void TearDown() override {
    if (!IsSkipped() && configurations == 0) GTEST_SKIP() << "the device takes no configuration of the test";
  }
};
INSTANTIATE_TEST_SUITE_P(All, Variants, testing::ValuesIn(variants()), [](const auto& test) { return test.param; });

TEST_P(Variants, HeadDimsUpTo256) {
  test::Some some(3);
  for (int64_t dim = 8; dim <= 256; dim += GetParam() == variants().back() ? 8 : 56) {
    if (some.skips()) continue;
    FlashConfig config = small(GetParam());
    config.shape.head_dim = dim;
    config.shape.causal = dim % 16 == 0;
    expect_correct(config);
  }
}

TEST_P(Variants, EveryTypeAndLayout) {
  test::Some some(11);
  for (const DType in : {DType::f32, DType::f16, DType::bf16}) {
    for (const DType out : {DType::f32, DType::f16, DType::bf16}) {
      for (const Layout layout : {Layout::bhsd, Layout::bshd}) {
        if (some.skips()) continue;
        FlashConfig config = small(GetParam());
        config.dtype = in;
        config.out_dtype = out;
        config.layout = layout;
        config.shape.batch = 2;
        expect_correct(config);
      }
    }
  }
}

// The rows of K are a multiple of 4 KiB apart. Such rows share a set of the L1 cache, so on most CPUs the tuned kernel
// reads a copy of them.
TEST_P(Variants, RowsAMultipleOf4KiBApart) {
  for (const auto& [dtype, kv_heads] : {std::pair{DType::f32, 4}, {DType::f16, 8}, {DType::bf16, 8}}) {
    for (const bool causal : {false, true}) {
      FlashConfig config = small(GetParam());
      config.dtype = dtype;
      config.layout = Layout::bshd;
      config.shape = {
          .batch = 2, .q_heads = kv_heads, .kv_heads = kv_heads, .q_len = 37, .kv_len = 53, .head_dim = 256};
      config.shape.causal = causal;
      expect_correct(config);
    }
  }
}

// Bottom-right alignment of the causal mask, with one, few and many queries and keys, and rows that see no key.
TEST_P(Variants, LengthsAndMask) {
  for (const int64_t q_len : {1, 2, 15, 16, 17, 33, 50}) {
    for (const int64_t kv_len : {1, 3, 5, 16, 17, 31, 64}) {
      for (const bool causal : {false, true}) {
        FlashConfig config = small(GetParam());
        config.shape.q_len = q_len;
        config.shape.kv_len = kv_len;
        config.shape.causal = causal;
        expect_correct(config);
      }
    }
  }
}

// The last tile has only 40 rows. The threads of its missing rows must stay in step with the others. Many blocks of
// keys, and many launches on a GPU, make it likely that a thread out of step causes a wrong result.
TEST_P(Variants, RowsBeyondTheEnd) {
  test::Some some(7);
  for (const int64_t head_dim : {64, 96, 128, 192, 256}) {
    for (const int64_t rows : {128, 192}) {
      if (some.skips()) continue;
      FlashConfig config = small(GetParam());
      const int64_t heads = on_cuda ? 32 : 1;
      config.shape = {.batch = 1, .q_heads = heads, .kv_heads = heads, .q_len = 424, .head_dim = head_dim};
      config.shape.kv_len = on_cuda && head_dim > 64 ? 1501 : 501;
      config.block_r = rows;
      expect_correct(config, {}, on_cuda ? 50 : 1);
    }
  }
}

// The kernel wgmma has more tiles here than an H200 runs at the same time, so a threadgroup computes several tiles,
// whose 16-bit outputs pass through the same threadgroup memory. A head's last tile may reach beyond the head's last
// row. With a causal mask wgmma counts tiles from the last row backwards, so the first tile may begin before the first
// row.
TEST_P(Variants, OutputsOfManyTiles) {
  test::Some some(7);
  for (const int64_t head_dim : {40, 64, 128, 192, 256}) {
    for (const int64_t rows : {64, 128, 192, 256}) {
      if (!on_cuda && rows > 64) continue;  // two threads of a cpu compute many tiles of 64 rows already
      for (const bool causal : {false, true}) {
        if (some.skips()) continue;
        FlashConfig config = small(GetParam());
        const int64_t groups = !on_cuda ? 1 : rows == 256 ? 16 : 8;
        config.shape = {.batch = 2, .q_heads = 5 * groups, .kv_heads = groups, .q_len = 200, .kv_len = 230};
        config.shape.head_dim = head_dim;
        config.shape.causal = causal;
        config.out_dtype = DType::bf16;
        config.block_r = rows;
        expect_correct(config);
      }
    }
  }
}

TEST_P(Variants, RandomShapes) {
  test::Some some(17);
  std::mt19937 random(42);
  const auto pick = [&](int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(random); };
  for (int i = 0; i < 40; ++i) {
    FlashConfig config = small(GetParam());
    AttentionShape& shape = config.shape;
    shape.batch = pick(1, 3);
    shape.kv_heads = pick(1, 3);
    shape.q_heads = shape.kv_heads * pick(1, 5);
    shape.q_len = pick(1, 150);
    shape.kv_len = pick(1, 300);
    shape.head_dim = 8 * pick(1, 32);
    shape.causal = pick(0, 1) == 1;
    config.dtype = static_cast<DType>(pick(0, 2));
    config.out_dtype = static_cast<DType>(pick(0, 2));
    config.layout = static_cast<Layout>(pick(0, 1));
    config.block_r = on_cuda ? 64 * pick(1, 3) : 16 * pick(1, 8);
    config.block_c = 16 * pick(1, 16);
    if (!runs(config)) {
      config.block_r = on_cuda ? 64 : 32;
      config.block_c = 32;
    }
    if (!runs(config)) config.dtype = DType::f16;
    if (some.skips()) continue;
    expect_correct(config);
  }
}

// Rows whose running maximum jumps far from its first value, and a V whose mean differs from block to block of keys.
TEST_P(Variants, NeedlesAmongManyKeys) {
  test::Some some(5);
  for (const bool causal : {false, true}) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      if (some.skips()) continue;
      FlashConfig config = small(GetParam());
      config.dtype = config.out_dtype = dtype;
      config.shape = {.batch = 1, .q_heads = 2, .kv_heads = 1, .q_len = 64, .kv_len = 4000, .head_dim = 64};
      config.shape.causal = causal;
      config.block_r = config.block_c = 64;
      if (!runs(config)) continue;
      ++configurations;
      const auto needles = std::make_shared<FlashInputs>(device(), config, 7, "", InputKind::needles);
      const Check check = run(config, needles);
      EXPECT_TRUE(check.ok) << describe(config) << ": " << check.worst;
    }
  }
}

// ---- the score hook

AttentionHooks score_hook(const std::string& body, const ScoreFunction& reference, std::vector<std::byte> data = {}) {
  AttentionHooks hook;
  hook.text =
      "#include \"common/attention/kernels/attention.h\"\n#define SCORE_IS_IDENTITY 0\n"
      "static inline float score(float s, int q, int k, const ScoreContext& c) {\n" +
      body + "}\n";
  hook.reference = reference;
  hook.data = std::move(data);
  return hook;
}

std::vector<AttentionHooks> score_hooks() {
  return {score_hook("  return s + static_cast<const float*>(c.data)[c.head] * static_cast<float>(k - q);\n",
                     each_score([](double s, int64_t, int64_t head, int64_t q, int64_t k) {
                       return s + (head == 0 ? 0.5 : 0.25) * static_cast<double>(k - q);
                     }),
                     bytes_of(std::array{0.5f, 0.25f})),
          score_hook("  (void)q, (void)k;\n  const float cap = *static_cast<const float*>(c.data);\n"
                     "  const float e = __builtin_expf(2 * s / cap);\n  return cap * (e - 1) / (e + 1);\n",
                     each_score([](double s, int64_t, int64_t, int64_t, int64_t) { return 2 * std::tanh(s / 2); }),
                     bytes_of(2.0f)),
          // In the second batch entry a query sees keys at a distance of at most 5. Queries far from all keys see none.
          score_hook("  const int distance = q < k ? k - q : q - k;\n"
                     "  return c.batch == 0 || distance <= 5 ? s : -__builtin_inff();\n",
                     each_score([](double s, int64_t batch, int64_t, int64_t q, int64_t k) {
                       return batch == 0 || std::abs(q - k) <= 5 ? s : -std::numeric_limits<double>::infinity();
                     }))};
}

TEST_P(Variants, AttentionHooks) {
  for (const bool causal : {false, true}) {
    FlashConfig config = small(GetParam());
    config.shape.batch = 2;
    config.shape.q_len = 60;
    config.shape.causal = causal;
    for (const AttentionHooks& hook : score_hooks()) expect_correct(config, hook);
    config.dtype = DType::bf16;
    expect_correct(config, score_hooks().front());
  }
}

// ---- the problem itself

class FlashProblemTest : public OnDevice<testing::Test> {};

TEST_F(FlashProblemTest, WorkCountsUnmaskedPairs) {
  FlashConfig config = small("tuned");
  config.shape = {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 8, .kv_len = 8, .head_dim = 16, .causal = true};
  config.dtype = DType::bf16;
  const Work work = attention_plan(config, device().info()).work;
  EXPECT_EQ(work.flops, 2. * 4 * 36 * 4 * 16);  // batch, heads, the 36 visible pairs of 8 x 8, flops of a pair
  const double q = 2. * 4 * 8 * 16, kv = 2. * 2 * 8 * 16;
  EXPECT_EQ(work.bytes, q * 2 + 2 * kv * 2 + q * 4 + 2. * 4 * 8 * 4);
}

TEST_F(FlashProblemTest, DumpHoldsOutputAndLogSumExp) {
  FlashConfig config = small("tuned");
  config.layout = Layout::bshd;
  config.out_dtype = DType::f16;
  FlashProblem problem(device(), pipelines(), random_inputs(config), config, attention_plan(config, device().info()));
  CommandEncoder encoder;
  problem.encode(encoder);
  device().submit(encoder);
  const TemporaryFolder folder;
  const std::string path = folder.path() / "dump.safetensors";
  problem.dump(path);
  const auto stored = read_safetensors(path, {"o", "lse"});
  EXPECT_EQ(stored.at("o").dtype, DType::f32);
  EXPECT_EQ(stored.at("o").shape, (std::vector<int64_t>{1, 2, 37, 24}));
  EXPECT_EQ(stored.at("lse").shape, (std::vector<int64_t>{1, 2, 37}));
  const auto* values = reinterpret_cast<const float*>(stored.at("o").data.data());
  const Tensor o = problem.output();
  EXPECT_EQ(values[(1 * 37 + 5) * 24 + 3], o.at(0, 1, 5, 3));  // the layout of a dump is always bhsd
}

}  // namespace
}  // namespace attn
