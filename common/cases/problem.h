// One attention problem on a device: tensors, the launch of one variant and tile, and its check.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
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
  /// `run_time`: as KernelSource has it. Throws as AttentionLaunch does.
  FlashProblem(Device& device, PipelineCache& pipelines, std::shared_ptr<FlashInputs> inputs, FlashConfig config,
               std::optional<AttentionHooks> hook = {}, std::set<std::string> run_time = {});

  void encode(CommandEncoder& encoder) const override { launch_.encode(encoder, tensors_); }
  void poison() override;
  Check check() override;
  void dump(const std::string& path) const override;

  /// Has launches read queries and keys elsewhere, with the strides of the inputs: rows before they are turned, say.
  void read(const void* q, const void* k) { tensors_.q = q, tensors_.k = k; }
  /// Scores may be off by this share of their size, beside what the hooks' texts add: where Q or K are rounded on the
  /// device, an element may round the other way than the oracle's.
  void allow_score_error(double share) { score_error_ = share; }
  /// Has check() say also what came of another problem, of the same kernel.
  void also(const Check& other) { others_.merge(other); }

  /// What the last launch wrote.
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

/// Makes problems of an experiment; cases of one shape share their tensors, and the oracle's answer. Each kernel is
/// also launched once on needles (InputKind) before it is timed, unless the tensors are the user's.
std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const Plan&)> flash_problems();

}  // namespace attn
