// Compiles the kernels for a Hopper GPU, without a GPU, with the constants of the host's plans. The lines `Checked:` at
// the head of each kernel say which configurations compile without spills.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "common/linear/launch.h"
#include "common/linear/tests/linear_mutations.h"
#include "common/testing/cuda_compiler.h"
#include "common/testing/mutated_sources.h"
#include "common/testing/user_texts.h"

namespace attn {
namespace {

using LinearCudaCompileTest = test::CudaCompilerTest;

TEST_F(LinearCudaCompileTest, VariantsCompile) {
  using enum DType;
  struct Shape {
    DType dtype;
    int64_t head_dim, value_dim;
    Gate gate;
    bool normalised, causal;
    Feature feature;
  };
  UserFunction square{.name = "square.cpp",
                      .text = "float feature(float x) { return x * x + expf(-x * x); }\n",
                      .kind = FunctionKind::feature,
                      .guarded = true};
  for (const std::string& line : test::lines_with_kernels_names) square.text += line + "\n";
  for (const Shape& shape : {Shape{bf16, 16, 16, GATE_NONE, false, true, named_feature("relu")},
                             Shape{f32, 24, 40, GATE_CHANNEL, true, true, named_feature("elu1")},
                             Shape{f16, 72, 136, GATE_CHANNEL, true, true, named_feature("elu1")},
                             Shape{bf16, 64, 64, GATE_TOKEN, false, true, user_feature(square)}}) {
    for (const auto& [variant, scan] :
         {std::pair{"phases", "passes"}, {"phases", "lookback"}, {"fused", "none"}, {"recurrent", "none"}}) {
      LinearConfig config;
      config.variant = variant;
      config.scan = scan;
      config.sequences = config.heads = 2;
      config.tokens = 5000;
      config.all_rows = 10000;
      config.dtype = config.out_dtype = shape.dtype;
      config.head_dim = shape.head_dim;
      config.value_dim = shape.value_dim;
      config.gate = shape.gate;
      config.normalised = shape.normalised;
      config.causal = shape.causal;
      config.feature = shape.feature;
      if (shape.dtype == f32 && config.scan == "passes") continue;  // chunk_h and chunk_o are the same with lookback
      const Plan plan = linear_plan(config, test::hopper(), true);
      if (!plan.unable.empty()) continue;
      ASSERT_FALSE(skip_reason(plan, test::hopper())) << *skip_reason(plan, test::hopper());
      for (const Launch& launch : plan.launches) {
        EXPECT_NO_THROW(compiler_->compile(launch.source, {})) << launch.source.key();
      }
    }
  }
}

std::vector<test::LinearMutation> mutations_of_cuda() {
  std::vector<test::LinearMutation> mutations = test::linear_mutations(true);
  std::ranges::copy(test::long_mutations(true), std::back_inserter(mutations));
  return mutations;
}

// Tests in other files run the mutations on a GPU. The next test checks that the text that a mutation replaces is in
// the kernel; MutationsCompileToOtherCode checks that the mutated kernel compiles to other code.
TEST(LinearMutationTest, EachReplacesATextOfItsKernel) {
  for (const test::LinearMutation& mutation : mutations_of_cuda()) {
    EXPECT_NO_THROW(test::MutatedSources(mutation.file, mutation.from, mutation.to)) << mutation.what;
  }
}

TEST_F(LinearCudaCompileTest, MutationsCompileToOtherCode) {
  for (const test::LinearMutation& mutation : mutations_of_cuda()) {
    LinearConfig config;
    config.variant = mutation.variant;
    config.scan = config.variant == "phases" ? "passes" : "none";
    config.heads = 2;
    config.tokens = config.all_rows = 65536;
    config.head_dim = config.value_dim = mutation.head_dim;
    config.gate = mutation.gate;
    config.dtype = config.out_dtype = DType::bf16;
    const auto codes = [&] {
      std::vector<std::string> all;
      for (const Launch& launch : linear_plan(config, test::hopper(), true).launches) {
        if (launch.source.path == mutation.file) all.push_back(compiler_->compile(launch.source, {}).code_sha256);
      }
      return all;
    };
    const std::vector<std::string> unbroken = codes();
    EXPECT_FALSE(unbroken.empty()) << mutation.what;
    const test::MutatedSources mutated(mutation.file, mutation.from, mutation.to);
    EXPECT_NE(codes(), unbroken) << mutation.what;
  }
}

}  // namespace
}  // namespace attn
