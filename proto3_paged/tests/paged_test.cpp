// Decoding and prefill over a contiguous cache or a cache on pages, on the device under test.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "common/attention/tests/other_host.h"
#include "common/testing/mutated_sources.h"
#include "common/testing/some.h"
#include "proto3_paged/tests/paged_mutations.h"
#include "proto3_paged/tests/paged_run.h"

namespace attn {
namespace {

using test::device;
using test::on_cuda;
using test::pipelines;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

/// Cases that must agree with the oracle: each combination of the values of `axes` and of one of `with`.
struct Agreement {
  const char* name;
  int nth;  // `scripts/test` runs every nth case (common/testing/some.h)
  std::string axes;
  std::vector<std::string> with = {""};
};
void PrintTo(const Agreement& row, std::ostream* out) { *out << row.name; }

const std::string types = "dtype=f32,f16,bf16 ", pairings = "rope_pairing=half_split,interleaved ";

std::vector<Agreement> agreements(bool some) {
  std::vector<Agreement> all = {
      {"PageSizesAndDimensions", 13, "page_size=0,1,8,16,24,32,64,128,256 head_dim=8,24,64,72,96,128,192,256"},
      {"GroupsAndQueries", 7, "q_heads=2,4,6,10,16 q_len=1,2,4,16 causal=0,1"},
      {"Types",
       5,
       "cache_dtype=f32,f16,bf16",
       {"dtype=f32", "dtype=f16 out_dtype=f32,f16", "dtype=bf16 out_dtype=f32,bf16"}},
      // The longest sequence has one token, or ends within one token of the end of a page or of a block.
      {"LengthsAroundAPageAndABlock", 1, "kv_len=1,15,16,17,63,64,65,128,129 q_len=1,4 block_c=64,128"},
      {"LengthsOfChats", 1, "lengths=chat page_size=0,16,24 batch=9 kv_len=300"},
      // 5 heads x 16 queries for each key/value head: several tiles.
      {"Workers", 1, "workers=0,1,2,3,7,13,64,200 reduce=last,launch kv_len=500 q_heads=10 q_len=16"},
      // A tile has a part for each worker, or for each block of a long sequence: on a GPU more than run at once.
      {"TilesOfManyParts", 1,
       "batch=1 lengths=equal reduce=last,launch q_heads=2,16 q_len=1,4 " +
           std::string(on_cuda ? "kv_len=45000 workers=0,1407 head_dim=64,128,256" : "kv_len=1100 workers=36")},
      // 81 or 144 rows for each key/value head.
      {"ManyRows",
       23,
       "q_heads=18 q_len=9,16 head_dim=64,72,128,192,256 page_size=0,8,16,64,256 kv_len=300 workers=0,7",
       {"", "window_left=37", "soft_cap=2 window_left=37 alibi=1 sinks=1", fused_axes + "rope_pairing=interleaved",
        fused_axes + "dtype=f16 out_dtype=f32"}},
      {"CachesOf8Bits", 1,
       types + "cache_dtype=e4m3,int8 page_size=0,1,16,24,256 q_heads=2,8,10 kv_len=1,17,64,129 page_order=random"},
      {"ManyRowsOfCachesOf8Bits",
       23,
       "q_heads=18 q_len=2,9,16 head_dim=16,64,80,128,192,256 page_size=0,8,16,64,256 cache_dtype=e4m3,int8 "
       "page_order=random kv_len=300 workers=0,7",
       {"dtype=f16 out_dtype=f32", "dtype=bf16", "dtype=bf16 soft_cap=2 window_left=37 alibi=1 sinks=1"}},
      {"CachesOf8BitsOfEveryDimension", 1, "cache_dtype=e4m3,int8 head_dim=8,16,24,72,96,128,256 workers=1,7 q_len=3"},
      {"NewTokens", 17, "page_size=0,1,16,24,256 q_len=1,3,16 q_heads=2,6,16", {fused_axes, chain_axes}},
      {"NewTokensOfEveryTypeAndDimension",
       1,
       types + pairings + "append=fused,chain page_order=random q_len=2 cache_layout=hnd",
       {"head_dim=8 rotary_dim=2", "head_dim=24 rotary_dim=24", "head_dim=64 rotary_dim=20",
        "head_dim=72 rotary_dim=72", "head_dim=128 rotary_dim=64", "head_dim=256 rotary_dim=256"}},
      {"NewTokensInCachesOf8Bits", 3,
       fused_axes + "dtype=f16,bf16 cache_dtype=e4m3,int8 rotary_dim=20 page_size=0,16 q_len=3"},
      // The two new tokens lie on both sides of the end of a page or of a block, or a sequence has only new tokens, or
      // a worker gets only new tokens.
      {"NewTokensAnywhere", 1, fused_axes + "kv_len=1,2,16,17,64,65,66,130 workers=1,7,64 reduce=last,launch q_len=2"},
      // All sequences begin with the same 70 tokens. The cascade reads the pages that lie wholly within them once.
      {"Cascades", 17, cascade_axes + "page_size=1,8,16,24,64 q_heads=2,6,16 batch=1,2,5,40"},
      {"CascadesOfEveryTypeAndDimension",
       1,
       cascade_axes + "head_dim=16,72,96,128,256 reduce=last,launch cache_layout=hnd",
       {"dtype=f32", "dtype=f16", "dtype=bf16 cache_dtype=bf16,e4m3,int8"}},
      {"PrefillPageSizesAndDimensions", 13,
       prefill_axes + "page_size=0,1,8,16,24,32,64,128,256 head_dim=8,64,72,96,128,192,256"},
      {"PrefillGroupsAndQueries", 17,
       prefill_axes + "kv_len=300 q_heads=2,6,16 q_len=1,17,65,130,300 causal=0,1 lengths=ragged,chat"},
      {"PrefillLengthsAroundAPageAndABlock", 1,
       prefill_axes + "kv_len=1,15,16,17,63,64,65,127,128,129,257 page_size=0,16,64,256"},
      {"PrefillTypes",
       1,
       prefill_axes + "page_size=0,16",
       {"dtype=f32", "dtype=f16 out_dtype=f32,f16", "dtype=bf16 out_dtype=f32,bf16"}},
      // There are more keys than one threadgroup converts to Q's type.
      {"PrefillCachesOf8Bits", 1,
       prefill_axes + types +
           "kv_len=600 cache_dtype=e4m3,int8 page_size=0,1,16,24,256 head_dim=16,64,112,256 cache_layout=nhd,hnd"},
      {"PrefillNewTokens",
       17,
       prefill_axes + "append=fused,chain page_size=0,1,16,24,256",
       {"q_len=1 kv_len=1", "q_len=40 kv_len=200", "q_len=200 kv_len=200", "q_len=130 kv_len=300",
        "q_len=300 kv_len=130"}},
      {"PrefillNewTokensInCachesOf8Bits", 1,
       prefill_axes + "append=fused dtype=f32,bf16 cache_dtype=e4m3,int8 rotary_dim=24 rope_pairing=interleaved"},
      {"PrefillNewTokensOfEveryTypeAndDimension",
       1,
       prefill_axes + types + pairings + "append=fused cache_layout=hnd",
       {"head_dim=8 rotary_dim=8", "head_dim=64 rotary_dim=24", "head_dim=72 rotary_dim=72",
        "head_dim=128 rotary_dim=64", "head_dim=256 rotary_dim=256"}},
      {"PrefillModifiers",
       17,
       prefill_axes + "page_size=0,16,24 append=none,fused",
       {"alibi=1", "soft_cap=5", "sinks=1", "window_left=7", "soft_cap=30 window_left=50 alibi=1 sinks=1"}}};
  for (const auto& [name, narrow] : {std::pair{"Modifiers", ""}, {"ModifiersOf8BitCaches", "cache_dtype=int8 "}}) {
    all.push_back({name,
                   7,
                   narrow + std::string("page_size=0,16,24 q_len=1,4 kv_len=200 workers=5"),
                   {"alibi=1", "soft_cap=2", "sinks=1", "window_left=37", "window_left=0",
                    "soft_cap=2 window_left=37 alibi=1 sinks=1"}});
  }
  std::erase_if(all, [&](const Agreement& row) { return (row.nth > 1) != some; });
  return all;
}

/// Whether the device under test has kernels for the types and the dimension. Slow compilations of prefill are left
/// out.
bool has_kernel(const PagedConfig& config) {
  const DecodeConfig& decode = config.decode;
  const int64_t head_dim = decode.shape.head_dim;
  if (!on_cuda) return true;
  if (config.prefill) {
    return has_scales(decode.cache_dtype) || decode.appends || head_dim % 64 == 0 || decode.page_size % 64 == 0;
  }
  if (has_scales(decode.cache_dtype)) return decode.dtype != DType::f32 && head_dim % 16 == 0;
  return decode.cache_dtype == decode.dtype;
}

class PagedCases : public test::OnDevice<testing::TestWithParam<Agreement>> {};
const auto row_name = [](const auto& test) { return std::string(test.param.name); };
INSTANTIATE_TEST_SUITE_P(Whole, PagedCases, testing::ValuesIn(agreements(false)), row_name);
INSTANTIATE_TEST_SUITE_P(Some, PagedCases, testing::ValuesIn(agreements(true)), row_name);

TEST_P(PagedCases, AgreeWithTheOracle) {
  test::Some some(GetParam().nth);
  int ran = 0;
  for (const std::string& with : GetParam().with) {
    for (const PagedConfig& config : paged_configs(GetParam().axes + " " + with)) {
      if (!has_kernel(config) || some.skips()) continue;
      ++ran;
      EXPECT_EQ(difference(config), "") << words(config);
    }
  }
  EXPECT_GT(ran, 0);
}

class PagedTest : public test::OnDevice<testing::Test> {};

// The output is the same whatever the order of the pages, the layout, and the launch that joins parts. Each page of
// 8-bit elements has its own scales, so there the baseline has pages too. In prefill a block has 64 keys with every
// page size, so the kernel adds the same numbers in the same order.
TEST_F(PagedTest, OrderOfPagesAndJoiningChangeNoBit) {
  struct Row {
    std::string baseline;
    const char* others;
  };
  const char* const placed = " page_order=identity,reversed,random,shared cache_layout=nhd,hnd page_size=1,16,24,256";
  std::vector<Row> rows;
  for (const char* workers : {"1", "3", "7"}) {
    rows.push_back({fmt::format("kv_len=400 page_size=0 workers={}", workers), placed});
    rows.push_back({fmt::format("kv_len=400 workers={}", workers), " reduce=launch"});
  }
  rows.push_back({"kv_len=400 workers=64", " reduce=launch"});
  for (const char* layout : {"nhd", "hnd"}) {
    rows.push_back({fmt::format("{} block_c=64 page_size=0 page_order=identity cache_layout={}", prefill_axes, layout),
                    " page_order=identity,reversed,random,shared page_size=8,16,64,256"});
  }
  test::Some some(3);
  for (const char* type : {"e4m3", "int8"}) {
    for (const int page_size : {1, 16, 24, 256}) {
      if (some.skips()) continue;
      rows.push_back({fmt::format("kv_len=400 workers=3 cache_dtype={} page_size={}", type, page_size),
                      " page_order=reversed,random,shared cache_layout=nhd,hnd"});
    }
  }
  for (const auto& [axes, others] : rows) {
    const Decoded baseline = run_paged(paged_config(axes));
    ASSERT_TRUE(baseline.check.ok) << axes << ": " << baseline.check.worst;
    for (const PagedConfig& config : paged_configs(axes + others)) {
      EXPECT_EQ(run_paged(config).output, baseline.output) << words(config);
    }
  }
}

// NaN, infinity and huge numbers in K or V reach the rows that see them, and no others.
TEST_F(PagedTest, GarbageReachesTheRowsThatSeeIt) {
  struct Row {
    std::string axes;
    std::vector<double> garbage;
    bool only_v = false;
  };
  const std::string odd = on_cuda ? "48" : "24", seen = "q_len=1,3 workers=0,7 kv_len=300 ";
  test::Some some(5);
  for (const auto& [axes, garbage, only_v] :
       std::vector<Row>{{seen + "dtype=f32", {1e36, infinity, nan_value}},
                        {seen + "dtype=f16", {6e4, infinity, nan_value}},
                        {seen + "dtype=bf16", {1e36, infinity, nan_value}},
                        {"cache_dtype=e4m3 q_len=3 head_dim=64,128," + odd, {nan_value, -nan_value}},
                        {"q_len=9 q_heads=18 workers=0,7 head_dim=64,128 kv_len=258", {1e36, infinity, nan_value}},
                        {"cache_dtype=e4m3 q_len=9 q_heads=18 head_dim=128", {nan_value, -nan_value}},
                        {fused_axes + "q_len=3 workers=5", {infinity, nan_value}, true},
                        {chain_axes + "q_len=3 workers=5", {infinity, nan_value}, true},
                        {cascade_axes, {infinity, nan_value, 1e30}},
                        {prefill_axes, {infinity, nan_value}},
                        {prefill_axes + "append=fused", {infinity, nan_value}, true},
                        {prefill_axes + "dtype=bf16 cache_dtype=e4m3", {nan_value, -nan_value}}}) {
    for (const PagedConfig& config : paged_configs(axes)) {
      if (on_cuda && !config.prefill && config.decode.dtype == DType::f32) continue;
      for (const double value : garbage) {
        for (const bool in_v : {false, true}) {
          for (const bool last : {false, true}) {
            if ((only_v && !in_v) || some.skips()) continue;
            EXPECT_EQ(difference_with(config, value, in_v, last), "")
                << words(config) << ", " << garbage_text(value, in_v, last);
          }
        }
      }
    }
  }
}

// e4m3 has a NaN, int8 has none. The scale of a page may be NaN with both.
TEST_F(PagedTest, NaNInAScaleReachesTheRowsThatSeeIt) {
  for (const std::string& axes : {std::string("head_dim=64,128,") + (on_cuda ? "48" : "24"),
                                  std::string("q_heads=18 q_len=9 head_dim=128"), prefill_axes + "dtype=f16"}) {
    for (const PagedConfig& config : paged_configs(axes + " cache_dtype=e4m3,int8")) {
      for (const bool in_v : {false, true}) {
        const auto inputs = std::make_shared<PagedInputs>(device(), config, 7);
        (in_v ? inputs->v_scales : inputs->k_scales)[2] = static_cast<float>(nan_value);
        EXPECT_EQ(check_of(config, inputs).worst, "") << words(config) << ", in a scale of " << (in_v ? "V" : "K");
      }
    }
  }
}

Tensor single_rows(int64_t count, int64_t head_dim, DType dtype) {
  return Tensor::zeros(count, 1, 1, head_dim, dtype, Layout::bhsd);
}

/// Returns O of one query over k.batch keys. Each key is on its own page, with its own scales.
Tensor decode_one(DecodeConfig config, const Tensor& q, const Tensor& k, const Tensor& v,
                  const std::vector<float>& k_scales, const std::vector<float>& v_scales) {
  config.shape = {.batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 1, .kv_len = k.batch, .head_dim = q.dim};
  config.cache_dtype = k.dtype;
  config.out_dtype = DType::f32;
  config.page_size = 1;
  std::vector<int> pages(static_cast<size_t>(k.batch));
  std::iota(pages.begin(), pages.end(), 0);
  Tensor o = single_rows(1, q.dim, DType::f32);
  const Buffer queries = uploaded(device(), q.data), keys = uploaded(device(), k.data),
               values = uploaded(device(), v.data), out(device(), o.bytes()), k_scale = uploaded(device(), k_scales),
               v_scale = uploaded(device(), v_scales), table = uploaded(device(), pages),
               lengths = uploaded(device(), std::vector<int>{static_cast<int>(k.batch)});
  const DecodeLaunch launch(device(), pipelines(), config, decode_plan(config, device().info(), 0));
  CommandEncoder encoder;
  launch.encode(encoder, {.q = queries.data(),
                          .o = out.data(),
                          .q_strides = q.strides(),
                          .o_strides = o.strides(),
                          .k = keys.data(),
                          .v = values.data(),
                          .k_strides = k.strides(),
                          .v_strides = v.strides(),
                          .table = static_cast<const int*>(table.data()),
                          .max_pages = k.batch,
                          .pages = k.batch,
                          .k_scales = static_cast<const float*>(k_scale.data()),
                          .v_scales = static_cast<const float*>(v_scale.data()),
                          .lengths = static_cast<const int*>(lengths.data())});
  device().submit(encoder);
  out.download(o.data.data(), o.bytes());
  return o;
}

// There is one key, so O is V times the scale of V. V has every 8-bit code, with 0 in the place of NaN.
TEST_F(PagedTest, EveryCodeOf8BitsIsConvertedExactly) {
  for (const DType cache_dtype : {DType::e4m3, DType::int8}) {
    const DecodeConfig config = paged_config().decode;
    const Tensor q = single_rows(1, 256, config.dtype), k = single_rows(1, 256, cache_dtype);
    Tensor v = k;
    for (int code = 0; code < 256; ++code) {
      const bool is_nan = cache_dtype == DType::e4m3 && (code & 0x7f) == 0x7f;
      v.data[static_cast<size_t>(code)] = is_nan ? std::byte{0} : static_cast<std::byte>(code);
    }
    const Tensor o = decode_one(config, q, k, v, {1}, {0.25f});
    // The product of weight and scale may have a rounding error on a GPU. The tolerance is far less than the distance
    // between the values of two codes.
    for (int64_t code = 0; code < 256; ++code) {
      const double want = v.load(code) / 4;
      EXPECT_NEAR(o.load(code), want, 0x1p-22 * std::abs(want)) << name(cache_dtype) << ", code " << code;
    }
  }
}

// With a cache of 8 bits a GPU multiplies matrices of f16. Q's elements in bf16 are too large for f16, and products of
// weights and V's scales are too large or too small for f16.
TEST_F(PagedTest, ScalesOf8BitsMayHaveAnyMagnitude) {
  constexpr int64_t head_dim = 64, keys = 3;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const int exponent = dtype == DType::bf16 ? 100 : 12;
    for (const DType cache_dtype : {DType::e4m3, DType::int8}) {
      DecodeConfig config = paged_config().decode;
      config.dtype = dtype;
      Tensor q = single_rows(1, head_dim, dtype), k = single_rows(keys, head_dim, cache_dtype), v = k;
      const std::vector<float> k_scales(keys, std::ldexp(1.0f, -exponent));
      for (int64_t i = 0; i < head_dim; ++i) {
        q.store(i, std::ldexp(static_cast<double>(i % 5) - 2, exponent));
        for (int64_t key = 0; key < keys; ++key) {
          k.store(key * head_dim + i, static_cast<double>((i + key) % 3) - 1);
          v.store(key * head_dim + i, static_cast<double>((i + 2 * key) % 7) + 1);
        }
      }
      for (const float first : {0x1p30f, 0x1p-30f}) {
        const std::vector<float> v_scales = {first, 0x1p-30f, 0x1p-30f};
        const Tensor o = decode_one(config, q, k, v, k_scales, v_scales);
        std::vector<double> weights;
        for (int64_t key = 0; key < keys; ++key) {
          double score = 0;
          for (int64_t i = 0; i < head_dim; ++i) score += q.load(i) * k.load(key * head_dim + i) * k_scales[0];
          weights.push_back(std::exp(score / 8));
        }
        const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
        for (int64_t i = 0; i < head_dim; ++i) {
          double expected = 0;
          for (size_t key = 0; key < weights.size(); ++key) {
            expected += weights[key] / sum * v.load(static_cast<int64_t>(key) * head_dim + i) * v_scales[key];
          }
          EXPECT_NEAR(o.load(i) / expected, 1, 0x1p-7) << name(dtype) << ", " << name(cache_dtype) << ", column " << i;
        }
      }
    }
  }
}

TEST_F(PagedTest, TheErrorOfACacheIsItsRoundingError) {
  PagedConfig config = paged_config();
  config.decode.shape.kv_len = 512;
  const auto error = [&](DType cache_dtype, int64_t page_size) {
    config.decode.cache_dtype = cache_dtype;
    config.decode.page_size = page_size;
    return PagedInputs(device(), config, 7).cache_error(nullptr);
  };
  // Rounding to e4m3 errs by 0.026 of the element. Rounding to int8 errs by 1 / (127 sqrt(12)) of the largest element
  // of the page. The largest element is about 2.6 on a page of 64 elements, and about 4 on a page of 8192 elements. The
  // errors of K and of V add equal shares to the square of the error of O, hence the root of two.
  const double root_of_two = std::sqrt(2);
  EXPECT_NEAR(error(DType::e4m3, 16), 0.026 * root_of_two, 0.007);
  EXPECT_NEAR(error(DType::int8, 1), 2.6 / 127 / std::sqrt(12) * root_of_two, 0.0025);
  EXPECT_NEAR(error(DType::int8, 128), 4.0 / 127 / std::sqrt(12) * root_of_two, 0.0035);
}

// The score hook hides some pairs of query and key by the score -infinity, and gives other pairs huge scores.
TEST_F(PagedTest, ScoresOfAnySize) {
  AttentionHooks hooks;
  hooks.name = "scores of any size";
  hooks.text =
      "#pragma once\n#include \"common/attention/kernels/attention.h\"\n#define SCORE_IS_IDENTITY 0\n"
      "static inline float score(float s, int q, int k, const ScoreContext& c) {\n"
      "  (void)q;\n  const union { unsigned bits; float number; } hidden = {0xff800000u};\n"
      "  if (c.head == 0) return -3.4e38f;\n  if (c.head == 1) return k < 20 ? hidden.number : s + -1e30f;\n"
      "  if (c.head == 2) return hidden.number;\n  if (c.head == 3) return k % 3 == 0 ? hidden.number : s;\n"
      "  if (c.head == 4) return k % 3 == 0 ? -3.4e38f : s;\n  return 5e9f;\n}\n";
  hooks.data.resize(4);
  hooks.reference = each_score([](double s, int64_t, int64_t head, int64_t, int64_t k) -> double {
    if (head == 0) return -3.4e38f;
    if (head == 1) return k < 20 ? -infinity : static_cast<float>(s) + -1e30f;
    if (head == 2) return -infinity;
    if (head == 3) return k % 3 == 0 ? -infinity : s;
    if (head == 4) return k % 3 == 0 ? -3.4e38f : s;
    return 5e9f;
  });
  for (const std::string& axes :
       {std::string("workers=0"), std::string("workers=7"), std::string("task=prefill block_c=64")}) {
    EXPECT_EQ(run_paged(paged_config(axes), device(), pipelines(), hooks).check.worst, "") << axes;
  }
}

TEST_F(PagedTest, CachedTokensStayAsTheyAre) {
  for (const char* append : {"fused", "chain"}) {
    for (const char* order : {"random", "shared"}) {
      const PagedConfig config = paged_config(fmt::format("append={} page_order={}", append, order));
      const auto inputs = std::make_shared<PagedInputs>(device(), config, 7);
      PagedProblem problem(device(), pipelines(), inputs, config, paged_plan(config, device().info()));
      const auto cache = [&] {  // the cache, with the new tokens overwritten by poison
        problem.poison();
        return problem.cache();
      };
      const std::vector<std::byte> before = cache();
      CommandEncoder encoder;
      problem.encode(encoder);
      device().submit(encoder);
      EXPECT_NE(problem.cache(), before);
      EXPECT_EQ(cache(), before) << append << ", " << order;
    }
  }
}

TEST_F(PagedTest, AWindowOfAllKeysChangesNothing) {
  PagedConfig config = paged_config();
  const Decoded plain = run_paged(config);
  config.modifiers.window_left = config.decode.shape.kv_len;
  EXPECT_EQ(run_paged(config, device(), pipelines(), paged_hooks(config)).output, plain.output);
  config.modifiers.window_left = 37;
  EXPECT_NE(run_paged(config, device(), pipelines(), paged_hooks(config)).output, plain.output);
}

// Cases that differ only in modifiers share one PagedInputs.
TEST_F(PagedTest, HooksOfAnotherNameGetTheirOwnReference) {
  PagedConfig config = paged_config();
  PagedInputs inputs(device(), config, 7);
  const std::vector<double> plain = inputs.reference(nullptr).front().o;
  config.modifiers.alibi = true;
  const AttentionHooks hooks = paged_hooks(config).value();
  EXPECT_NE(inputs.reference(&hooks).front().o, plain);
  EXPECT_EQ(inputs.reference(nullptr).front().o, plain);
}

TEST_F(PagedTest, KernelsOfOtherHostsAgreeWithTheOracle) {
  if (on_cuda) GTEST_SKIP() << "only kernels for CPUs depend on the host";
  for (const auto& [simd_width, registers] : {std::pair{4u, 16u}, {4u, 32u}, {8u, 16u}, {16u, 32u}}) {
    test::OtherHost host(device(), "other", simd_width, registers);
    PipelineCache cache(host, "");
    for (const DType cache_dtype : {DType::bf16, DType::e4m3, DType::int8}) {
      for (const int64_t head_dim : {72, 128}) {
        PagedConfig config = paged_config();
        config.decode.cache_dtype = cache_dtype;
        config.decode.shape.head_dim = head_dim;
        const Check check = run_paged(config, host, cache).check;
        EXPECT_TRUE(check.ok) << simd_width << " lanes, head_dim " << head_dim << ", " << name(cache_dtype) << ": "
                              << check.worst;
      }
    }
  }
}

// The two seeds give different tensors. The launch `both` runs on the tensors of both seeds, the launch `own` only on
// the tensors of the second seed.
TEST_F(PagedTest, ALaunchTakesOtherTensorsAtEachCall) {
  const PagedConfig config = paged_config(prefill_axes);
  PagedInputs first(device(), config, 7), second(device(), config, 8);
  const auto outputs = [&](PagedInputs& inputs, const PrefillLaunch& launch) {
    const PageTable table = page_table(config);
    const size_t elements = static_cast<size_t>(config.decode.shape.batch * config.decode.shape.q_heads *
                                                config.decode.shape.q_len * config.decode.shape.head_dim);
    const Tensor cache = Tensor::zeros(table.pool, config.decode.shape.kv_heads, config.decode.page_size,
                                       config.decode.shape.head_dim, config.decode.cache_dtype, Layout::bhsd);
    std::vector<std::byte> numbers(
        inputs.k.data.begin(),
        inputs.k.data.begin() + static_cast<long>(std::min(inputs.k.data.size(), cache.bytes())));
    numbers.resize(cache.bytes());
    const Buffer pages = uploaded(device(), table.pages), keys = uploaded(device(), numbers),
                 o(device(), elements * size_bytes(config.decode.out_dtype));
    CommandEncoder encoder;
    launch.encode(encoder, {.q = inputs.q_buffer.data(),
                            .o = o.data(),
                            .q_strides = inputs.q.strides(),
                            .o_strides = inputs.q.strides(),
                            .k = keys.data(),
                            .v = keys.data(),
                            .k_strides = cache.strides(),
                            .v_strides = cache.strides(),
                            .table = static_cast<const int*>(pages.data()),
                            .max_pages = table.max_pages,
                            .lengths = static_cast<const int*>(inputs.lengths_buffer.data())});
    device().submit(encoder);
    return downloaded<std::byte>(o);
  };
  const int64_t pool = page_table(config).pool;
  const Plan plan = paged_plan(config, device().info());
  const PrefillLaunch both(device(), pipelines(), config.decode, plan, pool),
      own(device(), pipelines(), config.decode, plan, pool);
  const auto of_first = outputs(first, both), of_second = outputs(second, both);
  EXPECT_NE(of_first, of_second);
  EXPECT_EQ(of_second, outputs(second, own));
}

// ---- kernels that are broken on purpose

/// Expects that the check fails for each mutation, in a case with these values of axes and the mutation's. run_paged()
/// makes new buffers for each mutation, so no mutation runs on buffers that another mutation spoiled.
void expect_all_caught(const std::vector<test::PagedMutation>& mutations, const std::string& axes,
                       const std::function<void(PagedConfig&)>& also = {}) {
  EXPECT_FALSE(mutations.empty());
  for (const test::PagedMutation& mutation : mutations) {
    PagedConfig config = paged_config(axes + " " + mutation.axes);
    if (also) also(config);
    const test::MutatedSources mutated(mutation.file, mutation.from, mutation.to);
    PipelineCache cache(device(), "");
    EXPECT_FALSE(run_paged(config, device(), cache, paged_hooks(config)).check.ok)
        << "the check missed a kernel that " << mutation.what << ": " << words(config);
  }
}

TEST_F(PagedTest, BrokenCascadesAreCaught) { expect_all_caught(test::cascade_mutations(on_cuda), cascade_axes); }

// 72 rows for each key/value head: two tiles. On Hopper such rows of 16 bits go to another kernel.
TEST_F(PagedTest, BrokenAppendsAreCaught) {
  expect_all_caught(test::append_mutations(on_cuda),
                    std::string("page_order=random q_len=3 q_heads=48") + (on_cuda ? " dtype=f32" : ""));
}

// 144 rows for each key/value head: two tiles. Some tiles have three parts. The new tokens lie on both sides of the end
// of a page and of a block.
TEST_F(PagedTest, BrokenWideKernelsAreCaught) {
  if (!on_cuda || !device().info().has("wgmma")) GTEST_SKIP() << "the kernel runs on Hopper";
  expect_all_caught(test::wide_mutations(), "kv_len=258 q_len=9 q_heads=32 head_dim=128 workers=23",
                    [](PagedConfig& config) { config.decode.shape.scale = 2; });
}

// Tiles of 64 rows, of up to five blocks, on five workers.
TEST_F(PagedTest, BrokenTurnsAreCaught) {
  if (!on_cuda || !device().info().has("wgmma")) GTEST_SKIP() << "the kernel runs on Hopper";
  expect_all_caught(test::turn_mutations(), "kv_len=258 q_len=4 q_heads=32 head_dim=128 workers=5",
                    [](PagedConfig& config) { config.decode.shape.scale = 2; });
}

TEST_F(PagedTest, BrokenWideScalesAreCaught) {
  if (!on_cuda || !device().info().has("wgmma")) GTEST_SKIP() << "the kernel runs on Hopper";
  for (const char* type : {"cache_dtype=e4m3", "cache_dtype=int8"}) {
    expect_all_caught(test::wide_scale_mutations(),
                      std::string("kv_len=258 q_len=9 q_heads=32 head_dim=128 page_order=random ") + type);
  }
}

TEST_F(PagedTest, BrokenModifiersAreCaught) { expect_all_caught(test::modifier_mutations(), "q_len=2"); }

TEST_F(PagedTest, BrokenKernelsAreCaught) {
  expect_all_caught(test::decode_mutations(on_cuda), "kv_len=300 q_len=2 workers=7", [](PagedConfig& config) {
    if (on_cuda) config.decode.shape.scale = 2;  // the maximum of a row grows enough for the kernel to rescale
  });
}

TEST_F(PagedTest, BrokenScalesAreCaught) {
  for (const char* type : {"cache_dtype=e4m3", "cache_dtype=int8"}) {
    expect_all_caught(test::scale_mutations(on_cuda), type);
  }
}

TEST_F(PagedTest, BrokenExpansionsAreCaught) {
  expect_all_caught(test::expansion_mutations(on_cuda), prefill_axes + "kv_len=300 dtype=bf16 cache_dtype=e4m3");
}

// The shares of the appended tokens differ in size.
TEST_F(PagedTest, BrokenPrefillIsCaught) {
  expect_all_caught(test::prefill_mutations(on_cuda && device().info().has("wgmma")),
                    prefill_axes + "append=fused q_len=51");
}

}  // namespace
}  // namespace attn
