#include "common/linear/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "common/attention/flash.h"
#include "common/base/divided_up.h"
#include "common/base/error.h"
#include "common/base/parallel.h"
#include "common/base/stopwatch.h"
#include "common/linear/kernels/phases_layout.h"
#include "common/linear/kernels/recurrent_layout.h"
#include "common/linear/kernels/steps_layout.h"

namespace attn {
namespace {

size_t floats(int64_t count) { return static_cast<size_t>(count) * sizeof(float); }
uint32_t grid_size(int64_t count) { return static_cast<uint32_t>(count); }

// ---- scans

/// Returns how many chunks a span has: config.span_chunks, unless this number is 0. With look-back a span has at most
/// held_chunks chunks, so that it publishes its state soon after the span before it. In passes a sequence is one span
/// if the threadgroups of all sequences and heads then fill the device. Else spans have at least `fewest` chunks, or
/// all chunks of a shorter sequence.
int64_t span_chunks(const LinearConfig& config, const DeviceInfo& device) {
  constexpr int64_t looking_back = held_chunks, fewest = 16;
  if (config.span_chunks > 0) return config.span_chunks;
  const int64_t chunks = std::max<int64_t>(config.chunks(), 1);
  if (config.scan == "lookback") return std::min(chunks, looking_back);
  const LinearOperation& operation = *device.operations->linear;
  const int64_t groups = config.sequences * config.heads * (config.head_dim / operation.scan_rows(config, device));
  return std::clamp(divided_up(chunks * groups, operation.scan_groups(device)), std::min(chunks, fewest), chunks);
}
int64_t spans_of(const LinearConfig& config, const DeviceInfo& device) {
  return std::max<int64_t>(divided_up(config.chunks(), span_chunks(config, device)), 1);
}

// ---- launches

Launch kernel_launch(const LinearConfig& config, const DeviceInfo& device, const std::string& file,
                     const std::string& entry, const std::string& phase) {
  Launch launch;
  launch.source.path = device.operations->kernel_file("common/linear/kernels/" + file);
  launch.source.entry = entry;
  launch.source.constants = {{"HEAD_DIM", config.head_dim},
                             {"VALUE_DIM", config.value_dim},
                             {"GATE", config.gate},
                             {"NORMALISED", config.normalised}};
  launch.phase = phase;
  return launch;
}

/// For a kernel that reads q, k or v: adds their type and the feature map.
void add_inputs(Launch& launch, const LinearConfig& config) {
  launch.source.constants["IN_TYPE"] = element_type(config.dtype);
  launch.source.includes = config.feature.includes();
  launch.source.guarded = config.feature.guarded();
}

std::vector<Launch> phase_launches(const LinearConfig& config, const DeviceInfo& device) {
  const LinearOperation& operation = *device.operations->linear;
  std::vector<Launch> launches;
  const Grid chunks = {grid_size(config.chunk_numbers()), grid_size(config.heads), 1};
  Launch& chunk_h = launches.emplace_back(kernel_launch(config, device, "chunk_h", "chunk_h", "chunk_h"));
  add_inputs(chunk_h, config);
  chunk_h.source.constants["CHUNK"] = config.chunk;
  chunk_h.grid = chunks;
  operation.complete(chunk_h, config, device);

  const int64_t spans = spans_of(config, device), rows = operation.scan_rows(config, device);
  const auto add_scan = [&](const std::string& entry, const std::string& phase, int pass, int64_t spans_at_once) {
    Launch& scan = launches.emplace_back(kernel_launch(config, device, "scan", entry, phase));
    scan.source.constants["CAUSAL"] = config.causal;
    scan.source.constants["CHUNK"] = config.chunk;
    scan.source.constants["SCAN_ROWS"] = rows;
    if (pass != 0) scan.source.constants["PASS"] = pass;
    if (pass == 0) scan.source.constants["DELAY"] = config.delay;
    scan.grid = {grid_size(config.sequences * spans_at_once), grid_size(config.heads),
                 grid_size(config.head_dim / rows)};
    operation.complete(scan, config, device);
  };
  if (config.scan == "lookback") {
    add_scan("scan_lookback", "scan", 0, spans);
  } else if (config.scan == "passes") {
    if (spans > 1) {
      add_scan("scan", "scan_totals", PASS_TOTALS, spans);
      add_scan("scan", "scan_starts", PASS_STARTS, 1);
    }
    if (spans == 1 || config.causal) add_scan("scan", spans > 1 ? "scan_states" : "scan", PASS_STATES, spans);
  }

  Launch& chunk_o = launches.emplace_back(kernel_launch(config, device, "chunk_o", "chunk_o", "chunk_o"));
  add_inputs(chunk_o, config);
  chunk_o.source.constants["CHUNK"] = config.chunk;
  chunk_o.source.constants["CAUSAL"] = config.causal;
  chunk_o.source.constants["OUT_TYPE"] = element_type(config.out_dtype);
  chunk_o.grid = chunks;
  operation.complete(chunk_o, config, device);
  return launches;
}

std::vector<Launch> launches_of(const LinearConfig& config, const DeviceInfo& device) {
  if (config.variant == "phases") return phase_launches(config, device);
  std::vector<Launch> launches;
  for (const std::string& kernel : device.operations->linear->kernels(config)) {
    Launch& launch = launches.emplace_back(kernel_launch(config, device, kernel, kernel, kernel));
    add_inputs(launch, config);
    launch.source.constants["OUT_TYPE"] = element_type(config.out_dtype);
    launch.grid = {grid_size(config.sequences), grid_size(config.heads), 1};
    device.operations->linear->complete(launch, config, device);
  }
  return launches;
}

constexpr int64_t most_elements = 256;  // the largest head_dim, value_dim and chunk

std::string why_unable(const LinearConfig& config, const DeviceInfo& device) {
  if (!device.operations->linear) return no_kernel_for("linear attention");
  if (std::string why = linear_unable(config.head_dim, config.value_dim); !why.empty()) return why;
  if (config.variant != "recurrent" && (config.chunk < 16 || config.chunk % 16 != 0 || config.chunk > most_elements)) {
    return fmt::format("chunk {}: chunk must be a multiple of 16, at most {}", config.chunk, most_elements);
  }
  if (!config.causal && config.gate != GATE_NONE) return "gate: with causal 0, gate must be none";
  if (!config.causal && config.variant == "recurrent") return "variant recurrent: causal must be 1";
  if (!config.causal && config.variant == "fused" && config.segments > 1) {
    return fmt::format("segments {}: with causal 0, segments must be 0 or 1", config.segments);
  }
  return device.operations->linear->unable(config);
}

}  // namespace

Gate parse_gate(std::string_view text) {
  constexpr std::string_view names[] = {"none", "head", "token", "channel"};
  const auto found = std::ranges::find(names, text);
  if (found == std::end(names))
    throw BadInput(fmt::format("gate '{}' is not allowed; allowed are none, head, token and channel", text));
  return static_cast<Gate>(found - std::begin(names));
}

std::string linear_unable(int64_t head_dim, int64_t value_dim) {
  for (const auto& [name, width] : {std::pair{"head_dim", head_dim}, {"value_dim", value_dim}}) {
    if (width < 8 || width % 8 != 0 || width > most_elements) {
      return fmt::format("{0} {1}: {0} must be a multiple of 8, at most {2}", name, width, most_elements);
    }
  }
  return {};
}

double LinearConfig::effective_scale() const {
  if (scale != 0) return scale;
  return normalised ? 1 : 1 / std::sqrt(static_cast<double>(head_dim));
}

int64_t linear_chunk(const std::string& variant, const DeviceInfo& device) {
  constexpr int64_t otherwise = 64;
  return device.operations->linear ? device.operations->linear->chunk(variant) : otherwise;
}

double recurrence_flops(const LinearConfig& config) {
  return 4.0 * static_cast<double>(config.all_rows * config.heads * config.head_dim * config.value_dim);
}

Plan linear_plan(const LinearConfig& config, const DeviceInfo& device, bool with_state) {
  Plan plan;
  if (plan.unable = why_unable(config, device); !plan.unable.empty()) return plan;
  plan.launches = launches_of(config, device);
  plan.host = config.variant == "phases" && config.scan == "host";
  const auto rows = static_cast<double>(config.all_rows * config.heads);
  const auto dims = static_cast<double>(config.head_dim), values = static_cast<double>(config.value_dim);
  plan.work.flops = recurrence_flops(config);
  if (config.causal && config.chunk > 0) {
    // A step of n tokens has n (n + 1) / 2 unmasked pairs of query and key. `pairs` is the average for one query.
    const int64_t at_once = device.operations->linear->step(config);
    const double pairs = static_cast<double>(std::min(at_once, config.tokens) + 1) / 2;
    plan.work.flops += rows * pairs * 2 * (dims + values);
  }
  const auto in = static_cast<double>(size_bytes(config.dtype)),
             out = static_cast<double>(size_bytes(config.out_dtype));
  const double gate = config.gate == GATE_TOKEN ? 4 : config.gate == GATE_CHANNEL ? 4 * dims : 0;
  plan.work.bytes = rows * ((2 * dims + values) * in + values * out + gate);
  if (with_state) {
    const double width = values + (config.normalised ? 1 : 0);
    plan.work.bytes += 2 * 4 * static_cast<double>(config.sequences * config.heads) * dims * width;
  }
  plan.work.bound = device.operations->linear->bound(config);
  plan.work.dtype = config.dtype;
  return plan;
}

LinearLaunch::LinearLaunch(Device& device, PipelineCache& pipelines, const LinearConfig& config, const Plan& plan)
    : device_(&device), config_(config), launches_(plan.launches) {
  const DeviceInfo& info = device.info();
  if (const auto reason = skip_reason(plan, info)) throw BadInput(*reason);
  for (const Launch& launch : launches_) kernels_.push_back(pipelines.get(launch.source).kernel.get());
  if ((workspace_ = info.operations->linear->workspace(device, config))) return;
  const int64_t state = config.state_elements();
  int64_t groups = 1;  // how many threadgroups of each span and head look back
  if (config.variant == "phases") {
    const int64_t numbers = config.chunk_numbers() * config.heads;
    span_chunks_ = attn::span_chunks(config, info);
    spans_ = spans_of(config, info);
    groups = config.head_dim / info.operations->linear->scan_rows(config, info);
    states_ = Buffer(device, floats(numbers * state));
    if (config.normalised) key_sums_ = Buffer(device, floats(numbers * config.head_dim));
    if (config.gate != GATE_NONE) decays_ = Buffer(device, floats(numbers * config.key_width()));
  } else if (config.variant == "fused") {
    spans_ = info.operations->linear->segments(config, info);
    span_chunks_ = std::max<int64_t>(divided_up(config.chunks(), spans_), 1);
  }
  if (spans_ == 1 || config.scan == "host") return;
  const int64_t spans = config.sequences * spans_ * config.heads;
  span_states_ = Buffer(device, floats(spans * state));
  if (config.normalised) span_key_sums_ = Buffer(device, floats(spans * config.head_dim));
  if (config.gate != GATE_NONE) span_decays_ = Buffer(device, floats(spans * config.head_dim));
  if (config.scan == "passes") return;
  states_after_ = Buffer(device, floats(spans * state));
  if (config.normalised) key_sums_after_ = Buffer(device, floats(spans * config.head_dim));
  flags_ = Buffer(device, sizeof(unsigned) * static_cast<size_t>(spans * groups));
  constexpr int64_t least_tickets = 3;  // scan_lookback on a GPU has three words of tickets
  tickets_ = Buffer(device, sizeof(unsigned) * static_cast<size_t>(std::max(config.heads * groups, least_tickets)));
  // If LinearOperation::resets_flags(), only kernels write flags and tickets after these uploads.
  for (Buffer* zeroed : {&flags_, &tickets_}) {
    const std::vector<std::byte> zeros(zeroed->bytes());
    zeroed->upload(zeros.data(), zeros.size());
  }
}

SpanParams LinearLaunch::parameters(const LinearTensors& tensors) const {
  const auto pointer = [](const Buffer& buffer) {
    return buffer.bytes() > 0 ? static_cast<float*>(buffer.data()) : nullptr;
  };
  SpanParams p{};
  p.q = tensors.q;
  p.k = tensors.k;
  p.v = tensors.v;
  p.o = tensors.o;
  p.q_strides = kernel_strides(tensors.q_strides);
  p.k_strides = kernel_strides(tensors.k_strides);
  p.v_strides = kernel_strides(tensors.v_strides);
  p.o_strides = kernel_strides(tensors.o_strides);
  p.gate = tensors.gate;
  p.gate_strides = kernel_strides(tensors.gate_strides);
  if (tensors.initial_key_sum && !tensors.initial_state) {
    throw BadInput("initial_key_sum is not allowed without initial_state");
  }
  p.initial_state = tensors.initial_state;
  p.initial_key_sum = tensors.initial_key_sum;
  p.final_state = tensors.final_state;
  p.final_key_sum = tensors.final_key_sum;
  p.starts = tensors.starts;
  p.sequences = static_cast<int>(config_.sequences);
  p.heads = static_cast<int>(config_.heads);
  p.tokens = static_cast<int>(config_.tokens);
  p.scale = static_cast<float>(config_.effective_scale());
  p.feature_data = tensors.feature_data;
  p.chunks = config_.variant == "phases" ? static_cast<int>(config_.chunk_numbers()) : 0;
  p.states = pointer(states_);
  p.key_sums = pointer(key_sums_);
  p.decays = pointer(decays_);
  p.span_chunks = static_cast<int>(span_chunks_);
  p.spans = static_cast<int>(spans_);
  p.span_states = pointer(span_states_);
  p.span_key_sums = pointer(span_key_sums_);
  p.span_decays = pointer(span_decays_);
  p.states_after = pointer(states_after_);
  p.key_sums_after = pointer(key_sums_after_);
  p.flags = reinterpret_cast<unsigned*>(pointer(flags_));
  p.tickets = reinterpret_cast<unsigned*>(pointer(tickets_));
  return p;
}

void LinearLaunch::dispatch(CommandEncoder& encoder, const LinearTensors& tensors, size_t first, size_t end) const {
  const SpanParams params = parameters(tensors);
  for (const Buffer* zeroed : {&flags_, &tickets_}) {
    if (!device_->info().operations->linear->resets_flags() && first == 0 && zeroed->bytes() > 0)
      encoder.fill(zeroed->data(), 0, zeroed->bytes());
  }
  for (size_t i = first; i < end; ++i) {
    const Launch& launch = launches_[i];
    if (launch.grid.count() == 0) continue;
    const auto add = [&](const auto& own) {
      encoder.dispatch(*kernels_[i], launch.grid, launch.threads, launch.threadgroup_bytes, own);
    };
    if (launch.source.entry == "recurrent") {
      add(static_cast<const LinearParams&>(params));
    } else if (launch.source.entry.starts_with("chunk_")) {
      add(static_cast<const ChunkParams&>(params));
    } else if (workspace_) {
      workspace_->dispatch(encoder, *kernels_[i], launch, params);
    } else {
      add(params);
    }
  }
}

void LinearLaunch::encode(CommandEncoder& encoder, const LinearTensors& tensors) const {
  if (config_.scan == "host") throw std::logic_error("the scan runs on the host, so encode() cannot encode it");
  dispatch(encoder, tensors, 0, launches_.size());
}
void LinearLaunch::encode_before(CommandEncoder& encoder, const LinearTensors& tensors) const {
  dispatch(encoder, tensors, 0, 1);
}
void LinearLaunch::encode_after(CommandEncoder& encoder, const LinearTensors& tensors) const {
  dispatch(encoder, tensors, 1, launches_.size());
}

LinearLaunch::HostScan LinearLaunch::scan_on_host(const LinearTensors& tensors, const std::vector<int>& starts) {
  HostScan seconds;
  Stopwatch stopwatch;
  const auto fetch = [](std::vector<float>& to, const Buffer& from) {
    to.resize(from.bytes() / sizeof(float));
    if (from.bytes() > 0) from.download(to.data(), from.bytes());
  };
  fetch(host_states_, states_);
  fetch(host_key_sums_, key_sums_);
  fetch(host_decays_, decays_);
  const int64_t dims = config_.head_dim, values = config_.value_dim, heads = config_.heads, state = dims * values;
  const auto all = [&](const float* from, int64_t width) {
    std::vector<float> copy(static_cast<size_t>(config_.sequences * heads * width));
    if (from) device_->download(copy.data(), from, copy.size() * sizeof(float));
    return copy;
  };
  std::vector<float> before = all(tensors.initial_state, state), sums;
  if (config_.normalised) sums = all(tensors.initial_key_sum, dims);
  seconds.down_s = stopwatch.lap();

  ChunkParams params{};  // for rows_of_sequence() on the host
  params.starts = starts.empty() ? nullptr : starts.data();
  params.tokens = static_cast<int>(config_.tokens);
  // Takes one row of the state, of `width` elements, or one element of the key sum (`width` is 1). Replaces what each
  // chunk adds by the row before the chunk. `current` has the row before the first chunk, and after the call the row
  // after the last chunk. If not causal, the first chunk gets the row after the last chunk instead.
  const auto scan_row = [&](float* first, int64_t step, float* current, int64_t width, const float* decays,
                            int64_t decay_step, int64_t chunks) {
    for (int64_t c = 0; c < chunks; ++c) {
      const float decay = decays ? std::exp(decays[c * decay_step]) : 1;
      float* const added = first + c * step;
      for (int64_t e = 0; e < width; ++e) {
        const float was = current[e];
        current[e] = was * decay + added[e];
        added[e] = was;
      }
    }
    if (!config_.causal && chunks > 0) std::copy_n(current, width, first);
  };
  parallel_for(config_.sequences * heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sequence = i / heads, head = i % heads;
      const SequenceRows rows = rows_of_sequence(params, static_cast<int>(sequence), static_cast<int>(config_.chunk));
      const int64_t first = rows.first_chunk * heads + head;
      for (int64_t d = 0; d < dims; ++d) {
        const int64_t width = config_.key_width();
        const float* const decays =
            config_.gate == GATE_NONE ? nullptr : &host_decays_[static_cast<size_t>(first * width + d % width)];
        if (rows.chunks == 0) continue;
        scan_row(&host_states_[static_cast<size_t>(first * state + d * values)], heads * state,
                 &before[static_cast<size_t>(i * state + d * values)], values, decays, heads * width, rows.chunks);
        if (!config_.normalised) continue;
        scan_row(&host_key_sums_[static_cast<size_t>(first * dims + d)], heads * dims,
                 &sums[static_cast<size_t>(i * dims + d)], 1, decays, heads * width, rows.chunks);
      }
    }
  });
  seconds.sum_s = stopwatch.lap();

  states_.upload(host_states_.data(), states_.bytes());
  if (config_.normalised) key_sums_.upload(host_key_sums_.data(), key_sums_.bytes());
  if (tensors.final_state) device_->upload(tensors.final_state, before.data(), before.size() * sizeof(float));
  if (tensors.final_key_sum) device_->upload(tensors.final_key_sum, sums.data(), sums.size() * sizeof(float));
  seconds.up_s = stopwatch.lap();
  return seconds;
}

std::vector<const Buffer*> LinearLaunch::buffers() const {
  if (workspace_) return {&workspace_->memory()};
  return {&states_,      &key_sums_,     &decays_,         &span_states_, &span_key_sums_,
          &span_decays_, &states_after_, &key_sums_after_, &flags_,       &tickets_};
}

size_t LinearLaunch::bytes() const {
  size_t sum = 0;
  for (const Buffer* buffer : buffers()) sum += buffer->bytes();
  return sum;
}

bool LinearLaunch::guards_intact() const {
  return std::ranges::all_of(buffers(), [](const Buffer* buffer) { return buffer->guards_intact(); });
}

}  // namespace attn
