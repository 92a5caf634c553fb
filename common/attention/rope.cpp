#include "common/attention/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <stdexcept>
#include <string>
#include <utility>

#include "common/attention/kernels/rope.h"
#include "common/base/divided_up.h"
#include "common/base/error.h"
#include "common/base/parallel.h"

namespace attn {
namespace {

constexpr double rope_turn = 2 * std::numbers::pi;

void rope_require(bool right, const char* what, double value, const char* allowed) {
  if (!right) throw BadInput(fmt::format("rope: {}={}: {}", what, value, allowed));
}

void rope_check_factor(double factor) {
  rope_require(factor >= 1 && std::isfinite(factor), "factor", factor, "it must be a number from 1");
}
void rope_check_length(double length) {
  rope_require(length > 0 && std::isfinite(length), "original_length", length, "it must be more than 0 tokens");
}

void rope_check_scaling(std::monostate, const RopeConfig&) {}
void rope_check_scaling(const RopeLinear& linear, const RopeConfig&) { rope_check_factor(linear.factor); }
void rope_check_scaling(const RopeNtk& ntk, const RopeConfig& config) {
  rope_check_factor(ntk.factor);
  rope_require(config.rotary_dim > 2, "rotary_dim", static_cast<double>(config.rotary_dim),
               "with NTK it must be more than 2");
}
void rope_check_scaling(const RopeYarn& yarn, const RopeConfig&) {
  rope_check_factor(yarn.factor);
  rope_check_length(yarn.original_length);
  rope_require(yarn.beta_slow > 0, "beta_slow", yarn.beta_slow, "it must be more than 0");
  rope_require(yarn.beta_fast >= yarn.beta_slow && std::isfinite(yarn.beta_fast), "beta_fast", yarn.beta_fast,
               "it must be a number from beta_slow");
  const auto require_size = [](const char* what, double value, const char* allowed) {
    rope_require(value == 0 || (value >= 1e-6 && value <= 1e6), what, value, allowed);
  };
  require_size("attention_factor", yarn.attention_factor, "it must be from 10^-6 to 10^6, or 0 for the usual factor");
  require_size("mscale", yarn.mscale, "it must be from 10^-6 to 10^6, or 0 for none");
  require_size("mscale_all_dim", yarn.mscale_all_dim, "it must be from 10^-6 to 10^6, or 0 for none");
}
void rope_check_scaling(const RopeLlama3& llama, const RopeConfig&) {
  rope_check_factor(llama.factor);
  rope_check_length(llama.original_length);
  rope_require(llama.low_freq_factor > 0, "low_freq_factor", llama.low_freq_factor, "it must be more than 0");
  rope_require(llama.high_freq_factor > llama.low_freq_factor, "high_freq_factor", llama.high_freq_factor,
               "it must be more than low_freq_factor");
}

std::vector<double> rope_unscaled(double theta, int64_t rotary_dim) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < rotary_dim; i += 2) {
    frequencies.push_back(std::pow(theta, -static_cast<double>(i) / static_cast<double>(rotary_dim)));
  }
  return frequencies;
}

void rope_scale(std::monostate, const RopeConfig&, std::vector<double>&) {}
void rope_scale(const RopeLinear& linear, const RopeConfig&, std::vector<double>& frequencies) {
  for (double& frequency : frequencies) frequency /= linear.factor;
}
void rope_scale(const RopeNtk& ntk, const RopeConfig& config, std::vector<double>& frequencies) {
  const auto d = static_cast<double>(config.rotary_dim);
  frequencies = rope_unscaled(config.theta * std::pow(ntk.factor, d / (d - 2)), config.rotary_dim);
}
void rope_scale(const RopeYarn& yarn, const RopeConfig& config, std::vector<double>& frequencies) {
  const auto d = static_cast<double>(config.rotary_dim);
  // Returns the index of the pair that makes `turns` full rotations over the original length. The index need not be a
  // whole number.
  const auto pair_of = [&](double turns) {
    return d * std::log(yarn.original_length / (turns * rope_turn)) / (2 * std::log(config.theta));
  };
  double first = pair_of(yarn.beta_fast), last = pair_of(yarn.beta_slow);
  if (yarn.truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, d - 1);
  if (last == first) last += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double slow = std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
    frequencies[i] *= (1 - slow) + slow / yarn.factor;
  }
}
void rope_scale(const RopeLlama3& llama, const RopeConfig&, std::vector<double>& frequencies) {
  const double low = llama.low_freq_factor, high = llama.high_freq_factor;
  for (double& frequency : frequencies) {
    const double turns = llama.original_length * frequency / rope_turn;
    const double fast = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    frequency *= fast + (1 - fast) / llama.factor;
  }
}

/// Returns the frequencies in full rotations per position, modulo one rotation, in units of 2^-64.
std::vector<uint64_t> rope_turns(const std::vector<double>& frequencies) {
  std::vector<uint64_t> turns;
  for (const double frequency : frequencies) {
    const double fraction = frequency / rope_turn - std::floor(frequency / rope_turn);
    turns.push_back(static_cast<uint64_t>(std::ldexp(fraction, 64)));  // exact, apart from the rounding of `fraction`
  }
  return turns;
}

