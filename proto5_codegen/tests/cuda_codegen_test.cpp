// Tests that the kernels of every generator for GPUs agree with the oracle, and that the checks notice changed inputs
// and broken kernels.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/testing/devices.h"
#include "common/testing/mutated_sources.h"
#include "proto5_codegen/tests/codegen_mutations.h"
#include "proto5_codegen/tests/codegen_run.h"

namespace attn {
namespace {

using test::checked;
using test::codegen_case;

constexpr CodegenWork works_of_gpu[] = {WORK_SCORES, WORK_SOFTMAX, WORK_VALUES, WORK_ATTENTION, WORK_MODIFIED};

template <typename Test>
class OnGpu : public test::OnDevice<Test> {
 protected:
  void SetUp() override {
    if (!test::on_cuda) GTEST_SKIP() << "needs a GPU";
    test::OnDevice<Test>::SetUp();
  }
};

using GpuCodegenTest = OnGpu<testing::Test>;
using GpuGenerators = OnGpu<testing::TestWithParam<std::string>>;

INSTANTIATE_TEST_SUITE_P(All, GpuGenerators, testing::ValuesIn(generators_of(test::hopper())),
                         [](const auto& test) { return test.param; });

/// Calls `action` with a case of each work and dtype for which the generator takes `tokens` tokens. Returns the number
/// of cases.
template <typename Action>
int for_each_kernel(const std::string& generator, int64_t tokens, int64_t head_dim, bool causal, Action action) {
  int cases = 0;
  for (const CodegenWork work : works_of_gpu) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      CodegenCase one = codegen_case(work, generator, tokens, head_dim, causal);
      one.dtype = dtype;
      if (skip_reason(codegen_plan(one, test::device().info()), test::device().info())) continue;
      if ((causal && !one.whole()) || (head_dim == 128 && work == WORK_SOFTMAX)) continue;
      ++cases;
      SCOPED_TRACE(work_names()[work] + (dtype == DType::f32 ? " f32 " : " bf16 ") + std::to_string(tokens) +
                   " tokens, head_dim " + std::to_string(head_dim) + (causal ? ", causal" : ""));
      action(one);
    }
  }
  return cases;
}

/// Checks the generator's kernels against the oracle. Returns the number of cases, so that a test notices if too many
/// are skipped.
int check_all(const std::string& generator, const std::vector<int64_t>& lengths) {
  int cases = 0;
  for (const int64_t tokens : lengths) {
    for (const int64_t head_dim : {64, 128}) {
      for (const bool causal : {false, true}) {
        cases += for_each_kernel(generator, tokens, head_dim, causal, [](const CodegenCase& one) {
          const Check check = checked(one);
          EXPECT_TRUE(check.ok) << check.worst;
        });
      }
    }
  }
  return cases;
}

// The lengths are 1 key, fewer keys than a block, and a block with a part of another block.
TEST_P(GpuGenerators, ShortShapesAgree) { EXPECT_GT(check_all(GetParam(), {1, 16, 37, 144}), 40); }
TEST_P(GpuGenerators, MediumShapesAgree) { EXPECT_GT(check_all(GetParam(), {8, 129, 200, 301}), 39); }
// The lengths are several blocks and a part of a block, so that buffers and stages are used again.
TEST_P(GpuGenerators, LongerShapesAgree) { EXPECT_GT(check_all(GetParam(), {528, 1040}), 25); }

// One run changes the last element of a tensor that a kernel reads, and another run changes element 5 of the first row.
// For WORK_MODIFIED the second run changes element 5 of the last row: without a mask, ALiBi favours the last keys so
// much that no other keys count.
TEST_P(GpuGenerators, AnyChangedInputIsNoticed) {
  for_each_kernel(GetParam(), 144, 64, false, [](const CodegenCase& one) {
    const CodegenTensors oracle = random_tensors(one, 1);
    for (Tensor CodegenTensors::* tensor :
         {&CodegenTensors::q, &CodegenTensors::k, &CodegenTensors::v, &CodegenTensors::in}) {
      CodegenTensors changed = oracle;
      Tensor& values = changed.*tensor;
      if (values.count() == 0) continue;
      const int64_t early = one.work == WORK_MODIFIED ? values.count() - 64 + 5 : 5;
      for (const int64_t element : {values.count() - 1, early}) {
        changed = oracle;
        values.store(element, values.load(element) + 4);
        EXPECT_FALSE(checked(one, changed, &oracle).ok) << "element " << element;
      }
    }
  });
}

TEST_F(GpuCodegenTest, MutatedKernelsAreNoticed) {
  for (const test::CodegenMutation& mutation : test::cuda_codegen_mutations()) {
    const test::MutatedSources sources(test::path_of(mutation.file), mutation.from, mutation.to);
    EXPECT_FALSE(test::checked_anew(test::case_of(mutation)).ok) << mutation.file << ": " << mutation.from;
  }
}

}  // namespace
}  // namespace attn
