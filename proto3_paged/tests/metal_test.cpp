// Metal's kernels over caches on the emulated device: odd pages, ragged lengths with an empty sequence, parts that are
// joined.
#include "common/testing/metal.h"

namespace attn {
namespace {

class MetalPagedTest : public test::MetalProgramTest {
 protected:
  MetalPagedTest() : MetalProgramTest("proto3_paged") {}
};

constexpr const char* odd_cache =
    "q_heads=6 kv_heads=2 batch=3 kv_len=70 head_dim=40 lengths=ragged cache_layout=nhd alibi=0 soft_cap=0 "
    "window_left=-1 causal=1 ";

TEST_F(MetalPagedTest, Decode) {
  const std::string axes = std::string(odd_cache) + "task=decode append=none q_len=1 block_c=32 workers=4 ";
  expect_right(2, axes + "page_size=5 page_order=random reduce=last,launch dtype=f16 cache_dtype=f16");
  expect_right(1, axes + "page_size=0 page_order=identity reduce=launch dtype=f32 cache_dtype=f32");
  expect_right(1, axes + "page_size=16 page_order=random reduce=launch dtype=bf16 cache_dtype=bf16");
}

TEST_F(MetalPagedTest, AppendsInALaunchOfItsOwn) {
  expect_right(1, std::string(odd_cache) +
                      "task=decode append=chain q_len=2 block_c=32 workers=4 page_size=5 "
                      "page_order=random reduce=launch dtype=f16 cache_dtype=f16");
}

TEST_F(MetalPagedTest, Prefill) {
  expect_right(1, std::string(odd_cache) +
                      "task=prefill append=none q_len=20 block_c=32 workers=0 page_size=5 "
                      "page_order=random reduce=last dtype=f16 cache_dtype=f16");
}

}  // namespace
}  // namespace attn
