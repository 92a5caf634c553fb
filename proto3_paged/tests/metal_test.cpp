// Metal's kernels for key/value caches. Most tests run the kernels on the emulated device, with ragged lengths.
#include "common/cases/study_layout.h"
#include "common/paged/decode.h"
#include "common/testing/devices.h"
#include "common/testing/metal_runs.h"

namespace attn::test {

const std::string odd_cache =
    "q_heads=6 kv_heads=2 batch=3 kv_len=70 head_dim=40 lengths=ragged cache_layout=nhd alibi=0 soft_cap=0 "
    "window_left=-1 causal=1 shared_pct=25 cascade=0 block_c=32 ";
const std::string decoding = odd_cache + "task=decode workers=4 append=none q_len=1 ";
const std::string appending = odd_cache + "task=decode workers=4 q_len=2 page_size=5 page_order=random dtype=f16 ";
const std::string prefilling = odd_cache + "task=prefill workers=0 reduce=last q_len=20 ";
const std::string longer =
    "task=decode batch=3 kv_len=101 lengths=ragged append=none alibi=0 soft_cap=0 window_left=-1 causal=1 "
    "shared_pct=25 cascade=0 block_c=32 workers=5 page_order=random reduce=last ";

INSTANTIATE_TEST_SUITE_P(
    Metal, MetalRuns,
    testing::ValuesIn(runs_of(
        "proto3_paged",
        {{"DecodePages", 2, decoding + "page_size=5 page_order=random reduce=last,launch dtype=f16 cache_dtype=f16"},
         {"DecodeContiguous", 1, decoding + "page_size=0 page_order=identity reduce=launch dtype=f32 cache_dtype=f32"},
         {"DecodeBf16", 1, decoding + "page_size=16 page_order=random reduce=launch dtype=bf16 cache_dtype=bf16"},
         {"DecodeCachesOf8Bits", 2,
          decoding + "page_size=5 page_order=random reduce=last cache_dtype=int8,e4m3 dtype=f16"},
         {"AppendsInASeparateLaunch", 1, appending + "append=chain reduce=launch cache_dtype=f16"},
         {"AppendsInTheLaunch", 1, appending + "append=fused rotary_dim=24 reduce=last cache_dtype=f16"},
         {"AppendsTo8Bits", 1, appending + "append=fused rotary_dim=24 reduce=last cache_dtype=e4m3"},
         {"PrefillAppendsTo8Bits", 1,
          prefilling + "append=fused rotary_dim=16 rope_pairing=interleaved page_size=0 "
                       "page_order=identity dtype=f32 cache_dtype=int8"},
         {"Prefill", 3,
          prefilling + "append=none page_size=5 page_order=random dtype=f16 cache_dtype=f16,int8,e4m3"}})),
    run_name);

INSTANTIATE_TEST_SUITE_P(
    MetalFull, MetalRuns,
    testing::ValuesIn(runs_of(
        "proto3_paged",
        {{"PagesAndGroups", 6,
          longer + "q_heads=8 kv_heads=2 q_len=1,3 head_dim=64 cache_layout=nhd page_size=1,7,64 dtype=f16 "
                   "cache_dtype=f16"},
         {"Dimensions", 4,
          longer + "q_heads=4 kv_heads=4 q_len=2 head_dim=8,136,200,256 cache_layout=hnd page_size=16 dtype=f32 "
                   "cache_dtype=f32"},
         {"NarrowCachesOfBf16", 4,
          odd_cache + "task=decode append=none q_len=3 workers=3 page_size=0,16 page_order=identity "
                      "reduce=launch dtype=bf16 cache_dtype=int8,e4m3"},
         {"NarrowCachesOfF32", 8,
          odd_cache + "task=decode append=none q_len=3 workers=3 page_size=0,16 page_order=identity "
                      "reduce=launch dtype=f32 cache_dtype=int8,e4m3,f16,bf16"},
         {"FusedAppends", 4,
          odd_cache + "task=decode append=fused workers=5 page_order=identity reduce=last,launch "
                      "rotary_dim=0,40 q_len=12 page_size=16 dtype=f32 cache_dtype=f32"},
         {"FusedAppendsContiguous", 2,
          odd_cache + "task=decode append=fused workers=5 page_order=identity reduce=last,launch rotary_dim=40 "
                      "rope_pairing=interleaved q_len=1 page_size=0 dtype=bf16 cache_dtype=bf16"}})),
    run_name);

class MetalPagedTest : public MetalProgramTest {
 protected:
  MetalPagedTest() : MetalProgramTest("proto3_paged") {}
};

TEST(MetalDecodeTest, EachHeadDimFits) {
  const DeviceInfo device = metal();
  for (const DType dtype : {DType::f32, DType::f16}) {
    for (int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
      for (const int64_t group : {1, 5, 16, 70}) {
        DecodeConfig config{.shape = {}, .dtype = dtype, .cache_dtype = dtype, .out_dtype = dtype};
        config.shape = {.batch = 2, .q_heads = group, .kv_heads = 1, .q_len = 1, .kv_len = 100, .head_dim = head_dim};
        const Plan plan = decode_plan(config, device, 200);
        ASSERT_EQ(skip_reason(plan, device).value_or(""), "") << "head_dim " << head_dim << ", group " << group;
        EXPECT_LE(plan.launches[0].threadgroup_bytes, device.threadgroup_memory_bytes)
            << "head_dim " << head_dim << ", group " << group;
        EXPECT_EQ(plan.launches[0].threadgroup_bytes % 16, 0u) << "head_dim " << head_dim << ", group " << group;
      }
    }
  }
}

// Threadgroups of one launch hand over parts by coherent pointers and fences, which Metal 3.1 does not have.
TEST(MetalDecodeTest, JoinsInTheLaunchOnlyInMetal32) {
  DeviceInfo device = metal();
  DecodeConfig config{.shape = {}, .dtype = DType::f16, .cache_dtype = DType::f16, .out_dtype = DType::f16};
  config.shape = {.batch = 2, .q_heads = 4, .kv_heads = 1, .q_len = 1, .kv_len = 100, .head_dim = 64};
  EXPECT_EQ(decode_plan(config, device, 200).launches.at(0).source.assembler, "-std=metal3.2");
  std::erase(device.features, "metal3.2");
  EXPECT_TRUE(decode_plan(config, device, 200).unable.starts_with("reduce=last: it needs Metal 3.2"));
  config.join_last = false;
  for (const Launch& launch : decode_plan(config, device, 200).launches) EXPECT_EQ(launch.source.assembler, "");
}

// --dry-run prints the threadgroup memory that the published study's kernel takes.
TEST_F(MetalPagedTest, BudgetsOfTheStudy) {
  EXPECT_EQ(study_page_bytes(64, 8), 8704u);  // 8.5 KB
  EXPECT_EQ(study_page_bytes(64, 64), size_t{40} << 10);
  const std::string text = dry_run(
      "task=decode page_size=8,16,32,64 head_dim=64 dtype=f32 kv_len=256 page_order=identity "
      "append=none reduce=last lengths=equal cache_dtype=f32 workers=0");
  EXPECT_NE(text.find("the study's KB"), std::string::npos) << text;
  for (const char* kilobytes : {" 8.5 ", " 13 ", " 22 ", " 40 "}) {
    EXPECT_NE(text.find(kilobytes), std::string::npos) << text;
  }
}

}  // namespace attn::test
