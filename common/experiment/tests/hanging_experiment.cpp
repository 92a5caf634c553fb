// An experiment for worker_test.cpp whose cases end their process or hang. The axis `variant` says how, and when.
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "common/base/platform.h"
#include "common/experiment/experiment.h"
#include "common/testing/idle_device.h"

namespace attn {
namespace {

void end_by(int signal) {
  std::signal(signal, SIG_DFL);
  raise(signal);
}

class HangingProblem : public HostProblem {
 public:
  HangingProblem(std::string variant, bool is_part) : variant_(std::move(variant)), is_part_(is_part) {}
  ~HangingProblem() override {
    if (variant_ == "crashes_later") end_by(SIGSEGV);
  }
  double sample() override {
    if (variant_ == "stops" || (variant_ == "stops_in_part" && is_part_)) raise(SIGSTOP);
    if (variant_ == "crashes") end_by(SIGSEGV);
    if (variant_ == "killed") raise(SIGKILL);
    if (variant_ == "exits") _exit(3);
    if (variant_ == "ignores") std::signal(SIGTERM, SIG_IGN), std::ofstream("ignores");
    for (volatile int turns = 0; variant_ == "loops" || variant_ == "ignores";) turns = turns + 1;
    return 1e-3;
  }
  Check check() override { return {.rows_checked = 1}; }

 private:
  const std::string variant_;
  const bool is_part_;
};

class IdleProblem : public Problem {
 public:
  void encode(CommandEncoder&) const override {}
  void poison() override {}
  Check check() override { return {.rows_checked = 1}; }
};

/// Its first compilation ends the process.
class CrashingDevice : public test::IdleDevice {
 public:
  using IdleDevice::IdleDevice;
  Binary compile(const KernelSource& source, const CompileOptions& options) override {
    if (std::exchange(first_, false) && !std::filesystem::exists("compiled")) {
      std::ofstream("compiled");
      end_by(SIGSEGV);
    }
    return IdleDevice::compile(source, options);
  }

 private:
  bool first_ = true;
};

ExperimentSpec hanging_spec() {
  ExperimentSpec spec;
  spec.name = "hanging_experiment";
  spec.most_silent_s = is_emulated() ? 10 : 1;  // a worker starts slowly in qemu
  spec.axes = {{.name = "n", .help = "group", .choices = {}, .min = 1, .max = 9},
               {.name = "variant",
                .help = "how the case ends",
                .choices = {"good", "stops", "loops", "crashes", "killed", "exits", "crashes_later", "ignores",
                            "stops_in_part", "compiles"}}};
  spec.compared_axes = {"variant"};
  spec.claims = [](const DeviceInfo&) {
    return std::vector<Claim>{{.hypothesis = {"stops_in_part", "a test", "ratio of medians", "<", 1.0, "a test"},
                               .varies = {"variant"},
                               .pick = steps("variant", {{"good", "stops_in_part"}})}};
  };
  spec.sweep = [](const std::string&, const DeviceInfo&) {
    return Sweep{{{{"n", {int64_t{1}, int64_t{2}}}, {"variant", {std::string("good")}}}}};
  };
  spec.plan = [](const Case& config, const Setting&) -> Plan {
    if (config.text("variant") != "compiles") return {.host = true};
    return {.launches = {{.source = {"common/device/kernels/ceiling.cpu.cpp", "run", {}, {}}}}};
  };
  spec.make = [](Experiment&, const Case&, const Plan&) { return std::make_unique<IdleProblem>(); };
  spec.make_host = [](Experiment& lab, const Case& config, const Plan&) {
    return std::make_unique<HangingProblem>(config.text("variant"), lab.is_part());
  };
  spec.file_options = {{"--text", "a text of the user", [](const std::string&) { return std::vector<Axis>(); }}};
  spec.prepare = [](Experiment& lab) {
    if (lab.file("--text") == "bad") end_by(SIGSEGV);
  };
  return spec;
}

}  // namespace
}  // namespace attn

int main(int argc, char** argv) {
  using namespace attn;
  const ExperimentSpec spec = hanging_spec();
  const auto body = [&](Experiment& lab) {  // the device has no ceilings, so nothing is concluded
    lab.measure(lab.groups());
    lab.compare(duels(spec.claims(lab.info()), lab.results()));
    return 0;
  };
  return run_experiment(argc, argv, spec, body, [](std::string_view) {
    DeviceInfo info;
    info.spec = info.backend = info.name = "idle";
    info.on_host = true;
    return std::make_unique<CrashingDevice>(info);
  });
}
