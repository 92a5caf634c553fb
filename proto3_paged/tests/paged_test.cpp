// Decoding over a contiguous cache or a cache on pages, on the device under test; the tests of plans and page tables
// need no device.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/attention/tests/other_host.h"
#include "common/base/error.h"
#include "common/testing/devices.h"
#include "common/testing/mutated_sources.h"
#include "common/testing/some.h"
#include "common/testing/tested_device.h"
#include "proto3_paged/problem.h"
#include "proto3_paged/sweep.h"
#include "proto3_paged/tests/paged_mutations.h"
#include "proto3_paged/tests/paged_run.h"

namespace attn {
namespace {

using test::device;
using test::on_cuda;
using test::pipelines;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

class PagedTest : public test::OnDevice<testing::Test> {};

TEST_F(PagedTest, PageSizesAndDimensionsAgreeWithTheOracle) {
  test::Some some(13);
  for (const int64_t page_size : {0, 1, 8, 16, 24, 32, 64, 128, 256}) {
    for (const int64_t head_dim : {8, 24, 64, 72, 96, 128, 192, 256}) {
      if (some.skips()) continue;
      PagedConfig config = paged_config();
      config.decode.page_size = page_size;
      config.decode.shape.head_dim = head_dim;
      EXPECT_EQ(difference(config), "") << "page_size " << page_size << ", head_dim " << head_dim;
    }
  }
}

TEST_F(PagedTest, GroupsAndQueriesAgreeWithTheOracle) {
  test::Some some(7);
  for (const int64_t group : {1, 2, 3, 5, 8}) {
    for (const int64_t q_len : {1, 2, 4, 16}) {
      for (const bool causal : {false, true}) {
        if (some.skips()) continue;
        PagedConfig config = paged_config();
        config.decode.shape.q_heads = 2 * group;
        config.decode.shape.q_len = q_len;
        config.decode.shape.causal = causal;
        EXPECT_EQ(difference(config), "") << "group " << group << ", q_len " << q_len << ", causal " << causal;
      }
    }
  }
}

TEST_F(PagedTest, TypesAgreeWithTheOracle) {
  test::Some some(5);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const DType cache_dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (const DType out_dtype : {DType::f32, dtype}) {
        if ((on_cuda && cache_dtype != dtype) || some.skips()) continue;
        PagedConfig config = paged_config();
        config.decode.dtype = dtype;
        config.decode.cache_dtype = cache_dtype;
        config.decode.out_dtype = out_dtype;
        EXPECT_EQ(difference(config), "") << name(dtype) << " on " << name(cache_dtype) << " to " << name(out_dtype);
      }
    }
  }
}

// The longest sequence has one token, or ends within one token of the end of a page or of a block.
TEST_F(PagedTest, LengthsAroundAPageAndABlockAgreeWithTheOracle) {
  for (const int64_t kv_len : {1, 15, 16, 17, 63, 64, 65, 128, 129}) {
    for (const int64_t q_len : {1, 4}) {
      for (const int64_t block_c : {64, 128}) {
        PagedConfig config = paged_config();
        config.decode.shape.kv_len = kv_len;
        config.decode.shape.q_len = q_len;
        config.decode.block_c = block_c;
        EXPECT_EQ(difference(config), "") << kv_len << " keys, q_len " << q_len << ", block_c " << block_c;
      }
    }
  }
}

TEST_F(PagedTest, LengthsOfChatsAgreeWithTheOracle) {
  for (const int64_t page_size : {0, 16, 24}) {
    PagedConfig config = paged_config();
    config.lengths = "chat";
    config.decode.page_size = page_size;
    config.decode.shape.batch = 9;
    config.decode.shape.kv_len = 300;
    EXPECT_EQ(difference(config), "") << "page_size " << page_size;
  }
}

TEST_F(PagedTest, WorkersAgreeWithTheOracle) {
  for (const int64_t workers : {0, 1, 2, 3, 7, 13, 64, 200}) {
    for (const bool join_last : {true, false}) {
      PagedConfig config = paged_config();
      config.decode.shape.kv_len = 500;
      config.decode.shape.q_heads = 10;
      config.decode.shape.q_len = 16;  // 5 heads x 16 queries for each key/value head: several tiles
      config.decode.workers = workers;
      config.decode.join_last = join_last;
      EXPECT_EQ(difference(config), "") << workers << " workers, join_last: " << join_last;
    }
  }
}

TEST_F(PagedTest, PagesInAnyOrderGiveTheBitsOfAContiguousCache) {
  for (const int64_t workers : {1, 3, 7}) {
    PagedConfig config = paged_config();
    config.decode.shape.kv_len = 400;
    config.decode.workers = workers;
    config.decode.page_size = 0;
    const Decoded contiguous = run_paged(config);
    ASSERT_TRUE(contiguous.check.ok) << contiguous.check.worst;
    for (const int64_t page_size : {1, 16, 24, 256}) {
      for (const char* order : {"identity", "reversed", "random", "shared"}) {
        for (const char* layout : {"nhd", "hnd"}) {
          config.decode.page_size = page_size;
          config.page_order = order;
          config.cache_layout = layout;
          EXPECT_EQ(run_paged(config).output, contiguous.output)
              << "page_size " << page_size << ", order " << order << ", " << layout << ", " << workers << " workers";
        }
      }
    }
  }
}

