// Prefill (many queries for each sequence) over a contiguous cache or a cache on pages. Most tests run on the device
// under test.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/testing/cuda_compiler.h"
#include "common/testing/devices.h"
#include "common/testing/mutated_sources.h"
#include "common/testing/some.h"
#include "proto3_paged/sweep.h"
#include "proto3_paged/tests/paged_run.h"

namespace attn {
namespace {

using test::device;
using test::on_cuda;
using test::pipelines;

/// Returns a configuration with 40 queries for each sequence, and ragged lengths. One sequence has no keys. Each other
/// sequence has more keys than queries.
PagedConfig prefill_config() {
  PagedConfig config = paged_config();
  config.prefill = true;
  config.decode.shape.q_len = 40;
  config.decode.shape.kv_len = 200;
  config.page_order = "random";
  return config;
}
PagedConfig appending_prefill(const std::string& append) {
  PagedConfig config = prefill_config();
  config.append = append;
  config.decode.appends = append == "fused";
  config.decode.rotary_dim = config.decode.shape.head_dim;
  return config;
}

class PrefillTest : public test::OnDevice<testing::Test> {};

TEST_F(PrefillTest, PageSizesAndDimensionsAgreeWithTheOracle) {
  test::Some some(13);
  for (const int64_t page_size : {0, 1, 8, 16, 24, 32, 64, 128, 256}) {
    for (const int64_t head_dim : {8, 64, 72, 96, 128, 192, 256}) {
      if (on_cuda && head_dim % 64 != 0 && page_size % 64 != 0) continue;  // leaves out half of the slow compilations
      if (some.skips()) continue;
      PagedConfig config = prefill_config();
      config.decode.page_size = page_size;
      config.decode.shape.head_dim = head_dim;
      config.page_order = page_size == 0 ? "identity" : "random";
      EXPECT_EQ(difference(config), "") << "page_size " << page_size << ", head_dim " << head_dim;
    }
  }
}

TEST_F(PrefillTest, GarbageReachesTheRowsThatSeeIt) {
  for (const double garbage : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    for (const bool in_v : {false, true}) {
      for (const bool last : {false, true}) {
        EXPECT_EQ(difference_with(prefill_config(), garbage, in_v, last), "") << garbage_text(garbage, in_v, last);
        EXPECT_EQ(difference_with(appending_prefill("fused"), garbage, true, last), "")
            << garbage_text(garbage, true, last);
      }
    }
  }
}

TEST_F(PrefillTest, GroupsAndQueriesAgreeWithTheOracle) {
  test::Some some(17);
  for (const int64_t group : {1, 3, 8}) {
    for (const int64_t q_len : {1, 17, 65, 130, 300}) {
      for (const bool causal : {false, true}) {
        for (const char* lengths : {"ragged", "chat"}) {
          if (some.skips()) continue;
          PagedConfig config = prefill_config();
          config.lengths = lengths;
          config.decode.shape.q_heads = 2 * group;
          config.decode.shape.q_len = q_len;
          config.decode.shape.kv_len = 300;
          config.decode.shape.causal = causal;
          EXPECT_EQ(difference(config), "") << "group " << group << ", q_len " << q_len << ", causal " << causal;
        }
      }
    }
  }
}

TEST_F(PrefillTest, LengthsAroundAPageAndABlockAgreeWithTheOracle) {
  for (const int64_t kv_len : {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 257}) {
    for (const int64_t page_size : {0, 16, 64, 256}) {
      PagedConfig config = prefill_config();
      config.decode.shape.kv_len = kv_len;
      config.decode.page_size = page_size;
      config.page_order = page_size == 0 ? "identity" : "random";
      EXPECT_EQ(difference(config), "") << kv_len << " keys, page_size " << page_size;
    }
  }
}

TEST_F(PrefillTest, TypesAgreeWithTheOracle) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const DType out_dtype : {DType::f32, dtype}) {
      for (const int64_t page_size : {0, 16}) {
        PagedConfig config = prefill_config();
        config.decode.dtype = config.decode.cache_dtype = dtype;
        config.decode.out_dtype = out_dtype;
        config.decode.page_size = page_size;
        config.page_order = page_size == 0 ? "identity" : "random";
        EXPECT_EQ(difference(config), "") << name(dtype) << " to " << name(out_dtype) << ", page_size " << page_size;
      }
    }
  }
}