// ---- launches

void rope_check_shape(const RopeShape& shape) {
  const auto check = [](int64_t value, const char* what, int64_t least, int64_t most) {
    if (value >= least && value <= most) return;
    throw BadInput(fmt::format("rope: {}={}: it must be from {} to {}", what, value, least, most));
  };
  check(shape.batch, "batch", 1, 65535);
  check(shape.rows, "rows", 1, int64_t{1} << 30);
  check(shape.q_heads, "q_heads", 0, 65535);
  check(shape.kv_heads, "kv_heads", 0, 65535);
  check(shape.q_heads + shape.kv_heads, "q_heads + kv_heads", 1, 2 * 65535);
  if (shape.table_positions != 0) {
    check(shape.table_positions, "table_positions", shape.rows, std::numeric_limits<int32_t>::max());
  }
}

int64_t rope_element_bytes(DType dtype) { return static_cast<int64_t>(size_bytes(dtype)); }

RopeStrides rope_strides(const Strides& strides, int64_t heads, const RopeShape& shape, int64_t alignment) {
  // The stride of a dimension with one element does not matter.
  const int64_t batch = shape.batch > 1 ? strides.batch : 0;
  const int64_t head = heads > 1 ? strides.head : 0, row = shape.rows > 1 ? strides.row : 0;
  for (const int64_t stride : {batch, head, row}) {
    if (stride * rope_element_bytes(shape.dtype) % alignment != 0) {
      throw BadInput(
          fmt::format("rope: a stride of {} elements: its bytes must be a multiple of {}", stride, alignment));
    }
  }
  for (const int64_t stride : {head, row}) {
    if (std::abs(stride) > std::numeric_limits<int32_t>::max()) {
      throw BadInput(fmt::format("rope: a stride of {} elements: strides of heads and rows must fit 32 bits", stride));
    }
  }
  return {batch, static_cast<int>(head), static_cast<int>(row)};
}

RopeTensor rope_tensor(const void* in, void* out, const Strides& in_strides, const Strides& out_strides, int64_t heads,
                       const RopeShape& shape, int64_t alignment) {
  if (heads == 0) return {};
  for (const void* address : {in, static_cast<const void*>(out)}) {
    if (!address) throw BadInput("rope: a tensor with heads has no address");
    if (reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(alignment) != 0) {
      throw BadInput(fmt::format("rope: address {}: it must be a multiple of {}", address, alignment));
    }
  }
  const RopeTensor tensor{in, out, rope_strides(in_strides, heads, shape, alignment),
                          rope_strides(out_strides, heads, shape, alignment), static_cast<int>(heads)};
  const RopeStrides &a = tensor.in_strides, &b = tensor.out_strides;
  if (in == out && (a.batch != b.batch || a.head != b.head || a.row != b.row)) {
    throw BadInput("rope: the output is the input with other strides; in place, both must have the same strides");
  }
  return tensor;
}

/// Returns Q and K as the kernel takes them.
std::pair<RopeTensor, RopeTensor> rope_tensors(const RopeTensors& tensors, const RopeShape& shape, int64_t alignment) {
  return {
      rope_tensor(tensors.q, tensors.q_out, tensors.q_strides, tensors.q_out_strides, shape.q_heads, shape, alignment),
      rope_tensor(tensors.k, tensors.k_out, tensors.k_strides, tensors.k_out_strides, shape.kv_heads, shape,
                  alignment)};
}

Launch rope_launch(const RopeConfig& config, const RopeShape& shape, const DeviceInfo& device) {
  rope_check_config(config);
  rope_check_shape(shape);
  const RopeOperation& operation = *device.operations->rope;
  const RopeTiles tiles = operation.tiles(config, shape, device);
  Launch launch;
  launch.phase = "rope";
  launch.source.path = device.operations->kernel_file("common/attention/kernels/rope");
  launch.source.entry = "rope_rotate";
  launch.source.constants = {
      {"HEAD_DIM", config.head_dim},          {"ROTARY_DIM", config.rotary_dim},
      {"IN_TYPE", element_type(shape.dtype)}, {"INTERLEAVED", config.pairing == RopePairing::interleaved},
      {"TABLE", shape.table_positions > 0},   {"GROUP", tiles.group}};
  launch.grid = {1, static_cast<uint32_t>(divided_up(shape.rows, tiles.rows)), static_cast<uint32_t>(shape.batch)};
  operation.share_out(launch, config, shape, tiles);
  return launch;
}

}  // namespace

void rope_check_config(const RopeConfig& config) {
  const int64_t dim = config.head_dim, rotary = config.rotary_dim;
  rope_require(dim >= 8 && dim <= 512 && dim % 8 == 0, "head_dim", static_cast<double>(dim),
               "it must be a multiple of 8, from 8 to 512");
  rope_require(rotary >= 2 && rotary <= dim && rotary % 2 == 0, "rotary_dim", static_cast<double>(rotary),
               "it must be even, from 2 to head_dim");
  rope_require(config.theta > 1 && std::isfinite(config.theta), "theta", config.theta, "it must be a number above 1");
  std::visit([&](const auto& scaling) { rope_check_scaling(scaling, config); }, config.scaling);
}

