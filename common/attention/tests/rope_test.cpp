// RoPE. The tests of RopeFormulas need no device: for example, they compare frequencies with values that were computed
// by hand. Most tests of RopeTest compare the kernel with the oracle, on the device under test.
#include "common/attention/kernels/rope.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/attention/rope.h"
#include "common/attention/tests/rope_mutations.h"
#include "common/base/error.h"
#include "common/cases/reference.h"
#include "common/testing/devices.h"
#include "common/testing/messages.h"
#include "common/testing/mutated_sources.h"
#include "common/testing/some.h"
#include "common/testing/tested_device.h"

namespace attn {
namespace {

using test::device;
using test::expect_error;
using test::on_cuda;
using test::OnDevice;
using test::pipelines;
using test::RopeMutation;

// ---- frequencies

RopeConfig rope_of(int64_t head_dim, int64_t rotary_dim, RopePairing pairing = RopePairing::half_split,
                   RopeScaling scaling = {}) {
  return {.head_dim = head_dim, .rotary_dim = rotary_dim, .pairing = pairing, .theta = 10000, .scaling = scaling};
}

void expect_frequencies(const RopeConfig& config, const std::vector<double>& wanted) {
  const std::vector<double> got = rope_frequencies(config);
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-12 * wanted[i]) << i;
}

TEST(RopeFormulas, FrequenciesComputedByHand) {
  expect_frequencies(rope_of(8, 8), {1, 0.1, 0.01, 0.001});
  expect_frequencies(rope_of(8, 4), {1, 0.01});  // rotary_dim sets the frequencies, not head_dim
  expect_frequencies(rope_of(8, 4, {}, RopeLinear{4}), {0.25, 0.0025});
  // NTK multiplies theta by factor^(rotary_dim / (rotary_dim - 2)), which is 2^(4 / 2).
  expect_frequencies(rope_of(8, 4, {}, RopeNtk{2}), {1, 0.005});
  // YaRN multiplies a pair's frequency by 1 - r + r / factor. Along a ramp of pairs r rises from 0 to 1. Here the ramp
  // goes from 8 ln(2048 / (2 pi 32)) / (2 ln 10000) = 1.008, rounded down to pair 1,
  // to 8 ln(2048 / (2 pi)) / (2 ln 10000) = 2.513, rounded up to pair 3.
  expect_frequencies(rope_of(8, 8, {}, RopeYarn{.factor = 4, .original_length = 2048}),
                     {1, 0.1, 0.01 * (0.5 + 0.5 / 4), 0.001 / 4});
  const double first = 8 * std::log(2048 / (2 * std::numbers::pi * 32)) / (2 * std::log(10000)),
               last = 8 * std::log(2048 / (2 * std::numbers::pi)) / (2 * std::log(10000)),
               slow = (2 - first) / (last - first);
  EXPECT_NEAR(slow, 0.659, 1e-3);
  expect_frequencies(rope_of(8, 8, {}, RopeYarn{.factor = 4, .original_length = 2048, .truncate = false}),
                     {1, 0.1, 0.01 * (1 - slow + slow / 4), 0.001 / 4});
  // Here the ramp goes from 8 ln(2048 / (2 pi 500)) / (2 ln 10000) = -0.19, which becomes pair 0,
  // to 8 ln(2048 / (2 pi 0.1)) / (2 ln 10000) = 3.513, rounded up to 4.
  expect_frequencies(
      rope_of(8, 8, {}, RopeYarn{.factor = 4, .original_length = 2048, .beta_fast = 500, .beta_slow = 0.1}),
      {1, 0.1 * (0.75 + 0.25 / 4), 0.01 * (0.5 + 0.5 / 4), 0.001 * (0.25 + 0.75 / 4)});
  // The first wavelength, 2 pi, is short: its frequency stays. The second wavelength is 4096, so it has 2 turns in 8192
  // tokens. A frequency with 1 turn is divided by 8, and a frequency with 4 turns stays. For 2 turns the share that
  // stays is (2 - 1) / (4 - 1). The third wavelength is long: its frequency is divided by 8.
  RopeConfig llama = rope_of(8, 6, {}, RopeLlama3{});
  const double middle = 2 * std::numbers::pi / 4096;
  llama.theta = std::pow(middle, -3);
  expect_frequencies(llama, {1, middle * (1.0 / 3 + 2.0 / 3 / 8), middle * middle / 8});
}

TEST(RopeFormulas, OnlyYarnHasAnAttentionFactor) {
  EXPECT_NEAR(rope_attention_factor(rope_of(8, 8, {}, RopeYarn{.factor = 4, .original_length = 2048})), 1.1386294361,
              1e-9);
  EXPECT_EQ(rope_attention_factor(rope_of(8, 8, {}, RopeYarn{.factor = 1, .original_length = 2048})), 1);
  const auto factor = [](double given, double mscale, double mscale_all_dim) {
    return rope_attention_factor(rope_of(8, 8, {},
                                         RopeYarn{.factor = 40,
                                                  .original_length = 4096,
                                                  .attention_factor = given,
                                                  .mscale = mscale,
                                                  .mscale_all_dim = mscale_all_dim}));
  };
  const double usual = 0.1 * std::log(40) + 1;
  EXPECT_EQ(factor(0.7, 0, 0), 0.7);
  EXPECT_EQ(factor(0.7, 2, 0.5), 0.7);
  EXPECT_NEAR(factor(0, 2, 0.5), (0.2 * std::log(40) + 1) / (0.05 * std::log(40) + 1), 1e-12);
  EXPECT_EQ(factor(0, 0.707, 0.707), 1);  // the values of DeepSeek-V2
  EXPECT_NEAR(factor(0, 2, 0), usual, 1e-12);
  EXPECT_NEAR(factor(0, 0, 2), usual, 1e-12);
  for (const RopeScaling& scaling : {RopeScaling{}, RopeScaling{RopeLinear{4}}, RopeScaling{RopeLlama3{}}}) {
    EXPECT_EQ(rope_attention_factor(rope_of(8, 8, {}, scaling)), 1);
  }
}

TEST(RopeFormulas, TheTableHasCosinesAndSinesOfAllPositions) {
  const RopeConfig config = rope_of(8, 4, {}, RopeYarn{.factor = 4, .original_length = 2048});
  const std::vector<double> frequencies = rope_frequencies(config);
  const double factor = rope_attention_factor(config);
  const RopeTable table = rope_table(config, 700);
  ASSERT_EQ(table.cosines.size(), 1400u);
  ASSERT_EQ(table.sines.size(), 1400u);
  for (size_t i = 0; i < 1400; ++i) {
    const size_t position = i / 2;
    const double angle = static_cast<double>(position) * frequencies[i % 2];
    EXPECT_NEAR(table.cosines[i], factor * std::cos(angle), 1e-7);
    EXPECT_NEAR(table.sines[i], factor * std::sin(angle), 1e-7);
  }
}

TEST(RopeFormulas, TheOracleRotatesPairs) {
  Tensor row = Tensor::zeros(2, 1, 1, 8, DType::f32, Layout::bhsd);
  for (int64_t b = 0; b < 2; ++b) {
    row.set(b, 0, 0, 0, 1);
    row.set(b, 0, 0, 5, 3);
  }
  const double c = std::cos(2.0), s = std::sin(2.0);  // cosine and sine of the first pair at position 2
  const std::vector<int> offsets = {0, 2};
  EXPECT_EQ(reference_rope(rope_of(8, 4), row, offsets),
            (std::vector<double>{1, 0, 0, 0, 0, 3, 0, 0, c, 0, s, 0, 0, 3, 0, 0}));
  EXPECT_EQ(reference_rope(rope_of(8, 4, RopePairing::interleaved), row, offsets),
            (std::vector<double>{1, 0, 0, 0, 0, 3, 0, 0, c, s, 0, 0, 0, 3, 0, 0}));
  EXPECT_THROW(reference_rope(rope_of(16, 4), row), std::invalid_argument);
  EXPECT_THROW(reference_rope(rope_of(8, 4), row, std::vector<int>{1}), std::invalid_argument);
}

// ---- the kernel

struct RopeCase {
  RopeConfig config;
  RopeShape shape;
  Layout layout = Layout::bhsd, out_layout = Layout::bhsd;
  bool in_place = false;
  std::vector<int> offsets = {};
};

std::string describe(const RopeCase& test) {
  const RopeShape& s = test.shape;
  return fmt::format("d{}/{} pairing={} scaling={} b{} h{}/{} rows{} {} table={} {}->{} in_place={}",
                     test.config.rotary_dim, test.config.head_dim, static_cast<int>(test.config.pairing),
                     test.config.scaling.index(), s.batch, s.q_heads, s.kv_heads, s.rows, name(s.dtype),
                     s.table_positions, name(test.layout), name(test.out_layout), test.in_place);
}

/// Q or K of a case: the input and the output, on the host and on the device.
struct RopeSide {
  Tensor in, out;
  Buffer in_buffer, out_buffer;

