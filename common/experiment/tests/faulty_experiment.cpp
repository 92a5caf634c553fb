// An experiment in which some kernels fault or hang, for gpu_loop_test.cpp. The axis `variant` says what a kernel does.
// Each case writes 42 into a tensor that the cases of a group share.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/experiment/experiment.h"

namespace attn {
namespace {

// A late fault or hang comes after this many launches, while the case is timed. The check comes earlier.
constexpr int late = 8;

const char* const text = R"(
  struct Params { float* result; unsigned* launches; };
  extern "C" __global__ void run(const Params p) {
    if (atomicAdd(p.launches, 1u) >= LAUNCHES_BEFORE) {
      if (FAULTS) *reinterpret_cast<volatile int*>(64) = 1;
      while (HANGS) __nanosleep(1000);
    }
    *p.result = 42;
  })";

struct Params {
  void* result;
  void* launches;
};

class FaultyProblem : public Problem {
 public:
  FaultyProblem(Experiment& lab, const Plan& plan, std::shared_ptr<Buffer> result)
      : result_(std::move(result)),
        launches_(lab.device(), sizeof(unsigned)),
        kernel_(*lab.pipelines().get(plan.launches.front().source).kernel) {
    const unsigned none = 0;
    launches_.upload(&none, sizeof none);
  }
  void encode(CommandEncoder& encoder) const override {
    encoder.dispatch(kernel_, {}, 1, 0, Params{result_->data(), launches_.data()});
  }
  void poison() override { result_->poison(); }
  Check check() override {
    float value = 0;
    result_->download(&value, sizeof value);
    Check check;
    check.ok = value == 42;
    check.rows_checked = 1;
    if (!check.ok) check.worst = "got " + std::to_string(value);
    return check;
  }

 private:
  std::shared_ptr<Buffer> result_;
  Buffer launches_;
  const Kernel& kernel_;
};

ExperimentSpec faulty_spec() {
  ExperimentSpec spec;
  spec.name = "faulty_experiment";
  spec.axes = {{.name = "n", .help = "group", .choices = {}, .min = 1, .max = 9},
               {.name = "variant",
                .help = "what the kernel does",
                .choices = {"good", "fault", "late_fault", "hang", "late_hang", "fine"}}};
  spec.compared_axes = {"variant"};
  spec.sweep = [](const std::string&, const DeviceInfo&) {
    return Sweep{{{{"n", {int64_t{1}, int64_t{2}}}, {"variant", {std::string("good"), std::string("fine")}}}}};
  };
  spec.plan = [](const Case& config, const Setting&) -> Plan {
    const std::string &variant = config.text("variant"), path = "test/faulty.cuda.cu";
    if (config.integer("n") > 1 && variant.ends_with("hang")) return {.unable = "one hang is enough"};
    const FunctionConstants constants = {{"FAULTS", variant.ends_with("fault")},
                                         {"HANGS", variant.ends_with("hang")},
                                         {"LAUNCHES_BEFORE", variant.starts_with("late") ? late : 0}};
    return {.launches = {{.source = {path, "run", constants, {{path, text}}}}}, .work = {.flops = 1, .bytes = 4}};
  };
  spec.make = [last = std::weak_ptr<Buffer>()](Experiment& lab, const Case&, const Plan& plan) mutable {
    std::shared_ptr<Buffer> shared = last.lock();
    if (!shared) last = shared = std::make_shared<Buffer>(lab.device(), sizeof(float));
    return std::make_unique<FaultyProblem>(lab, plan, shared);
  };
  return spec;
}

}  // namespace
}  // namespace attn

int main(int argc, char** argv) {
  using namespace attn;
  return run_experiment(argc, argv, faulty_spec(), [](Experiment& lab) {
    lab.measure(lab.groups());
    return lab.conclude({});
  });
}