TEST_F(PagedTest, JoiningInASecondLaunchGivesTheSameBits) {
  for (const int64_t workers : {2, 3, 7, 64}) {
    PagedConfig config = paged_config();
    config.decode.shape.kv_len = 400;
    config.decode.workers = workers;
    const Decoded last = run_paged(config);
    config.decode.join_last = false;
    EXPECT_EQ(run_paged(config).output, last.output) << workers << " workers";
  }
}

/// Returns hooks for ALiBi, a soft cap, a window of 20 keys and sinks, all at once.
AttentionHooks all_hooks() {
  AttentionHooks hooks;
  hooks.text =
      "#pragma once\n#include \"common/attention/kernels/attention.h\"\n#define SCORE_IS_IDENTITY 0\n"
      "static inline float score(float s, int q, int k, const ScoreContext& c) {\n"
      "  const float biased = s + 0.05f * static_cast<float>(c.head + 1) * static_cast<float>(k - (q + c.kv_len - "
      "c.q_len));\n"
      "  return biased / (1.0f + (biased < 0 ? -biased : biased) / 8.0f);\n}\n";
  hooks.includes["common/attention/kernels/keys.h"] =
      "#pragma once\n#include \"common/attention/kernels/attention.h\"\n#define KEYS_ARE_DEFAULT 0\n"
      "#define KEYS_BEGIN_AT_ZERO 0\n"
      "static inline KeyRange visible_keys(int q, const ScoreContext& c) {\n"
      "  const int end = causal_end(q, c.q_len, c.kv_len);\n  return {end - 20, CAUSAL ? end : c.kv_len};\n}\n";
  hooks.includes["common/attention/kernels/sink.h"] =
      "#pragma once\n#include \"common/attention/kernels/attention.h\"\n#define SINK_IS_NONE 0\n"
      "static inline float sink_logit(const ScoreContext& c) { return 0.5f * static_cast<float>(c.head); }\n";
  hooks.sink = [](int64_t, int64_t head) { return 0.5 * static_cast<double>(head); };
  hooks.name = "all";
  return hooks;
}

TEST_F(PagedTest, CachesOf8BitsAgreeWithTheOracle) {
  for (const DType cache_dtype : {DType::e4m3, DType::int8}) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      if (on_cuda && dtype == DType::f32) continue;
      for (const int64_t page_size : {0, 1, 16, 24, 256}) {
        for (const int64_t group : {1, 4, 5}) {
          for (const int64_t kv_len : {1, 17, 64, 129}) {
            PagedConfig config = paged_config();
            config.decode.dtype = dtype;
            config.decode.cache_dtype = cache_dtype;
            config.decode.page_size = page_size;
            config.decode.shape.q_heads = 2 * group;
            config.decode.shape.kv_len = kv_len;
            config.page_order = page_size == 0 ? "identity" : "random";
            EXPECT_EQ(difference(config), "") << name(cache_dtype) << ", Q in " << name(dtype) << ", page_size "
                                              << page_size << ", group " << group << ", " << kv_len << " keys";
          }
        }
      }
    }
  }
}

TEST_F(PagedTest, CachesOf8BitsOfEveryDimensionAgreeWithTheOracle) {
  for (const DType cache_dtype : {DType::e4m3, DType::int8}) {
    for (const int64_t head_dim : {8, 16, 24, 72, 96, 128, 256}) {
      if (on_cuda && head_dim % 16 != 0) continue;
      for (const int64_t workers : {1, 7}) {
        PagedConfig config = paged_config();
        config.decode.cache_dtype = cache_dtype;
        config.decode.shape.head_dim = head_dim;
        config.decode.shape.q_len = 3;
        config.decode.workers = workers;
        EXPECT_EQ(difference(config), "") << name(cache_dtype) << ", head_dim " << head_dim;
      }
    }
  }
}

