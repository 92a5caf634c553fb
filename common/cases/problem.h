// One attention problem on a device: its tensors, the launch of one variant and tile, and the check of its outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/attention/launch.h"
#include "common/cases/inputs.h"
#include "common/cases/reference.h"
#include "common/data/compare.h"
#include "common/data/tensor.h"
#include "common/device/device.h"
#include "common/device/pipeline_cache.h"
#include "common/experiment/experiment.h"
#include "common/records/case.h"

namespace attn {

class FlashProblem : public Problem {
 public:
  /// encode() encodes the launch "attention" of `plan`, which must be the plan of `config` and `hook`. Throws as
  /// AttentionLaunch does.
  FlashProblem(Device& device, PipelineCache& pipelines, std::shared_ptr<FlashInputs> inputs, FlashConfig config,
               const Plan& plan, std::optional<AttentionHooks> hook = {});

  void encode(CommandEncoder& encoder) const override { launch_.encode(encoder, tensors_); }
  void poison() override;
  Check check() override;
  void dump(const std::string& path) const override;

  /// Makes launches read queries and keys from `q` and `k`, with the strides of the inputs.
  void read(const void* q, const void* k) { tensors_.q = q, tensors_.k = k; }
  /// Allows scores to be off by this share of their size, in addition to the hooks' score_error. Needed if another
  /// launch rounds Q or K on the device: the device may round an element to another neighbour than the oracle does.
  void allow_score_error(double share) { score_error_ = share; }
  /// Makes check() include the check of another problem.
  void also(const Check& other) { others_.merge(other); }

  /// Outputs of the last launch.
  Tensor output() const;
  std::vector<float> lse() const;

 private:
  std::shared_ptr<FlashInputs> inputs_;
  FlashConfig config_;
  std::optional<AttentionHooks> hook_;
  Buffer hook_buffer_;
  AttentionLaunch launch_;
  AttentionTensors tensors_;
  Check others_;
  double score_error_ = 0;
};

/// Returns a function that makes the problems of an experiment. Cases whose tensors have the same shapes, types and
/// layout share the tensors and the oracle's results. Each kernel is also checked once on needles (InputKind) before
/// the kernel is timed. There are no needles if the tensors come from the user's file, or if Experiment::is_part(): the
/// sweep of that run checks the kernels.
std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const CasePlan&)> flash_problems();

}  // namespace attn
