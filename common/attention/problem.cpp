#include "common/attention/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/error.h"

namespace attn {

namespace {

// Above this many multiplications the oracle checks a sample of rows, so that checking stays cheaper than measuring.
constexpr double full_check_products = 3e8;
constexpr double sampled_check_products = 1e8;
constexpr int64_t least_rows_checked = 64;

Buffer upload(Device& device, const Tensor& tensor) {
  Buffer buffer(device, tensor.bytes());
  buffer.upload(tensor.data.data(), tensor.bytes());
  return buffer;
}

Tensor from_stored(const StoredTensor& stored, Layout layout) {
  Tensor tensor =
      Tensor::zeros(stored.shape[0], stored.shape[1], stored.shape[2], stored.shape[3], stored.dtype, Layout::bhsd);
  tensor.data = stored.data;
  return layout == Layout::bhsd ? tensor : convert(tensor, stored.dtype, layout);
}

}  // namespace

FlashInputs::FlashInputs(Device& device, FlashConfig config, uint64_t seed, const std::string& input)
    : config_(std::move(config)), seed_(seed) {
  const AttentionShape& shape = config_.shape;
  if (input.empty()) {
    const auto random = [&](int64_t heads, int64_t length, uint64_t stream) {
      return random_tensor(shape.batch, heads, length, shape.head_dim, config_.dtype, config_.layout, seed, stream);
    };
    q_ = random(shape.q_heads, shape.q_len, 0);
    k_ = random(shape.kv_heads, shape.kv_len, 1);
    v_ = random(shape.kv_heads, shape.kv_len, 2);
  } else {
    const auto stored = read_safetensors(input, {"q", "k", "v"});
    q_ = from_stored(stored.at("q"), config_.layout);
    k_ = from_stored(stored.at("k"), config_.layout);
    v_ = from_stored(stored.at("v"), config_.layout);
  }
  q_buffer_ = upload(device, q_);
  k_buffer_ = upload(device, k_);
  v_buffer_ = upload(device, v_);
  const auto rows = static_cast<size_t>(shape.batch * shape.q_heads * shape.q_len);
  o_buffer_ = Buffer(device, rows * static_cast<size_t>(shape.head_dim) * size_bytes(config_.out_dtype));
  lse_buffer_ = Buffer(device, rows * sizeof(float));
}

FlashInputs::~FlashInputs() = default;

const ReferenceRows& FlashInputs::reference(const ScoreHook* hook) {
  const std::string name = hook ? "hook " + hook->name : "";
  auto known = references_.find(name);
  if (known == references_.end()) {
    const AttentionShape& shape = config_.shape;
    const double products_per_row = static_cast<double>(shape.kv_len * shape.head_dim);
    const double rows = static_cast<double>(shape.batch * shape.q_heads * shape.q_len);
    const auto sampled = std::max(least_rows_checked, static_cast<int64_t>(sampled_check_products / products_per_row));
    const bool all = rows * products_per_row <= full_check_products;
    ReferenceRows reference =
        reference_attention(shape, q_, k_, v_, all ? all_rows(shape) : sample_rows(shape, sampled, seed_),
                            hook ? hook->reference : ScoreFunction());
    known = references_.emplace(name, std::move(reference)).first;
  }
  return known->second;
}

FlashProblem::FlashProblem(Device& device, PipelineCache& pipelines, std::shared_ptr<FlashInputs> inputs,
                           FlashConfig config, std::optional<ScoreHook> hook, std::set<std::string> run_time)
    : inputs_(std::move(inputs)),
      config_(std::move(config)),
      hook_(std::move(hook)),
      launch_(device, pipelines, config_, hook_ ? &*hook_ : nullptr, std::move(run_time)) {
  if (hook_) {
    hook_buffer_ = Buffer(device, hook_->data.size());
    hook_buffer_.upload(hook_->data.data(), hook_buffer_.bytes());
  }
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

std::vector<float> FlashProblem::lse() const {
  std::vector<float> lse(inputs_->lse_buffer_.bytes() / sizeof(float));
  inputs_->lse_buffer_.download(lse.data(), inputs_->lse_buffer_.bytes());
  return lse;
}

Check FlashProblem::check() {
  const AttentionShape& shape = config_.shape;
  const ReferenceRows& want = inputs_->reference(hook_ ? &*hook_ : nullptr);
  const Tensor o = output();
  const std::vector<float> all_lse = lse();
  std::vector<double> got, got_lse;
  got.reserve(want.o.size());
  for (const RowIndex& row : want.rows) {
    for (int64_t d = 0; d < shape.head_dim; ++d) got.push_back(o.at(row.batch, row.head, row.q, d));
    got_lse.push_back(all_lse[static_cast<size_t>((row.batch * shape.q_heads + row.head) * shape.q_len + row.q)]);
  }
  const Tolerance in = tolerance_for(config_.dtype), out = tolerance_for(config_.out_dtype);
  const Tolerance tolerance{std::max(in.atol, out.atol), std::max(in.rtol, out.rtol)};
  Check check = compare(got, want.o, tolerance, "o");
  check.merge(compare(got_lse, want.lse, in, "lse"));
  check.rows_checked = static_cast<int64_t>(want.rows.size());
  for (const Buffer* buffer :
       {&inputs_->q_buffer_, &inputs_->k_buffer_, &inputs_->v_buffer_, &inputs_->o_buffer_, &inputs_->lse_buffer_}) {
    if (check.ok && !buffer->guards_intact()) {
      check.ok = false;
      check.worst = "a guard band was overwritten";
    }
  }
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

std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const Plan&)> flash_problems() {
  // Only the problems keep the tensors alive: when the last of a shape goes, so do they.
  return [last = std::weak_ptr<FlashInputs>()](Experiment& lab, const Case& config, const Plan&) mutable {
    const FlashConfig flash = FlashConfig::from(config);
    std::shared_ptr<FlashInputs> shared = last.lock();
    if (!shared || !flash.same_tensors(shared->config())) {
      shared = std::make_shared<FlashInputs>(lab.device(), flash, lab.seed(), lab.input());
      last = shared;
    }
    return std::make_unique<FlashProblem>(lab.device(), lab.pipelines(), shared, flash);
  };
}

}  // namespace attn
