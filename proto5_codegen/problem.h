// One problem of proto5_codegen: random inputs, a launch of a generator's kernel on them, and the check of the output.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "common/attention/launch.h"
#include "common/experiment/experiment.h"
#include "proto5_codegen/compiled_ahead.h"
#include "proto5_codegen/generators.h"
#include "proto5_codegen/reference.h"

namespace attn {

/// Returns the plan of a case, with its CodegenCase.
CasePlan codegen_case_plan(const Case& config, const Setting& setting);

/// Inputs of one work, shape and dtype on the device, with the oracle's results.
struct CodegenInputs {
  CodegenInputs(Device& device, const CodegenCase& config, uint64_t seed, CodegenTensors tensors);
  const CodegenReference& reference();

  CodegenCase config;
  uint64_t seed;
  CodegenTensors tensors;
  Buffer q, k, v, in, out, slopes;

 private:
  std::optional<CodegenReference> reference_;
};

class CodegenProblem : public Problem {
 public:
  /// `plan` is the case's plan. Throws CompileError, and BadInput if the device cannot run the plan.
  CodegenProblem(Device& device, PipelineCache& pipelines, std::shared_ptr<CodegenInputs> inputs,
                 const CodegenCase& config, const Plan& plan);
  void encode(CommandEncoder& encoder) const override;
  void poison() override { inputs_->out.poison(); }
  /// Compares the output of the last launch. If the case is_flash(), launches the kernel once more with log-sum-exps,
  /// and compares the results of this launch too. Measured launches write no log-sum-exps, because generated kernels
  /// have none.
  Check check() override;
  /// Returns facts for the record, for example the kernel's lines of source, and what is known about the search for its
  /// constants.
  Json values() const override;
  /// Returns the output of the last launch: [batch, heads, q_len, columns].
  Tensor output() const;

 private:
  /// Sets at_once_ on a CUDA device.
  void find_room(PipelineCache& pipelines);
  void encode_attention(CommandEncoder& encoder, float* lse) const;
  Check check_output() const;
  Check check_log_sum_exps();
  Json of_source() const;

  Device& device_;
  std::shared_ptr<CodegenInputs> inputs_;
  CodegenCase config_;
  Launch launch_;
  const Kernel* kernel_ = nullptr;            // takes CodegenParams, or the parameters that ahead_ describes
  int64_t at_once_ = 0;                       // threadgroups_at_once() on a CUDA device, else 0
  std::optional<AheadIndex> ahead_;           // for a generator whose kernels were compiled ahead of time
  std::optional<AttentionLaunch> attention_;  // for a case that is_flash(); kernel_ is then null
  Buffer hook_data_;
};

/// Makes the experiment's problems. Cases of one work, shape and dtype share their inputs and the oracle's results.
std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const CasePlan&)> codegen_problems();

}  // namespace attn
