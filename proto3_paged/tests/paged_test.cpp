// Decoding over caches of every shape: against the oracle, bit for bit between ways to the same answer, and broken on
// purpose. On the device under test.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/attention/tests/other_host.h"
#include "common/base/error.h"
#include "common/testing/devices.h"
#include "common/testing/mutated_sources.h"
#include "common/testing/tested_device.h"
#include "proto3_paged/problem.h"

namespace attn {
namespace {

using test::device;
using test::on_cuda;
using test::pipelines;

/// With ragged lengths, one of them 0.
PagedConfig paged_config() {
  PagedConfig config;
  config.decode.shape = {
      .batch = 4, .q_heads = 6, .kv_heads = 2, .q_len = 1, .kv_len = 100, .head_dim = 64, .causal = true};
  if (on_cuda) config.decode.dtype = config.decode.cache_dtype = config.decode.out_dtype = DType::bf16;
  config.decode.page_size = 16;
  config.lengths = "ragged";
  return config;
}

struct Decoded {
  Check check;
  std::vector<std::byte> output;
};
Decoded run_paged(const PagedConfig& config, Device& on = device(), PipelineCache& cache = pipelines(),
                  const std::optional<AttentionHooks>& hooks = {}) {
  const auto inputs = std::make_shared<PagedInputs>(on, config, 7);
  PagedProblem problem(on, cache, inputs, config, hooks);
  Decoded run;
  for (int launch = 0; launch < 2; ++launch) {  // the second one finds what the first one left
    problem.poison();
    CommandEncoder encoder;
    problem.encode(encoder);
    on.submit(encoder);
    run.check = problem.check();
    if (!run.check.ok) break;
  }
  run.output = problem.output();
  return run;
}
std::string difference(const PagedConfig& config) {
  try {
    const Check check = run_paged(config).check;
    return check.ok ? "" : check.worst;
  } catch (const BadInput& error) {
    return on_cuda ? "" : error.what();  // a tile that a GPU does not take
  }
}

class PagedTest : public test::OnDevice<testing::Test> {};

TEST_F(PagedTest, PageSizesAndDimensionsAgreeWithTheOracle) {
  for (const int64_t page_size : {0, 1, 8, 16, 24, 32, 64, 128, 256}) {
    for (const int64_t head_dim : {8, 24, 64, 72, 96, 128, 192, 256}) {
      PagedConfig config = paged_config();
      config.decode.page_size = page_size;
      config.decode.shape.head_dim = head_dim;
      EXPECT_EQ(difference(config), "") << "page_size " << page_size << ", head_dim " << head_dim;
    }
  }
}

TEST_F(PagedTest, GroupsAndQueriesAgreeWithTheOracle) {
  for (const int64_t group : {1, 2, 3, 5, 8}) {
    for (const int64_t q_len : {1, 2, 4, 16}) {
      for (const bool causal : {false, true}) {
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
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const DType cache_dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (const DType out_dtype : {DType::f32, dtype}) {
        if (on_cuda && cache_dtype != dtype) continue;
        PagedConfig config = paged_config();
        config.decode.dtype = dtype;
        config.decode.cache_dtype = cache_dtype;
        config.decode.out_dtype = out_dtype;
        EXPECT_EQ(difference(config), "") << name(dtype) << " on " << name(cache_dtype) << " to " << name(out_dtype);
      }
    }
  }
}

// All lengths around a page and a block, one after the other in one batch.
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

TEST_F(PagedTest, WorkersAgreeWithTheOracle) {
  for (const int64_t workers : {0, 1, 2, 3, 7, 13, 64, 200}) {
    for (const bool join_last : {true, false}) {
      PagedConfig config = paged_config();
      config.decode.shape.kv_len = 500;
      config.decode.shape.q_heads = 10;
      config.decode.shape.q_len = 16;  // tiles of several heads, and more than one
      config.decode.workers = workers;
      config.decode.join_last = join_last;
      EXPECT_EQ(difference(config), "") << workers << " workers, the last joins: " << join_last;
    }
  }
}

TEST_F(PagedTest, PagesInAnyOrderAreExactlyAContiguousCache) {
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
              << page_size << " " << order << " " << layout << ", " << workers << " workers";
        }
      }
    }
  }
}

TEST_F(PagedTest, ASecondLaunchJoinsToTheSameBits) {
  for (const int64_t workers : {2, 3, 7, 64}) {
    PagedConfig config = paged_config();
    config.decode.shape.kv_len = 400;
    config.decode.workers = workers;
    const Decoded last = run_paged(config);
    config.decode.join_last = false;
    EXPECT_EQ(run_paged(config).output, last.output) << workers << " workers";
  }
}

/// ALiBi, a soft cap, a window of 20 keys and sinks.
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

