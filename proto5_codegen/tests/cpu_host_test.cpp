// Tests that the kernels compile for other CPUs, and that kernels for vectors of other widths agree with the oracle.
// This CPU runs these kernels, because the compiler splits their vectors.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "common/attention/tests/other_host.h"
#include "common/testing/other_cpus.h"
#include "proto5_codegen/tests/codegen_run.h"

namespace attn {
namespace {

/// Calls action(case, plan) for a kernel of each work and generator on the host `info`.
template <typename Action>
void for_each_kernel(const DeviceInfo& info, const Action& action) {
  for (const CodegenWork work : {WORK_SCORES, WORK_SOFTMAX, WORK_VALUES, WORK_ATTENTION, WORK_MODIFIED}) {
    for (const std::string& generator : generators_of(info)) {
      const CodegenCase one = test::codegen_case(work, generator, 70, 64, true);
      const Plan plan = codegen_plan(one, info);
      if (plan.unable.empty()) action(one, plan);
    }
  }
}

using CodegenHosts = test::OtherCpus;

INSTANTIATE_TEST_SUITE_P(All, CodegenHosts, testing::Values("x86-64-v2", "x86-64-v3", "neoverse-n1"),
                         test::OtherCpus::name_of);

TEST_P(CodegenHosts, CompileEveryKernel) {
  for_each_kernel(info, [&](const CodegenCase&, const Plan& plan) { expect_compiles(plan.launches.front().source); });
}

// Each host has `registers` vector registers of `width` floats.
TEST(CodegenVectors, KernelsForEveryWidthAgreeWithTheOracle) {
  for (const auto& [width, registers] : {std::pair{4u, 16u}, {4u, 32u}, {8u, 16u}, {16u, 32u}}) {
    test::OtherHost host(test::device(), "other", width, registers);
    PipelineCache pipelines(host, "");
    for_each_kernel(host.info(), [&](const CodegenCase& one, const Plan& plan) {
      auto inputs = std::make_shared<CodegenInputs>(host, one, 1, random_tensors(one, 1));
      CodegenProblem problem(host, pipelines, inputs, one, plan);
      const Check check = test::launched(problem, host);
      EXPECT_TRUE(check.ok) << plan.launches.front().source.key() << ": " << check.worst;
    });
  }
}

}  // namespace
}  // namespace attn
