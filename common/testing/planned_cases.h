// A check that the problems of an experiment run the plans of their cases.
#pragma once

#include <gtest/gtest.h>

#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "common/experiment/experiment.h"
#include "common/testing/devices.h"
#include "common/testing/idle_device.h"

namespace attn::test {

/// Takes the experiment's cases with these values of axes ("q_len=32 heads=1") that the device can run. Changes each
/// function constant of a case's plan in turn, and expects that the problem of the changed plan runs the kernels of the
/// changed plan on its grids.
inline void expect_problems_run_their_plans(const ExperimentSpec& experiment, const DeviceInfo& info,
                                            const std::string& axes) {
  SCOPED_TRACE(info.spec);
  std::istringstream words(axes);
  const std::vector<std::string> values(std::istream_iterator<std::string>(words), {});
  std::vector<const char*> argv = {"test", "--quiet"};
  for (const std::string& axis : values) argv.insert(argv.end(), {"--axis", axis.c_str()});
  const Options options = parse_options(static_cast<int>(argv.size()), argv.data(), experiment).value();
  IdleDevice* device = nullptr;
  Experiment lab(experiment, options, [&](std::string_view) {
    auto opened = std::make_unique<IdleDevice>(info);
    device = opened.get();
    return opened;
  });
  const ExperimentSpec spec = experiment;  // destroyed before the device, because `make` may keep buffers
  int changes = 0;
  std::unique_ptr<Problem> last;  // keeps the inputs for the next problem
  for (const std::vector<Case>& cases : select_cases(experiment, options, info)) {
    for (const Case& config : cases) {
      const CasePlan plan = spec.plan(config, {info, lab.files()});
      if (skip_reason(plan, info)) continue;
      for_each_changed(plan, [&](const CasePlan& changed, const std::string& what) {
        ++changes;
        std::vector<Ran> ran;
        if (plan.host) {
          const auto problem = spec.make_host(lab, config, changed);
          device->ran.clear();
          problem->sample();
          ran = device->ran;
        } else {
          auto problem = spec.make(lab, config, changed);
          ran = device->runs_of([&](CommandEncoder& encoder) { problem->encode(encoder); });
          last = std::move(problem);
        }
        EXPECT_EQ(ran, planned(changed)) << config.key() << ": " << what;
      });
    }
  }
  EXPECT_GT(changes, 0) << "no case runs on this device";
}

/// The same on a CPU and on a GPU whose launches need no driver.
inline void expect_problems_run_their_plans(const ExperimentSpec& experiment, const std::string& axes) {
  for (const DeviceInfo& info : {avx2(), ampere()}) expect_problems_run_their_plans(experiment, info, axes);
}

}  // namespace attn::test
