// Metal's kernels of linear attention on the emulated device.
#include "common/testing/metal_runs.h"
#include "common/testing/user_texts.h"

namespace attn::test {

const std::string odd_linear = "batch=2 heads=1 q_len=37 head_dim=24 value_dim=40 layout=bhsd lengths=equal state=1 ";
const std::string phases = odd_linear + "variant=phases scan=passes chunk=16 ";
const std::string fused = odd_linear + "variant=fused chunk=64 segments=0 ";
const std::string longer = "batch=1 heads=2 q_len=83 layout=bshd lengths=equal state=1 causal=1 ";
const std::string plain = longer + "feature=identity normalised=0 ";

INSTANTIATE_TEST_SUITE_P(
    Metal, MetalRuns,
    testing::ValuesIn(runs_of(
        "proto6_linear",
        {{"PhasesGatedByChannel", 1, phases + "causal=1 gate=channel normalised=0 feature=identity dtype=f32"},
         {"PhasesNormalised", 1, phases + "causal=1 gate=token normalised=1 feature=elu1 dtype=f16"},
         {"PhasesNotCausal", 1, phases + "causal=0 gate=none normalised=1 feature=elu1 dtype=bf16"},
         {"Fused", 1, fused + "causal=1 gate=channel normalised=0 feature=identity dtype=f32"},
         {"FusedNotCausal", 1, fused + "causal=0 gate=none normalised=1 feature=elu1 dtype=bf16"},
         {"Recurrent", 1,
          odd_linear + "variant=recurrent chunk=0 causal=1 gate=head normalised=0 feature=identity dtype=f32"}})),
    run_name);

INSTANTIATE_TEST_SUITE_P(
    MetalFull, MetalRuns,
    testing::ValuesIn(runs_of(
        "proto6_linear",
        {{"Phases", 6,
          plain + "variant=phases scan=passes chunk=16,32 head_dim=64 value_dim=64 gate=none,token,channel dtype=f32"},
         {"FusedGates", 3,
          plain + "variant=fused chunk=64 segments=0 head_dim=64 value_dim=72 gate=none,head,token dtype=f16"},
         {"FusedWide", 1, plain + "variant=fused chunk=64 segments=0 head_dim=256 value_dim=40 gate=channel dtype=f32"},
         {"FusedNormalised", 1,
          longer + "feature=elu1 variant=fused chunk=64 segments=0 head_dim=64 value_dim=72 normalised=1 "
                   "gate=token dtype=f32"},
         {"RecurrentDimensions", 2,
          plain + "variant=recurrent chunk=0 head_dim=8,128 value_dim=72 gate=token dtype=f16"}})),
    run_name);

class MetalLinearTest : public MetalProgramTest {
 protected:
  MetalLinearTest() : MetalProgramTest("proto6_linear") {}
};

TEST_F(MetalLinearTest, AFeatureMapOfTheUsers) {
  std::string text = "float feature(float x) { return x * x + 0.5f * expf(-x * x); }\n";
  for (const std::string& line : lines_with_kernels_names) text += line + "\n";
  write_text("f.cpp", text);
  const Outcome outcome = run_line(
      "--device metal:emulated --only verify --feature-function f.cpp --axis batch=2 --axis heads=1 --axis q_len=37 "
      "--axis head_dim=24 --axis value_dim=40 --axis causal=1 --axis gate=none --axis variant=recurrent --axis "
      "dtype=f32");
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
}

TEST_F(MetalLinearTest, BudgetsOfTheStudy) {
  const std::string text = dry_run(
      "variant=phases scan=passes head_dim=64,128 chunk=16,32 q_len=256 dtype=f32 causal=1 "
      "gate=none normalised=0 feature=identity layout=bhsd lengths=equal state=0");
  for (const char* kilobytes : {" 8  8.5\n", " 16  8.5\n", " 32  16.5\n"}) {
    EXPECT_NE(text.find(kilobytes), std::string::npos) << text;
  }
}

}  // namespace attn::test