TEST_F(PagedTest, HooksComposeAndSeeTheLengthOfTheSequence) {
  PagedConfig config = paged_config();
  config.decode.shape.q_len = 4;
  config.decode.shape.kv_len = 300;
  AttentionHooks hooks = all_hooks();
  const std::vector<int64_t> lengths = config.sequence_lengths();
  hooks.reference = [&](std::span<double> scores, int64_t batch, int64_t head, int64_t q) {
    const int64_t own = q + lengths[static_cast<size_t>(batch)] - config.decode.shape.q_len;
    for (size_t k = 0; k < scores.size(); ++k) {
      const auto behind = static_cast<double>(own - static_cast<int64_t>(k));
      const double biased = scores[k] - 0.05 * static_cast<double>(head + 1) * behind;
      scores[k] = behind < 0 || behind >= 20 ? -INFINITY : biased / (1 + std::abs(biased) / 8);
    }
  };
  for (const int64_t workers : {1, 5}) {
    config.decode.workers = workers;
    const Check check = run_paged(config, device(), pipelines(), hooks).check;
    EXPECT_TRUE(check.ok) << check.worst;
  }
}

TEST_F(PagedTest, KernelsOfOtherHostsAgreeWithTheOracle) {
  if (on_cuda) GTEST_SKIP() << "of the cpu alone";
  for (const auto& [simd_width, registers] : {std::pair{4u, 16u}, {4u, 32u}, {8u, 16u}, {16u, 32u}}) {
    test::OtherHost host(device(), "other", simd_width, registers);
    PipelineCache cache(host, "");
    for (const int64_t head_dim : {72, 128}) {
      PagedConfig config = paged_config();
      config.decode.cache_dtype = DType::bf16;
      config.decode.shape.head_dim = head_dim;
      const Check check = run_paged(config, host, cache).check;
      EXPECT_TRUE(check.ok) << simd_width << " lanes, head_dim " << head_dim << ": " << check.worst;
    }
  }
}

TEST_F(PagedTest, BrokenKernelsAreCaught) {
  if (on_cuda) GTEST_SKIP() << "texts are those of the cpu's kernel";
  struct Mutation {
    const char *what, *from, *to;
  };
  const std::vector<Mutation> mutations = {
      {"tail of the last page left out", "sequence.seen.end) - block.first_key, 0)",
       "sequence.seen.end - 1) - block.first_key, 0)"},
      {"a slot beyond the last token", "sequence.seen.end) - block.first_key, 0)",
       "sequence.seen.end + 1) - block.first_key, 0)"},
      {"join without rescale", "load<Floats>(to) * factors[0] + added", "load<Floats>(to) + added"},
      {"join without one part's weight", "d) * factors[1]", "d)"},
      {"a part left out", "worker <= last_worker", "worker < last_worker"},
      {"page of the block before", "const int page = key / static_cast<int>(PAGE_SIZE)",
       "const int page = block.first_key / static_cast<int>(PAGE_SIZE)"},
      {"pages of another sequence", "static_cast<long long>(sequence.batch) * cache.max_pages",
       "0LL * cache.max_pages"},
      {"head of another group", "kv_head * (p.q_heads / p.kv_heads) + (first_row + row) / p.q_len",
       "kv_head + (first_row + row) / p.q_len * p.kv_heads"},
      {"another head of the cache", ", kv_head, slot}", ", 0, slot}"},
      {"outputs that do not shrink", "d) * alpha", "d)"},
      {"sums that do not shrink", "sum[row] *= alpha", "sum[row] *= 1"},
      {"counter that is not reset", "__atomic_store_n(arrived, 0, __ATOMIC_RELAXED)", "static_cast<void>(arrived)"},
      {"log-sum-exp without maximum", "maximum[row] + __builtin_log2f", "__builtin_log2f"},
      {"causal edge one late", "max(min(seen.end - block.first_key", "max(min(seen.end + 1 - block.first_key"}};
  PagedConfig config = paged_config();
  config.decode.shape.kv_len = 300;
  config.decode.shape.q_len = 2;
  config.decode.workers = 7;
  for (const Mutation& mutation : mutations) {
    const test::MutatedSources mutated("proto3_paged/kernels/decode.cpu.cpp", mutation.from, mutation.to);
    PipelineCache cache(device(), "");
    EXPECT_FALSE(run_paged(config, device(), cache).check.ok) << mutation.what;
  }
}

TEST(PagedPlan, CountsTheTokensThatThereAre) {
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
  EXPECT_EQ(decode_workers(config.decode, test::hopper()), 4 * 2 * 2);  // of two blocks each
  config.decode.shape.kv_len = 1 << 20;
  EXPECT_EQ(decode_workers(config.decode, test::hopper()) % 132, 0);
}

TEST(PagedTable, SharedPagesAreThoseOfTheFirstSequence) {
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
