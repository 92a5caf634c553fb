#include "proto7_variants/problem.h"

#include <fmt/format.h>

#include <utility>

#include "common/cases/modified_attention.h"
#include "common/cases/modifier_axes.h"
#include "common/cases/user_functions.h"

namespace attn {

namespace {

constexpr int64_t most_sparse_keys = int64_t{1} << 18;  // to find the visible blocks of this many keys takes seconds

ExpandShape expand_shape(const FlashConfig& flash) {
  const AttentionShape& shape = flash.shape;
  return {.batch = shape.batch,
          .kv_heads = shape.kv_heads,
          .group = shape.q_heads / shape.kv_heads,
          .rows = shape.kv_len,
          .head_dim = shape.head_dim,
          .dtype = flash.dtype};
}

// A problem of task=expand: only the launch that copies key/value heads.
class ExpandProblem : public Problem {
 public:
  ExpandProblem(Device& device, PipelineCache& pipelines, uint64_t seed, const FlashConfig& flash, const Plan& plan)
      : k_(tensor(flash, seed, 1)),
        v_(tensor(flash, seed, 2)),
        k_buffer_(uploaded(device, k_.data)),
        v_buffer_(uploaded(device, v_.data)),
        k_out_(device, k_.bytes() * static_cast<size_t>(expand_shape(flash).group)),
        v_out_(device, k_out_.bytes()),
        copies_(device, pipelines, k_, expand_shape(flash).group, k_buffer_, v_buffer_, k_out_, v_out_, plan) {}
  void encode(CommandEncoder& encoder) const override { copies_.encode(encoder); }
  void poison() override { copies_.poison(); }
  Check check() override { return copies_.check(); }

 private:
  static Tensor tensor(const FlashConfig& flash, uint64_t seed, uint64_t stream) {
    const AttentionShape& s = flash.shape;
    return random_tensor(s.batch, s.kv_heads, s.kv_len, s.head_dim, flash.dtype, flash.layout, seed, stream);
  }

