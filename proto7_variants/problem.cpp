#include "proto7_variants/problem.h"

#include <memory>
#include <utility>

#include "common/attention/problem.h"
#include "proto7_variants/functions.h"

namespace attn {
namespace {

/// Attention of which only the device can tell how many pairs are seen.
class CountedProblem : public FlashProblem {
 public:
  template <typename... Rest>
  explicit CountedProblem(std::optional<Work> counted, Rest&&... rest)
      : FlashProblem(std::forward<Rest>(rest)...), counted_(counted) {}
  std::optional<Work> work() const override { return counted_; }

 private:
  std::optional<Work> counted_;
};

}  // namespace

std::optional<AttentionHooks> variants_hooks(const Case& config) {
  if (modifiers_on(config).empty()) return std::nullopt;
  return ModifiedAttention(Modifiers::from(config), modified_config(config)).hooks();
}

Plan variants_plan(const Case& config, const Setting& setting) {
  const FlashConfig flash = modified_config(config);
  const ModifiedAttention attention(Modifiers::from(config), flash);
  AttentionHooks hooks = attention.texts();
  UserFunctions::from(config, setting.files).add_texts(hooks);
  Plan plan = attention_plan(flash, setting.device, modifiers_on(config).empty() ? nullptr : &hooks);
  plan.work.flops = 4 * static_cast<double>(flash.shape.head_dim) * attention.visible_pairs();
  plan.work.bytes += static_cast<double>(attention.bias_elements()) * sizeof(float);
  return plan;
}

std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const Plan&)> variants_problems() {
  // Only the problems keep the tensors alive: when the last of a shape goes, so do they.
  return [last = std::weak_ptr<FlashInputs>()](Experiment& lab, const Case& config, const Plan& plan) mutable {
    const FlashConfig flash = modified_config(config);
    std::shared_ptr<FlashInputs> inputs = last.lock();
    if (!inputs || !flash.same_tensors(inputs->config())) {
      inputs = std::make_shared<FlashInputs>(lab.device(), flash, lab.seed(), lab.input());
      last = inputs;
    }
    Device& device = lab.device();
    const UserFunctions functions = UserFunctions::from(config, lab.files());
    std::optional<AttentionHooks> hooks = variants_hooks(config);
    std::optional<Work> counted;
    if (functions.score || functions.mask) {
      const ModifiedAttention attention(Modifiers::from(config), flash);
      functions.add(*hooks, device, lab.pipelines(), attention);
      if (functions.mask) {
        const MaskOracle mask(device, lab.pipelines(), *functions.mask, flash.shape);
        counted = plan.work;
        counted->flops = 4 * static_cast<double>(flash.shape.head_dim) *
                         mask.visible_pairs([&](int64_t batch, int64_t q) { return attention.visible(batch, q); });
      }
    }
    return std::make_unique<CountedProblem>(counted, device, lab.pipelines(), inputs, flash, std::move(hooks));
  };
}

}  // namespace attn
