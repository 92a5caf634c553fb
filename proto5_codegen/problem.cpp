#include "proto5_codegen/problem.h"

#include <fmt/format.h>

#include <utility>

#include "common/base/error.h"
#include "common/cases/compare_rows.h"
#include "common/cases/input_pool.h"
#include "common/cases/modified_attention.h"
#include "proto5_codegen/tuning.h"

namespace attn {
namespace {

const void* data_of(const Buffer& buffer) { return buffer.bytes() > 0 ? buffer.data() : nullptr; }

std::string name_of(const RowIndex& row) {
  return fmt::format("batch {}, head {}, row {}", row.batch, row.head, row.q);
}

}  // namespace

CasePlan codegen_case_plan(const Case& config, const Setting& setting) {
  const CodegenCase one = with_searched(CodegenCase::from(config), setting.device);
  return {codegen_plan(one, setting.device), one};
}

CodegenInputs::CodegenInputs(Device& device, const CodegenCase& config_, uint64_t seed_, CodegenTensors tensors_)
    : config(config_),
      seed(seed_),
      tensors(std::move(tensors_)),
      q(uploaded(device, tensors.q.data)),
      k(uploaded(device, tensors.k.data)),
      v(uploaded(device, tensors.v.data)),
      in(uploaded(device, tensors.in.data)),
      out(device,
          static_cast<size_t>(config.heads() * config.shape.q_len * config.columns()) * size_bytes(config.dtype)) {
  if (config.work != WORK_MODIFIED) return;
  std::vector<float> slopes_of_batch;
  const std::vector<double> one = alibi_slopes(config.shape.q_heads);
  for (int64_t b = 0; b < config.shape.batch; ++b)
    slopes_of_batch.insert(slopes_of_batch.end(), one.begin(), one.end());
  slopes = uploaded(device, slopes_of_batch);
}

const CodegenReference& CodegenInputs::reference() {
  if (!reference_) reference_ = codegen_reference(config, tensors, checked_rows(config, seed));
  return *reference_;
}

CodegenProblem::CodegenProblem(Device& device, PipelineCache& pipelines, std::shared_ptr<CodegenInputs> inputs,
                               const CodegenCase& config, const Plan& plan)
    : device_(device), inputs_(std::move(inputs)), config_(config) {
  if (const auto reason = skip_reason(plan, device.info())) throw BadInput(*reason);
  launch_ = plan.launches.front();
  if (!is_flash(config)) {
    kernel_ = pipelines.get(launch_.source).kernel.get();
    if (is_ahead(config_.generator)) ahead_ = read_ahead_index(config_.generator);
    find_room(pipelines);
    return;
  }
  const FlashConfig flash = config.flash(device.info());
  std::optional<AttentionHooks> hooks;
  if (config.work == WORK_MODIFIED) {
    hooks = ModifiedAttention(config.modifiers(), flash).hooks();
    hook_data_ = uploaded(device, hooks->data);
  }
  attention_.emplace(device, pipelines, flash, plan, hooks ? hooks->lists : ListScope::none);
  find_room(pipelines);
}

void CodegenProblem::find_room(PipelineCache& pipelines) {
  if (device_.info().operations->ahead_of_time != "cubin") return;  // threadgroups_at_once() is about CUDA devices
  at_once_ = threadgroups_at_once(pipelines.get(launch_.source).binary, launch_, device_.info());
}

void CodegenProblem::encode_attention(CommandEncoder& encoder, float* lse) const {
  const CodegenInputs& inputs = *inputs_;
  const Strides strides = inputs.tensors.q.strides();
  attention_->encode(encoder, {.q = inputs.q.data(),
                               .k = inputs.k.data(),
                               .v = inputs.v.data(),
                               .o = inputs.out.data(),
                               .lse = lse,
                               .q_strides = strides,
                               .k_strides = strides,
                               .v_strides = strides,
                               .o_strides = strides,
                               .hook_data = data_of(hook_data_)});
}

void CodegenProblem::encode(CommandEncoder& encoder) const {
  if (attention_) return encode_attention(encoder, nullptr);
  const AttentionShape& shape = config_.shape;
  const CodegenInputs& inputs = *inputs_;
  CodegenParams params{};
  params.q = data_of(inputs.q);
  params.k = data_of(inputs.k);
  params.v = data_of(inputs.v);
  params.in = data_of(inputs.in);
  params.out = inputs.out.data();
  params.slopes = static_cast<const float*>(data_of(inputs.slopes));
  params.heads = static_cast<int>(config_.heads());
  params.q_len = static_cast<int>(shape.q_len);
  params.kv_len = static_cast<int>(shape.kv_len);
  if (shape.head_dim > 0) params.scale = static_cast<float>(shape.effective_scale());
  if (ahead_) {
    encoder.dispatch(*kernel_, launch_.grid, launch_.threads, launch_.threadgroup_bytes,
                     ahead_arguments(*find_ahead(*ahead_, config_), config_, params));
  } else {
    encoder.dispatch(*kernel_, launch_.grid, launch_.threads, launch_.threadgroup_bytes, params);
  }
}

Tensor CodegenProblem::output() const {
  const AttentionShape& shape = config_.shape;
  Tensor out = Tensor::zeros(shape.batch, shape.q_heads, shape.q_len, config_.columns(), config_.dtype, Layout::bhsd);
  inputs_->out.download(out.data.data(), out.bytes());
  return out;
}

Check CodegenProblem::check() {
  Check check = check_output();
  if (attention_) check.merge(check_log_sum_exps());
  check_guards(check, {&inputs_->q, &inputs_->k, &inputs_->v, &inputs_->in, &inputs_->out, &inputs_->slopes});
  return check;
}

Check CodegenProblem::check_output() const {
  const CodegenReference& want = inputs_->reference();
  const Tensor out = output();
  return compare_rows(
      want.rows, static_cast<size_t>(config_.columns()),
      [&](const RowIndex& row, std::span<double> numbers) {
        out.load(out.offset(row.batch, row.head, row.q, 0), numbers);
      },
      want.out, want.allowed, name_of);
}

Check CodegenProblem::check_log_sum_exps() {
  Buffer buffer(device_, static_cast<size_t>(config_.heads() * config_.shape.q_len) * sizeof(float));
  poison();
  buffer.poison();
  CommandEncoder encoder;
  encode_attention(encoder, static_cast<float*>(buffer.data()));
  device_.submit(encoder);
  const std::vector<float> lse = downloaded<float>(buffer);
  Check check = check_output();
  const CodegenReference& want = inputs_->reference();
  check.merge(compare_rows(
      want.rows, 1,
      [&](const RowIndex& row, std::span<double> number) {
        const int64_t head = row.batch * config_.shape.q_heads + row.head;
        number[0] = lse[static_cast<size_t>(head * config_.shape.q_len + row.q)];
      },
      want.lse, want.lse_allowed, [](const RowIndex& row) { return "lse of " + name_of(row); }));
  check_guards(check, {&buffer});
  return check;
}

Json CodegenProblem::values() const {
  Json values = of_source();
  if (at_once_ > 0) values["threadgroups_at_once"] = at_once_;
  if (config_.whole()) values["lse_checked"] = attention_.has_value();
  return values;
}

Json CodegenProblem::of_source() const {
  if (!ahead_) {
    Json values = {{"source_lines", source_lines(launch_.source)}};
    if (const Json facts = search_facts(config_, device_.info()); !facts.is_null()) values.update(facts);
    return values;
  }
  const AheadKernel& kernel = *find_ahead(*ahead_, config_);
  return {{"source_lines", kernel.source_lines},
          {"generator_version", ahead_->version},
          {"compile_s", kernel.compile_s},
          {"constants", kernel.tile},
          {"search", kernel.search}};
}

std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const CasePlan&)> codegen_problems() {
  return [pool = InputPool<CodegenInputs>()](Experiment& lab, const Case&, const CasePlan& plan) mutable {
    const auto& one = plan.config<CodegenCase>();
    const auto inputs = pool.get([&](const CodegenInputs& made) { return made.config.same_inputs(one); },
                                 [&] {
                                   return std::make_shared<CodegenInputs>(lab.device(), one, lab.seed(),
                                                                          random_tensors(one, lab.seed()));
                                 });
    return std::make_unique<CodegenProblem>(lab.device(), lab.pipelines(), inputs, one, plan);
  };
}

}  // namespace attn