/// Returns a configuration over a cache of 8 bits.
PagedConfig prefill_of_bytes(DType dtype, DType cache_dtype, int64_t page_size) {
  PagedConfig config = prefill_config();
  config.decode.dtype = config.decode.out_dtype = dtype;
  config.decode.cache_dtype = cache_dtype;
  config.decode.page_size = page_size;
  config.page_order = page_size == 0 ? "identity" : "random";
  return config;
}

TEST_F(PrefillTest, CachesOf8BitsAgreeWithTheOracle) {
  test::Some some(23);
  for (const DType cache_dtype : {DType::e4m3, DType::int8}) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (const int64_t page_size : {0, 1, 16, 24, 256}) {
        for (const int64_t head_dim : {16, 64, 112, 256}) {
          for (const char* layout : {"nhd", "hnd"}) {
            if (some.skips()) continue;
            PagedConfig config = prefill_of_bytes(dtype, cache_dtype, page_size);
            config.decode.shape.head_dim = head_dim;
            config.decode.shape.kv_len = 600;  // more keys than one threadgroup converts to Q's type
            config.cache_layout = layout;
            EXPECT_EQ(difference(config), "") << name(cache_dtype) << ", Q in " << name(dtype) << ", page_size "
                                              << page_size << ", head_dim " << head_dim << " " << layout;
          }
        }
      }
    }
  }
}

// e4m3 has a NaN of each sign, int8 has no NaN. The scale of a page may be NaN with e4m3 and with int8.
TEST_F(PrefillTest, NaNInACacheOf8BitsReachesTheRowsThatSeeIt) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  for (const bool in_v : {false, true}) {
    for (const bool last : {false, true}) {
      for (const double sign : {1., -1.}) {
        const PagedConfig config = prefill_of_bytes(DType::bf16, DType::e4m3, 16);
        EXPECT_EQ(difference_with(config, std::copysign(nan, sign), in_v, last), "")
            << garbage_text(std::copysign(nan, sign), in_v, last);
      }
    }
    for (const DType cache_dtype : {DType::e4m3, DType::int8}) {
      const PagedConfig config = prefill_of_bytes(DType::f16, cache_dtype, 16);
      const auto inputs = std::make_shared<PagedInputs>(device(), config, 7);
      (in_v ? inputs->v_scales : inputs->k_scales)[2] = static_cast<float>(nan);
      PagedProblem problem(device(), pipelines(), inputs, config, paged_plan(config, device().info()));
      CommandEncoder encoder;
      problem.encode(encoder);
      device().submit(encoder);
      EXPECT_EQ(problem.check().worst, "") << name(cache_dtype) << ", NaN in a scale of " << (in_v ? "V" : "K");
    }
  }
}

