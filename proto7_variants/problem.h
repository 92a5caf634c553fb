// One problem of proto7_variants: the tuned kernels of common/attention with the hooks of modifiers.h, behind launches
// that turn Q and K, and that copy key/value heads; or these alone.
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

/// Everything a case of proto7_variants says, typed.
struct VariantsConfig {
  /// "rope": the launches that turn Q and K, and nothing else; "expand": the one that copies key/value heads.
  std::string task = "attention";
  FlashConfig flash;          // as modified_config has it
  bool copies_heads = false;  // attention reads a copy of the key/value heads for each query head
  Modifiers modifiers;
  UserFunctions functions = {};
  std::string pointless = {};  // why the case is no other than one without some modifier; empty where it is

  /// Throws BadInput for what makes no sense on any device, and as UserFunctions::from does.
  static VariantsConfig from(const Case& config, const Files& files = {});
  /// What the attention kernel computes: on copies there are as many key/value heads as query heads.
  FlashConfig attention() const;
  bool has_hooks() const { return modifiers.change_kernel() || functions.score || functions.mask; }
};

/// The launches that turn Q and K, the one that copies heads, then one of attention with its modifiers, and the
/// arithmetic of the pairs that no rule hides, those of a mask function among them; or why there is none.
Plan variants_plan(const VariantsConfig& config, const DeviceInfo& device);
/// The plan of a VariantsConfig.
CasePlan variants_case_plan(const Case& config, const Setting& setting);

/// Tensors with a copy of the key/value heads of others for each query head.
struct CopiedInputs {
  /// `config`: of attention on the copies.
  CopiedInputs(Device& device, std::shared_ptr<FlashInputs> shared, const FlashConfig& config, uint64_t seed);

  std::shared_ptr<FlashInputs> of;
  FlashInputs copies;
};

/// Tensors of one shape, and of one way to turn them, if they turn.
struct VariantsInputs {
  std::shared_ptr<FlashInputs> plain = {};
  std::shared_ptr<RotaryInputs> rotary = {};  // in place of `plain`
  std::shared_ptr<CopiedInputs> copied = {};  // beside them, or null

  /// With key/value heads that are shared.
  std::shared_ptr<FlashInputs> shared() const;
};
struct VariantsPools {
  InputPool<FlashInputs> plain = InputPool<FlashInputs>();
  InputPool<RotaryInputs> rotary = InputPool<RotaryInputs>();
  InputPool<CopiedInputs> copied = InputPool<CopiedInputs>();
};
/// The inputs of a case: from the pools where they fit, else new ones; `seed` and `path` as in FlashInputs.
VariantsInputs variants_inputs(Device& device, uint64_t seed, const std::string& path, const VariantsConfig& config,
                               VariantsPools& pools);

class VariantsProblem : public Problem {
 public:
  /// Runs the plan, which is of this configuration.
  VariantsProblem(Device& device, PipelineCache& pipelines, VariantsInputs inputs, const VariantsConfig& config,
                  const Plan& plan);

  void encode(CommandEncoder& encoder) const override;
  void poison() override;
  Check check() override;
  void dump(const std::string& path) const override;
  /// With a mask function, of which only the device can tell how many pairs are seen.
  std::optional<Work> work() const override { return counted_; }

  /// What attention wrote last; with task=rope, Q as it was turned.
  Tensor output() const { return attention_ ? attention_->output() : rotary_.value().turned_q(); }

 private:
  VariantsInputs inputs_;
  std::optional<RotaryLaunches> rotary_;
  std::optional<HeadCopies> copies_;
  std::optional<FlashProblem> attention_;
  std::optional<Work> counted_;
};

/// Makes problems of the experiment; cases of one shape share their tensors, and the oracle's answer.
std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const CasePlan&)> variants_problems();

}  // namespace attn
