// Tests Metal's kernels of linear attention on the emulated device.
#include "common/testing/metal.h"

#include "common/testing/user_texts.h"

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

TEST_F(MetalLinearTest, Fused) {
  const std::string axes = std::string(odd_shape) + "variant=fused chunk=64 segments=0 ";
  expect_right(1, axes + "causal=1 gate=channel normalised=0 feature=identity dtype=f32");
  expect_right(1, axes + "causal=0 gate=none normalised=1 feature=elu1 dtype=bf16");
}

TEST_F(MetalLinearTest, Recurrent) {
  expect_right(1, std::string(odd_shape) +
                      "variant=recurrent chunk=0 causal=1 gate=head normalised=0 feature=identity dtype=f32");
}

TEST_F(MetalLinearTest, AFeatureMapOfTheUsers) {
  std::string text = "float feature(float x) { return x * x + 0.5f * expf(-x * x); }\n";
  for (const std::string& line : test::lines_with_kernels_names) text += line + "\n";
  write_text("f.cpp", text);
  const test::Outcome outcome = run_line(
      "--device metal:emulated --only verify --feature-function f.cpp --axis batch=2 --axis heads=1 --axis q_len=37 "
      "--axis head_dim=24 --axis value_dim=40 --axis causal=1 --axis gate=none --axis variant=recurrent --axis "
      "dtype=f32");
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
}

TEST_F(MetalLinearTest, BudgetsOfTheStudy) {
  const std::string text = dry_run(
      "variant=phases scan=passes head_dim=64,128 chunk=16,32 q_len=256 dtype=f32 causal=1 "
      "gate=none normalised=0 feature=identity layout=bhsd lengths=equal state=0");
  for (const char* kilobytes : {"8", "16", "32"}) {
    EXPECT_NE(text.find(fmt::format("the study's kernel {} KB, ours ", kilobytes)), std::string::npos) << text;
  }
}

class MetalFullLinearTest : public MetalLinearTest {};

TEST_F(MetalFullLinearTest, ChunksGatesAndDimensions) {
  const std::string axes = "batch=1 heads=2 q_len=83 layout=bshd lengths=equal state=1 feature=identity ";
  expect_right(6, axes +
                      "variant=phases scan=passes chunk=16,32 head_dim=64 value_dim=64 causal=1 normalised=0 "
                      "gate=none,token,channel dtype=f32");
  expect_right(3, axes +
                      "variant=fused chunk=64 segments=0 head_dim=64 value_dim=72 causal=1 normalised=0 "
                      "gate=none,head,token dtype=f16");
  expect_right(1, axes +
                      "variant=fused chunk=64 segments=0 head_dim=256 value_dim=40 causal=1 normalised=0 "
                      "gate=channel dtype=f32");
  expect_right(1,
               "batch=1 heads=2 q_len=83 layout=bshd lengths=equal state=1 feature=elu1 variant=fused chunk=64 "
               "segments=0 head_dim=64 value_dim=72 causal=1 normalised=1 gate=token dtype=f32");
  expect_right(
      2, axes + "variant=recurrent chunk=0 head_dim=8,128 value_dim=72 causal=1 normalised=0 gate=token dtype=f16");
}

}  // namespace
}  // namespace attn
