// An experiment for hang_test.cpp whose cases launch no kernel (HostProblem). Some of the cases hang. The axis
// `variant` says how a case hangs, and in which process.
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "common/experiment/experiment.h"
#include "common/testing/idle_device.h"

namespace attn {
namespace {

class HangingProblem : public HostProblem {
 public:
  HangingProblem(std::string variant, bool is_part) : variant_(std::move(variant)), is_part_(is_part) {}
  double sample() override {
    if (variant_ == "stops" || (variant_ == "stops_in_part" && is_part_)) raise(SIGSTOP);
    for (volatile int turns = 0; variant_ == "loops";) turns = turns + 1;
    return 1e-3;
  }
  Check check() override {
    Check check;
    check.ok = true;
    check.rows_checked = 1;
    return check;
  }

 private:
  const std::string variant_;
  const bool is_part_;
};

ExperimentSpec hanging_spec() {
  ExperimentSpec spec;
  spec.name = "hanging_experiment";
  spec.most_silent_s = 1;
  spec.axes = {
      {.name = "n", .help = "group", .choices = {}, .min = 1, .max = 9},
      {.name = "variant", .help = "how the case hangs", .choices = {"good", "stops", "loops", "stops_in_part"}}};
  spec.compared_axes = {"variant"};
  spec.claims = [](const DeviceInfo&) {
    return std::vector<Claim>{{.hypothesis = {"stops_in_part", "a test", "ratio of medians", "<", 1.0, "a test"},
                               .varies = {"variant"},
                               .pick = steps("variant", {{"good", "stops_in_part"}}),
                               .subject = subject_without({"variant"}),
                               .title = "a test",
                               .content = "a test",
                               .advice = {"a test", "a test"}}};
  };
  spec.sweep = [](const std::string&, const DeviceInfo&) {
    return Sweep{{{{"n", {int64_t{1}, int64_t{2}}}, {"variant", {std::string("good")}}}}};
  };
  spec.plan = [](const Case&, const Setting&) { return Plan{.host = true}; };
  spec.make_host = [](Experiment& lab, const Case& config, const Plan&) {
    return std::make_unique<HangingProblem>(config.text("variant"), lab.is_part());
  };
  return spec;
}

}  // namespace
}  // namespace attn

int main(int argc, char** argv) {
  using namespace attn;
  const ExperimentSpec spec = hanging_spec();
  const auto body = [&](Experiment& lab) {  // the device has no ceilings, so nothing is concluded
    for (const auto& cases : lab.groups()) lab.measure(lab.verify(cases));
    lab.compare(duels(spec.claims(lab.device().info()), lab.results()));
    return 0;
  };
  return run_experiment(argc, argv, spec, body, [](std::string_view) {
    DeviceInfo info;
    info.spec = info.backend = info.name = "idle";
    return std::make_unique<test::IdleDevice>(info);
  });
}
