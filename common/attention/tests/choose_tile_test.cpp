// The default tile of attention on a CPU. The tests only choose tiles. They run no kernel and measure no time, so their
// results do not depend on the host.
#include <gtest/gtest.h>

#include "common/attention/flash.h"
#include "common/testing/devices.h"

namespace attn {
namespace {

using Tile = std::pair<int64_t, int64_t>;

Tile chosen(int64_t heads, int64_t q_len, int64_t kv_len, int units = 2, bool causal = false, FlashConfig given = {}) {
  DeviceInfo info = test::avx2();
  info.units = units;
  given.variant = "tuned";
  given.shape = {.batch = 1,
                 .q_heads = heads,
                 .kv_heads = heads,
                 .q_len = q_len,
                 .kv_len = kv_len,
                 .head_dim = 64,
                 .causal = causal};
  choose_tile(given, info);
  return {given.block_r, given.block_c};
}

TEST(ChooseTileTest, FollowsTheNumbersOfTilesThreadsAndQueries) {
  struct Shape {
    int64_t heads, q_len, kv_len;
    int units;
    bool causal;
    Tile tile;
  };
  // A launch gets as many tiles, of all heads together, as the device has threads, and otherwise large tiles.
  for (const Shape& shape : {Shape{8, 1024, 1024, 2, false, {256, 128}},
                             {8, 1537, 1537, 2, false, {256, 128}},
                             {8, 256, 256, 2, true, {256, 128}},
                             {1, 16384, 16384, 2, true, {256, 128}},
                             {2, 64, 4096, 2, false, {64, 128}},
                             {1, 64, 100000, 2, false, {32, 64}},
                             {1, 128, 8192, 2, false, {64, 128}},
                             {1, 64, 100000, 1, false, {64, 128}},
                             {1, 64, 100000, 4, false, {16, 64}},
                             {8, 1, 4096, 2, false, {16, 64}},
                             {8, 17, 4096, 2, false, {32, 64}},
                             {8, 100, 4096, 2, false, {128, 128}}}) {
    EXPECT_EQ(chosen(shape.heads, shape.q_len, shape.kv_len, shape.units, shape.causal), shape.tile)
        << shape.heads << " " << shape.q_len << " " << shape.kv_len << " " << shape.units;
  }
}

TEST(ChooseTileTest, KeepsTheSizesThatAreGiven) {
  FlashConfig rows, keys;
  rows.block_r = 48;
  keys.block_c = 80;
  EXPECT_EQ(chosen(8, 1024, 1024, 2, false, rows).first, 48);
  EXPECT_EQ(chosen(8, 1024, 1024, 2, false, keys), Tile(256, 80));
}

TEST(ChooseTileTest, TakesTheLastTileOfTheListIfNoTileFits) {
  FlashConfig config{.variant = "tuned",
                     .shape = {.batch = 1, .q_heads = 8, .kv_heads = 8, .q_len = 1024, .kv_len = 1024, .head_dim = 64}};
  DeviceInfo info = test::avx2();
  info.threadgroup_memory_bytes = 1;  // no tile fits
  choose_tile(config, info);
  EXPECT_EQ(Tile(config.block_r, config.block_c), Tile(16, 64));
}

}  // namespace
}  // namespace attn