TEST_F(PrefillTest, BrokenExpansionsAreCaught) {
  const std::string file = "common/paged/kernels/expand" + std::string(on_cuda ? ".cuda.cu" : ".cpu.cpp");
  const std::vector<std::pair<const char*, const char*>> mutations = {
      {"cache.v_scales", "cache.k_scales"},
      {"(cache.v, ", "(cache.k, "},
      {"place.row = key %", "place.row = (key + 1) %"},
      {"cache.max_pages + key /", "cache.max_pages + first /"},
      {"p.kv_heads + head) * p.most_keys", "p.kv_heads) * p.most_keys"},
      on_cuda ? std::pair{"expand_four(bytes.y, scale", "expand_four(bytes.x, scale"}
              : std::pair{"d += LANES", "d += 2 * LANES"},
      on_cuda ? std::pair{"first + int{KEYS}, length)", "first + int{KEYS} - 1, length)"}
              : std::pair{"key < end; ++key", "key < end - 1; ++key"}};
  PagedConfig config = prefill_of_bytes(DType::bf16, DType::e4m3, 16);
  config.decode.shape.kv_len = 300;
  for (const auto& [from, to] : mutations) {
    const test::MutatedSources mutated(file, from, to);
    PipelineCache cache(device(), "");
    EXPECT_FALSE(run_paged(config, device(), cache).check.ok) << "the check missed that " << from << " became " << to;
  }
}

// A block has 64 keys with every page size, so the kernel adds the same numbers in the same order.
TEST_F(PrefillTest, PagesInAnyOrderGiveTheBitsOfAContiguousCache) {
  for (const char* layout : {"nhd", "hnd"}) {
    PagedConfig config = prefill_config();
    config.cache_layout = layout;
    config.decode.block_c = 64;
    config.decode.page_size = 0;
    config.page_order = "identity";
    const Decoded contiguous = run_paged(config);
    ASSERT_TRUE(contiguous.check.ok) << contiguous.check.worst;
    for (const int64_t page_size : {8, 16, 64, 256}) {
      for (const char* order : {"identity", "reversed", "random", "shared"}) {
        config.decode.page_size = page_size;
        config.page_order = order;
        EXPECT_EQ(run_paged(config).output, contiguous.output)
            << "page_size " << page_size << ", order " << order << ", " << layout;
      }
    }
  }
}

TEST_F(PrefillTest, ModifiersAgreeWithTheOracle) {
  const Modifiers all{.soft_cap = 30, .window_left = 50, .alibi = true, .sinks = true};
  test::Some some(17);
  for (const Modifiers& modifiers : {Modifiers{.alibi = true}, Modifiers{.soft_cap = 5}, Modifiers{.sinks = true},
                                     Modifiers{.window_left = 7}, all}) {
    for (const int64_t page_size : {0, 16, 24}) {
      for (const bool appends : {false, true}) {
        if (some.skips()) continue;
        PagedConfig config = appends ? appending_prefill("fused") : prefill_config();
        config.modifiers = modifiers;
        config.decode.page_size = page_size;
        config.page_order = page_size == 0 ? "identity" : "random";
        const Check check = run_paged(config, device(), pipelines(), paged_hooks(config)).check;
        EXPECT_TRUE(check.ok) << paged_hooks(config)->name << ", page_size " << page_size << ": " << check.worst;
      }
    }
  }
}

TEST_F(PrefillTest, NewTokensAgreeWithTheOracle) {
  test::Some some(17);
  for (const char* append : {"fused", "chain"}) {
    for (const int64_t page_size : {0, 1, 16, 24, 256}) {
      for (const auto& [q_len, kv_len] : {std::pair{1, 1}, {40, 200}, {200, 200}, {130, 300}, {300, 130}}) {
        if (some.skips()) continue;
        PagedConfig config = appending_prefill(append);
        config.decode.page_size = page_size;
        config.decode.shape.q_len = q_len;
        config.decode.shape.kv_len = kv_len;
        config.page_order = page_size == 0 ? "identity" : "random";
        EXPECT_EQ(difference(config), "")
            << append << ", page_size " << page_size << ", " << q_len << " of " << kv_len << " tokens";
      }
    }
  }
}

TEST_F(PrefillTest, NewTokensInCachesOf8BitsAgreeWithTheOracle) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const DType cache_dtype : {DType::e4m3, DType::int8}) {
      PagedConfig config = appending_prefill("fused");
      config.decode.dtype = config.decode.out_dtype = dtype;
      config.decode.cache_dtype = cache_dtype;
      config.decode.rotary_dim = 24;
      config.decode.pairing = RopePairing::interleaved;
      EXPECT_EQ(difference(config), "") << name(dtype) << ", " << name(cache_dtype);
    }
  }
}