  Tensor k_, v_;
  Buffer k_buffer_, v_buffer_, k_out_, v_out_;
  HeadCopies copies_;
};

// RoPE and copies of heads each need another set of inputs.
Memory variants_memory(const VariantsConfig& variants) {
  Memory memory = flash_memory(variants.flash, variants.modifiers.rotary.by == "none" ? 1 : 2);
  if (variants.copies_heads) {
    const Memory copies = flash_memory(variants.attention(), 1);
    memory.device += copies.device, memory.host += copies.host;
  }
  if (variants.modifiers.bias == "none") return memory;
  const ModifiedAttention attention(variants.modifiers, variants.attention());
  const double bias = static_cast<double>(attention.bias_elements()) * sizeof(float);
  // The host has the bias twice: as a tensor of random values, and in the data of the hooks.
  memory.device += bias, memory.host += 2 * bias;
  return memory;
}

}  // namespace

CopiedInputs::CopiedInputs(Device& device, std::shared_ptr<FlashInputs> shared, const FlashConfig& config,
                           uint64_t seed)
    : of(std::move(shared)),
      copies(device, config, seed,
             {of->q(), expanded(of->k(), config.shape.q_heads / of->k().heads),
              expanded(of->v(), config.shape.q_heads / of->v().heads)}) {}

VariantsConfig VariantsConfig::from(const Case& config, const Files& files) {
  return {.task = config.text("task"),
          .flash = modified_config(config),
          .copies_heads = config.text("kv_heads_by") == "copy",
          .modifiers = modifiers_of(config),
          .functions = UserFunctions::from(config, files),
          .pointless = attn::pointless(modifiers_of(config), config)};
}

FlashConfig VariantsConfig::attention() const {
  FlashConfig config = flash;
  if (copies_heads) config.shape.kv_heads = config.shape.q_heads;
  return config;
}

Plan variants_plan(const VariantsConfig& variants, const DeviceInfo& device) {
  Plan before = rotary_plan(variants.modifiers.rotary, variants.flash, device);
  if (variants.task == "rope" || !before.unable.empty()) return before;
  if (variants.copies_heads) {
    Plan copies = expand_plan(expand_shape(variants.flash), device);
    if (variants.task == "expand" || !copies.unable.empty()) return copies;
    before.launches.push_back(std::move(copies.launches.front()));
    before.work.bytes += copies.work.bytes;
  }
  if (!variants.pointless.empty()) return {.unable = variants.pointless};
  if (variants.modifiers.block_sparse > 0 && variants.flash.shape.kv_len > most_sparse_keys) {
    return {.unable = fmt::format("block_sparse with kv_len {}: at most {}, because the list of blocks grows with "
                                  "the square of the length",
                                  variants.flash.shape.kv_len, most_sparse_keys)};
  }
  if (std::string reason = variants.functions.unable(device); !reason.empty()) return {.unable = reason};
  const FlashConfig flash = variants.attention();
  const ModifiedAttention attention(variants.modifiers, flash);
  if (std::string reason = attention.unable(); !reason.empty()) return {.unable = reason};
  AttentionHooks hooks = modifier_hooks(variants.modifiers, flash.dtype);
  variants.functions.add_texts(hooks);
  Plan plan = attention_plan(flash, device, variants.has_hooks() ? &hooks : nullptr);
  plan.work.flops = 4 * static_cast<double>(flash.shape.head_dim) * attention.visible_pairs();
  plan.work.bytes += static_cast<double>(attention.bias_elements()) * sizeof(float) + before.work.bytes;
  plan.launches.insert(plan.launches.begin(), before.launches.begin(), before.launches.end());
  return plan;
}

CasePlan variants_case_plan(const Case& config, const Setting& setting) {
  const VariantsConfig variants = VariantsConfig::from(config, setting.files);
  CasePlan plan{variants_plan(variants, setting.device), variants};
  plan.work_is_limit = variants.functions.mask.has_value();
  plan.memory = variants_memory(variants);
  return plan;
}

std::shared_ptr<FlashInputs> VariantsInputs::shared() const {
  return rotary ? std::shared_ptr<FlashInputs>(rotary, &rotary->rotated) : plain;
}

VariantsProblem::VariantsProblem(Device& device, PipelineCache& pipelines, VariantsInputs inputs,
                                 const VariantsConfig& config, const Plan& plan)
    : inputs_(std::move(inputs)) {
  const Modifiers& modifiers = config.modifiers;
  if (inputs_.rotary) rotary_.emplace(device, pipelines, inputs_.rotary, modifiers.rotary, plan);
  if (config.task == "rope") return;
  const FlashConfig flash = config.attention();
  const std::shared_ptr<FlashInputs> shared = inputs_.shared();
  const auto read =
      config.copies_heads ? std::shared_ptr<FlashInputs>(inputs_.copied, &inputs_.copied->copies) : shared;
  std::optional<AttentionHooks> hooks;
  if (config.has_hooks()) {
    const ModifiedAttention attention(modifiers, flash);
    hooks = attention.hooks();
    config.functions.add(*hooks, device, pipelines, attention);
    if (config.functions.mask) {
      const MaskOracle mask(device, pipelines, *config.functions.mask, flash.shape);
      MaskOracle::Seen also;
      if (modifiers.mask()) also = [&](int64_t q, int64_t k) { return attention.unmasked(q, k); };
      counted_ = plan.work;
      counted_->flops = 4 * static_cast<double>(flash.shape.head_dim) *
                        mask.visible_pairs([&](int64_t batch, int64_t q) { return attention.range(batch, q); }, also);
    }
  }
  attention_.emplace(device, pipelines, read, flash, plan, std::move(hooks));
  Buffer& q = rotary_ ? rotary_->q() : shared->q_buffer();
  Buffer& k = rotary_ ? rotary_->k() : shared->k_buffer();
  if (config.copies_heads) {
    copies_.emplace(device, pipelines, shared->k(), flash.shape.q_heads / config.flash.shape.kv_heads, k,
                    shared->v_buffer(), read->k_buffer(), read->v_buffer(), plan);
  }
  attention_->read(q.data(), config.copies_heads ? read->k_buffer().data() : k.data());
  if (rotary_ && flash.dtype != DType::f32) {
    attention_->allow_score_error(flash.dtype == DType::f16 ? 0x1p-11 : 0x1p-8);
  }
}

void VariantsProblem::encode(CommandEncoder& encoder) const {
  if (rotary_) rotary_->encode(encoder);
  if (copies_) copies_->encode(encoder);
  if (attention_) attention_->encode(encoder);
}

void VariantsProblem::poison() {
  if (rotary_) rotary_->poison();
  if (copies_) copies_->poison();
  if (attention_) attention_->poison();
}

Check VariantsProblem::check() {
  Check check = attention_ ? attention_->check() : Check{};
  if (rotary_) {
    const Check rotated = rotary_->check();
    if (!attention_) check.rows_checked = rotated.rows_checked;
    check.merge(rotated);
  }
  if (copies_) check.merge(copies_->check());
  return check;
}

void VariantsProblem::dump(const std::string& path) const {
  if (!attention_) return Problem::dump(path);
  attention_->dump(path);
}

VariantsInputs variants_inputs(Device& device, uint64_t seed, const std::string& path, const VariantsConfig& config,
                               VariantsPools& pools) {
  const FlashConfig &flash = config.flash, on_copies = config.attention();
  const Rotary& rotary = config.modifiers.rotary;
  VariantsInputs inputs;
  if (rotary.by == "none") {
    inputs.plain = pools.plain.get([&](const FlashInputs& made) { return flash.same_tensors(made.config()); },
                                   [&] { return std::make_shared<FlashInputs>(device, flash, seed, path); });
  } else {
    const auto fits = [&](const RotaryInputs& made) {
      return flash.same_tensors(made.raw.config()) && rotary.rotates_like(made.rotary);
    };
    inputs.rotary =
        pools.rotary.get(fits, [&] { return std::make_shared<RotaryInputs>(device, flash, seed, path, rotary); });
  }
  if (!config.copies_heads) return inputs;
  const std::shared_ptr<FlashInputs> shared = inputs.shared();
  const auto fits = [&](const CopiedInputs& made) {
    return made.of == shared && on_copies.same_tensors(made.copies.config());
  };
  inputs.copied =
      pools.copied.get(fits, [&] { return std::make_shared<CopiedInputs>(device, shared, on_copies, seed); });
  return inputs;
}

std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const CasePlan&)> variants_problems() {
  return [pools = VariantsPools()](Experiment& lab, const Case&,
                                   const CasePlan& plan) mutable -> std::unique_ptr<Problem> {
    const auto& variants = plan.config<VariantsConfig>();
    Device& device = lab.device();
    if (variants.task == "expand") {
      return std::make_unique<ExpandProblem>(device, lab.pipelines(), lab.seed(), variants.flash, plan);
    }
    const VariantsInputs inputs = variants_inputs(device, lab.seed(), lab.input(), variants, pools);
    return std::make_unique<VariantsProblem>(device, lab.pipelines(), inputs, variants, plan);
  };
}

}  // namespace attn
