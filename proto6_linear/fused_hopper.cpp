#include "proto6_linear/fused_hopper.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/device/cuda/tensor_map.h"

namespace attn {

namespace {

constexpr int64_t most_memory = 227 * 1024;     // that a threadgroup may have
constexpr int64_t multiprocessor = 228 * 1024;  // that all of its threadgroups share, each with 1024 bytes more
constexpr int64_t most_stages = 8;
constexpr int64_t most_reach = 31;  // lanes that look back, less their own

int64_t quotient_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

ElementType element(DType type) { return type == DType::bf16 ? BF16 : F16; }

// Of [batch, heads, rows, width] in boxes of 64 by 64.
TensorMap map_of(const void* base, DType type, int64_t width, int64_t rows, int64_t heads, int64_t batch,
                 const TensorStrides& strides) {
  const auto count = [](int64_t n) { return static_cast<uint64_t>(std::max<int64_t>(n, 1)); };
  const auto bytes = [](int64_t elements) { return static_cast<uint64_t>(elements) * sizeof(uint16_t); };
  return make_tensor_map({.base = base,
                          .element = element(type),
                          .dims = {count(width), count(rows), count(heads), count(batch), 1},
                          .strides_bytes = {bytes(strides.row), bytes(strides.head), bytes(strides.batch),
                                            bytes(strides.batch) * count(batch)},
                          .box = {fused_slice, fused_chunk, 1, 1, 1},
                          .swizzle = Swizzle::bytes_128});
}

}  // namespace

std::optional<std::string> fused_unable(const FusedShape& shape) {
  if (shape.dtype == DType::f32 || shape.out_dtype != shape.dtype) {
    return "the fused kernel on this device takes bf16 or f16, in and out alike";
  }
  if (!shape.causal) return "the fused kernel on this device is causal; phases takes this";
  if (shape.gate == GATE_CHANNEL) return "the fused kernel on this device takes no gate per channel; phases takes this";
  if (shape.head_dim % 8 != 0 || shape.head_dim > 256 || shape.value_dim % 8 != 0) {
    return fmt::format(
        "the fused kernel on this device takes head_dim up to 256 and value_dim, both multiples of 8, not {} "
        "and {}",
        shape.head_dim, shape.value_dim);
  }
  return std::nullopt;
}

FusedPlan fused_plan(const FusedShape& shape, int64_t units) {
  FusedPlan plan;
  const int64_t slices = quotient_up(shape.value_dim, fused_slice);
  const int64_t chunks = std::max<int64_t>(1, quotient_up(shape.tokens, fused_chunk));
  const int64_t threadgroups = 1;
  plan.groups = slices;
  plan.slots = shape.sequences * shape.heads * plan.groups;

  const bool gated = shape.gate != GATE_NONE;
  const auto memory = [&](int64_t stages) {
    return FusedLayout(shape.head_dim, plan.consumers, stages, gated, shape.normalised).bytes;
  };
  const int64_t limit = std::min(most_memory, multiprocessor / threadgroups - 1024);
  int64_t stages = most_stages;
  while (stages > 1 && memory(stages) > limit) --stages;

  // One segment where heads alone fill most of the device.
  plan.segment_chunks = chunks;
  if (shape.segments > 0) {
    plan.segment_chunks = quotient_up(chunks, shape.segments);
  } else if (plan.slots * 4 < units * threadgroups * 3) {
    const int64_t in_flight = std::max<int64_t>(1, units * threadgroups / plan.slots);
    plan.segment_chunks = std::clamp<int64_t>(quotient_up(chunks, in_flight), 1, std::max<int64_t>(stages / 2, 4));
  }
  plan.segments = quotient_up(chunks, plan.segment_chunks);
  // Threadgroups of a cluster begin together; where some wait for others, all have to run at the same time.
  plan.cluster = plan.segments == 1 && shape.head_dim > 64 && plan.groups % 2 == 0 ? 2 : 1;
  plan.grid = std::min(units * threadgroups, plan.slots * plan.segments) / plan.cluster * plan.cluster;
  plan.reach = std::clamp<int64_t>(quotient_up(plan.grid, plan.slots), 1, most_reach);
  plan.threads = plan.consumers * 128 + 32;
  plan.threadgroup_bytes = memory(stages);
  plan.constants = {{"HEAD_DIM", shape.head_dim},     {"CONSUMERS", plan.consumers},    {"STAGES", stages},
                    {"THREADGROUPS", threadgroups},   {"CLUSTER", plan.cluster},        {"GATE", shape.gate},
                    {"NORMALISED", shape.normalised}, {"IN_TYPE", element(shape.dtype)}};

  const auto whole = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
  const size_t flags = static_cast<size_t>(plan.segments * plan.slots * plan.consumers);
  plan.zero_bytes = whole(256 + flags * sizeof(unsigned));
  plan.totals_at = plan.zero_bytes;
  plan.states_at = plan.totals_at + whole(flags * sizeof(float));
  plan.workspace_bytes = plan.states_at;
  if (plan.segments > 1) {
    plan.workspace_bytes += static_cast<size_t>(2 * plan.reach * plan.slots * 2 * plan.consumers *
                                                fused_state_floats(shape.head_dim, shape.normalised)) *
                            sizeof(float);
  }
  return plan;
}

FusedParams fused_params(const FusedShape& shape, const FusedPlan& plan, const LinearParams& linear, void* workspace) {
  const int64_t rows = shape.ragged ? shape.all_rows : shape.tokens, batch = shape.ragged ? 1 : shape.sequences;
  const auto map = [&](const void* base, int64_t width, const TensorStrides& strides) {
    return map_of(base, shape.dtype, width, rows, shape.heads, batch, strides);
  };
  auto* const memory = static_cast<std::byte*>(workspace);
  FusedParams params{};
  params.q = map(linear.q, shape.head_dim, linear.q_strides);
  params.k = map(linear.k, shape.head_dim, linear.k_strides);
  params.v = map(linear.v, shape.value_dim, linear.v_strides);
  params.o = map(linear.o, shape.value_dim, linear.o_strides);
  params.linear = linear;
  params.value_dim = static_cast<int>(shape.value_dim);
  params.groups = static_cast<int>(plan.groups);
  params.slots = static_cast<int>(plan.slots);
  params.tasks = static_cast<int>(plan.slots * plan.segments);
  params.segment_chunks = static_cast<int>(plan.segment_chunks);
  params.reach = static_cast<int>(plan.reach);
  params.counters = reinterpret_cast<unsigned*>(memory);
  params.flags = reinterpret_cast<unsigned*>(memory + 256);
  params.totals = reinterpret_cast<float*>(memory + plan.totals_at);
  params.states = reinterpret_cast<float*>(memory + plan.states_at);
  return params;
}

}  // namespace attn
