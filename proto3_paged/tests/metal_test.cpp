// Metal's kernels for key/value caches. Most tests run the kernels on the emulated device, with ragged lengths.
#include "common/testing/metal.h"

#include "common/cases/study_layout.h"
#include "common/paged/decode.h"
#include "common/testing/devices.h"

namespace attn {
namespace {

class MetalPagedTest : public test::MetalProgramTest {
 protected:
  MetalPagedTest() : MetalProgramTest("proto3_paged") {}
};

TEST(MetalDecodeTest, EachHeadDimFits) {
  const DeviceInfo device = test::metal();
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

constexpr const char* odd_cache =
    "q_heads=6 kv_heads=2 batch=3 kv_len=70 head_dim=40 lengths=ragged cache_layout=nhd alibi=0 soft_cap=0 "
    "window_left=-1 causal=1 shared_pct=25 cascade=0 ";

TEST_F(MetalPagedTest, Decode) {
  const std::string axes = std::string(odd_cache) + "task=decode append=none q_len=1 block_c=32 workers=4 ";
  expect_right(2, axes + "page_size=5 page_order=random reduce=last,launch dtype=f16 cache_dtype=f16");
  expect_right(1, axes + "page_size=0 page_order=identity reduce=launch dtype=f32 cache_dtype=f32");
  expect_right(1, axes + "page_size=16 page_order=random reduce=launch dtype=bf16 cache_dtype=bf16");
}

// Slow tests of more cases. CTest gives the suites whose names begin with MetalFull the label metal_full.
class MetalFullPagedTest : public MetalPagedTest {};

TEST_F(MetalFullPagedTest, PagesGroupsAndDimensions) {
  const std::string axes =
      "task=decode batch=3 kv_len=101 lengths=ragged append=none alibi=0 soft_cap=0 window_left=-1 causal=1 "
      "shared_pct=25 cascade=0 block_c=32 workers=5 page_order=random reduce=last ";
  expect_right(
      6,
      axes + "q_heads=8 kv_heads=2 q_len=1,3 head_dim=64 cache_layout=nhd page_size=1,7,64 dtype=f16 cache_dtype=f16");
  expect_right(4, axes +
                      "q_heads=4 kv_heads=4 q_len=2 head_dim=8,136,200,256 cache_layout=hnd page_size=16 dtype=f32 "
                      "cache_dtype=f32");
}

TEST_F(MetalPagedTest, AppendsInASeparateLaunch) {
  expect_right(1, std::string(odd_cache) +
                      "task=decode append=chain q_len=2 block_c=32 workers=4 page_size=5 "
                      "page_order=random reduce=launch dtype=f16 cache_dtype=f16");
}

TEST_F(MetalPagedTest, AppendsInTheLaunch) {
  expect_right(1, std::string(odd_cache) +
                      "task=decode append=fused rotary_dim=24 q_len=2 block_c=32 workers=4 page_size=5 "
                      "page_order=random reduce=last dtype=f16 cache_dtype=f16");
}

TEST_F(MetalPagedTest, AppendsTo8Bits) {
  expect_right(1, std::string(odd_cache) +
                      "task=decode append=fused rotary_dim=24 q_len=2 block_c=32 workers=4 page_size=5 "
                      "page_order=random reduce=last dtype=f16 cache_dtype=e4m3");
  expect_right(1, std::string(odd_cache) +
                      "task=prefill append=fused rotary_dim=16 rope_pairing=interleaved q_len=20 block_c=32 workers=0 "
                      "page_size=0 page_order=identity reduce=last dtype=f32 cache_dtype=int8");
}

TEST_F(MetalPagedTest, CachesOf8Bits) {
  const std::string axes = std::string(odd_cache) +
                           "task=decode append=none q_len=1 block_c=32 workers=4 page_size=5 page_order=random "
                           "reduce=last cache_dtype=int8,e4m3 ";
  expect_right(2, axes + "dtype=f16");
}

TEST_F(MetalFullPagedTest, CachesOfNarrowerTypesThanQ) {
  const std::string axes = std::string(odd_cache) +
                           "task=decode append=none q_len=3 block_c=32 workers=3 page_size=0,16 page_order=identity "
                           "reduce=launch ";
  expect_right(4, axes + "dtype=bf16 cache_dtype=int8,e4m3");
  expect_right(8, axes + "dtype=f32 cache_dtype=int8,e4m3,f16,bf16");
}

TEST_F(MetalFullPagedTest, FusedAppends) {
  const std::string axes =
      std::string(odd_cache) + "task=decode append=fused block_c=32 workers=5 page_order=identity reduce=last,launch ";
  expect_right(4, axes + "rotary_dim=0,40 q_len=12 page_size=16 dtype=f32 cache_dtype=f32");
  expect_right(2, axes + "rotary_dim=40 rope_pairing=interleaved q_len=1 page_size=0 dtype=bf16 cache_dtype=bf16");
}

TEST_F(MetalPagedTest, Prefill) {
  expect_right(1, std::string(odd_cache) +
                      "task=prefill append=none q_len=20 block_c=32 workers=0 page_size=5 "
                      "page_order=random reduce=last dtype=f16 cache_dtype=f16");
  expect_right(2, std::string(odd_cache) +
                      "task=prefill append=none q_len=20 block_c=32 workers=0 page_size=5 "
                      "page_order=random reduce=last dtype=f16 cache_dtype=int8,e4m3");
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

}  // namespace
}  // namespace attn