// Each page has its own scales. A contiguous cache would have other scales, so the output with pages in order is the
// baseline.
TEST_F(PagedTest, PagesOf8BitElementsGiveTheSameBitsInAnyOrder) {
  test::Some some(3);
  for (const DType cache_dtype : {DType::e4m3, DType::int8}) {
    for (const int64_t page_size : {1, 16, 24, 256}) {
      if (some.skips()) continue;
      PagedConfig config = paged_config();
      config.decode.shape.kv_len = 400;
      config.decode.workers = 3;
      config.decode.cache_dtype = cache_dtype;
      config.decode.page_size = page_size;
      const Decoded in_order = run_paged(config);
      ASSERT_TRUE(in_order.check.ok) << in_order.check.worst;
      for (const char* order : {"reversed", "random", "shared"}) {
        for (const char* layout : {"nhd", "hnd"}) {
          config.page_order = order;
          config.cache_layout = layout;
          EXPECT_EQ(run_paged(config).output, in_order.output)
              << name(cache_dtype) << ", page_size " << page_size << ", order " << order << ", " << layout;
        }
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
  const auto on_device = [](const auto& data) {
    Buffer buffer(device(), std::span(data).size_bytes());
    buffer.upload(data.data(), buffer.bytes());
    return buffer;
  };
  std::vector<int> pages(static_cast<size_t>(k.batch));
  std::iota(pages.begin(), pages.end(), 0);
  Tensor o = single_rows(1, q.dim, DType::f32);
  const Buffer queries = on_device(q.data), keys = on_device(k.data), values = on_device(v.data),
               out(device(), o.bytes()), k_scale = on_device(k_scales), v_scale = on_device(v_scales),
               table = on_device(pages), lengths = on_device(std::vector<int>{static_cast<int>(k.batch)});
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

TEST_F(PagedTest, HooksComposeAndSeeTheLengthOfTheSequence) {
  PagedConfig config = paged_config();
  config.decode.shape.q_len = 4;
  config.decode.shape.kv_len = 300;
  AttentionHooks hooks = all_hooks();
  const std::vector<int64_t> lengths = config.sequence_lengths();
  hooks.reference = [&](std::span<double> scores, int64_t batch, int64_t head, int64_t q) {
    const int64_t own = q + lengths[static_cast<size_t>(batch)] - config.decode.shape.q_len;
    for (size_t k = 0; k < scores.size(); ++k) {
      const auto distance = static_cast<double>(own - static_cast<int64_t>(k));
      const double biased = scores[k] - 0.05 * static_cast<double>(head + 1) * distance;
      scores[k] = distance < 0 || distance >= 20 ? -INFINITY : biased / (1 + std::abs(biased) / 8);
    }
  };
  for (const DType cache_dtype : {config.decode.dtype, DType::e4m3, DType::int8}) {
    for (const int64_t workers : {1, 5}) {
      config.decode.cache_dtype = cache_dtype;
      config.decode.workers = workers;
      const Check check = run_paged(config, device(), pipelines(), hooks).check;
      EXPECT_TRUE(check.ok) << name(cache_dtype) << ": " << check.worst;
    }
  }
}

TEST_F(PagedTest, NewTokensAgreeWithTheOracle) {
  test::Some some(17);
  for (const char* append : {"fused", "chain"}) {
    for (const int64_t page_size : {0, 1, 16, 24, 256}) {
      for (const int64_t q_len : {1, 3, 16}) {
        for (const int64_t group : {1, 3, 8}) {
          if (some.skips()) continue;
          PagedConfig config = appending_config(append);
          config.decode.page_size = page_size;
          config.decode.shape.q_len = q_len;
          config.decode.shape.q_heads = 2 * group;
          config.page_order = page_size == 0 ? "identity" : "random";
          EXPECT_EQ(difference(config), "")
              << append << ", page_size " << page_size << ", q_len " << q_len << ", group " << group;
        }
      }
    }
  }
}

TEST_F(PagedTest, NewTokensOfEveryTypeAndDimensionAgreeWithTheOracle) {
  for (const char* append : {"fused", "chain"}) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (const auto& [head_dim, rotary_dim] :
           {std::pair{8, 2}, {24, 24}, {64, 20}, {72, 72}, {128, 64}, {256, 256}}) {
        for (const RopePairing pairing : {RopePairing::half_split, RopePairing::interleaved}) {
          PagedConfig config = appending_config(append);
          config.decode.dtype = config.decode.cache_dtype = config.decode.out_dtype = dtype;
          config.decode.shape.head_dim = head_dim;
          config.decode.rotary_dim = rotary_dim;
          config.decode.pairing = pairing;
          config.decode.shape.q_len = 2;
          config.cache_layout = "hnd";
          EXPECT_EQ(difference(config), "")
              << append << ", " << name(dtype) << ", head_dim " << head_dim << ", rotary_dim " << rotary_dim
              << ", pairing " << static_cast<int>(pairing);
        }
      }
    }
  }
}

PagedConfig cascade_config() {
  PagedConfig config = paged_config();
  config.lengths = "equal";
  config.page_order = "shared";
  config.shared_pct = 70;
  config.cascade = true;
  return config;
}

TEST_F(PagedTest, GarbageReachesTheRowsThatSeeIt) {
  test::Some some(5);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    if (on_cuda && dtype == DType::f32) continue;
    for (const int64_t q_len : {1, 3}) {
      for (const int64_t workers : {0, 7}) {
        PagedConfig config = paged_config();
        config.decode.dtype = config.decode.cache_dtype = config.decode.out_dtype = dtype;
        config.decode.shape.q_len = q_len;
        config.decode.shape.kv_len = 300;
        config.decode.workers = workers;
        for (const double garbage : {dtype == DType::f16 ? 6e4 : 1e36, infinity, nan_value}) {
          for (const bool in_v : {false, true}) {
            for (const bool last : {false, true}) {
              if (some.skips()) continue;
              EXPECT_EQ(difference_with(config, garbage, in_v, last), "")
                  << name(dtype) << ", q_len " << q_len << ", workers " << workers << ", "
                  << garbage_text(garbage, in_v, last);
            }
          }
        }
      }
    }
  }
}

// e4m3 has a NaN of each sign, int8 has no NaN. The scale of a page may be NaN with e4m3 and with int8.
TEST_F(PagedTest, NaNInAnE4m3CacheOrInAScaleReachesTheRowsThatSeeIt) {
  for (const int64_t head_dim : {on_cuda ? 48 : 24, 64, 128}) {
    for (const bool in_v : {false, true}) {
      for (const bool last : {false, true}) {
        for (const double nan : {nan_value, -nan_value}) {
          PagedConfig config = paged_config();
          config.decode.cache_dtype = DType::e4m3;
          config.decode.shape.q_len = 3;
          config.decode.shape.head_dim = head_dim;
          EXPECT_EQ(difference_with(config, nan, in_v, last), "")
              << "head_dim " << head_dim << ", " << garbage_text(nan, in_v, last);
        }
      }
      for (const DType cache_dtype : {DType::e4m3, DType::int8}) {
        PagedConfig config = paged_config();
        config.decode.cache_dtype = cache_dtype;
        config.decode.shape.head_dim = head_dim;
        const auto inputs = std::make_shared<PagedInputs>(device(), config, 7);
        (in_v ? inputs->v_scales : inputs->k_scales)[2] = static_cast<float>(nan_value);
        PagedProblem problem(device(), pipelines(), inputs, config, paged_plan(config, device().info()));
        CommandEncoder encoder;
        problem.encode(encoder);
        device().submit(encoder);
        EXPECT_EQ(problem.check().worst, "") << name(cache_dtype) << ", NaN in a scale of " << (in_v ? "V" : "K");
      }
    }
  }
}

TEST_F(PagedTest, NewTokensInCachesOf8BitsAgreeWithTheOracle) {
  test::Some some(3);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const DType cache_dtype : {DType::e4m3, DType::int8}) {
      for (const int64_t page_size : {0, 16}) {
        if (some.skips()) continue;
        PagedConfig config = appending_config("fused");
        config.decode.dtype = config.decode.out_dtype = dtype;
        config.decode.cache_dtype = cache_dtype;
        config.decode.rotary_dim = 20;
        config.decode.page_size = page_size;
        config.decode.shape.q_len = 3;
        config.page_order = page_size == 0 ? "identity" : "random";
        EXPECT_EQ(difference(config), "") << name(dtype) << ", " << name(cache_dtype) << ", page_size " << page_size;
      }
    }
  }
}