TEST_F(PrefillTest, NewTokensOfEveryTypeAndDimensionAgreeWithTheOracle) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const auto& [head_dim, rotary_dim] : {std::pair{8, 8}, {64, 24}, {72, 72}, {128, 64}, {256, 256}}) {
      for (const RopePairing pairing : {RopePairing::half_split, RopePairing::interleaved}) {
        PagedConfig config = appending_prefill("fused");
        config.decode.dtype = config.decode.cache_dtype = config.decode.out_dtype = dtype;
        config.decode.shape.head_dim = head_dim;
        config.decode.rotary_dim = rotary_dim;
        config.decode.pairing = pairing;
        config.cache_layout = "hnd";
        EXPECT_EQ(difference(config), "") << name(dtype) << ", head_dim " << head_dim << ", rotary_dim " << rotary_dim
                                          << ", pairing " << static_cast<int>(pairing);
      }
    }
  }
}

// The two seeds give different tensors. The launch `both` runs on the tensors of both seeds, the launch `own` only on
// the tensors of the second seed.
TEST_F(PrefillTest, ALaunchTakesOtherTensorsAtEachCall) {
  const PagedConfig config = prefill_config();
  PagedInputs first(device(), config, 7), second(device(), config, 8);
  const auto outputs = [&](PagedInputs& inputs, const PrefillLaunch& launch) {
    const PageTable table = page_table(config);
    const size_t elements = static_cast<size_t>(config.decode.shape.batch * config.decode.shape.q_heads *
                                                config.decode.shape.q_len * config.decode.shape.head_dim);
    std::vector<std::byte> output(elements * size_bytes(config.decode.out_dtype));
    const Tensor cache = Tensor::zeros(table.pool, config.decode.shape.kv_heads, config.decode.page_size,
                                       config.decode.shape.head_dim, config.decode.cache_dtype, Layout::bhsd);
    Buffer pages(device(), table.pages.size() * sizeof(int)), keys(device(), cache.bytes()), o(device(), output.size());
    pages.upload(table.pages.data(), pages.bytes());
    std::vector<std::byte> numbers(
        inputs.k.data.begin(),
        inputs.k.data.begin() + static_cast<long>(std::min(inputs.k.data.size(), cache.bytes())));
    numbers.resize(cache.bytes());
    keys.upload(numbers.data(), numbers.size());
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
    o.download(output.data(), output.size());
    return output;
  };
  const int64_t pool = page_table(config).pool;
  const Plan plan = paged_plan(config, device().info());
  const PrefillLaunch both(device(), pipelines(), config.decode, plan, pool),
      own(device(), pipelines(), config.decode, plan, pool);
  const auto of_first = outputs(first, both), of_second = outputs(second, both);
  EXPECT_NE(of_first, of_second);
  EXPECT_EQ(of_second, outputs(second, own));
}

