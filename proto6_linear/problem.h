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

/// The option of the command line for a file of the user's.
inline constexpr const char* feature_option = "--feature-function";

/// The values of a case of proto6_linear, typed.
struct LinearCase {
  LinearConfig linear;
  bool softmax = false;  // variant softmax: the project's attention kernel instead
  Layout layout = Layout::bhsd;
  bool with_state = false;  // initial and final states
  /// How log decays are drawn: "usual"; in tests also "weak" (nearly 0) and "strong" (nearly everything decays at
  /// once).
  std::string decay = "usual";
  FlashConfig flash = {};  // of softmax, as softmax_attention() gives it

  /// Throws BadInput for a case that makes no sense on any device.
  static LinearCase from(const Case& config, const Files& files = {});
  /// Tokens of each sequence, the same in every run. Ragged: the first sequence has all tokens, one of several has
  /// none.
  std::vector<int64_t> sequence_lengths() const;
  bool same_inputs(const LinearCase& other) const;
};

/// Softmax attention on the same inputs: the device's fastest kernel with its default tile, causal or full like the
/// case.
FlashConfig softmax_attention(const LinearCase& config, const DeviceInfo& device);

Plan linear_plan(const LinearCase& config, const DeviceInfo& device);
/// The plan of a LinearCase.
CasePlan linear_case_plan(const Case& config, const Setting& setting);

/// Seeded inputs.
LinearInputs random_inputs(const LinearCase& config, uint64_t seed);

/// How far softmax attention is from linear attention on the same inputs. Both outputs come from their oracles, over
/// some rows.
struct SoftmaxDistance {
  double cosine = 0;    // mean over rows of the cosine of the angle between the two outputs
  double relative = 0;  // size of the difference over size of the softmax output, all rows together
};

/// Inputs of one shape on the device, with the oracle's answer. The cases of one comparison share them.
struct SharedInputs {
  SharedInputs(Device& device, PipelineCache& pipelines, const LinearCase& config, uint64_t seed);
  /// Takes `inputs` in the place of random ones.
  SharedInputs(Device& device, PipelineCache& pipelines, const LinearCase& config, uint64_t seed, LinearInputs inputs);
  const LinearReference& reference();
  /// Nothing where the shape has no softmax attention (values of another width than keys, ragged sequences), or more
  /// than 131072 tokens.
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
  /// The bytes of O, then of the final states, then of the key sums.
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
  /// Runs `plan`, the plan of `config`. Throws as LinearLaunch does.
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

/// A case with scan host. A sample is the launch of chunk_h, the copy of the states to the host, the scan, the copy
/// back, and the launch of chunk_o.
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

/// Make the experiment's problems. Cases of one shape share their inputs and the oracle's answer.
std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const CasePlan&)> linear_problems();
std::function<std::unique_ptr<HostProblem>(Experiment&, const Case&, const CasePlan&)> host_scan_problems();

}  // namespace attn
