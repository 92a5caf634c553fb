#include "proto7_variants/problem.h"

#include "common/attention/problem.h"

namespace attn {

std::optional<AttentionHooks> variants_hooks(const Case& config) {
  if (modifiers_on(config).empty()) return std::nullopt;
  return ModifiedAttention(Modifiers::from(config), modified_config(config)).hooks();
}

Plan variants_plan(const Case& config, const Setting& setting) {
  const FlashConfig flash = modified_config(config);
  const ModifiedAttention attention(Modifiers::from(config), flash);
  const AttentionHooks hooks = attention.texts();
  Plan plan = attention_plan(flash, setting.device, modifiers_on(config).empty() ? nullptr : &hooks);
  plan.work.flops = 4 * static_cast<double>(flash.shape.head_dim) * attention.visible_pairs();
  plan.work.bytes += static_cast<double>(attention.bias_elements()) * sizeof(float);
  return plan;
}

std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const Plan&)> variants_problems() {
  // Only the problems keep the tensors alive: when the last of a shape goes, so do they.
  return [last = std::weak_ptr<FlashInputs>()](Experiment& lab, const Case& config, const Plan&) mutable {
    const FlashConfig flash = modified_config(config);
    std::shared_ptr<FlashInputs> inputs = last.lock();
    if (!inputs || !flash.same_tensors(inputs->config())) {
      inputs = std::make_shared<FlashInputs>(lab.device(), flash, lab.seed(), lab.input());
      last = inputs;
    }
    return std::make_unique<FlashProblem>(lab.device(), lab.pipelines(), inputs, flash, variants_hooks(config));
  };
}

}  // namespace attn
