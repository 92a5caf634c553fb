// LinearLaunch runs the plan that it is given, and makes no plan itself.
#include "common/linear/launch.h"

#include <gtest/gtest.h>

#include "common/testing/devices.h"
#include "common/testing/idle_device.h"

namespace attn {
namespace {

void expect_form_runs(const DeviceInfo& info, const std::string& variant, const std::string& scan, int64_t chunk) {
  SCOPED_TRACE(variant + " " + scan);
  LinearConfig config;
  config.variant = variant;
  config.scan = scan;
  config.heads = 2;
  config.tokens = config.all_rows = 1024;
  config.chunk = chunk;
  test::expect_plan_runs(
      info, linear_plan(config, info, false),
      [&](Device& device, PipelineCache& pipelines, const Plan& plan) {
        return LinearLaunch(device, pipelines, config, plan);
      },
      [&](const LinearLaunch& launch, CommandEncoder& encoder) {
        alignas(16) static std::byte memory[16];  // no launch reads or writes it
        launch.encode(encoder, {.q = memory, .k = memory, .v = memory, .o = memory});
      });
}

TEST(LinearLaunchTest, VariantsRunTheirPlans) {
  for (const DeviceInfo& info : {test::avx2(), test::ampere()}) {
    if (info.on_host) expect_form_runs(info, "fused", "none", 64);  // on a GPU `fused` needs tensor maps
    expect_form_runs(info, "phases", "passes", 64);
    expect_form_runs(info, "phases", "lookback", 64);
    expect_form_runs(info, "recurrent", "none", 0);
  }
}

}  // namespace
}  // namespace attn
