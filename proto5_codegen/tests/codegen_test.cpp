// Tests that every generator's kernels agree with the oracle, and that the checks notice changed inputs and mutated
// kernels.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/testing/mutated_sources.h"
#include "common/testing/some.h"
#include "proto5_codegen/tests/codegen_mutations.h"
#include "proto5_codegen/tests/codegen_run.h"
#include "proto5_codegen/tuning.h"

namespace attn {
namespace {

using test::checked;
using test::codegen_case;

constexpr CodegenWork works[] = {WORK_SCORES, WORK_SOFTMAX, WORK_VALUES, WORK_ATTENTION, WORK_MODIFIED};

using CodegenTest = test::OnDevice<testing::Test>;

/// Returns the generators that have a kernel for a work on `tokens` tokens on the device under test. On a GPU some
/// generators take only multiples of 4, 8 or 16 tokens.
std::vector<std::string> generators(CodegenWork work, int64_t tokens) {
  std::vector<std::string> able;
  for (const std::string& generator : generators_of(test::device().info())) {
    if (codegen_plan(codegen_case(work, generator, tokens), test::device().info()).unable.empty())
      able.push_back(generator);
  }
  return able;
}

// The lengths are 1 row, fewer rows than a tile, a multiple of 64, and a number that no tile divides.
TEST_F(CodegenTest, EveryKernelAgreesWithTheOracle) {
  test::Some some(7);
  for (const CodegenWork work : works) {
    for (const int64_t tokens : {1, 37, 192, 301}) {
      for (const std::string& generator : generators(work, tokens)) {
        for (const int64_t head_dim : {64, 128}) {
          if (work == WORK_SOFTMAX && head_dim == 128) continue;
          for (const bool causal : {false, true}) {
            const CodegenCase one = codegen_case(work, generator, tokens, head_dim, causal);
            if ((causal && !one.whole()) || some.skips()) continue;
            const Check check = checked(one);
            EXPECT_TRUE(check.ok) << tuning_key(one) << " " << generator << ", " << tokens
                                  << " tokens: " << check.worst;
          }
        }
      }
    }
  }
}

// The inputs are so large that scores of an attention are in the hundreds, and most weights are 0. Exponentials must
// neither overflow nor become NaN.
TEST_F(CodegenTest, LargeInputsAgreeWithTheOracle) {
  for (const CodegenWork work : works) {
    for (const std::string& generator : generators(work, 100)) {
      const Check check = checked(codegen_case(work, generator, 100, 64, true), 12);
      EXPECT_TRUE(check.ok) << work_names()[work] << " " << generator << ": " << check.worst;
    }
  }
}

// In each launch one tensor that the kernel reads differs from the oracle's tensor, in the last element.
TEST_F(CodegenTest, AChangedInputIsNoticed) {
  for (const CodegenWork work : works) {
    for (const std::string& generator : generators(work, 37)) {
      const CodegenCase one = codegen_case(work, generator, 37);
      const CodegenTensors oracle = random_tensors(one, 1);
      for (Tensor CodegenTensors::* tensor :
           {&CodegenTensors::q, &CodegenTensors::k, &CodegenTensors::v, &CodegenTensors::in}) {
        CodegenTensors changed = oracle;
        Tensor& values = changed.*tensor;
        if (values.count() == 0) continue;
        const int64_t last = values.count() - 1;
        values.store(last, values.load(last) + 1);
        EXPECT_FALSE(checked(one, changed, &oracle).ok) << work_names()[work] << " " << generator;
      }
    }
  }
}

TEST_F(CodegenTest, MutatedKernelsAreNoticed) {
  if (test::on_cuda) GTEST_SKIP() << "the mutations change kernels of the cpu dialect";
  for (const test::CodegenMutation& mutation : test::cpu_codegen_mutations()) {
    const test::MutatedSources sources(test::path_of(mutation.file), mutation.from, mutation.to);
    EXPECT_FALSE(test::checked_anew(test::case_of(mutation)).ok) << mutation.file << ": " << mutation.from;
  }
}

// Constants that a search may draw, and constants that a search found.
TEST_F(CodegenTest, SearchedConstantsComputeTheSame) {
  const DeviceInfo& device = test::device().info();
  for (const CodegenWork work : works) {
    for (const std::string& generator : generators(work, 100)) {
      CodegenCase one = codegen_case(work, generator, 100);
      const SearchSpace space = search_space(one, device);
      if (space.empty()) continue;
      int tried = 0;
      for (size_t step = 1; step < 200 && tried < 3; ++step) {
        for (size_t axis = 0; axis < space.size(); ++axis) {
          const auto& [name, values] = space[axis];
          one.constants[name] = values[step * (7 + axis) % values.size()];
        }
        if (!unfit(one, device, one.constants).empty() || skip_reason(codegen_plan(one, device), device)) continue;
        ++tried;
        const Check check = checked(one);
        EXPECT_TRUE(check.ok) << codegen_plan(one, device).launches.front().source.key() << ": " << check.worst;
      }
      EXPECT_GT(tried, 0) << work_names()[work] << " " << generator;
      one.constants = {};
      EXPECT_TRUE(checked(with_searched(one, device)).ok);
    }
  }
}

// SCHEDULE is 0 for the plain schedule, 1 for the autoscheduler's, and 2 for the tuned schedule.
TEST_F(CodegenTest, SourceLinesCountOneSchedule) {
  if (test::on_cuda) GTEST_SKIP() << "the schedules are for kernels of the cpu dialect";
  KernelSource shell{.path = "proto5_codegen/kernels/halide.cpu.cpp", .entry = "codegen_halide"};
  const auto lines = [&](int64_t schedule) {
    shell.fragments = {{.path = "proto5_codegen/kernels/halide_pipelines.py",
                        .entry = "halide_scores",
                        .constants = {{"SCHEDULE", schedule}}}};
    return source_lines(shell);
  };
  EXPECT_LT(lines(1), lines(0));
  EXPECT_LT(lines(0), lines(2));
  EXPECT_GT(lines(1), 5);
}

}  // namespace
}  // namespace attn
