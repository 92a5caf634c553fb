#include "proto7_variants/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "common/attention/problem.h"
#include "common/base/error.h"
#include "proto7_variants/expand.h"

namespace attn {
namespace {

using MakeProblem = std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const Plan&)>;

// ---- copies of key/value heads

bool copies_heads(const Case& config) { return config.text("kv_heads_by") == "copy"; }

/// Throws BadInput.
ExpandShape expand_shape(const Case& config) {
  const int64_t q_heads = config.integer("q_heads"), kv_heads = config.integer("kv_heads");
  if (q_heads % kv_heads != 0) throw BadInput(fmt::format("kv_heads={} does not divide q_heads={}", kv_heads, q_heads));
  return {.batch = config.integer("batch"),
          .kv_heads = kv_heads,
          .group = q_heads / kv_heads,
          .rows = config.integer("kv_len"),
          .head_dim = config.integer("head_dim"),
          .dtype = parse_dtype(config.text("dtype"))};
}

/// Whether a buffer has each head of the tensor for all of its group, bit for bit.
Check check_expanded(const char* what, const Tensor& tensor, int64_t group, const Buffer& buffer) {
  const Tensor want = expanded(tensor, group);
  std::vector<std::byte> got(want.bytes());
  buffer.download(got.data(), got.size());
  Check check;
  check.rows_checked = want.batch * want.heads * want.seq;
  if (const auto [at, other] = std::ranges::mismatch(got, want.data); at != got.end()) {
    check.fail(fmt::format("the copy of {} differs from byte {} on", what, at - got.begin()));
  }
  if (!buffer.guards_intact()) check.fail("a guard band was overwritten");
  return check;
}

/// The copies alone.
class ExpandProblem : public Problem {
 public:
  ExpandProblem(Experiment& lab, const ExpandShape& shape, Layout layout)
      : shape_(shape), launch_(lab.device(), lab.pipelines(), shape) {
    for (size_t i = 0; i < 2; ++i) {
      in_[i] = random_tensor(shape.batch, shape.kv_heads, shape.rows, shape.head_dim, shape.dtype, layout, lab.seed(),
                             i + 1);
      in_buffers_[i] = Buffer(lab.device(), in_[i].bytes());
      in_buffers_[i].upload(in_[i].data.data(), in_[i].bytes());
      out_buffers_[i] = Buffer(lab.device(), in_[i].bytes() * static_cast<size_t>(shape.group));
    }
    const Tensor out =
        Tensor::zeros(shape.batch, shape.kv_heads * shape.group, shape.rows, shape.head_dim, shape.dtype, layout);
    tensors_ = {.k = in_buffers_[0].data(),
                .v = in_buffers_[1].data(),
                .k_out = out_buffers_[0].data(),
                .v_out = out_buffers_[1].data(),
                .in_strides = in_[0].strides(),
                .out_strides = out.strides()};
  }
  void encode(CommandEncoder& encoder) const override { launch_.encode(encoder, tensors_); }
  void poison() override {
    for (Buffer& buffer : out_buffers_) buffer.poison();
  }
  Check check() override {
    Check check = check_expanded("K", in_[0], shape_.group, out_buffers_[0]);
    check.merge(check_expanded("V", in_[1], shape_.group, out_buffers_[1]));
    return check;
  }

 private:
  const ExpandShape shape_;
  const ExpandLaunch launch_;
  Tensor in_[2];
  Buffer in_buffers_[2], out_buffers_[2];
  ExpandTensors tensors_;
};

/// The copies, and attention on them.
class CopiedHeadsProblem : public Problem {
 public:
  /// `inputs` have the heads that are shared, `copies` those of each query head.
  CopiedHeadsProblem(Experiment& lab, const Case& config, std::shared_ptr<FlashInputs> inputs,
                     const FlashConfig& attention, std::shared_ptr<FlashInputs> copies)
      : shape_(expand_shape(config)),
        inputs_(std::move(inputs)),
        copies_(std::move(copies)),
        expand_(lab.device(), lab.pipelines(), shape_),
        attention_(lab.device(), lab.pipelines(), copies_, attention, variants_hooks(config)),
        tensors_{.k = inputs_->k_buffer().data(),
                 .v = inputs_->v_buffer().data(),
                 .k_out = copies_->k_buffer().data(),
                 .v_out = copies_->v_buffer().data(),
                 .in_strides = inputs_->k().strides(),
                 .out_strides = copies_->k().strides()} {}
  void encode(CommandEncoder& encoder) const override {
    expand_.encode(encoder, tensors_);
    attention_.encode(encoder);
  }
  void poison() override {
    copies_->k_buffer().poison();
    copies_->v_buffer().poison();
    attention_.poison();
  }
  Check check() override {
    Check check = attention_.check();
    const int64_t rows = check.rows_checked;  // of the oracle
    check.merge(check_expanded("K", inputs_->k(), shape_.group, copies_->k_buffer()));
    check.merge(check_expanded("V", inputs_->v(), shape_.group, copies_->v_buffer()));
    check.rows_checked = rows;
    return check;
  }
  void dump(const std::string& path) const override { attention_.dump(path); }

