// A device that runs nothing and records its launches, for tests that the launches of a plan are made.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/device/device.h"
#include "common/device/pipeline_cache.h"
#include "common/testing/plain_devices.h"

namespace attn::test {

/// A launch as a device sees it.
struct Ran {
  std::string kernel;  // its key, which has all of its function constants
  Grid grid;
  uint32_t threads = 1;
  size_t threadgroup_bytes = 0;

  bool operator==(const Ran&) const = default;
  friend void PrintTo(const Ran& ran, std::ostream* out) {
    *out << fmt::format("{} on {} x {} x {} threadgroups of {} threads and {} bytes", ran.kernel, ran.grid.x,
                        ran.grid.y, ran.grid.z, ran.threads, ran.threadgroup_bytes);
  }
};

class IdleDevice : public HostMemoryDevice {
 public:
  explicit IdleDevice(DeviceInfo info) { info_ = std::move(info); }

  std::unique_ptr<Kernel> load(const Binary& binary, const std::string&) override {
    return std::make_unique<Named>(binary.key);
  }
  std::vector<double> submit(const CommandEncoder& encoder) override {
    for (const CommandEncoder::Command& command : encoder.commands()) {
      const auto* const dispatch = std::get_if<CommandEncoder::Dispatch>(&command);
      if (!dispatch) continue;
      ran.push_back({static_cast<const Named*>(dispatch->kernel)->key, dispatch->grid, dispatch->threads,
                     dispatch->threadgroup_bytes});
    }
    return std::vector<double>(std::max<size_t>(encoder.timestamps(), 1) - 1);
  }

  /// Calls encode(encoder) twice, and returns the launches of the second call: the first may also encode launches of no
  /// plan, for example for the lists of key blocks of a mask.
  template <typename Encode>
  std::vector<Ran> runs_of(const Encode& encode) {
    CommandEncoder first, encoder;
    encode(first);
    ran.clear();
    encode(encoder);
    submit(encoder);
    return ran;
  }

  std::vector<Ran> ran;

 private:
  struct Named : Kernel {
    explicit Named(std::string name) : key(std::move(name)) {}
    std::string key;
  };
};

inline std::vector<Ran> planned(const Plan& plan) {
  std::vector<Ran> launches;
  for (const Launch& launch : plan.launches) {
    launches.push_back({launch.source.key(), launch.grid, launch.threads, launch.threadgroup_bytes});
  }
  return launches;
}

/// Calls visit(changed, text) for each function constant of each launch. `changed` is the plan with only this constant
/// changed; `text` names the change.
template <typename PlanOrCasePlan, typename Visit>
void for_each_changed(const PlanOrCasePlan& plan, const Visit& visit) {
  for (size_t i = 0; i < plan.launches.size(); ++i) {
    for (const auto& [name, value] : plan.launches[i].source.constants) {
      PlanOrCasePlan changed = plan;
      changed.launches[i].source.constants[name] = value + 1;
      visit(changed, fmt::format("{} of {} is {}", name, plan.launches[i].phase, value + 1));
    }
  }
}

/// Changes each function constant of the plan in turn, and expects that the launch of make_launch(device, pipelines,
/// changed plan), encoded by encode(launch, encoder), runs the kernels of the changed plan on its grids.
template <typename MakeLaunch, typename Encode>
void expect_plan_runs(const DeviceInfo& info, const Plan& plan, const MakeLaunch& make_launch, const Encode& encode) {
  SCOPED_TRACE(info.spec);
  ASSERT_EQ(plan.unable, "");
  ASSERT_FALSE(plan.launches.empty());
  for_each_changed(plan, [&](const Plan& changed, const std::string& what) {
    IdleDevice device(info);
    PipelineCache pipelines(device, "");
    const auto launch = make_launch(device, pipelines, changed);
    EXPECT_EQ(device.runs_of([&](CommandEncoder& encoder) { encode(launch, encoder); }), planned(changed)) << what;
  });
}

}  // namespace attn::test