  RopeSide(const RopeCase& test, int64_t heads, uint64_t stream) {
    const RopeShape& s = test.shape;
    const int64_t dim = test.config.head_dim;
    in = random_tensor(s.batch, heads, s.rows, dim, s.dtype, test.layout, 7, stream);
    out = Tensor::zeros(s.batch, heads, s.rows, dim, s.dtype, test.in_place ? test.layout : test.out_layout);
    in_buffer = Buffer(device(), in.bytes());
    in_buffer.upload(in.data.data(), in.bytes());
    out_buffer = Buffer(device(), out.bytes());
    out_buffer.poison();
  }
  Buffer& target(const RopeCase& test) { return test.in_place ? in_buffer : out_buffer; }

  /// Describes the first wrong element of the output. Returns an empty text if all elements are right. An element that
  /// is not rotated must equal the element of the input. A rotated element may differ from the oracle's element by the
  /// rounding of the output and of a few operations in f32.
  std::string difference(const RopeCase& test) {
    target(test).download(out.data.data(), out.bytes());
    if (!in_buffer.guards_intact() || !out_buffer.guards_intact()) return "a guard band was overwritten";
    const std::vector<double> wanted = reference_rope(test.config, in, test.offsets);
    const double rounding = in.dtype == DType::f32 ? 0x1p-24 : in.dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
    const int64_t dim = test.config.head_dim;
    size_t i = 0;
    for (int64_t b = 0; b < in.batch; ++b) {
      for (int64_t h = 0; h < in.heads; ++h) {
        for (int64_t s = 0; s < in.seq; ++s) {
          for (int64_t d = 0; d < dim; ++d, ++i) {
            const double got = out.at(b, h, s, d);
            const bool turns = d < test.config.rotary_dim;
            const double allowed = turns ? 2e-6 + rounding * std::abs(wanted[i]) : 0;
            if (!(std::abs(got - wanted[i]) <= allowed)) {
              return fmt::format("[{}, {}, {}, {}] is {}, not {}", b, h, s, d, got, wanted[i]);
            }
          }
        }
      }
    }
    return {};
  }
};

/// Describes the first wrong element of Q or K. Returns an empty text if all elements are right.
std::string rope_difference(const RopeCase& test, PipelineCache& cache = pipelines()) {
  RopeSide q(test, test.shape.q_heads, 0), k(test, test.shape.kv_heads, 1);
  const Buffer offsets = uploaded(device(), test.offsets);
  const RopeLaunch launch(device(), cache, test.config, test.shape,
                          rope_plan(test.config, test.shape, device().info()));
  CommandEncoder encoder;
  launch.encode(encoder, {.q = q.in_buffer.data(),
                          .k = k.in_buffer.data(),
                          .q_out = q.target(test).data(),
                          .k_out = k.target(test).data(),
                          .q_strides = q.in.strides(),
                          .k_strides = k.in.strides(),
                          .q_out_strides = q.out.strides(),
                          .k_out_strides = k.out.strides(),
                          .offsets = static_cast<const int*>(offsets.data())});
  device().submit(encoder);
  const std::string of_q = q.difference(test), of_k = k.difference(test);
  if (!of_q.empty()) return "q" + of_q;
  return of_k.empty() ? "" : "k" + of_k;
}

void expect_right(const RopeCase& test) { EXPECT_EQ(rope_difference(test), "") << describe(test); }

class RopeTest : public OnDevice<testing::Test> {};

constexpr DType rope_dtypes[] = {DType::f32, DType::f16, DType::bf16};
constexpr RopePairing rope_pairings[] = {RopePairing::half_split, RopePairing::interleaved};

TEST_F(RopeTest, DimensionsPairingsAndTypes) {
  test::Some some(17);
  for (const auto& [head_dim, rotary_dim] : {std::pair{64, 64},
                                             {128, 128},
                                             {96, 64},
                                             {8, 2},
                                             {40, 20},
                                             {72, 48},
                                             {256, 256},
                                             {128, 6},
                                             {512, 34},
                                             {512, 512}}) {
    for (const RopePairing pairing : rope_pairings) {
      for (const DType dtype : rope_dtypes) {
        for (const bool table : {false, true}) {
          if (some.skips()) continue;
          RopeCase test{.config = rope_of(head_dim, rotary_dim, pairing), .shape = {}};
          test.shape = {.batch = 2, .q_heads = 6, .kv_heads = 2, .rows = 37, .dtype = dtype};
          if (table) test.shape.table_positions = 37;
          test.in_place = dtype == DType::f16;
          expect_right(test);
        }
      }
    }
  }
}

TEST_F(RopeTest, Scalings) {
  for (const RopeScaling& scaling :
       {RopeScaling{RopeLinear{4}}, RopeScaling{RopeNtk{3}},
        RopeScaling{RopeYarn{.factor = 8, .original_length = 4096}}, RopeScaling{RopeLlama3{}}}) {
    for (const RopePairing pairing : rope_pairings) {
      for (const int64_t table_positions : {0, 5100}) {
        RopeCase test{.config = rope_of(96, 64, pairing, scaling), .shape = {}, .offsets = {0, 5000}};
        test.shape = {.batch = 2, .q_heads = 3, .kv_heads = 3, .rows = 100, .table_positions = table_positions};
        expect_right(test);
      }
    }
  }
}

TEST_F(RopeTest, LengthsHeadsAndLayouts) {
  test::Some some(7);
  for (const int64_t rows : {1, 2, 33, 515}) {
    for (const auto& [q_heads, kv_heads] : {std::pair{4, 4}, {7, 1}, {9, 3}, {5, 0}, {0, 3}}) {
      for (const Layout layout : {Layout::bhsd, Layout::bshd}) {
        for (const Layout out_layout : {Layout::bhsd, Layout::bshd}) {
          if (some.skips()) continue;
          RopeCase test{.config = rope_of(64, 64), .shape = {}, .layout = layout, .out_layout = out_layout};
          test.shape = {.batch = 3, .q_heads = q_heads, .kv_heads = kv_heads, .rows = rows, .dtype = DType::bf16};
          test.offsets = {11, 0, 900};
          expect_right(test);
          test.in_place = true;
          expect_right(test);
        }
      }
    }
  }
}

// The elements are f32, which has the smallest tolerance. So the test notices a small error of an angle.
TEST_F(RopeTest, FarPositions) {
  for (const RopePairing pairing : rope_pairings) {
    RopeCase test{.config = rope_of(128, 128, pairing), .shape = {}};
    test.shape = {.batch = 4, .q_heads = 2, .kv_heads = 1, .rows = 65};
    test.offsets = {0, 999'936, 1'000'000, 2'147'483'000};
    expect_right(test);
    test.offsets = {-1, -1'000'000, -30, 5};
    expect_right(test);
    test.config.rotary_dim = 16;  // keeps the table small
    test.shape.table_positions = 1'000'100;
    test.offsets = {0, 999'936, 1'000'000, 77};
    expect_right(test);
  }
}

TEST_F(RopeTest, MoreTilesThanAGridHas) {
  if (!on_cuda) GTEST_SKIP() << "only CUDA limits grid.y to 65535";
  RopeCase test{.config = rope_of(512, 510), .shape = {}};
  test.shape = {.batch = 1, .q_heads = 1, .kv_heads = 0, .rows = 65600, .dtype = DType::bf16};
  const Launch launch = rope_plan(test.config, test.shape, device().info()).launches.front();
  EXPECT_EQ(launch.grid.y, 65535u);
  expect_right(test);
}

// A NaN in an element that is not rotated is copied bit by bit.
TEST_F(RopeTest, CopiesUnrotatedElementsBitByBit) {
  for (const RopePairing pairing : rope_pairings) {
    RopeCase test{.config = rope_of(40, 12, pairing), .shape = {}};
    test.shape = {.batch = 1, .q_heads = 1, .kv_heads = 0, .rows = 9, .dtype = DType::f16};
    RopeSide q(test, 1, 0);
    for (size_t i = 0; i < q.in.bytes(); ++i) q.in.data[i] = static_cast<std::byte>(i * 37 + i / 251);
    q.in_buffer.upload(q.in.data.data(), q.in.bytes());
    const RopeLaunch launch(device(), pipelines(), test.config, test.shape,
                            rope_plan(test.config, test.shape, device().info()));
    CommandEncoder encoder;
    launch.encode(encoder, {.q = q.in_buffer.data(),
                            .q_out = q.out_buffer.data(),
                            .q_strides = q.in.strides(),
                            .q_out_strides = q.out.strides()});
    device().submit(encoder);
    q.out_buffer.download(q.out.data.data(), q.out.bytes());
    for (size_t row = 0; row < 9; ++row) {
      const size_t at = (row * 40 + 12) * 2;
      EXPECT_EQ(std::memcmp(&q.in.data[at], &q.out.data[at], 28 * 2), 0) << row;
    }
  }
}

// ---- refused arguments

TEST_F(RopeTest, RefusesInvalidConfigurationsAndSizes) {
  const auto refused = [](const char* words, auto change) {
    RopeConfig config = rope_of(64, 64);
    change(config);
    expect_error<BadInput>([&] { rope_frequencies(config); }, {words});
  };
  refused("head_dim=65", [](RopeConfig& c) { c.head_dim = 65; });
  for (const int64_t dim : {-2, 0, 33, 66}) refused("rotary_dim=", [&](RopeConfig& c) { c.rotary_dim = dim; });
  for (const double theta : {1.0, -5.0, double{NAN}, double{INFINITY}}) {
    refused("theta=", [&](RopeConfig& c) { c.theta = theta; });
  }
  for (const double factor : {-1.0, 0.5, double{NAN}, double{INFINITY}}) {
    for (const RopeScaling& scaling : {RopeScaling{RopeLinear{factor}}, RopeScaling{RopeNtk{factor}},
                                       RopeScaling{RopeYarn{factor, 4096}}, RopeScaling{RopeLlama3{factor}}}) {
      refused("factor=", [&](RopeConfig& c) { c.scaling = scaling; });
    }
  }
  refused("original_length=0", [](RopeConfig& c) { c.scaling = RopeYarn{2, 0}; });
  refused("original_length=nan", [](RopeConfig& c) { c.scaling = RopeLlama3{.original_length = NAN}; });
  refused("high_freq_factor=1", [](RopeConfig& c) { c.scaling = RopeLlama3{.high_freq_factor = 1}; });
  refused("NTK", [](RopeConfig& c) { c.rotary_dim = 2, c.scaling = RopeNtk{2}; });
  const RopeYarn yarn{.factor = 2, .original_length = 4096};
  for (const auto& [words, member, value] : {std::tuple{"beta_fast=0.5", &RopeYarn::beta_fast, 0.5},
                                             {"beta_fast=inf", &RopeYarn::beta_fast, double{INFINITY}},
                                             {"beta_slow=0", &RopeYarn::beta_slow, 0.},
                                             {"attention_factor=-1", &RopeYarn::attention_factor, -1.},
                                             {"mscale=nan", &RopeYarn::mscale, double{NAN}},
                                             {"mscale_all_dim=10000000", &RopeYarn::mscale_all_dim, 1e7}}) {
    RopeYarn scaling = yarn;
    scaling.*member = value;
    refused(words, [&](RopeConfig& c) { c.scaling = scaling; });
  }
  RopeYarn equal = yarn;
  equal.beta_fast = equal.beta_slow = 4;
  EXPECT_NO_THROW(rope_frequencies(rope_of(64, 64, {}, equal)));

  for (const auto& [words, shape] : {std::pair<const char*, RopeShape>{"batch=0", {.batch = 0}},
                                     {"q_heads + kv_heads=0", {.q_heads = 0, .kv_heads = 0}},
                                     {"rows=0", {.rows = 0}},
                                     {"rows=2147483648", {.rows = int64_t{1} << 31}},
                                     {"table_positions=8", {.rows = 9, .table_positions = 8}}}) {
    expect_error<BadInput>([&] { rope_plan(rope_of(64, 64), shape, device().info()); }, {words});
  }
  expect_error<BadInput>([] { rope_table(rope_of(64, 64), 0); }, {"0 positions"});
}

TEST_F(RopeTest, RefusesTensorsThatTheKernelWouldReadWrongly) {
  const RopeShape shape{.batch = 1, .q_heads = 2, .kv_heads = 0, .rows = 3};
  const RopeLaunch launch(device(), pipelines(), rope_of(64, 64), shape,
                          rope_plan(rope_of(64, 64), shape, device().info()));
  Buffer buffer(device(), 2 * 3 * 64 * sizeof(float));
  auto* const q = static_cast<float*>(buffer.data());
  const Strides strides{384, 192, 64};
  const auto refused = [&](const std::string& words, const RopeTensors& tensors) {
    CommandEncoder encoder;
    expect_error<BadInput>([&] { launch.encode(encoder, tensors); }, {words});
  };
  refused("no address", {.q = q, .q_strides = strides, .q_out_strides = strides});
  refused("same strides", {.q = q, .q_out = q, .q_strides = strides, .q_out_strides = {384, 64, 128}});
  refused("2147483648", {.q = q, .q_out = q, .q_strides = {0, int64_t{1} << 31, 64}, .q_out_strides = strides});
  refused(fmt::format("multiple of {}", on_cuda ? 16 : 4),
          {.q = reinterpret_cast<std::byte*>(q) + 2, .q_out = q, .q_strides = strides});
  CommandEncoder encoder;
  // The stride of a dimension with one element does not matter.
  launch.encode(encoder, {.q = q, .q_out = q, .q_strides = {1, 192, 64}, .q_out_strides = strides});
  const RopeTensors odd{.q = q, .q_out = q, .q_strides = {0, 193, 64}, .q_out_strides = {0, 193, 64}};
  if (on_cuda) {
    refused("193", odd);
  } else {
    launch.encode(encoder, odd);
  }
}

TEST_F(RopeTest, ThePlanCountsOneReadAndOneWriteOfEachTensor) {
  const RopeShape shape{.batch = 2, .q_heads = 8, .kv_heads = 2, .rows = 100, .dtype = DType::bf16};
  const Plan plan = rope_plan(rope_of(128, 64), shape, device().info());
  EXPECT_EQ(plan.work.bytes, 2.0 * 2 * 10 * 100 * 128 * 2);
  EXPECT_EQ(plan.work.bound, Bound::memory);
  EXPECT_EQ(plan.launches.size(), 1u);
}

TEST(RopeFormulas, ThreadsAndGridOfCudaLaunches) {
  for (int64_t head_dim = 8; head_dim <= 512; head_dim += 8) {
    for (int64_t rotary_dim = 2; rotary_dim <= head_dim; rotary_dim += 2) {
      const Launch launch = rope_plan(rope_of(head_dim, rotary_dim), {.rows = 1000}, test::hopper()).launches.front();
      ASSERT_LE(launch.threads, static_cast<uint32_t>(rope_threads)) << rotary_dim << " of " << head_dim;
    }
  }
  // 8 threads share a row, and each thread has two groups of 8 elements. A threadgroup takes two heads, so the 32 heads
  // of Q need 16 threadgroups, and the 9 heads of K need 5.
  const RopeShape shape{.batch = 3, .q_heads = 32, .kv_heads = 9, .rows = 100, .dtype = DType::bf16};
  const Launch launch = rope_plan(rope_of(128, 128), shape, test::hopper()).launches.front();
  EXPECT_EQ(launch.threads, 256u);
  EXPECT_EQ(launch.grid, (Grid{21, 4, 3}));
}

// ---- kernels broken on purpose

class RopeMutations : public OnDevice<testing::TestWithParam<RopeMutation>> {};
INSTANTIATE_TEST_SUITE_P(All, RopeMutations, testing::ValuesIn(test::rope_mutations(on_cuda)),
                         [](const auto& test) { return std::string(test.param.what); });

TEST_P(RopeMutations, AreCaught) {
  const RopeMutation& mutation = GetParam();
  const RopeCase test{
      .config = test::rope_mutation_config(mutation), .shape = test::rope_mutation_shape(), .offsets = {3, 70}};
  test::expect_mutation_found(test::rope_file(on_cuda), mutation.from, mutation.to,
                              [&](PipelineCache& cache) { return rope_difference(test, cache); });
}

// The test checks the mutations for the cpu and for a GPU, because a person may edit a kernel on a machine that cannot
// run the kernel.
TEST(RopeFormulas, MutationsAreInTheSources) {
  for (const bool of_cuda : {false, true}) {
    test::expect_texts_in_sources(test::rope_mutations(of_cuda),
                                  [&](const RopeMutation&) { return test::rope_file(of_cuda); });
  }
}

}  // namespace
}  // namespace attn
