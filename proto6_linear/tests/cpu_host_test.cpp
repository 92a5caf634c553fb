// The kernels for hosts of every family: they compile, and vectors of every width compute what the oracle does.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "common/attention/tests/other_host.h"
#include "common/base/error.h"
#include "common/device/cpu/compiler.h"
#include "proto6_linear/tests/linear_run.h"

namespace attn {
namespace {

class LinearHosts : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(All, LinearHosts, testing::Values("x86-64-v2", "x86-64-v3", "graniterapids", "neoverse-n1"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST_P(LinearHosts, CompileEveryKernel) {
  const CpuTarget target = CpuTarget::named(GetParam());
  std::unique_ptr<CpuCompiler> compiler;
  try {
    compiler = std::make_unique<CpuCompiler>(target);
  } catch (const DeviceMissing& error) {
    GTEST_SKIP() << error.what();
  }
  DeviceInfo info = cpu_info(target);
  info.threadgroup_memory_bytes = 512 << 10;
  for (const auto& [variant, scan] :
       {std::pair{"phases", "passes"}, {"phases", "lookback"}, {"fused", "none"}, {"recurrent", "none"}}) {
    LinearConfig config = completed(small_case(variant, scan)).linear;
    config.gate = config.variant == "fused" ? GATE_CHANNEL : GATE_TOKEN;
    config.dtype = config.out_dtype = DType::bf16;
    const Plan plan = linear_plan(config, info, true);
    ASSERT_TRUE(plan.unable.empty()) << plan.unable;
    for (const Launch& launch : plan.launches) {
      EXPECT_FALSE(compiler->compile(launch.source).code.empty()) << launch.source.key();
    }
  }
}

TEST(LinearVectors, OfEveryWidth) {
  if (test::on_cuda) GTEST_SKIP() << "the device under test is no cpu";
  for (const auto& [width, registers] : {std::pair{1, 16}, {4, 32}, {8, 16}, {16, 32}}) {
    test::OtherHost host(test::device(), "other", static_cast<uint32_t>(width), static_cast<uint32_t>(registers));
    PipelineCache pipelines(host, "");
    for (const auto& [variant, gate] :
         {std::pair{"fused", GATE_TOKEN}, {"fused", GATE_CHANNEL}, {"recurrent", GATE_HEAD}}) {
      LinearCase config = small_case(variant);
      config.linear.gate = gate;
      config.linear.normalised = true;
      config = completed(config);
      LinearProblem problem(host, pipelines, std::make_shared<SharedInputs>(host, pipelines, config, 7), config);
      problem.poison();
      CommandEncoder encoder;
      problem.encode(encoder);
      host.submit(encoder);
      const Check check = problem.check();
      EXPECT_TRUE(check.ok) << width << " lanes: " << words(config) << ": " << check.worst;
    }
  }
}

}  // namespace
}  // namespace attn
