// One problem of proto6_linear: random queries, keys, values, gates and states, a form of linear attention or softmax
// attention on them, and its check.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
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

/// Of the command line: a file of the user's.
inline constexpr const char* feature_option = "--feature-function";

/// Everything a case of proto6_linear says, typed.
struct LinearCase {
  LinearConfig linear;
  bool softmax = false;  // variant softmax: the project's attention kernel instead
  Layout layout = Layout::bhsd;
  bool with_state = false;  // initial and final states
  /// Log decays, as they are drawn: "usual", or of tests "weak" (nearly 0) and "strong" (nearly all decays at once).
  std::string decay = "usual";
  FlashConfig flash = {};  // of softmax, as softmax_attention() gives it

  /// Throws BadInput for a case that makes no sense on any device.
  static LinearCase from(const Case& config, const Files& files = {});
  /// Tokens of each sequence; the same in every run. Ragged: the first has all, one of several none.
  std::vector<int64_t> sequence_lengths() const;
  bool same_inputs(const LinearCase& other) const;
};

/// Softmax attention of the same inputs: the device's fastest kernel with its default tile. Causal or full as the case.
FlashConfig softmax_attention(const LinearCase& config, const DeviceInfo& device);

Plan linear_plan(const LinearCase& config, const DeviceInfo& device);
/// The plan of a LinearCase.
CasePlan linear_case_plan(const Case& config, const Setting& setting);

/// Seeded inputs.
LinearInputs random_inputs(const LinearCase& config, uint64_t seed);

/// How far softmax attention of the same inputs is from linear attention, both by their oracles, over some rows.
struct SoftmaxDistance {
  double cosine = 0;    // mean over rows of the cosine of the angle between the two outputs
  double relative = 0;  // size of the difference over size of the softmax output, all rows together
};

/// Inputs of one shape on the device, with the oracle's answer: what the cases of one comparison share.
struct SharedInputs {
  SharedInputs(Device& device, PipelineCache& pipelines, const LinearCase& config, uint64_t seed);
  /// `inputs` in the place of random ones.
  SharedInputs(Device& device, PipelineCache& pipelines, const LinearCase& config, uint64_t seed, LinearInputs inputs);
  const LinearReference& reference();
  /// Nothing where the shape has no softmax attention (values of another width than keys, ragged).
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

/// Outputs and final states of a launch, and their check.
class LinearOutputs {
 public:
  LinearOutputs(Device& device, std::shared_ptr<SharedInputs> inputs, const LinearCase& config);
  LinearTensors tensors() const;
  void poison();
  Check check();
  /// O, and behind it final states and key sums, byte by byte.
  std::vector<std::byte> bytes() const;
  Tensor o() const;
  std::vector<float> final_state() const;
  std::vector<float> final_key_sum() const;

  std::shared_ptr<SharedInputs> inputs;

 private:
  LinearCase config_;
  Buffer o_, final_state_, final_key_sum_;
};

class LinearProblem : public Problem {
 public:
  /// Runs the plan, which is of this configuration. Throws as LinearLaunch does.
  LinearProblem(Device& device, PipelineCache& pipelines, std::shared_ptr<SharedInputs> inputs,
                const LinearCase& config, const Plan& plan);
  void encode(CommandEncoder& encoder) const override { launch_.encode(encoder, outputs_.tensors()); }
  void poison() override { outputs_.poison(); }
  Check check() override;
  Json values() const override;
  const LinearOutputs& outputs() const { return outputs_; }

 private:
  LinearCase config_;
  LinearOutputs outputs_;
  LinearLaunch launch_;
};

/// With scan host: a sample is the launch of chunk_h, the way of the states to the host and back with the scan between,
/// and the launch of chunk_o.
class HostScanProblem : public HostProblem {
 public:
  HostScanProblem(Device& device, PipelineCache& pipelines, std::shared_ptr<SharedInputs> inputs,
                  const LinearCase& config, const Plan& plan);
  double sample() override;
  Check check() override;
  /// Medians of the samples' parts: kernels on the device, copies, the scan.
  Json values() const override;
  const LinearOutputs& outputs() const { return outputs_; }

 private:
  Device& device_;
  LinearOutputs outputs_;
  LinearLaunch launch_;
  std::vector<double> device_s_, down_s_, sum_s_, up_s_;
};

/// Makes problems of the experiment; cases of one shape share their inputs, and the oracle's answer.
std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const CasePlan&)> linear_problems();
std::function<std::unique_ptr<HostProblem>(Experiment&, const Case&, const CasePlan&)> host_scan_problems();

}  // namespace attn
