// The order in which the `wgmma` variant takes its tiles. The tests run without a GPU.
#include "common/backends/cuda/wgmma_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace attn {
namespace {

DeviceInfo gpu() {
  DeviceInfo device;
  device.backend = "cuda";
  device.units = 132;
  device.last_level_cache_bytes = 50 << 20;
  return device;
}

FlashConfig config(int64_t batch, int64_t q_heads, int64_t kv_heads, int64_t q_len, int64_t kv_len, bool causal,
                   int64_t block_r, int64_t block_c) {
  FlashConfig result;
  result.shape = {.batch = batch,
                  .q_heads = q_heads,
                  .kv_heads = kv_heads,
                  .q_len = q_len,
                  .kv_len = kv_len,
                  .head_dim = 128,
                  .causal = causal};
  result.block_r = block_r;
  result.block_c = block_c;
  return result;
}

TEST(ScheduleTest, EveryRowIsInOneTileWithAllTheKeysThatItSees) {
  for (const bool causal : {false, true}) {
    for (const auto& [batch, q_heads, kv_heads] : {std::tuple(1, 1, 1), {3, 6, 2}, {2, 64, 8}}) {
      for (const auto& [q_len, kv_len] : {std::pair(1, 1), {77, 1000}, {1000, 77}, {1537, 1537}}) {
        for (const int64_t block_r : {64, 192, 256}) {
          const FlashConfig shape = config(batch, q_heads, kv_heads, q_len, kv_len, causal, block_r, 80);
          std::map<std::tuple<int, int, int64_t>, int> covered;
          for (const WgmmaTile& tile : wgmma_schedule(shape, gpu())) {
            EXPECT_EQ(tile.kv_head, tile.head / (q_heads / kv_heads));
            EXPECT_EQ(tile.first_query % 64, 0);
            EXPECT_GE(tile.blocks, 1);
            for (int64_t row = std::max(tile.first_query, 0);
                 row < std::min<int64_t>(tile.first_query + block_r, q_len); ++row) {
              ++covered[{tile.batch, tile.head, row}];
              const int64_t keys = causal ? row + 1 + kv_len - q_len : kv_len;
              EXPECT_GE(tile.blocks * shape.block_c, keys);
            }
          }
          EXPECT_EQ(covered.size(), static_cast<size_t>(batch * q_heads * q_len)) << block_r;
          EXPECT_TRUE(std::ranges::all_of(covered, [](const auto& row) { return row.second == 1; })) << block_r;
        }
      }
    }
  }
}

TEST(ScheduleTest, CausalTilesGetShorterWithinASection) {
  // A causal schedule is a sequence of sections. A section has the tiles of as many heads as fit with their K and V
  // into an eighth of the last-level cache. The last section has at least three tiles for every multiprocessor. With
  // 16-bit elements and head_dim 128, the 4096 tokens of K and V take 2 MiB for each head, so three heads fit. A head
  // has 22 tiles, so the last section has 18 heads. The other 46 heads make one section of one head, which comes first,
  // and 15 sections of three heads.
  const std::vector<WgmmaTile> tiles = wgmma_schedule(config(1, 64, 64, 4096, 4096, true, 192, 64), gpu());
  std::vector<int> sections;  // heads of each section
  int heads = 0;
  for (size_t i = 0; i < tiles.size(); ++i) {
    const bool longer = i > 0 && tiles[i].blocks > tiles[i - 1].blocks;
    if (longer) {
      sections.push_back(heads);
      heads = 0;
    }
    heads += tiles[i].blocks == 64;
  }
  sections.push_back(heads);
  EXPECT_EQ(sections.front(), 1);
  EXPECT_EQ(sections.back(), 18);
  EXPECT_TRUE(std::all_of(sections.begin() + 1, sections.end() - 1, [](int n) { return n == 3; }));
}

}  // namespace
}  // namespace attn
