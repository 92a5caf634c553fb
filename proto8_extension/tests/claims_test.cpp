// The claims and the sweep on made-up results.
#include "proto8_extension/claims.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "common/testing/claims.h"
#include "proto8_extension/problem.h"
#include "proto8_extension/sweep.h"

namespace attn {
namespace {

// A direct call takes 4 us, a call on another path half a microsecond more. A first call takes 1 ms from disk or from
// an archive, and 100 ms with the compiler.
double extension_seconds(const Measurement& result) {
  if (result.config.text("task") == "first_call") return result.config.text("from") == "compiler" ? 0.1 : 1e-3;
  return result.config.text("path") == "direct" ? 4e-6 : 4.5e-6;
}

TEST(ExtensionClaimsTest, OfMadeUpResults) {
  test::MadeUp made{.spec = extension_experiment(), .device = test::avx2(), .seconds = extension_seconds};
  made.spec.plan = [](const Case&, const Setting&) {  // PyTorch need not be there
    CasePlan plan;
    plan.host = true;
    return plan;
  };
  made.also = [](Measurement& result) {
    result.values = {{"allocations", result.config.text("path") == "direct" ? 2 : 3}};
  };
  const test::Judged judged(made, "full");
  test::expect_claims({judged}, {{"c_overhead", "path", "supported"},
                                 {"dlpack_overhead", "path", "supported"},
                                 {"concept_overhead", "path", "supported"},
                                 {"torch_overhead", "path", "supported"},
                                 {"copies_overhead", "path", "refuted"},
                                 {"dispatch", "", "supported"},
                                 {"allocations", "", "refuted"},
                                 {"break_even", "path", "refuted"},
                                 {"first_call_archive", "", "supported"},
                                 {"first_call_disk", "", "supported"},
                                 {"first_call_compiler", "", "supported"}});
  std::map<std::string, int> found;
  for (const Conclusion& conclusion : made.conclusions(judged.results, judged.comparisons)) {
    ++found[conclusion.hypothesis];
    if (conclusion.hypothesis == "c_overhead") {
      EXPECT_NEAR(conclusion.estimate.value, 0.5, 1e-9) << "not the difference of the two times in microseconds";
      EXPECT_NEAR(conclusion.values["contender_us"].get<double>(), 4.5, 1e-9);
    } else if (conclusion.hypothesis == "allocations") {
      EXPECT_EQ(conclusion.estimate.value, 1);
      EXPECT_TRUE(conclusion.exact);
    }
  }
  EXPECT_GT(found["c_overhead"], 0);
  EXPECT_GT(found["allocations"], 0);
}

TEST(ExtensionSweepTest, FullHoldsQuick) { test::expect_sweep(extension_experiment()); }

TEST(ExtensionPlanTest, ADeviceWithoutTheEmptyKernelSkipsTheCase) {
  DeviceInfo device = test::avx2();
  Case config;
  config.set("op", std::string("empty"));
  complete_extension(config, device);
  EXPECT_EQ(skip_reason(extension_plan(config, {device}), device), std::nullopt);
  Operations operations = *device.operations;
  operations.kernel_ending = "other.cpp";
  device.operations = &operations;
  EXPECT_EQ(skip_reason(extension_plan(config, {device}), device),
            "this device has no kernel for common/api/kernels/empty");
}

}  // namespace
}  // namespace attn
