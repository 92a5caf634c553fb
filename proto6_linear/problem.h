// One problem of proto6_linear: random inputs, a launch of linear or softmax attention on them, and the check of its
// results.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/attention/flash.h"
#include "common/cases/feature_oracle.h"
#include "common/experiment/experiment.h"
#include "common/linear/launch.h"
#include "proto6_linear/reference.h"

namespace attn {

/// The command-line option that names the file of the user's feature map.
inline constexpr const char* feature_option = "--feature-function";

/// The values of a case of proto6_linear, typed.
struct LinearCase {
  LinearConfig linear;
  bool softmax = false;  // variant softmax: softmax attention in the place of linear attention
  Layout layout = Layout::bhsd;
  bool with_state = false;  // the case has initial and final states
  /// How the logarithms of decays are drawn: "usual", or in tests "weak" (almost nothing decays), "strong" (almost
  /// everything decays within one token) or "mixed" (each is 0, -1, -5, -7, -20 or -26).
  std::string decay = "usual";
  FlashConfig flash = {};  // for variant softmax: the result of softmax_attention()

  /// Throws BadInput for a value that is not allowed, and as function_of_case() does.
  static LinearCase from(const Case& config, const Files& files = {});
  /// Returns the number of tokens of each sequence, which the seed of a run does not change. Of several ragged
  /// sequences the first has `linear.tokens` tokens, the one with the index `sequences / 2` has none, and the others
  /// have 1 to `linear.tokens`.
  std::vector<int64_t> sequence_lengths() const;
  bool same_inputs(const LinearCase& other) const;
};

/// Returns softmax attention on the same inputs: the first of wgmma, mma_sync, tuned and naive that the device can run,
/// with its default tile.
FlashConfig softmax_attention(const LinearCase& config, const DeviceInfo& device);

Plan linear_plan(const LinearCase& config, const DeviceInfo& device);
/// plan.config<LinearCase>() is the typed case.
CasePlan linear_case_plan(const Case& config, const Setting& setting);

LinearInputs random_inputs(const LinearCase& config, uint64_t seed);

/// How far the oracles' outputs of softmax and linear attention are apart, on some rows of the same inputs.
struct SoftmaxDistance {
  double cosine = 0;    // mean over rows of the cosine of the angle between the two outputs
  double relative = 0;  // norm of the difference divided by norm of the softmax output (Euclidean, all rows together)
};

/// Inputs on the device, with the oracle's results. Cases for which LinearCase::same_inputs() holds share an object.
struct SharedInputs {
  SharedInputs(Device& device, PipelineCache& pipelines, const LinearCase& config, uint64_t seed);
  /// Takes `inputs` in the place of random inputs.
  SharedInputs(Device& device, PipelineCache& pipelines, const LinearCase& config, uint64_t seed, LinearInputs inputs);
  /// Returns the oracle's results, which the first call computes. `most_rows` is as in reference_linear(); 0 stands for
  /// affordable_rows(). Later calls ignore `most_rows`.
  const LinearReference& reference(int64_t most_rows = 0);
  /// Returns nothing for a shape that softmax attention cannot have (value_dim is not head_dim, or sequences are
  /// ragged), and for more than 131072 tokens.
  std::optional<SoftmaxDistance> softmax_distance();

  LinearCase config;
  uint64_t seed;
  LinearInputs inputs;
  Buffer q, k, v, gate, initial_state, initial_key_sum, starts;

 private:
  FeatureFunction feature_;
  std::optional<LinearReference> reference_;
  std::optional<std::optional<SoftmaxDistance>> distance_;
};

/// The outputs and final states of a launch, and the check of both.
class LinearOutputs {
 public:
  LinearOutputs(Device& device, std::shared_ptr<SharedInputs> inputs, const LinearCase& config);
  LinearTensors tensors() const;
  /// Returns the tensors with final states, also for a case without final states.
  LinearTensors tensors_with_states() const;
  void poison();
  /// Compares O with the oracle's results, and also the final states if the case has them.
  Check check();
  Check check_states();
  /// Returns the bytes of O, followed by the final states and the key sums if the case has them.
  std::vector<std::byte> bytes() const;
  Tensor o() const;
  std::vector<float> final_state() const;
  std::vector<float> final_key_sum() const;

  std::shared_ptr<SharedInputs> inputs;

 private:
  LinearCase config_;
  Buffer o_, final_state_, final_key_sum_;
};

/// The memory and the launch of a case.
class LinearLaunched {
 public:
  /// `plan` must be the plan of `config`. Throws as LinearLaunch's constructor does.
  LinearLaunched(Device& device, PipelineCache& pipelines, std::shared_ptr<SharedInputs> inputs,
                 const LinearCase& config, const Plan& plan);
  const LinearOutputs& outputs() const { return outputs_; }

 protected:
  /// Checks the outputs of a launch. For a case without final states, calls `launch` to launch the kernels once more,
  /// with final states, and compares these too. reference.cpp says which faults only the final states show.
  Check check_with(const std::function<void(const LinearTensors&)>& launch);

  Device& device_;
  LinearCase config_;
  LinearOutputs outputs_;
  LinearLaunch launch_;
};

class LinearProblem : public Problem, public LinearLaunched {
 public:
  using LinearLaunched::LinearLaunched;
  void encode(CommandEncoder& encoder) const override { launch_.encode(encoder, outputs_.tensors()); }
  void poison() override { outputs_.poison(); }
  Check check() override;
  Json values() const override;
};

/// A case whose scan runs on the host, between two launches: a sample also has the copies of the states to the host and
/// back.
class HostScanProblem : public HostProblem, public LinearLaunched {
 public:
  using LinearLaunched::LinearLaunched;
  double sample() override;
  Check check() override {
    return check_with([&](const LinearTensors& tensors) { run(tensors); });
  }
  /// Returns the median time of each part of a sample, and the bytes of the memory between phases.
  Json values() const override;

 private:
  struct Times {
    double all_s, device_s;
    LinearLaunch::HostScan scan;
  };
  Times run(const LinearTensors& tensors);

  std::vector<double> device_s_, down_s_, sum_s_, up_s_;
};

/// These make the experiment's problems. Cases with the same inputs share their tensors and the oracle's results.
std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const CasePlan&)> linear_problems();
std::function<std::unique_ptr<HostProblem>(Experiment&, const Case&, const CasePlan&)> host_scan_problems();

}  // namespace attn
