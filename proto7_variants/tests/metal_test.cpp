// Tests Metal's kernels on the emulated device: modifiers, rotary positions and copies of heads.
#include "common/testing/metal.h"

namespace attn {
namespace {

class MetalVariantsTest : public test::MetalProgramTest {
 protected:
  MetalVariantsTest() : MetalProgramTest("proto7_variants") {}
};

constexpr const char* odd_shape = "batch=2 q_heads=3 kv_heads=1 q_len=21 kv_len=133 head_dim=40 layout=bhsd ";

TEST_F(MetalVariantsTest, Modifiers) {
  const std::string axes = std::string(odd_shape) + "task=attention variant=tuned block_r=16 block_c=32 ";
  expect_right(1, axes + "dtype=f32 causal=1 alibi=1 soft_cap=30 sinks=1 window_left=40");
  expect_right(1, axes + "dtype=f16 causal=1 bias=hqk lengths=1");
  expect_right(1, axes + "dtype=f32 causal=1 block_sparse=50");
  expect_right(2, axes + "dtype=f32 causal=1 alibi=1 score_by=run_time,noinline");
  expect_right(2, axes + "dtype=f16 causal=1 rope=before,kernel rope_pairing=interleaved");
}

TEST_F(MetalVariantsTest, RopeAloneAndCopiesAlone) {
  const std::string axes = "batch=2 q_heads=3 kv_heads=1 q_len=21 kv_len=33 head_dim=40 layout=bshd ";
  expect_right(1, axes + "task=rope dtype=bf16 rotary_dim=24 rope_angles=computed");
  expect_right(1, axes + "task=expand dtype=f16");
}

}  // namespace
}  // namespace attn
