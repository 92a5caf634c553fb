// Metal's kernels of linear attention on the emulated device.
#include "common/testing/metal.h"

namespace attn {
namespace {

class MetalLinearTest : public test::MetalProgramTest {
 protected:
  MetalLinearTest() : MetalProgramTest("proto6_linear") {}
};

constexpr const char* odd_shape =
    "batch=2 heads=1 q_len=37 head_dim=24 value_dim=40 layout=bhsd lengths=equal state=1 ";

TEST_F(MetalLinearTest, Phases) {
  const std::string axes = std::string(odd_shape) + "variant=phases scan=passes chunk=16 ";
  expect_right(1, axes + "causal=1 gate=channel normalised=0 feature=identity dtype=f32");
  expect_right(1, axes + "causal=1 gate=token normalised=1 feature=elu1 dtype=f16");
  expect_right(1, axes + "causal=0 gate=none normalised=1 feature=elu1 dtype=bf16");
}

TEST_F(MetalLinearTest, Recurrent) {
  expect_right(1, std::string(odd_shape) +
                      "variant=recurrent chunk=0 causal=1 gate=head normalised=0 feature=identity dtype=f32");
}

}  // namespace
}  // namespace attn
