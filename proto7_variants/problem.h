// A problem of proto7_variants: attention with the hooks of the modifiers. With RoPE, launches that rotate Q and K may
// come before; with copies, a launch that copies key/value heads. The launches before attention can also run alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/attention/modifiers.h"
#include "common/cases/input_pool.h"
#include "common/cases/problem.h"
#include "common/experiment/experiment.h"
#include "proto7_variants/expand.h"
#include "proto7_variants/functions.h"
#include "proto7_variants/rotary_case.h"

namespace attn {

/// The values of a case of proto7_variants, typed.
struct VariantsConfig {
  /// "attention"; "rope": only the launches that rotate Q and K; "expand": only the launch that copies key/value heads.
  std::string task = "attention";
  FlashConfig flash;          // the result of modified_config()
  bool copies_heads = false;  // attention reads a copy of the key/value heads for each query head
  Modifiers modifiers;
  UserFunctions functions = {};
  std::string pointless = {};  // the reason why a modifier changes nothing in this case; else empty

  /// Returns the typed values of a case. Throws BadInput for a case that makes no sense on any device, and as
  /// UserFunctions::from() does.
  static VariantsConfig from(const Case& config, const Files& files = {});
  /// Returns the configuration of the attention kernel. With copies_heads the configuration has as many key/value heads
  /// as query heads.
  FlashConfig attention() const;
  bool has_hooks() const { return modifiers.change_kernel() || functions.score || functions.mask; }
};

/// Returns the plan of a case. With task "rope" or "expand" the plan has only the task's launches. If the case cannot
/// run, the plan's `unable` is the reason. The plan's work counts the arithmetic of each pair that no modifier hides,
/// even if the user's mask function hides the pair.
Plan variants_plan(const VariantsConfig& config, const DeviceInfo& device);
/// Returns the plan of a case. plan.config<VariantsConfig>() is the typed case.
CasePlan variants_case_plan(const Case& config, const Setting& setting);

/// The tensors of attention on copies: K and V have a copy of the shared key/value head for each query head.
struct CopiedInputs {
  /// `config`: the configuration of attention on the copies.
  CopiedInputs(Device& device, std::shared_ptr<FlashInputs> shared, const FlashConfig& config, uint64_t seed);

  std::shared_ptr<FlashInputs> of;
  FlashInputs copies;
};

/// The tensors of one shape and, with RoPE, of one way to rotate Q and K.
struct VariantsInputs {
  std::shared_ptr<FlashInputs> plain = {};
  std::shared_ptr<RotaryInputs> rotary = {};  // in place of `plain`
  std::shared_ptr<CopiedInputs> copied = {};  // in addition, where attention reads copies; else null

  /// Returns the tensors before the copies: the rotated tensors of `rotary`, or `plain`.
  std::shared_ptr<FlashInputs> shared() const;
};
struct VariantsPools {
  InputPool<FlashInputs> plain;
  InputPool<RotaryInputs> rotary;
  InputPool<CopiedInputs> copied;
};
/// Returns the inputs of a case: the tensors of the pools if they fit the case, else new tensors. `seed` and `path` are
/// as for FlashInputs.
VariantsInputs variants_inputs(Device& device, uint64_t seed, const std::string& path, const VariantsConfig& config,
                               VariantsPools& pools);

class VariantsProblem : public Problem {
 public:
  /// `plan` must be the plan of `config`.
  VariantsProblem(Device& device, PipelineCache& pipelines, VariantsInputs inputs, const VariantsConfig& config,
                  const Plan& plan);

  void encode(CommandEncoder& encoder) const override;
  void poison() override;
  Check check() override;
  void dump(const std::string& path) const override;
  /// Returns the work of a case with a mask function, and nothing for other cases. The plan does not have this work,
  /// because only the device can count the pairs that the function leaves.
  std::optional<Work> work() const override { return counted_; }

  /// Returns the last output of attention, or with task=rope the rotated Q.
  Tensor output() const { return attention_ ? attention_->output() : rotary_.value().rotated_q(); }

 private:
  VariantsInputs inputs_;
  std::optional<RotaryLaunches> rotary_;
  std::optional<HeadCopies> copies_;
  std::optional<FlashProblem> attention_;
  std::optional<Work> counted_;
};

/// Makes the experiment's problems. Cases that can use the same tensors or the same results of the oracle share them.
std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const CasePlan&)> variants_problems();

}  // namespace attn