struct PrefillMutation {
  const char *what, *file, *from, *to;
};
std::vector<PrefillMutation> prefill_mutations(bool cuda) {
  const char *const pages = "common/paged/kernels/prefill/pages.h", *const keys = "common/paged/kernels/prefill/keys.h",
                    *const before = "common/paged/kernels/prefill/before.h",
                    *const rotate = "common/paged/kernels/prefill/rotate.h",
                    *const wgmma = "common/attention/kernels/wgmma.cuda.cu";
  std::vector<PrefillMutation> mutations = {
      {"takes the page of the first key for each key", pages, "data.table[row + key / static_cast<int>(PAGE_SIZE)]",
       "data.table[row]"},
      {"takes the pages of sequence 0 for each sequence", pages, "static_cast<INT64>(context.batch) * data.max_pages",
       "0"},
      {"takes head 0 of the cache for each head", pages, ", kv_head, key %", ", 0, key %"},
      {"leaves out the last key", keys, "keys.end < own.kv_len ? keys.end : own.kv_len",
       "keys.end < own.kv_len - 1 ? keys.end : own.kv_len - 1"},
      {"rotates queries for the previous position", rotate, "const int key = q + ", "const int key = q - 1 + "},
      {"rotates keys for the position among the new tokens", before, "static_cast<long long>(key) * half",
       "static_cast<long long>(token) * half"},
      {"rotates with a wrong sign", before, "y * cosines[i] + x * sines[i]", "y * cosines[i] - x * sines[i]"},
      {"leaves out the last share of the new tokens", before, "share = (tokens + data.shares - 1) / data.shares;",
       "share = tokens / data.shares;"},
      {"writes to the next slot", before, "place.row = key % ", "place.row = (key + 1) % "},
      {"writes keys in the place of values", before, "of_v ? tokens.v : tokens.k", "tokens.k"}};
  mutations.push_back({"does not reset the counters", before, cuda ? "gridDim.z;" : "group.count[2];",
                       cuda ? "gridDim.z + 1;" : "group.count[2] + 1;"});
  if (cuda) {
    mutations.push_back({"takes the pages of lane 0 for each lane", wgmma, "__shfl_sync(~0u, place.batch, box)",
                         "__shfl_sync(~0u, place.batch, 0)"});
  }
  return mutations;
}

// run_paged() makes new buffers for each mutation, so no mutation runs on buffers that another mutation spoiled.
TEST_F(PrefillTest, BrokenKernelsAreCaught) {
  PagedConfig config = appending_prefill("fused");
  config.decode.shape.q_len = 51;  // the shares of the appended tokens differ in size
  for (const PrefillMutation& mutation : prefill_mutations(on_cuda && device().info().has("wgmma"))) {
    const test::MutatedSources mutated(mutation.file, mutation.from, mutation.to);
    PipelineCache cache(device(), "");
    EXPECT_FALSE(run_paged(config, device(), cache).check.ok) << "the check missed a kernel that " << mutation.what;
  }
}

// ---- without a device

DecodeConfig compiled_prefill(DType dtype, int64_t head_dim, int64_t page_size) {
  return {.shape = {.batch = 8,
                    .q_heads = 32,
                    .kv_heads = 8,
                    .q_len = 512,
                    .kv_len = 4096,
                    .head_dim = head_dim,
                    .causal = true},
          .dtype = dtype,
          .cache_dtype = dtype,
          .out_dtype = dtype,
          .page_size = page_size,
          .block_c = 0};
}

// The kernel `wgmma` copies K and V in boxes (TMA). So `wgmma` takes a contiguous cache (page_size 0), or pages of 8 or
// more tokens whose page_size is a power of two.
TEST(PrefillPlan, PageSizesThatTmaBoxesFillRunWgmmaOnAHopper) {
  const auto kernel_of = [](DType dtype, int64_t page_size) {
    const Plan plan = prefill_plan(compiled_prefill(dtype, 128, page_size), test::hopper(), 1, 1);
    return plan.unable.empty() ? plan.launches.front().source.path : plan.unable;
  };
  for (const int64_t page_size : {0, 8, 16, 32, 64, 128, 256}) {
    EXPECT_EQ(kernel_of(DType::bf16, page_size), "common/attention/kernels/wgmma.cuda.cu") << page_size;
  }
  for (const int64_t page_size : {1, 24, 4}) {
    EXPECT_EQ(kernel_of(DType::bf16, page_size), "common/attention/kernels/mma_sync.cuda.cu") << page_size;
  }
  EXPECT_EQ(kernel_of(DType::f32, 16), "common/attention/kernels/mma_sync.cuda.cu");
}