 private:
  const ExpandShape shape_;
  const std::shared_ptr<FlashInputs> inputs_, copies_;
  const ExpandLaunch expand_;
  FlashProblem attention_;
  const ExpandTensors tensors_;
};

// ---- task=attention

/// What the attention kernel computes: with copies there are as many key/value heads as query heads.
FlashConfig attention_config(const Case& config) {
  FlashConfig flash = modified_config(config);
  if (copies_heads(config)) flash.shape.kv_heads = flash.shape.q_heads;
  return flash;
}

Plan attention_task_plan(const Case& config, const Setting& setting) {
  const FlashConfig flash = attention_config(config);
  const ModifiedAttention attention(Modifiers::from(config), flash);
  const AttentionHooks hooks = attention.texts();
  Plan plan = attention_plan(flash, setting.device, modifiers_on(config).empty() ? nullptr : &hooks);
  plan.work.flops = 4 * static_cast<double>(flash.shape.head_dim) * attention.visible_pairs();
  plan.work.bytes += static_cast<double>(attention.bias_elements()) * sizeof(float);
  if (copies_heads(config) && plan.unable.empty()) {
    Plan copies = expand_plan(expand_shape(config), setting.device);
    plan.launches.insert(plan.launches.begin(), std::move(copies.launches.front()));
    plan.work.bytes += copies.work.bytes;
  }
  return plan;
}

MakeProblem attention_problems() {
  // Only the problems keep the tensors alive: when the last of a shape goes, so do they.
  struct Last {
    std::weak_ptr<FlashInputs> inputs, copies;
  };
  return [last = Last()](Experiment& lab, const Case& config, const Plan&) mutable -> std::unique_ptr<Problem> {
    const FlashConfig flash = modified_config(config);
    std::shared_ptr<FlashInputs> inputs = last.inputs.lock();
    if (!inputs || !flash.same_tensors(inputs->config())) {
      last.inputs = inputs = std::make_shared<FlashInputs>(lab.device(), flash, lab.seed(), lab.input());
    }
    if (!copies_heads(config)) {
      return std::make_unique<FlashProblem>(lab.device(), lab.pipelines(), inputs, flash, variants_hooks(config));
    }
    const FlashConfig on_copies = attention_config(config);
    std::shared_ptr<FlashInputs> copies = last.copies.lock();
    if (!copies || !on_copies.same_tensors(copies->config())) {
      const int64_t group = flash.shape.q_heads / flash.shape.kv_heads;
      last.copies = copies = std::make_shared<FlashInputs>(
          lab.device(), on_copies, lab.seed(),
          AttentionInputs{inputs->q(), expanded(inputs->k(), group), expanded(inputs->v(), group)});
    }
    return std::make_unique<CopiedHeadsProblem>(lab, config, inputs, on_copies, copies);
  };
}

// ---- task=expand

Plan expand_task_plan(const Case& config, const Setting& setting) {
  return expand_plan(expand_shape(config), setting.device);
}

MakeProblem expand_problems() {
  return [](Experiment& lab, const Case& config, const Plan&) {
    return std::make_unique<ExpandProblem>(lab, expand_shape(config), parse_layout(config.text("layout")));
  };
}

// ---- the tasks

struct Task {
  const char* name;
  Plan (*plan)(const Case&, const Setting&);
  MakeProblem make;
};

std::vector<Task> tasks() {
  return {{"attention", attention_task_plan, attention_problems()}, {"expand", expand_task_plan, expand_problems()}};
}

Task& task_of(std::vector<Task>& tasks, const Case& config) {
  return *std::ranges::find(tasks, config.text("task"), &Task::name);
}

}  // namespace

std::optional<AttentionHooks> variants_hooks(const Case& config) {
  if (modifiers_on(config).empty()) return std::nullopt;
  return ModifiedAttention(Modifiers::from(config), modified_config(config)).hooks();
}

Plan variants_plan(const Case& config, const Setting& setting) {
  std::vector<Task> all = tasks();
  return task_of(all, config).plan(config, setting);
}

std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const Plan&)> variants_problems() {
  return [all = tasks()](Experiment& lab, const Case& config, const Plan& plan) mutable {
    return task_of(all, config).make(lab, config, plan);
  };
}

}  // namespace attn