std::vector<double> rope_frequencies(const RopeConfig& config) {
  rope_check_config(config);
  std::vector<double> frequencies = rope_unscaled(config.theta, config.rotary_dim);
  std::visit([&](const auto& scaling) { rope_scale(scaling, config, frequencies); }, config.scaling);
  return frequencies;
}

double rope_attention_factor(const RopeConfig& config) {
  rope_check_config(config);
  const auto* yarn = std::get_if<RopeYarn>(&config.scaling);
  if (!yarn) return 1;
  if (yarn->attention_factor != 0) return yarn->attention_factor;
  const auto with = [&](double mscale) { return 0.1 * mscale * std::log(yarn->factor) + 1; };
  return yarn->mscale != 0 && yarn->mscale_all_dim != 0 ? with(yarn->mscale) / with(yarn->mscale_all_dim) : with(1);
}

RopeTable rope_table(const RopeConfig& config, int64_t positions, int64_t first) {
  const std::vector<double> frequencies = rope_frequencies(config);
  const double factor = rope_attention_factor(config);
  if (positions < 1 || positions > std::numeric_limits<int32_t>::max()) {
    throw BadInput(fmt::format("rope: a table of {} positions: it must have from 1 to 2^31 - 1 positions", positions));
  }
  const size_t pairs = frequencies.size();
  RopeTable table;
  table.cosines.resize(static_cast<size_t>(positions) * pairs);
  table.sines.resize(table.cosines.size());
  parallel_for(positions, 256, [&](int64_t begin, int64_t end) {
    for (int64_t position = begin; position < end; ++position) {
      for (size_t i = 0; i < pairs; ++i) {
        const double angle = static_cast<double>(first + position) * frequencies[i];
        const size_t at = static_cast<size_t>(position) * pairs + i;
        table.cosines[at] = static_cast<float>(factor * std::cos(angle));
        table.sines[at] = static_cast<float>(factor * std::sin(angle));
      }
    }
  });
  return table;
}

Plan rope_plan(const RopeConfig& config, const RopeShape& shape, const DeviceInfo& device) {
  if (!device.operations->rope) return {.unable = no_kernel_for("RoPE")};
  Plan plan{.launches = {rope_launch(config, shape, device)}};
  const auto rows = static_cast<double>(shape.batch * (shape.q_heads + shape.kv_heads) * shape.rows);
  const auto table_rows = static_cast<double>(shape.table_positions > 0 ? shape.rows : 0);
  plan.work = {.flops = 3 * rows * static_cast<double>(config.rotary_dim),
               .bytes = 2 * rows * static_cast<double>(config.head_dim * rope_element_bytes(shape.dtype)) +
                        table_rows * static_cast<double>(config.rotary_dim) * sizeof(float),
               .bound = Bound::memory,
               .dtype = shape.dtype};
  return plan;
}

void rope_check_tensors(const RopeTensors& tensors, const RopeConfig& config, const RopeShape& shape,
                        const DeviceInfo& device) {
  rope_tensors(tensors, shape, device.operations->rope->tiles(config, shape, device).alignment_bytes);
}

RopeLaunch::RopeLaunch(Device& device, PipelineCache& pipelines, const RopeConfig& config, const RopeShape& shape,
                       const Plan& plan, std::string_view phase)
    : shape_(shape), launch_(planned_launch(plan, phase, device.info())) {
  kernel_ = pipelines.get(launch_.source).kernel.get();
  const RopeTiles tiles = device.info().operations->rope->tiles(config, shape, device.info());
  tile_rows_ = tiles.rows;
  alignment_bytes_ = tiles.alignment_bytes;
  if (shape.table_positions > 0) {
    const RopeTable table = rope_table(config, shape.table_positions);
    cosines_ = uploaded(device, table.cosines);
    sines_ = uploaded(device, table.sines);
  } else {
    frequencies_ = uploaded(device, rope_turns(rope_frequencies(config)));
    factor_ = static_cast<float>(rope_attention_factor(config));
  }
}

void RopeLaunch::encode(CommandEncoder& encoder, const RopeTensors& tensors) const {
  RopeParams params{};
  const auto [q, k] = rope_tensors(tensors, shape_, alignment_bytes_);
  params.tensors[0] = q;
  params.tensors[1] = k;
  params.offsets = tensors.offsets;
  params.cosines = static_cast<const float*>(cosines_.data());
  params.sines = static_cast<const float*>(sines_.data());
  params.frequencies = static_cast<const unsigned long long*>(frequencies_.data());
  params.factor = factor_;
  params.rows = static_cast<int>(shape_.rows);
  params.tile_rows = static_cast<int>(tile_rows_);
  encoder.dispatch(*kernel_, launch_.grid, launch_.threads, launch_.threadgroup_bytes, params);
}

}  // namespace attn