TEST_F(PagedTest, GarbageInNewTokensAndSharedPages) {
  for (const char* append : {"fused", "chain"}) {
    for (const bool last : {false, true}) {
      PagedConfig config = appending_config(append);
      config.decode.shape.q_len = 3;
      config.decode.workers = 5;
      EXPECT_EQ(difference_with(config, nan_value, true, last), "")
          << append << ", " << garbage_text(nan_value, true, last);
      EXPECT_EQ(difference_with(config, infinity, true, last), "")
          << append << ", " << garbage_text(infinity, true, last);
    }
  }
  for (const double garbage : {infinity, nan_value, 1e30}) {
    for (const bool in_v : {false, true}) {
      for (const bool last : {false, true}) {
        EXPECT_EQ(difference_with(cascade_config(), garbage, in_v, last), "") << garbage_text(garbage, in_v, last);
      }
    }
  }
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
  for (const int64_t workers : {0, 7}) {
    for (const bool prefill : {false, true}) {
      PagedConfig config = paged_config();
      config.decode.workers = prefill ? 0 : workers;
      config.prefill = prefill;
      EXPECT_EQ(run_paged(config, device(), pipelines(), hooks).check.worst, "")
          << (prefill ? "prefill" : "decode") << ", workers " << workers;
    }
  }
}

// In some cases the two new tokens lie on both sides of the end of a page or of a block, or a sequence has only new
// tokens, or a worker gets only new tokens.
TEST_F(PagedTest, NewTokensAnywhereAgreeWithTheOracle) {
  for (const int64_t kv_len : {1, 2, 16, 17, 64, 65, 66, 130}) {
    for (const int64_t workers : {1, 7, 64}) {
      for (const bool join_last : {true, false}) {
        PagedConfig config = appending_config("fused");
        config.decode.shape.kv_len = kv_len;
        config.decode.shape.q_len = 2;
        config.decode.workers = workers;
        config.decode.join_last = join_last;
        EXPECT_EQ(difference(config), "") << kv_len << " keys, " << workers << " workers, join_last: " << join_last;
      }
    }
  }
}

