#include "proto7_variants/problem.h"

#include <fmt/format.h>

#include <utility>

namespace attn {

VariantsConfig VariantsConfig::from(const Case& config, const Files& files) {
  return {config.text("task"), modified_config(config), Modifiers::from(config), UserFunctions::from(config, files)};
}

Plan variants_plan(const Case& config, const Setting& setting) {
  const VariantsConfig variants = VariantsConfig::from(config, setting.files);
  const auto& [task, flash, modifiers, functions] = variants;
  Plan turns = rotary_plan(modifiers.rotary, flash, setting.device);
  if (task == "rope") return turns;
  const ModifiedAttention attention(modifiers, flash);
  AttentionHooks hooks = attention.texts();
  functions.add_texts(hooks);
  Plan plan = attention_plan(flash, setting.device, variants.has_hooks() ? &hooks : nullptr);
  if (modifiers.prefix > 0 && config.integer("causal") == 0) {
    plan.unable = fmt::format("prefix={}: without causal=1 every query sees those keys anyway", modifiers.prefix);
  }
  plan.work.flops = 4 * static_cast<double>(flash.shape.head_dim) * attention.visible_pairs();
  plan.work.bytes += static_cast<double>(attention.bias_elements()) * sizeof(float) + turns.work.bytes;
  plan.launches.insert(plan.launches.begin(), turns.launches.begin(), turns.launches.end());
  return plan;
}

VariantsProblem::VariantsProblem(Device& device, PipelineCache& pipelines, VariantsInputs inputs,
                                 const VariantsConfig& config, const Work& planned) {
  const auto& [task, flash, modifiers, functions] = config;
  if (inputs.rotary) {
    rotary_.emplace(device, pipelines, inputs.rotary, modifiers.rotary);
    inputs.attention = std::shared_ptr<FlashInputs>(inputs.rotary, &inputs.rotary->turned);
  }
  if (task == "rope") return;
  std::optional<AttentionHooks> hooks;
  if (config.has_hooks()) {
    const ModifiedAttention attention(modifiers, flash);
    hooks = attention.hooks();
    functions.add(*hooks, device, pipelines, attention);
    if (functions.mask) {
      const MaskOracle mask(device, pipelines, *functions.mask, flash.shape);
      counted_ = planned;
      counted_->flops = 4 * static_cast<double>(flash.shape.head_dim) *
                        mask.visible_pairs([&](int64_t batch, int64_t q) { return attention.visible(batch, q); });
    }
  }
  attention_.emplace(device, pipelines, inputs.attention, flash, std::move(hooks));
  if (!rotary_) return;
  attention_->read(rotary_->q(), rotary_->k());
  if (flash.dtype != DType::f32) attention_->allow_score_error(flash.dtype == DType::f16 ? 0x1p-11 : 0x1p-8);
}

void VariantsProblem::encode(CommandEncoder& encoder) const {
  if (rotary_) rotary_->encode(encoder);
  if (attention_) attention_->encode(encoder);
}

void VariantsProblem::poison() {
  if (rotary_) rotary_->poison();
  if (attention_) attention_->poison();
}

Check VariantsProblem::check() {
  Check check = attention_ ? attention_->check() : Check{};
  if (rotary_) {
    const Check turned = rotary_->check();
    if (!attention_) check.rows_checked = turned.rows_checked;
    check.merge(turned);
  }
  return check;
}

void VariantsProblem::dump(const std::string& path) const {
  if (!attention_) return Problem::dump(path);
  attention_->dump(path);
}

VariantsInputs variants_inputs(Device& device, uint64_t seed, const std::string& path, const VariantsConfig& config,
                               const VariantsInputs& last) {
  const FlashConfig& flash = config.flash;
  const Rotary& rotary = config.modifiers.rotary;
  if (rotary.by == "none") {
    if (last.attention && flash.same_tensors(last.attention->config())) return {.attention = last.attention};
    return {.attention = std::make_shared<FlashInputs>(device, flash, seed, path)};
  }
  if (last.rotary && flash.same_tensors(last.rotary->raw.config()) && rotary.turns_like(last.rotary->rotary)) {
    return {.rotary = last.rotary};
  }
  return {.rotary = std::make_shared<RotaryInputs>(device, flash, seed, path, rotary)};
}

std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const Plan&)> variants_problems() {
  // Only the problems keep the tensors alive: when the last of a shape goes, so do they.
  struct Last {
    std::weak_ptr<FlashInputs> attention;
    std::weak_ptr<RotaryInputs> rotary;
  };
  return [last = Last()](Experiment& lab, const Case& config, const Plan& plan) mutable {
    const VariantsConfig variants = VariantsConfig::from(config, lab.files());
    const VariantsInputs inputs =
        variants_inputs(lab.device(), lab.seed(), lab.input(), variants, {last.attention.lock(), last.rotary.lock()});
    if (inputs.attention) last.attention = inputs.attention;
    if (inputs.rotary) last.rotary = inputs.rotary;
    return std::make_unique<VariantsProblem>(lab.device(), lab.pipelines(), inputs, variants, plan.work);
  };
}

}  // namespace attn
