// Tests that the cpu kernels compile for hosts of several families, and that they agree with the oracle with vectors of
// several widths and with stores that bypass the caches.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/attention/tests/other_host.h"
#include "common/testing/other_cpus.h"
#include "proto6_linear/tests/linear_run.h"

namespace attn {
namespace {

using LinearHosts = test::OtherCpus;

INSTANTIATE_TEST_SUITE_P(All, LinearHosts, testing::Values("x86-64-v2", "x86-64-v3", "neoverse-n1"),
                         test::OtherCpus::name_of);

TEST_P(LinearHosts, CompileEveryKernel) {
  for (const auto& [variant, scan] :
       {std::pair{"phases", "passes"}, {"phases", "lookback"}, {"fused", "none"}, {"recurrent", "none"}}) {
    LinearConfig config = completed(small_case(variant, scan)).linear;
    config.gate = config.variant == "fused" ? GATE_CHANNEL : GATE_TOKEN;
    config.dtype = config.out_dtype = DType::bf16;
    const Plan plan = linear_plan(config, info, true);
    ASSERT_TRUE(plan.unable.empty()) << plan.unable;
    for (const Launch& launch : plan.launches) {
      expect_compiles(launch.source);
    }
  }
}

/// A host whose last-level cache has one byte, so that kernels store states with instructions that bypass the caches.
class WithoutCaches : public test::OtherHost {
 public:
  WithoutCaches() : OtherHost(test::device(), "other", test::device().info().simd_width, 32) {
    info_.last_level_cache_bytes = 1;
  }
};

std::string difference_on(Device& host, const LinearCase& config) {
  PipelineCache pipelines(host, "");
  LinearProblem problem(host, pipelines, std::make_shared<SharedInputs>(host, pipelines, config, 7), config,
                        linear_plan(config, host.info()));
  const Check check = test::launched(problem, host);
  return check.ok ? "" : check.worst;
}

TEST(LinearVectors, StoreStatesPastTheCaches) {
  if (test::on_cuda) GTEST_SKIP() << "the device under test is no cpu";
  WithoutCaches host;
  for (const int64_t tokens : {1, 3}) {
    for (const int64_t value_dim : {40, 128}) {
      LinearCase config = small_case("recurrent");
      config.linear.tokens = tokens;
      config.linear.value_dim = value_dim;
      config = completed(config);
      const Plan plan = linear_plan(config.linear, host.info(), true);
      EXPECT_EQ(plan.launches.front().source.constants.at("STREAM"), 1);
      EXPECT_EQ(difference_on(host, config), "") << words(config);
    }
  }
}

TEST(LinearVectors, OfSeveralWidths) {
  if (test::on_cuda) GTEST_SKIP() << "the device under test is no cpu";
  for (const auto& [width, registers, gates] : {std::tuple{1, 16, std::vector{GATE_TOKEN}},
                                                {4, 32, std::vector{GATE_CHANNEL}},
                                                {8, 16, std::vector{GATE_TOKEN, GATE_CHANNEL}}}) {
    test::OtherHost host(test::device(), "other", static_cast<uint32_t>(width), static_cast<uint32_t>(registers));
    for (const Gate gate : gates) {
      for (const char* variant : {"fused", "recurrent"}) {
        if (width == 8 && std::string(variant) == "recurrent") continue;
        LinearCase config = small_case(variant);
        config.linear.gate = gate;
        config.linear.normalised = true;
        config = completed(config);
        EXPECT_EQ(difference_on(host, config), "") << width << " lanes: " << words(config);
      }
    }
  }
}

}  // namespace
}  // namespace attn