TEST_F(PagedTest, CachedTokensStayAsTheyAre) {
  for (const char* append : {"fused", "chain"}) {
    for (const char* order : {"random", "shared"}) {
      PagedConfig config = appending_config(append);
      config.page_order = order;
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

// All sequences begin with the same 70 tokens. The cascade reads the pages that lie wholly within these tokens once.
TEST_F(PagedTest, CascadesAgreeWithTheOracle) {
  test::Some some(17);
  for (const int64_t page_size : {1, 8, 16, 24, 64}) {
    for (const int64_t group : {1, 3, 8}) {
      for (const int64_t batch : {1, 2, 5, 40}) {
        if (some.skips()) continue;
        PagedConfig config = cascade_config();
        config.decode.page_size = page_size;
        config.decode.shape.batch = batch;
        config.decode.shape.q_heads = 2 * group;
        EXPECT_EQ(difference(config), "") << "page_size " << page_size << ", group " << group << ", batch " << batch;
      }
    }
  }
}

TEST_F(PagedTest, CascadesOfEveryTypeAndDimensionAgreeWithTheOracle) {
  using enum DType;
  for (const auto& [dtype, cache_dtype] : {std::pair{f32, f32}, {f16, f16}, {bf16, bf16}, {bf16, e4m3}, {bf16, int8}}) {
    for (const int64_t head_dim : {16, 72, 96, 128, 256}) {
      for (const bool join_last : {true, false}) {
        PagedConfig config = cascade_config();
        config.decode.dtype = config.decode.out_dtype = dtype;
        config.decode.cache_dtype = cache_dtype;
        config.decode.shape.head_dim = head_dim;
        config.decode.join_last = join_last;
        config.cache_layout = "hnd";
        if (on_cuda && head_dim == 72 && has_scales(cache_dtype)) continue;
        EXPECT_EQ(difference(config), "") << name(dtype) << " on " << name(cache_dtype) << ", head_dim " << head_dim;
      }
    }
  }
}

TEST_F(PagedTest, BrokenCascadesAreCaught) {
  const std::string file = std::string("common/paged/kernels/merge") + (on_cuda ? ".cuda.cu" : ".cpu.cpp");
  using Texts = std::vector<std::pair<const char*, const char*>>;
  const Texts of_cuda = {{"a.x * of_prefix + b.x * of_own", "a.x * of_prefix + b.x"},
                         {"of_prefix = exp2_approx(prefix_lse - larger)", "of_prefix = 1"},
                         {"head) * p.batch + batch", "batch) * p.heads + head"},
                         {"log2_e * p.own_lse[own]", "p.own_lse[own]"},
                         {"ln_2 * (larger + __log2f(sum))", "ln_2 * larger"}};
  const Texts of_cpu = {{"a * weights[0] + b * weights[1]", "a * weights[0] + b"},
                        {"exp4(Pair{prefix_lse - shift, own_lse - shift} * log4_e)", "Pair{1, 1}"},
                        {"head) * p.batch + batch", "batch) * p.heads + head"},
                        {"own_lse = p.own_lse[own]", "own_lse = ln_2 * p.own_lse[own]"},
                        {"most + ln_2 * __builtin_log2f(sum)", "most"}};
  for (const auto& [from, to] : on_cuda ? of_cuda : of_cpu) {
    const test::MutatedSources mutated(file, from, to);
    PipelineCache cache(device(), "");
    EXPECT_FALSE(run_paged(cascade_config(), device(), cache).check.ok)
        << "the check missed that " << from << " became " << to;
  }
}

TEST_F(PagedTest, BrokenAppendsAreCaught) {
  for (const test::AppendMutation& mutation : test::append_mutations(on_cuda)) {
    PagedConfig config = appending_config(mutation.append);
    config.decode.shape.q_len = 3;
    config.decode.shape.q_heads = 2 * 24;  // 72 rows for each key/value head: two tiles
    const test::MutatedSources mutated(mutation.file, mutation.from, mutation.to);
    PipelineCache cache(device(), "");
    EXPECT_FALSE(run_paged(config, device(), cache).check.ok)
        << "the check missed a kernel (append=" << mutation.append << ") that " << mutation.what;
  }
}

struct NamedModifiers {
  const char* name;
  Modifiers modifiers;
};
std::vector<NamedModifiers> tested_modifiers() {
  return {{"ALiBi", {.alibi = true}},
          {"soft cap", {.soft_cap = 2}},
          {"sinks", {.sinks = true}},
          {"window", {.window_left = 37}},
          {"window of one key", {.window_left = 0}},
          {"all", {.soft_cap = 2, .window_left = 37, .alibi = true, .sinks = true}}};
}
Check check_modified(const PagedConfig& config, PipelineCache& cache = pipelines()) {
  return run_paged(config, device(), cache, paged_hooks(config)).check;
}

TEST_F(PagedTest, ModifiersAgreeWithTheOracle) {
  test::Some some(13);
  for (const auto& [name, modifiers] : tested_modifiers()) {
    for (const int64_t page_size : {0, 16, 24}) {
      for (const int64_t q_len : {1, 4}) {
        for (const bool narrow : {false, true}) {
          if (some.skips()) continue;
          PagedConfig config = paged_config();
          config.modifiers = modifiers;
          config.decode.page_size = page_size;
          config.decode.shape.q_len = q_len;
          config.decode.shape.kv_len = 200;
          config.decode.workers = 5;
          if (narrow) config.decode.cache_dtype = DType::int8;
          const Check check = check_modified(config);
          EXPECT_TRUE(check.ok) << name << ", page_size " << page_size << ", q_len " << q_len << ", 8 bits " << narrow
                                << ": " << check.worst;
        }
      }
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

TEST_F(PagedTest, BrokenModifiersAreCaught) {
  struct Mutation {
    const char *what, *file, *from, *to;
    Modifiers modifiers;
  };
  const std::string folder = "common/attention/kernels/modifiers/";
  const Mutation mutations[] = {
      {"sign of ALiBi",
       "score.h",
       "static_cast<float>(k - own_key(q, context));",
       "static_cast<float>(own_key(q, context) - k);",
       {.alibi = true}},
      {"slope of another head", "score.h", "slopes)[context.head]", "slopes)[context.head ^ 1]", {.alibi = true}},
      {"half the cap", "score.h", "return cap * tanh_of", "return cap / 2 * tanh_of", {.soft_cap = 2}},
      {"sink of another head", "sink.h", "sinks)[context.head]", "sinks)[context.head ^ 1]", {.sinks = true}},
      {"window one too long",
       "keys.h",
       "own - static_cast<int>(WINDOW_LEFT))",
       "own - 1 - static_cast<int>(WINDOW_LEFT))",
       {.window_left = 37}},
      {"window one too short",
       "keys.h",
       "own - static_cast<int>(WINDOW_LEFT))",
       "own + 1 - static_cast<int>(WINDOW_LEFT))",
       {.window_left = 37}}};
  for (const Mutation& mutation : mutations) {
    PagedConfig config = paged_config();
    config.modifiers = mutation.modifiers;
    config.decode.shape.q_len = 2;
    const test::MutatedSources mutated(folder + mutation.file, mutation.from, mutation.to);
    PipelineCache cache(device(), "");
    EXPECT_FALSE(check_modified(config, cache).ok) << "the check missed: " << mutation.what;
  }
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

TEST_F(PagedTest, BrokenKernelsAreCaught) {
  PagedConfig config = paged_config();
  config.decode.shape.kv_len = 300;
  config.decode.shape.q_len = 2;
  config.decode.workers = 7;
  if (on_cuda) config.decode.shape.scale = 2;  // so that the maximum of a row grows enough for the kernel to rescale
  for (const test::DecodeMutation& mutation : test::decode_mutations(on_cuda)) {
    const test::MutatedSources mutated(test::decode_file(on_cuda), mutation.from, mutation.to);
    PipelineCache cache(device(), "");
    EXPECT_FALSE(run_paged(config, device(), cache).check.ok) << "the check missed a kernel that " << mutation.what;
  }
}

TEST_F(PagedTest, BrokenScalesAreCaught) {
  const char* const kernel = on_cuda ? "common/paged/kernels/decode.cuda.cu" : "common/paged/kernels/decode.cpu.cpp";
  const char* const loads = "common/kernel/bytes_cpu.h";
  const char* const place = "static_cast<long long>(at.batch) * p.kv_heads + kv_head;";
  struct Mutation {
    const char *what, *file, *from, *to;
  };
  const std::vector<Mutation> on_gpu = {
      {"scale of the neighbouring page", kernel, "(page) * p.kv_heads + ahead.kv_head;",
       "(page > 0 ? page - 1 : 1) * p.kv_heads + ahead.kv_head;"},
      {"scale of the neighbouring head", kernel, "(page) * p.kv_heads + ahead.kv_head;",
       "(page) * p.kv_heads + 1 - ahead.kv_head;"},
      {"K's scale used for V", kernel, "p.cache.v_scales + at", "p.cache.k_scales + at"},
      {"V's scale used for K", kernel, "p.cache.k_scales + at", "p.cache.v_scales + at"},
      {"scores without their scale", kernel, "value *= scales(number, false)[column];", "value *= 1;"},
      {"weights without their scale", kernel, "value *= v_scale(number, i / 4, i % 2);", "value *= 1;"},
      {"scores without the power of 2 by which Q was divided", kernel, "value *= q_scale[r];", "value *= 1;"},
      {"V's elements 1 and 3 in the place of elements 0 and 2", kernel,
       "multiply_add<F16>(o[4 * step + 2 * n], a, pair_of_four<CACHE_TYPE, 0, 2>(low)",
       "multiply_add<F16>(o[4 * step + 2 * n], a, pair_of_four<CACHE_TYPE, 1, 3>(low)"}};
  const std::vector<Mutation> on_cpu = {
      {"scale of the neighbouring page", kernel, place,
       "(at.batch > 0 ? at.batch - 1LL : 1LL) * p.kv_heads + kv_head;"},
      {"scale of the neighbouring head", kernel, place, "at.batch * static_cast<long long>(p.kv_heads) + 1 - kv_head;"},
      {"K's scale used for V", kernel, "v_scale = cache.v_scales[scale]", "v_scale = cache.k_scales[scale]"},
      {"V's scale used for K", kernel, "k_scale = cache.k_scales[scale]", "k_scale = cache.v_scales[scale]"},
      {"scale of the block's first page", kernel, "block.k_scales[i] = k_scale",
       "block.k_scales[i] = i == 0 ? k_scale : block.k_scales[0]"},
      {"scores without their scale", kernel, "load<Scores>(s + i) * load<Scores>(block.k_scales + i)",
       "load<Scores>(s + i)"},
      {"weights without their scale", kernel, "weight * load<Scores>(block.v_scales + i)", "weight"}};
  for (const DType cache_dtype : {DType::e4m3, DType::int8}) {
    PagedConfig config = paged_config();
    config.decode.cache_dtype = cache_dtype;
    for (const Mutation& mutation : on_cuda ? on_gpu : on_cpu) {
      const test::MutatedSources mutated(mutation.file, mutation.from, mutation.to);
      PipelineCache cache(device(), "");
      EXPECT_FALSE(run_paged(config, device(), cache).check.ok)
          << "the check missed: " << mutation.what << ", " << name(cache_dtype);
    }
  }
  PagedConfig config = paged_config();
  if (on_cuda) return;
  config.decode.cache_dtype = DType::e4m3;
  const test::MutatedSources mutated(loads, "0xbfff", "0xffff");
  PipelineCache cache(device(), "");
  EXPECT_FALSE(run_paged(config, device(), cache).check.ok)
      << "the check missed: the sign of an e4m3 number also becomes a bit of the exponent";
}

TEST(PagedPlan, SaysWhyACascadeCannotRun) {
  const DecodeConfig config = cascade_config().decode;
  const auto unable = [](const DecodeConfig& changed, int64_t prefix) {
    return cascade_plan(changed, test::hopper(), 400, prefix).unable;
  };
  EXPECT_EQ(unable(config, 64), "");
  for (const int64_t prefix : {0, 8, 70, 112}) EXPECT_NE(unable(config, prefix).find("whole pages"), std::string::npos);
  DecodeConfig changed = config;
  changed.shape.q_len = 2;
  EXPECT_NE(unable(changed, 64).find("q_len 2"), std::string::npos);
  changed = config;
  changed.page_size = 0;
  EXPECT_NE(unable(changed, 64).find("page_size 0"), std::string::npos);
  changed = config;
  changed.appends = true;
  EXPECT_NE(unable(changed, 64).find("no launch appends tokens"), std::string::npos);
}

TEST(PagedPlan, CountsASharedPrefixOnce) {
  const PagedConfig config = cascade_config();
  const double once = cascade_plan(config.decode, test::avx2(), 400, 64).work.bytes;
  const double each = decode_plan(config.decode, test::avx2(), 400).work.bytes;
  const double prefix = 64. * 2 * 2 * 64 * static_cast<double>(size_bytes(config.decode.cache_dtype));
  // The bytes that a cascade adds: it reads the queries twice, and for each query of a head writes two rows of f32 in
  // place of one row of out_dtype, and two log-sum-exps in place of one. The work counts no bytes for the launch
  // that joins the rows.
  const double again = 4. * 6 *
                       (64 * static_cast<double>(size_bytes(config.decode.dtype) + 2 * sizeof(float) -
                                                 size_bytes(config.decode.out_dtype)) +
                        sizeof(float));
  EXPECT_EQ(each - once, 3 * prefix - again);
}

TEST(PagedPlan, SaysWhyTokensCannotBeAppended) {
  PagedConfig config = appending_config("fused");
  EXPECT_EQ(decode_plan(config.decode, test::avx2(), 100).unable, "");
  config.decode.rotary_dim = 7;
  EXPECT_NE(decode_plan(config.decode, test::avx2(), 100).unable.find("rotary_dim 7: an even number"),
            std::string::npos);
  config.decode.rotary_dim = 64;
  config.decode.cache_dtype = DType::int8;
  config.decode.dtype = config.decode.out_dtype = DType::bf16;
  for (const DeviceInfo& info : {test::avx2(), test::hopper()}) {
    EXPECT_EQ(decode_plan(config.decode, info, 100).unable, "");
    EXPECT_EQ(append_plan(config.decode, info).unable,
              "cache_dtype int8: a chain of launches appends only to a cache of Q's type, bf16");
  }
  config.decode.cache_dtype = DType::f16;
  EXPECT_EQ(decode_plan(config.decode, test::avx2(), 100).unable,
            "cache_dtype f16: tokens are appended only to a cache of Q's type, bf16, or of 8 bits");
}

TEST(PagedPlan, SaysWhich8BitCachesAGpuTakes) {
  PagedConfig config = paged_config();
  config.decode.cache_dtype = DType::e4m3;
  config.decode.dtype = DType::f32;
  EXPECT_EQ(decode_plan(config.decode, test::avx2(), 100).unable, "");
  EXPECT_NE(decode_plan(config.decode, test::hopper(), 100).unable.find("f16 or bf16"), std::string::npos);
  config.decode.dtype = DType::bf16;
  EXPECT_EQ(decode_plan(config.decode, test::hopper(), 100).unable, "");
  config.decode.shape.head_dim = 72;
  EXPECT_NE(decode_plan(config.decode, test::hopper(), 100).unable.find("multiple of 16"), std::string::npos);
}

// On pages the work counts two scales, of K and of V, for each page and key/value head.
TEST(PagedPlan, CountsScales) {
  DecodeConfig config = paged_config().decode;
  config.cache_dtype = DType::int8;
  const double paged = decode_plan(config, test::avx2(), 160).work.bytes;
  config.page_size = 0;
  EXPECT_EQ(paged - decode_plan(config, test::avx2(), 160).work.bytes, 10. * 2 * 2 * sizeof(float));
  EXPECT_EQ(decode_plan(config, test::avx2(), 320).work.bytes - decode_plan(config, test::avx2(), 160).work.bytes,
            160. * 2 * 2 * 64);
}

// In the first part of the test four sequences have 128 tokens each, and share the pages of their first 32 tokens.
TEST(PagedPlan, CountsRepeatedReadsOfSharedPages) {
  PagedConfig paged = paged_config();
  paged.decode.shape.kv_len = 128;
  paged.lengths = "equal";
  EXPECT_EQ(repeated_bytes(paged), 0);
  paged.page_order = "shared";
  const double bytes_of_key = 2. * 2 * 64 * static_cast<double>(size_bytes(paged.decode.cache_dtype));
  EXPECT_EQ(repeated_bytes(paged), 3 * 32 * bytes_of_key);

  paged.lengths = "ragged";
  std::set<int> seen;
  double repeated = 0;
  for (const int page : page_table(paged).pages) {
    if (page >= 0 && !seen.insert(page).second) repeated += static_cast<double>(paged.decode.page_size) * bytes_of_key;
  }
  EXPECT_GT(repeated, 0);
  EXPECT_EQ(repeated_bytes(paged), repeated);
}

// With window_left=20 the last query sees 21 of 100 keys: the key at its position, and 20 keys to the left. The last
// four queries together see 24 keys.
TEST(PagedPlan, CountsTheKeysOfAWindow) {
  Case config;
  config.set("kv_len", int64_t{100});
  config.set("batch", int64_t{2});
  config.set("q_heads", int64_t{3});
  config.set("kv_heads", int64_t{1});
  config.set("head_dim", int64_t{64});
  config.set("dtype", std::string("f32"));
  const auto work = [&](int64_t q_len, int64_t window_left) {
    Case one = config;
    one.set("q_len", q_len);
    one.set("window_left", window_left);
    complete_paged(one, test::avx2());
    return paged_case_plan(one, {test::avx2()}).work;
  };
  constexpr double bytes_of_key = 2. * 2 * 64 * sizeof(float);  // K and V of one key, for two sequences
  EXPECT_EQ(work(1, -1).bytes - work(1, 20).bytes, 79 * bytes_of_key);
  EXPECT_EQ(work(4, -1).bytes - work(4, 20).bytes, 76 * bytes_of_key);
  EXPECT_EQ(work(1, 99).bytes, work(1, -1).bytes);
  EXPECT_EQ(work(1, 20).flops / work(1, -1).flops, 0.21);
}

TEST(PagedPlan, BytesGrowWithTheTokens) {
  PagedConfig config = paged_config();
  for (const DeviceInfo& info : {test::avx2(), test::hopper()}) {
    const Plan one = decode_plan(config.decode, info, 100);
    EXPECT_EQ(one.work.bound, Bound::memory);
    EXPECT_EQ(decode_plan(config.decode, info, 200).work.bytes - one.work.bytes,
              100. * 2 * 2 * 64 * static_cast<double>(size_bytes(config.decode.cache_dtype)));
    ASSERT_EQ(one.launches.size(), 1u) << one.unable;
    EXPECT_EQ(one.launches.front().phase, "attend");
    config.decode.join_last = false;
    const Plan two = decode_plan(config.decode, info, 100);
    ASSERT_EQ(two.launches.size(), 2u);
    EXPECT_EQ(two.launches.back().phase, "join");
    EXPECT_EQ(two.launches.back().grid.x, 4u * 2);
    config.decode.join_last = true;
  }
}

TEST(PagedPlan, WorkersAreNoMoreThanBlocks) {
  PagedConfig config = paged_config();
  EXPECT_EQ(decode_workers(config.decode, test::avx2()), 2);
  EXPECT_EQ(decode_workers(config.decode, test::hopper()), 4 * 2 * 2);  // 4 sequences, 2 heads of keys, 2 blocks each
  config.decode.shape.kv_len = 1 << 20;
  EXPECT_EQ(decode_workers(config.decode, test::hopper()) % 132, 0);
}

// The lengths are the same on every machine.
TEST(PagedLengths, ChatsAreMostlyShort) {
  PagedConfig config = paged_config();
  config.lengths = "chat";
  config.decode.shape.batch = 4001;
  config.decode.shape.kv_len = 8192;
  std::vector<int64_t> lengths = config.sequence_lengths();
  EXPECT_EQ(lengths.front(), 8192);
  lengths.erase(lengths.begin());
  EXPECT_EQ((std::vector<int64_t>(lengths.begin(), lengths.begin() + 6)),
            (std::vector<int64_t>{409, 1012, 663, 3007, 452, 2511}));
  std::ranges::sort(lengths);
  const auto at = [&](double share) { return static_cast<double>(lengths[static_cast<size_t>(share * 4000)]); };
  EXPECT_NEAR(at(0.5), 2048, 0.05 * 2048);
  EXPECT_NEAR(at(0.1587), 2048 / std::exp2(1.5), 0.1 * 2048 / std::exp2(1.5));
  EXPECT_NEAR(at(0.8413), 2048 * std::exp2(1.5), 0.1 * 2048 * std::exp2(1.5));
  EXPECT_EQ(at(0.95), 8192);
  EXPECT_GE(lengths.front(), 1);
  for (const int64_t kv_len : {1, 2, 3, 7}) {
    config.decode.shape.kv_len = kv_len;
    for (const int64_t length : config.sequence_lengths()) EXPECT_TRUE(length >= 1 && length <= kv_len) << length;
  }
}

TEST(PagedTable, FiguresCountEmptySlotsAndGaps) {
  PagedConfig config = paged_config();
  const std::vector<int64_t> lengths = config.sequence_lengths();
  int64_t tokens = 0, pages = 0;
  for (const int64_t length : lengths) tokens += length, pages += (length + 15) / 16;
  const auto empty = [&](int64_t slots) { return 1 - static_cast<double>(tokens) / static_cast<double>(slots); };
  EXPECT_DOUBLE_EQ(pool_figures(config).waste, empty(16 * pages));
  EXPECT_EQ(pool_figures(config).fragmentation, 0);
  config.page_order = "reversed";
  EXPECT_EQ(pool_figures(config).fragmentation, 1);
  config.page_order = "identity";
  config.decode.page_size = 1;
  EXPECT_EQ(pool_figures(config).waste, 0);
  config.decode.page_size = 0;
  EXPECT_DOUBLE_EQ(pool_figures(config).waste, empty(4 * 100)) << "not counted with kv_len slots for each sequence";
  config.lengths = "equal";
  config.decode.page_size = 16;
  config.decode.shape.kv_len = 136;  // a sequence has 8.5 pages; 2 pages are shared
  config.page_order = "shared";
  EXPECT_DOUBLE_EQ(pool_figures(config).waste, 4. * 8 / (16 * (4 * 9 - 3 * 2)));
  EXPECT_DOUBLE_EQ(pool_figures(config).fragmentation, 3. / (4 * 8))
      << "not one gap, after the shared pages, for each sequence but the first";
}

TEST(PagedTable, SharedPagesArePagesOfTheFirstSequence) {
  PagedConfig config = paged_config();
  config.decode.shape.kv_len = 1024;
  config.lengths = "equal";
  config.page_order = "shared";
  const PageTable table = page_table(config);
  const int64_t pages = 1024 / 16, shared = pages / 4;
  EXPECT_EQ(table.pool, pages + 3 * (pages - shared));
  for (int64_t i = 0; i < pages; ++i) {
    const bool same = table.pages[static_cast<size_t>(i)] == table.pages[static_cast<size_t>(3 * pages + i)];
    EXPECT_EQ(same, i < shared) << i;
  }
}

}  // namespace
}  // namespace attn
