// The forms of a score function that Metal has, on the emulated device.
#include "common/testing/metal.h"

namespace attn {
namespace {

class MetalStitchTest : public test::MetalProgramTest {
 protected:
  MetalStitchTest() : MetalProgramTest("proto2_stitching") {}
};

TEST_F(MetalStitchTest, EachForm) {
  expect_right(4,
               "form=monolithic,inline,noinline,switch grain=element function=alibi batch=1 q_heads=2 kv_heads=1 "
               "q_len=19 kv_len=37 head_dim=40 causal=1 dtype=f16 layout=bhsd block_r=16 block_c=16");
}

// The other forms say in one line why they do not run.
TEST_F(MetalStitchTest, OtherFormsSayWhy) {
  const std::string text = dry_run("form=pointer,stitched,stitched_nolto grain=element function=alibi q_len=19");
  EXPECT_NE(text.find("form pointer: in Metal a pointer to a function comes from a visible_function_table"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("form stitched: the emulator links no functions"), std::string::npos) << text;
  EXPECT_NE(text.find("form stitched_nolto: the emulator links no functions"), std::string::npos) << text;
  EXPECT_NE(text.find("0 of 3 cases"), std::string::npos) << text;
}

class MetalFullStitchTest : public MetalStitchTest {};

TEST_F(MetalFullStitchTest, EachFunction) {
  expect_right(8,
               "form=inline,switch grain=element function=scale,alibi,soft_cap,chain work=16 batch=1 q_heads=2 "
               "kv_heads=2 q_len=45 kv_len=70 head_dim=64 causal=0 dtype=f32 layout=bhsd");
}

}  // namespace
}  // namespace attn
