#include "proto1_flash/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/error.h"
#include "common/kernel/types.h"
#include "proto1_flash/kernels/flash.h"

namespace attn {

namespace {

// Above this many multiplications the oracle checks a sample of rows, so that checking stays cheaper than measuring.
constexpr double full_check_products = 3e8;
constexpr double sampled_check_products = 1e8;
constexpr int64_t least_rows_checked = 64;

TensorStrides kernel_strides(const Tensor& tensor) {
  const Strides strides = tensor.strides();
  return {strides.batch, strides.head, strides.row};
}

int64_t element_type(DType dtype) { return dtype == DType::f32 ? F32 : dtype == DType::f16 ? F16 : BF16; }

// Only where the dot product of bf16 pairs is faster than converting to f32: AMD's cores start two a cycle, Intel's one
// every two (measured on sapphirerapids: 124 GFLOP/s a core, against 249 of f32 multiply-adds).
bool uses_bf16_dot(const FlashConfig& config, const DeviceInfo& device) {
  return config.dtype == DType::bf16 && device.has("avx512bf16") && device.arch.starts_with("znver");
}

// The widest vector, up to the device's, that divides a row.
int64_t lanes(const FlashConfig& config, const DeviceInfo& device) {
  return config.variant == "tiled_vector" ? std::gcd<int64_t>(config.shape.head_dim, device.simd_width) : 1;
}

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

FlashConfig FlashConfig::from(const Case& config) {
  FlashConfig flash;
  flash.variant = config.text("variant");
  AttentionShape& shape = flash.shape;
  shape.batch = config.integer("batch");
  shape.q_heads = config.integer("q_heads");
  shape.kv_heads = config.integer("kv_heads");
  shape.q_len = config.integer("q_len");
  shape.kv_len = config.integer("kv_len");
  shape.head_dim = config.integer("head_dim");
  shape.causal = config.integer("causal") != 0;
  flash.dtype = parse_dtype(config.text("dtype"));
  flash.out_dtype = parse_dtype(config.text("out_dtype"));
  flash.layout = parse_layout(config.text("layout"));
  flash.block_r = config.integer("block_r");
  flash.block_c = config.integer("block_c");
  if (shape.q_heads % shape.kv_heads != 0) {
    throw BadInput(
        fmt::format("kv_heads={} does not divide q_heads={}; each key/value head serves the same number of query heads",
                    shape.kv_heads, shape.q_heads));
  }
  return flash;
}

size_t flash_threadgroup_bytes(const FlashConfig& config, const DeviceInfo& device) {
  const AttentionShape& shape = config.shape;
  if (config.variant == "naive") return static_cast<size_t>(shape.kv_len + shape.head_dim) * sizeof(float);
  if (config.variant == "tuned") {
    const TunedLayout layout(shape.head_dim, config.block_r, config.block_c, device.simd_width, device.vector_registers,
                             static_cast<int>(element_type(config.dtype)), uses_bf16_dot(config, device));
    return static_cast<size_t>(layout.words) * sizeof(float);
  }
  return static_cast<size_t>(TiledLayout(shape.head_dim, config.block_r, config.block_c).words) * sizeof(float);
}

KernelSource flash_source(const FlashConfig& config, const DeviceInfo& device) {
  KernelSource source;
  source.entry = "flash_forward";
  source.constants = {{"HEAD_DIM", config.shape.head_dim},
                      {"CAUSAL", config.shape.causal},
                      {"IN_TYPE", element_type(config.dtype)},
                      {"OUT_TYPE", element_type(config.out_dtype)}};
  if (config.variant == "naive") {
    source.path = "proto1_flash/kernels/naive.cpu.cpp";
    return source;
  }
  source.constants["BLOCK_R"] = config.block_r;
  source.constants["BLOCK_C"] = config.block_c;
  if (config.variant == "tuned") {
    source.path = "proto1_flash/kernels/tuned.cpu.cpp";
    source.constants["VECTOR_WIDTH"] = device.simd_width;
    source.constants["VECTOR_REGISTERS"] = device.vector_registers;
    source.constants["BF16_DOT"] = uses_bf16_dot(config, device);
  } else {
    source.path = "proto1_flash/kernels/tiled.cpu.cpp";
    source.constants["LANES"] = lanes(config, device);
  }
  return source;
}

FlashInputs::FlashInputs(Device& device, const FlashConfig& config, uint64_t seed, const std::string& input)
    : config_(config), seed_(seed) {
  const AttentionShape& shape = config.shape;
  if (input.empty()) {
    const auto random = [&](int64_t heads, int64_t length, uint64_t stream) {
      return random_tensor(shape.batch, heads, length, shape.head_dim, config.dtype, config.layout, seed, stream);
    };
    q_ = random(shape.q_heads, shape.q_len, 0);
    k_ = random(shape.kv_heads, shape.kv_len, 1);
    v_ = random(shape.kv_heads, shape.kv_len, 2);
  } else {
    const auto stored = read_safetensors(input, {"q", "k", "v"});
    q_ = from_stored(stored.at("q"), config.layout);
    k_ = from_stored(stored.at("k"), config.layout);
    v_ = from_stored(stored.at("v"), config.layout);
  }
  q_buffer_ = upload(device, q_);
  k_buffer_ = upload(device, k_);
  v_buffer_ = upload(device, v_);
  const auto rows = static_cast<size_t>(shape.batch * shape.q_heads * shape.q_len);
  o_buffer_ = Buffer(device, rows * static_cast<size_t>(shape.head_dim) * size_bytes(config.out_dtype));
  lse_buffer_ = Buffer(device, rows * sizeof(float));
}

FlashInputs::~FlashInputs() = default;

const ReferenceRows& FlashInputs::reference(const ScoreHook* hook) {
  if (hook || !reference_) {
    const AttentionShape& shape = config_.shape;
    const double products_per_row = static_cast<double>(shape.kv_len * shape.head_dim);
    const double rows = static_cast<double>(shape.batch * shape.q_heads * shape.q_len);
    const auto sampled = std::max(least_rows_checked, static_cast<int64_t>(sampled_check_products / products_per_row));
    reference_ = reference_attention(
        shape, q_, k_, v_,
        rows * products_per_row <= full_check_products ? all_rows(shape) : sample_rows(shape, sampled, seed_),
        hook ? hook->reference : ScoreFunction());
  }
  return *reference_;
}

FlashProblem::FlashProblem(Device& device, PipelineCache& pipelines, std::shared_ptr<FlashInputs> inputs,
                           const FlashConfig& config, std::optional<ScoreHook> hook)
    : device_(device), inputs_(std::move(inputs)), config_(config), hook_(std::move(hook)) {
  const AttentionShape& shape = config_.shape;
  threadgroup_bytes_ = flash_threadgroup_bytes(config_, device.info());
  KernelSource source = flash_source(config_, device.info());
  if (hook_) {
    source.includes["common/kernel/score.h"] = hook_->text;
    hook_buffer_ = Buffer(device, hook_->data.size() * sizeof(float));
    hook_buffer_.upload(hook_->data.data(), hook_buffer_.bytes());
  }
  pipeline_ = &pipelines.get(source);

  params_.q = inputs_->q_buffer_.data();
  params_.k = inputs_->k_buffer_.data();
  params_.v = inputs_->v_buffer_.data();
  params_.o = inputs_->o_buffer_.data();
  params_.lse = static_cast<float*>(inputs_->lse_buffer_.data());
  params_.q_strides = params_.o_strides = kernel_strides(inputs_->q());
  params_.k_strides = kernel_strides(inputs_->k());
  params_.v_strides = kernel_strides(inputs_->v());
  params_.batch = static_cast<int>(shape.batch);
  params_.q_heads = static_cast<int>(shape.q_heads);
  params_.kv_heads = static_cast<int>(shape.kv_heads);
  params_.q_len = static_cast<int>(shape.q_len);
  params_.kv_len = static_cast<int>(shape.kv_len);
  params_.scale = static_cast<float>(shape.effective_scale());
  params_.score_data = hook_ ? hook_buffer_.data() : nullptr;
  const int64_t rows_per_group = config_.variant == "naive" ? 1 : config_.block_r;
  grid_ = {static_cast<uint32_t>((shape.q_len + rows_per_group - 1) / rows_per_group),
           static_cast<uint32_t>(shape.q_heads), static_cast<uint32_t>(shape.batch)};
}

void FlashProblem::encode(CommandEncoder& encoder) const {
  encoder.dispatch(*pipeline_->kernel, grid_, 1, threadgroup_bytes_, params_);
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

Work FlashProblem::work() const {
  const AttentionShape& shape = config_.shape;
  const double q = static_cast<double>(shape.batch * shape.q_heads * shape.q_len);
  const double kv = static_cast<double>(shape.batch * shape.kv_heads * shape.kv_len);
  const double dim = static_cast<double>(shape.head_dim);
  return {4 * dim * shape.unmasked_pairs(),
          (q + 2 * kv) * dim * static_cast<double>(size_bytes(config_.dtype)) +
              q * (dim * static_cast<double>(size_bytes(config_.out_dtype)) + sizeof(float))};
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

std::function<std::unique_ptr<Problem>(Experiment&, const Case&)> flash_problems() {
  // Only the problems keep the tensors alive: when the last of a shape goes, so do they.
  return [last = std::weak_ptr<FlashInputs>()](Experiment& lab, const Case& config) mutable {
    const FlashConfig flash = FlashConfig::from(config);
    std::shared_ptr<FlashInputs> shared = last.lock();
    const auto same_tensors = [&](const FlashConfig& other) {
      return other.shape == flash.shape && other.dtype == flash.dtype && other.out_dtype == flash.out_dtype &&
             other.layout == flash.layout;
    };
    if (!shared || !same_tensors(shared->config())) {
      shared = std::make_shared<FlashInputs>(lab.device(), flash, lab.seed(), lab.input());
      last = shared;
    }
    return std::make_unique<FlashProblem>(lab.device(), lab.pipelines(), shared, flash);
  };
}

}  // namespace attn
