// The kernels against the oracle: every axis value, random shapes, hooks, edges, and kernels broken on purpose. On the device under test.
#include "common/attention/problem.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <string_view>

#include "common/base/error.h"
#include "common/base/temporary_folder.h"
#include "common/testing/mutated_sources.h"
#include "common/testing/tested_device.h"

namespace attn {
namespace {

using test::device;
using test::MutatedSources;
using test::on_cuda;
using test::OnDevice;
using test::pipelines;

FlashConfig small(const std::string& variant) {
  FlashConfig config;
  config.variant = variant;
  config.shape = {.batch = 1, .q_heads = 2, .kv_heads = 2, .q_len = 37, .kv_len = 41, .head_dim = 24};
  config.block_r = on_cuda ? 64 : 16;
  config.block_c = 16;
  if (variant == "wgmma") config.dtype = DType::bf16;
  return config;
}

/// Whether the device takes the configuration.
bool runs(const FlashConfig& config) {
  const DeviceInfo& info = device().info();
  const FlashBackend& backend = FlashBackend::of(info);
  return !backend.skip_reason(config, info) &&
         backend.kernel(config, info, false).threadgroup_bytes <= info.threadgroup_memory_bytes;
}

std::string describe(const FlashConfig& c) {
  const AttentionShape& s = c.shape;
  return fmt::format("{} b{} h{}/{} q{} k{} d{} causal={} scale={} {}->{} {} {}x{}", c.variant, s.batch, s.q_heads,
                     s.kv_heads, s.q_len, s.kv_len, s.head_dim, s.causal, s.scale, name(c.dtype), name(c.out_dtype),
                     name(c.layout), c.block_r, c.block_c);
}

// Launches the configuration on fresh tensors and checks it.
Check run(const FlashConfig& config, const std::optional<ScoreHook>& hook = {}, Device& on = device(),
          PipelineCache& cache = pipelines(), int launches = 1) {
  FlashProblem problem(on, cache, std::make_shared<FlashInputs>(on, config, 7, ""), config, hook);
  problem.poison();
  CommandEncoder encoder;
  for (int launch = 0; launch < launches; ++launch) problem.encode(encoder);
  on.submit(encoder);
  return problem.check();
}

void expect_correct(const FlashConfig& config, const std::optional<ScoreHook>& hook = {}) {
  const Check check = run(config, hook);
  EXPECT_TRUE(check.ok) << describe(config) << ": " << check.worst;
  EXPECT_GT(check.rows_checked, 0);
}

std::vector<std::string> variants() {
  if (on_cuda) return {"naive", "mma_sync", "wgmma"};
  return {"naive", "tiled_scalar", "tiled_vector", "tuned"};
}

class Variants : public OnDevice<testing::TestWithParam<std::string>> {};
INSTANTIATE_TEST_SUITE_P(All, Variants, testing::ValuesIn(variants()), [](const auto& test) { return test.param; });

TEST_P(Variants, EveryHeadDim) {
  for (int64_t dim = 8; dim <= 256; dim += GetParam() == variants().back() ? 8 : 56) {
    FlashConfig config = small(GetParam());
    config.shape.head_dim = dim;
    config.shape.causal = dim % 16 == 0;
    expect_correct(config);
  }
}

TEST_P(Variants, EveryTypeAndLayout) {
  for (const DType in : {DType::f32, DType::f16, DType::bf16}) {
    for (const DType out : {DType::f32, DType::f16, DType::bf16}) {
      for (const Layout layout : {Layout::bhsd, Layout::bshd}) {
        FlashConfig config = small(GetParam());
        config.dtype = in;
        config.out_dtype = out;
        config.layout = layout;
        config.shape.batch = 2;
        if (runs(config)) expect_correct(config);
      }
    }
  }
}

// Rows of K a multiple of 4 KiB apart, which the tuned kernel of the cpu works on as a copy.
TEST_P(Variants, RowsOfKApartByPages) {
  for (const auto& [dtype, kv_heads] : {std::pair{DType::f32, 4}, {DType::f16, 8}, {DType::bf16, 8}}) {
    for (const bool causal : {false, true}) {
      FlashConfig config = small(GetParam());
      config.dtype = dtype;
      config.layout = Layout::bshd;
      config.shape = {
          .batch = 2, .q_heads = kv_heads, .kv_heads = kv_heads, .q_len = 37, .kv_len = 53, .head_dim = 256};
      config.shape.causal = causal;
      if (runs(config)) expect_correct(config);
    }
  }
}

TEST_P(Variants, GroupsOfAnySize) {
  for (const auto& [q_heads, kv_heads] : {std::pair{1, 1}, {6, 2}, {7, 1}, {12, 4}, {5, 5}}) {
    FlashConfig config = small(GetParam());
    config.shape.q_heads = q_heads;
    config.shape.kv_heads = kv_heads;
    config.shape.batch = 2;
    expect_correct(config);
  }
}

// Bottom-right alignment, with every combination of one, few and many, and rows that see no key at all.
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

TEST_P(Variants, RowsWithoutKeysAreZero) {
  FlashConfig config = small(GetParam());
  config.shape.q_len = 40;
  config.shape.kv_len = 8;
  config.shape.causal = true;
  FlashProblem problem(device(), pipelines(), std::make_shared<FlashInputs>(device(), config, 7, ""), config);
  problem.poison();
  CommandEncoder encoder;
  problem.encode(encoder);
  device().submit(encoder);
  const Tensor o = problem.output();
  const std::vector<float> lse = problem.lse();
  for (int64_t q = 0; q < 32; ++q) {  // the first query to see a key is q_len - kv_len
    for (int64_t d = 0; d < config.shape.head_dim; ++d) EXPECT_EQ(o.at(0, 1, q, d), 0) << q;
    EXPECT_EQ(lse[static_cast<size_t>(40 + q)], -INFINITY) << q;
  }
  EXPECT_TRUE(std::isfinite(lse[40 + 32]));
}

// Tiles of which only the first 40 rows have anything to compute, over many blocks of keys, launched many times:
// whoever works on the other rows has to keep up.
TEST_P(Variants, RowsBeyondTheEnd) {
  for (const int64_t head_dim : {64, 96, 128, 192, 256}) {
    for (const int64_t rows : {128, 192}) {
      FlashConfig config = small(GetParam());
      const int64_t heads = on_cuda ? 32 : 1;
      config.shape = {.batch = 1, .q_heads = heads, .kv_heads = heads, .q_len = 424, .head_dim = head_dim};
      config.shape.kv_len = on_cuda && head_dim > 64 ? 1501 : 501;
      config.block_r = rows;
      if (!runs(config)) continue;
      const Check check = run(config, {}, device(), pipelines(), on_cuda ? 50 : 1);
      EXPECT_TRUE(check.ok) << describe(config) << ": " << check.worst;
    }
  }
}

// More tiles than a GPU runs at the same time, whose outputs of 16 bits pass through memory that the tile before has
// used, and end within a tile or, of causal ones, begin in the middle of one.
TEST_P(Variants, OutputsOfManyTiles) {
  for (const int64_t head_dim : {40, 64, 128, 192, 256}) {
    for (const int64_t rows : {64, 128, 192, 256}) {
      if (!on_cuda && rows > 64) continue;  // its tiles are worked on one by one
      for (const bool causal : {false, true}) {
        FlashConfig config = small(GetParam());
        const int64_t groups = on_cuda ? 8 : 1;
        config.shape = {.batch = 2, .q_heads = 5 * groups, .kv_heads = groups, .q_len = 200, .kv_len = 230};
        config.shape.head_dim = head_dim;
        config.shape.causal = causal;
        config.out_dtype = DType::bf16;
        config.block_r = rows;
        if (runs(config)) expect_correct(config);
      }
    }
  }
}

TEST_P(Variants, CustomScale) {
  FlashConfig config = small(GetParam());
  for (const DType dtype : {DType::f32, DType::bf16}) {
    config.dtype = dtype;
    for (const double scale : {0.01, 1.0, -0.3, 1e-30}) {
      config.shape.scale = scale;
      if (runs(config)) expect_correct(config);
    }
  }
}

// Scores in the thousands: a softmax without a running maximum overflows, one that rounds it breaks.
TEST_P(Variants, LargeScores) {
  FlashConfig config = small(GetParam());
  config.shape.scale = 300;
  expect_correct(config);
}

TEST_P(Variants, RandomShapes) {
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
    expect_correct(config);
  }
}

// --- The score hook -------------------------------------------------------------------------------------------------

ScoreHook alibi() {
  ScoreHook hook;
  hook.text =
      "#include \"common/attention/kernels/attention.h\"\n"
      "#define SCORE_IS_IDENTITY 0\n"
      "static inline float score(float s, int q, int k, const ScoreContext& c) {\n"
      "  return s + static_cast<const float*>(c.data)[c.head] * static_cast<float>(k - q);\n}\n";
  hook.data = bytes_of(std::array{0.5f, 0.25f});
  hook.reference = each_score([](double s, int64_t, int64_t head, int64_t q, int64_t k) {
    return s + (head == 0 ? 0.5 : 0.25) * static_cast<double>(k - q);
  });
  return hook;
}

ScoreHook soft_cap() {
  ScoreHook hook;
  hook.text =
      "#include \"common/attention/kernels/attention.h\"\n"
      "#define SCORE_IS_IDENTITY 0\n"
      "static inline float score(float s, int, int, const ScoreContext& c) {\n"
      "  const float cap = *static_cast<const float*>(c.data);\n"
      "  const float e = __builtin_expf(2 * s / cap);\n"
      "  return cap * (e - 1) / (e + 1);\n}\n";
  hook.data = bytes_of(2.0f);
  hook.reference = each_score([](double s, int64_t, int64_t, int64_t, int64_t) { return 2 * std::tanh(s / 2); });
  return hook;
}

// Keys at most 5 from the query, in the second batch only: rows far from any key have none.
ScoreHook window() {
  ScoreHook hook;
  hook.text =
      "#include \"common/attention/kernels/attention.h\"\n"
      "#define SCORE_IS_IDENTITY 0\n"
      "static inline float score(float s, int q, int k, const ScoreContext& c) {\n"
      "  const int distance = q < k ? k - q : q - k;\n"
      "  return c.batch == 0 || distance <= 5 ? s : -__builtin_inff();\n}\n";
  hook.reference = each_score([](double s, int64_t batch, int64_t, int64_t q, int64_t k) {
    return batch == 0 || std::abs(q - k) <= 5 ? s : -std::numeric_limits<double>::infinity();
  });
  return hook;
}

TEST_P(Variants, ScoreHook) {
  for (const bool causal : {false, true}) {
    FlashConfig config = small(GetParam());
    config.shape.batch = 2;
    config.shape.q_len = 60;
    config.shape.causal = causal;
    for (const ScoreHook& hook : {alibi(), soft_cap(), window()}) expect_correct(config, hook);
    config.dtype = DType::bf16;
    expect_correct(config, alibi());
  }
}

// --- What the checks catch ------------------------------------------------------------------------------------------

struct Mutation {
  const char *variant, *what, *file, *from, *to;
  int64_t head_dim = 24;
  DType out_dtype = on_cuda ? DType::bf16 : DType::f32;
};

void PrintTo(const Mutation& mutation, std::ostream* out) { *out << mutation.what; }

class Mutations : public OnDevice<testing::TestWithParam<Mutation>> {};

constexpr const char* tuned_file = "common/attention/kernels/tuned.cpu.cpp";
constexpr const char* amx_file = "common/attention/kernels/amx.cpu.cpp";  // of `tuned` for bf16, where the host has it
constexpr const char* tiled_file = "common/attention/kernels/tiled.cpu.cpp";
constexpr const char* naive_file = "common/attention/kernels/naive.cpu.cpp";
constexpr const char* wgmma_file = "common/attention/kernels/wgmma.cuda.cu";
constexpr const char* shared_file = "common/attention/kernels/attention.h";

std::vector<Mutation> mutations(bool of_cuda) {
  if (of_cuda) {
    return {{"wgmma", "causal_edge_one_late", shared_file, "q + 1 + kv_len", "q + 2 + kv_len"},
            {"wgmma", "causal_edge_one_early", shared_file, "q + 1 + kv_len", "q + kv_len"},
            {"wgmma", "missing_rescale_of_outputs", wgmma_file, "if (grew && !first) scale_o<DIM / 2>(alpha);", ""},
            {"wgmma", "missing_rescale_of_sums", wgmma_file, "sum[r] *= alpha[r];", ""},
            {"wgmma", "mask_of_another_row", wgmma_file, "query + r * 8);\n        end[r]", "query);\n        end[r]"},
            {"wgmma", "wrong_head_of_group", wgmma_file, "key, tile.kv_head", "key, 0"},
            {"wgmma", "log_sum_exp_without_maximum", wgmma_file, "shift[r] * ln_2 + __logf", "__logf"},
            {"wgmma", "stray_row", wgmma_file, "thread % 4 == 0 && row_exists(a, query)", "thread % 4 == 0"},
            {"wgmma", "stray_row_of_f32", wgmma_file, "if (!row_exists(a, query)) continue;", "", 24, DType::f32},
            {"wgmma", "outputs_of_another_panel", wgmma_file, "to + Q_PANEL_BYTES : to", "to : to", 128},
            {"wgmma", "second_half_over_the_first", wgmma_file, "query, map_panel(panel)", "query, 0", 256},
            {"wgmma", "wrong_swizzle", wgmma_file, "(lane / 16 ^ lane % 8)", "(lane / 16)"},
            {"mma_sync", "wrong_transpose", "common/kernel/cuda.h", "const bool odd = threadIdx.x & step;",
             "const bool odd = !(threadIdx.x & step);"},
            {"mma_sync", "causal_edge_one_late", shared_file, "q + 1 + kv_len", "q + 2 + kv_len"},
            {"naive", "causal_edge_one_early", shared_file, "q + 1 + kv_len", "q + kv_len"}};
  }
  return {
      Mutation{"tuned", "causal_edge_one_late", shared_file, "q + 1 + kv_len", "q + 2 + kv_len"},
      Mutation{"tuned", "causal_edge_one_early", shared_file, "q + 1 + kv_len", "q + kv_len"},
      Mutation{"tuned", "causal_top_left", shared_file, "q + 1 + kv_len - q_len", "q + 1"},
      Mutation{"tuned", "missing_rescale_of_outputs", tuned_file, "v * VECTOR_WIDTH) * factor[v]", "v * VECTOR_WIDTH)"},
      Mutation{"tuned", "missing_rescale_of_sums", tuned_file, "load<Floats>(total) * alpha[v]", "load<Floats>(total)"},
      Mutation{"tuned", "skipped_tail_of_keys", tuned_file, "first_key < end; first_key += BLOCK_C",
               "first_key + BLOCK_C <= end; first_key += BLOCK_C"},
      Mutation{"tuned", "skipped_tail_of_queries", tuned_file, "query < queries; query += 4",
               "query + 4 < queries; query += 4"},
      Mutation{"tuned", "wrong_head_of_group", tuned_file, "head / (p.q_heads / p.kv_heads)", "head % p.kv_heads"},
      Mutation{"tuned", "scale_left_out", tuned_file, "? p.scale * log2_e", "? log2_e"},
      Mutation{"tuned", "log_sum_exp_without_maximum", tuned_file, "scaled(m) + __builtin_log2f", "__builtin_log2f"},
      Mutation{"tuned", "stray_row", tuned_file, "if (query + i >= queries) break;", ""},
      Mutation{"tuned", "wrong_transpose", tuned_file, "(a, b, 2, 3, 6, 7)", "(a, b, 2, 3, 7, 6)"},
      Mutation{"tuned", "transposed_output", tuned_file, "load<Quad>(o + (d + i) * PANEL)",
               "load<Quad>(o + (HEAD_DIM - 1 - d - i) * PANEL)"},
      Mutation{"tuned", "coarse_exponential", "common/attention/kernels/softmax.h", "5.55073374e-2f", "5.6e-2f"},
      Mutation{"tuned", "amx_missing_rescale_of_outputs", amx_file, "load<Floats>(o + row * O_STEP + d) * alpha",
               "load<Floats>(o + row * O_STEP + d)"},
      Mutation{"tuned", "amx_missing_rescale_of_sums", amx_file, "load<Floats>(sums + row * LANES) * alpha",
               "load<Floats>(sums + row * LANES)"},
      Mutation{"tuned", "amx_skipped_tail_of_keys", amx_file, "first_key < end; first_key += BLOCK_C",
               "first_key + BLOCK_C <= end; first_key += BLOCK_C"},
      Mutation{"tuned", "amx_skipped_tail_of_queries", amx_file, "row < tile.queries; row += PAIR",
               "row + PAIR < tile.queries; row += PAIR"},
      Mutation{"tuned", "amx_wrong_head_of_group", amx_file, "head / (p.q_heads / p.kv_heads)", "head % p.kv_heads"},
      Mutation{"tuned", "amx_wrong_transpose", amx_file, "8, 24, 9, 25,", "24, 8, 9, 25,"},
      Mutation{"tuned", "amx_log_sum_exp_without_maximum", amx_file, "maximum[row] * factor + __builtin_log2f(total)",
               "__builtin_log2f(total)"},
      Mutation{"tuned", "amx_stray_row", amx_file, "row < queries; ++row) {\n      float total",
               "row < queries + 1; ++row) {\n      float total"},
      Mutation{"tiled_vector", "missing_rescale", tiled_file, "scale(o + row * HEAD_DIM, alpha);", ""},
      Mutation{"tiled_scalar", "skipped_tail_of_keys", tiled_file, "first_key < end; first_key += BLOCK_C",
               "first_key + BLOCK_C <= end; first_key += BLOCK_C"},
      Mutation{"naive", "keys_of_another_batch", naive_file, "batch * p.k_strides.batch", "0 * p.k_strides.batch"}};
}

INSTANTIATE_TEST_SUITE_P(All, Mutations, testing::ValuesIn(mutations(on_cuda)),
                         [](const auto& test) { return std::string(test.param.variant) + "_" + test.param.what; });

TEST_P(Mutations, AreCaught) {
  const Mutation& mutation = GetParam();
  FlashConfig config = small(mutation.variant);
  config.shape = {.batch = 2, .q_heads = 6, .kv_heads = 2, .q_len = 43, .kv_len = 70, .causal = true};
  config.shape.head_dim = mutation.head_dim;
  config.out_dtype = mutation.out_dtype;
  if (mutation.head_dim > 128) {  // outputs that leave in two halves
    config.block_r = 128;
    config.block_c = 64;
  }
  if (std::string_view(mutation.file) == amx_file) {
    if (!device().info().has("amx-bf16")) GTEST_SKIP() << "this host has no AMX";
    config.dtype = DType::bf16;
    config.block_r = 48;  // the last rows are more than fit two tiles
    config.shape.scale = 2;
  }
  if (on_cuda) config.shape.scale = 2;  // maxima grow by more than the slack of the lazy rescaling
  ASSERT_TRUE(run(config).ok);
  const MutatedSources sources(mutation.file, mutation.from, mutation.to);
  const auto passes = [&](Device& on) {
    PipelineCache fresh(on, "");
    return run(config, {}, on, fresh).ok;
  };
  if (!on_cuda && std::string_view(ATTN_SANITIZE).find("address") != std::string_view::npos) {
    // AddressSanitizer may be the first to see it, and ends the process. The child has no other thread.
    EXPECT_EXIT(_exit(passes(*Device::open("cpu:threads=1")) ? 0 : 1), [](int status) { return status != 0; }, "");
  } else {
    EXPECT_FALSE(passes(device()));
  }
}

class MutationsTest : public OnDevice<testing::Test> {};

// Of the other backend's too, so that a kernel that is edited where it cannot run takes its mutations along.
TEST_F(MutationsTest, TextsAreInTheSources) {
  for (const bool of_cuda : {false, true}) {
    for (const Mutation& mutation : mutations(of_cuda)) {
      EXPECT_NO_THROW(MutatedSources(mutation.file, mutation.from, mutation.to)) << mutation.what;
    }
  }
}

// --- Everything else ------------------------------------------------------------------------------------------------

class FlashProblemTest : public OnDevice<testing::Test> {};

TEST_F(FlashProblemTest, WorkCountsUnmaskedPairs) {
  FlashConfig config = small(variants().back());
  config.shape = {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 8, .kv_len = 8, .head_dim = 16, .causal = true};
  config.dtype = DType::bf16;
  const FlashProblem problem(device(), pipelines(), std::make_shared<FlashInputs>(device(), config, 7, ""), config);
  EXPECT_EQ(problem.work().flops, 2. * 4 * 36 * 4 * 16);  // batch, heads, pairs of 8 x 8, flops
  const double q = 2. * 4 * 8 * 16, kv = 2. * 2 * 8 * 16;
  EXPECT_EQ(problem.work().bytes, q * 2 + 2 * kv * 2 + q * 4 + 2. * 4 * 8 * 4);
}

TEST_F(FlashProblemTest, DumpHoldsOutputAndLogSumExp) {
  FlashConfig config = small(variants().back());
  config.layout = Layout::bshd;
  config.out_dtype = DType::f16;
  FlashProblem problem(device(), pipelines(), std::make_shared<FlashInputs>(device(), config, 7, ""), config);
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
  EXPECT_EQ(values[(1 * 37 + 5) * 24 + 3], o.at(0, 1, 5, 3));  // bhsd, whatever the layout on the device
}

}  // namespace
}  // namespace attn
