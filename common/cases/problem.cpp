#include "common/cases/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/error.h"
#include "common/cases/compare_rows.h"
#include "common/cases/configurations.h"
#include "common/cases/input_pool.h"
#include "common/cases/tolerance.h"

namespace attn {

FlashProblem::FlashProblem(Device& device, PipelineCache& pipelines, std::shared_ptr<FlashInputs> inputs,
                           FlashConfig config, const Plan& plan, std::optional<AttentionHooks> hook)
    : inputs_(std::move(inputs)),
      config_(std::move(config)),
      hook_(std::move(hook)),
      launch_(device, pipelines, config_, plan, hook_ ? hook_->lists : ListScope::none) {
  if (hook_) hook_buffer_ = uploaded(device, hook_->data);
  const Strides q = inputs_->q().strides(), kv = inputs_->k().strides();
  tensors_ = {.q = inputs_->q_buffer_.data(),
              .k = inputs_->k_buffer_.data(),
              .v = inputs_->v_buffer_.data(),
              .o = inputs_->o_buffer_.data(),
              .lse = static_cast<float*>(inputs_->lse_buffer_.data()),
              .q_strides = q,
              .k_strides = kv,
              .v_strides = kv,
              .o_strides = q,
              .hook_data = hook_ ? hook_buffer_.data() : nullptr};
}

void FlashProblem::poison() {
  inputs_->o_buffer_.poison();
  inputs_->lse_buffer_.poison();
}

Tensor FlashProblem::output() const {
  const AttentionShape& shape = config_.shape;
  Tensor o = Tensor::zeros(shape.batch, shape.q_heads, shape.q_len, shape.head_dim, config_.out_dtype, config_.layout);
  inputs_->o_buffer_.download(o.data.data(), o.bytes());
  return o;
}

std::vector<float> FlashProblem::lse() const { return downloaded<float>(inputs_->lse_buffer_); }

Check FlashProblem::check() {
  const AttentionShape& shape = config_.shape;
  const ReferenceRows& want =
      hook_ ? inputs_->reference("hook " + hook_->name, hook_->reference, hook_->sink) : inputs_->reference();
  const AttentionTolerance allowed =
      attention_tolerance(shape, config_.dtype, config_.out_dtype, hook_ && hook_->change != ScoreChange::none, want,
                          score_error_ + (hook_ ? hook_->score_error : 0));
  Check check = compare_attention(output(), lse(), want, allowed, [](const RowIndex& row) {
    return fmt::format("batch {}, head {}, query {}", row.batch, row.head, row.q);
  });
  check.merge(others_);
  check_guards(check, {&inputs_->q_buffer_, &inputs_->k_buffer_, &inputs_->v_buffer_, &inputs_->o_buffer_,
                       &inputs_->lse_buffer_});
  return check;
}

void FlashProblem::dump(const std::string& path) const {
  const AttentionShape& shape = config_.shape;
  const std::vector<float> all_lse = lse();
  const auto bytes = std::as_bytes(std::span(all_lse));
  write_safetensors(path,
                    {{"o",
                      {DType::f32,
                       {shape.batch, shape.q_heads, shape.q_len, shape.head_dim},
                       convert(output(), DType::f32, Layout::bhsd).data}},
                     {"lse", {DType::f32, {shape.batch, shape.q_heads, shape.q_len}, {bytes.begin(), bytes.end()}}}});
}

std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const CasePlan&)> flash_problems() {
  struct Shared {
    std::shared_ptr<FlashInputs> random, needles;
  };
  return [pool = InputPool<Shared>()](Experiment& lab, const Case&, const CasePlan& plan) mutable {
    const auto& flash = plan.config<FlashConfig>();
    const std::shared_ptr<Shared> shared = pool.get(
        [&](const Shared& made) { return flash.same_tensors(made.random->config()); },
        [&] {
          auto made = std::make_shared<Shared>();
          made->random = std::make_shared<FlashInputs>(lab.device(), flash, lab.seed(), lab.input());
          if (lab.input().empty() && !lab.is_part()) {
            made->needles = std::make_shared<FlashInputs>(lab.device(), flash, lab.seed(), "", InputKind::needles);
          }
          return made;
        });
    // This pointer keeps the whole of `shared` alive, the needles too.
    auto problem = std::make_unique<FlashProblem>(
        lab.device(), lab.pipelines(), std::shared_ptr<FlashInputs>(shared, shared->random.get()), flash, plan);
    if (shared->needles) {
      FlashProblem on_needles(lab.device(), lab.pipelines(), shared->needles, flash, plan);
      on_needles.poison();
      CommandEncoder encoder;
      on_needles.encode(encoder);
      lab.device().submit(encoder);
      problem->also(on_needles.check());
    }
    return problem;
  };
}

}  // namespace attn
