// Plans, page tables and lengths, without a device.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/testing/devices.h"
#include "proto3_paged/tests/paged_run.h"

namespace attn {
namespace {

PagedConfig on_avx2(const std::string& axes = "") { return paged_configs(axes, test::avx2()).at(0); }

TEST(PagedPlan, SaysWhyACaseCannotRun) {
  const DeviceInfo cpu = test::avx2(), gpu = test::hopper();
  const auto cascade = [&](int64_t prefix, const std::string& axes = "") {
    return cascade_plan(on_avx2(cascade_axes + axes).decode, gpu, 400, prefix).unable;
  };
  const auto decode = [](const DeviceInfo& info, const std::string& axes) {
    return decode_plan(on_avx2(axes).decode, info, 100).unable;
  };
  const auto prefill = [](const DeviceInfo& info, const std::string& axes, int64_t rotary_dim = 0) {
    DecodeConfig config = on_avx2(prefill_axes + axes).decode;
    if (rotary_dim > 0) config.rotary_dim = rotary_dim;
    return prefill_plan(config, info, 1, 1).unable;
  };
  DecodeConfig odd = on_avx2(fused_axes).decode;
  odd.rotary_dim = 7;
  const std::string bytes = fused_axes + "dtype=bf16 cache_dtype=int8";
  for (const auto& [reason, says] : std::vector<std::pair<std::string, std::string>>{
           {cascade(64), ""},
           {cascade(0), "whole pages"},
           {cascade(8), "whole pages"},
           {cascade(70), "whole pages"},
           {cascade(112), "whole pages"},
           {cascade(64, "q_len=2"), "q_len 2"},
           {cascade(64, "page_size=0"), "page_size 0"},
           {cascade(64, "append=fused"), "no launch appends tokens"},
           {decode(cpu, fused_axes), ""},
           {decode_plan(odd, cpu, 100).unable, "rotary_dim 7: an even number"},
           {decode(cpu, bytes), ""},
           {decode(gpu, bytes), ""},
           {append_plan(on_avx2(bytes).decode, cpu).unable, "appends only to a cache of Q's type, bf16"},
           {append_plan(on_avx2(bytes).decode, gpu).unable, "appends only to a cache of Q's type, bf16"},
           {decode(cpu, fused_axes + "dtype=bf16 cache_dtype=f16"), "only to a cache of Q's type, bf16, or of 8 bits"},
           {decode(cpu, "dtype=f32 cache_dtype=e4m3"), ""},
           {decode(gpu, "dtype=f32 cache_dtype=e4m3"), "f16 or bf16"},
           {decode(gpu, "dtype=bf16 cache_dtype=e4m3"), ""},
           {decode(gpu, "dtype=bf16 cache_dtype=e4m3 head_dim=72"), "multiple of 16"},
           {prefill(cpu, "dtype=bf16 head_dim=128"), ""},
           {prefill(cpu, "dtype=bf16 cache_dtype=f16"), "cache_dtype f16"},
           {prefill(cpu, "dtype=bf16 cache_dtype=e4m3"), ""},
           {prefill(cpu, "dtype=bf16 cache_dtype=e4m3 append=fused"), ""},
           {prefill(gpu, "dtype=bf16 append=fused", 20), "rotary_dim 20: a multiple of 8"}}) {
    EXPECT_EQ(reason.empty(), says.empty()) << reason << " is not: " << says;
    EXPECT_NE(reason.find(says), std::string::npos) << reason << " is not: " << says;
  }
}

TEST(PagedPlan, CountsASharedPrefixOnce) {
  const PagedConfig config = on_avx2(cascade_axes);
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

// On pages the work counts two scales, of K and of V, for each page and key/value head.
TEST(PagedPlan, CountsScales) {
  DecodeConfig config = on_avx2().decode;
  config.cache_dtype = DType::int8;
  const double paged = decode_plan(config, test::avx2(), 160).work.bytes;
  config.page_size = 0;
  EXPECT_EQ(paged - decode_plan(config, test::avx2(), 160).work.bytes, 10. * 2 * 2 * sizeof(float));
  EXPECT_EQ(decode_plan(config, test::avx2(), 320).work.bytes - decode_plan(config, test::avx2(), 160).work.bytes,
            160. * 2 * 2 * 64);
}

// In the first part of the test four sequences have 128 tokens each, and share the pages of their first 32 tokens.
TEST(PagedPlan, CountsRepeatedReadsOfSharedPages) {
  PagedConfig paged = on_avx2();
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
  const auto work = [&](const std::string& axes) {
    const PagedConfig config =
        on_avx2("kv_len=100 batch=2 q_heads=3 kv_heads=1 lengths=equal page_size=0 dtype=f32 " + axes);
    return paged_plan(config, test::avx2()).work;
  };
  constexpr double bytes_of_key = 2. * 2 * 64 * sizeof(float);  // K and V of one key, for two sequences
  EXPECT_EQ(work("q_len=1").bytes - work("q_len=1 window_left=20").bytes, 79 * bytes_of_key);
  EXPECT_EQ(work("q_len=4").bytes - work("q_len=4 window_left=20").bytes, 76 * bytes_of_key);
  EXPECT_EQ(work("q_len=1 window_left=99").bytes, work("q_len=1").bytes);
  EXPECT_EQ(work("q_len=1 window_left=20").flops / work("q_len=1").flops, 0.21);
}

TEST(PagedPlan, BytesGrowWithTheTokens) {
  PagedConfig config = on_avx2();
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
  PagedConfig config = on_avx2();
  EXPECT_EQ(decode_workers(config.decode, test::avx2()), 2);
  EXPECT_EQ(decode_workers(config.decode, test::hopper()), 4 * 2 * 2);  // 4 sequences, 2 heads of keys, 2 blocks each
  config.decode.shape.kv_len = 1 << 20;
  EXPECT_EQ(decode_workers(config.decode, test::hopper()) % 132, 0);
}

// The lengths are the same on every machine.
TEST(PagedLengths, ChatsAreMostlyShort) {
  PagedConfig config = on_avx2();
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
  PagedConfig config = on_avx2();
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
  PagedConfig config = on_avx2();
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

// The kernel `wgmma` copies K and V in boxes (TMA). So `wgmma` takes a contiguous cache (page_size 0), or pages of 8 or
// more tokens whose page_size is a power of two.
TEST(PrefillPlan, PageSizesThatTmaBoxesFillRunWgmmaOnAHopper) {
  for (const auto& [axes, kernel] : {std::pair{"dtype=bf16 page_size=0,8,16,32,64,128,256", "wgmma"},
                                     {"dtype=bf16 page_size=1,4,24", "mma_sync"},
                                     {"dtype=f32 page_size=16", "mma_sync"}}) {
    for (const PagedConfig& config : paged_configs(prefill_axes + "head_dim=128 " + axes, test::hopper())) {
      const Plan plan = prefill_plan(config.decode, test::hopper(), 1, 1);
      ASSERT_EQ(plan.unable, "") << words(config);
      EXPECT_EQ(plan.launches.front().source.path, fmt::format("common/attention/kernels/{}.cuda.cu", kernel))
          << words(config);
    }
  }
}

TEST(PrefillPlan, CountsOnlyVisiblePairs) {
  const std::string axes =
      prefill_axes + "batch=2 q_heads=3 kv_heads=1 q_len=8 kv_len=20 lengths=equal page_size=0 dtype=f32 ";
  const double pairs = 2 * 3 * (8 * 12 + 8 * 9 / 2);
  EXPECT_EQ(paged_plan(on_avx2(axes), test::avx2()).work.flops, 4. * 64 * pairs);
  EXPECT_EQ(paged_plan(on_avx2(axes + "window_left=3"), test::avx2()).work.flops, 4. * 64 * 2 * 3 * 8 * 4);
}

}  // namespace
}  // namespace attn