TEST(PrefillPlan, SaysWhyACaseCannotRun) {
  DecodeConfig config = compiled_prefill(DType::bf16, 128, 16);
  const auto unable = [&](const DeviceInfo& info) { return prefill_plan(config, info, 1, 1).unable; };
  EXPECT_EQ(unable(test::avx2()), "");
  config.cache_dtype = DType::f16;
  EXPECT_NE(unable(test::avx2()).find("cache_dtype f16"), std::string::npos);
  config.cache_dtype = DType::e4m3;
  EXPECT_EQ(unable(test::avx2()), "");
  config.appends = true;
  EXPECT_EQ(unable(test::avx2()), "");
  config.cache_dtype = DType::bf16;
  config.rotary_dim = 20;
  EXPECT_NE(unable(test::hopper()).find("rotary_dim 20: a multiple of 8"), std::string::npos);
}

TEST(PrefillPlan, CountsOnlyVisiblePairs) {
  Case config;
  for (const auto& [axis, value] : {std::pair{"batch", 2},
                                    {"q_heads", 3},
                                    {"kv_heads", 1},
                                    {"q_len", 8},
                                    {"kv_len", 20},
                                    {"head_dim", 64},
                                    {"causal", 1}}) {
    config.set(axis, int64_t{value});
  }
  config.set("dtype", std::string("f32"));
  config.set("task", std::string("prefill"));
  complete_paged(config, test::avx2());
  const double pairs = 2 * 3 * (8 * 12 + 8 * 9 / 2);
  EXPECT_EQ(paged_case_plan(config, {test::avx2()}).work.flops, 4. * 64 * pairs);
  config.set("window_left", int64_t{3});
  EXPECT_EQ(paged_case_plan(config, {test::avx2()}).work.flops, 4. * 64 * 2 * 3 * 8 * 4);
}

using PrefillCudaCompileTest = test::CudaCompilerTest;

TEST_F(PrefillCudaCompileTest, EveryPage) {
  for (const int64_t page_size : {0, 1, 8, 16, 64, 256}) {
    for (const int64_t head_dim : {64, 128, 256}) {
      for (const bool appends : {false, true}) {
        DecodeConfig config = compiled_prefill(DType::bf16, head_dim, page_size);
        config.appends = appends;
        config.rotary_dim = head_dim;
        const Plan plan = prefill_plan(config, test::hopper(), 1, 1);
        ASSERT_EQ(plan.unable, "");
        EXPECT_EQ(compiler_->compile(plan.launches.front().source, {}).spill_bytes, 0)
            << plan.launches.front().source.key();
      }
    }
  }
}

TEST_F(PrefillCudaCompileTest, Modifiers) {
  for (const int64_t head_dim : {64, 128}) {
    for (const Modifiers& modifiers :
         {Modifiers{.alibi = true}, Modifiers{.soft_cap = 30, .window_left = 100, .alibi = true, .sinks = true}}) {
      const PagedConfig config{.decode = compiled_prefill(DType::bf16, head_dim, 16), .modifiers = modifiers};
      const AttentionHooks hooks = paged_hooks(config).value();
      const Plan plan = prefill_plan(config.decode, test::hopper(), 1, 1, &hooks);
      ASSERT_EQ(plan.unable, "");
      EXPECT_EQ(compiler_->compile(plan.launches.front().source, {}).spill_bytes, 0)
          << plan.launches.front().source.key();
    }
  }
}

TEST_F(PrefillCudaCompileTest, BrokenKernelsCompile) {
  DecodeConfig config = compiled_prefill(DType::bf16, 64, 16);
  config.appends = true;
  config.rotary_dim = 64;
  for (const PrefillMutation& mutation : prefill_mutations(true)) {
    const test::MutatedSources mutated(mutation.file, mutation.from, mutation.to);
    EXPECT_NO_THROW(compiler_->compile(prefill_plan(config, test::hopper(), 1, 1).launches.front().source, {}))
        << mutation.what;
  }
}

}  // namespace
}  // namespace attn
