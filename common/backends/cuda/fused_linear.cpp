#include "common/backends/cuda/fused_linear.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/backends/cuda/tensor_map.h"
#include "common/base/divided_up.h"

namespace attn {

namespace {

constexpr int64_t most_memory = 227 * 1024;  // the most bytes of a threadgroup's memory
constexpr int64_t most_stages = 8;
constexpr int64_t most_reach = 31;        // the most segments that a task looks back: the lanes of a warp, except one
constexpr double cache_bytes = 24 << 20;  // bytes of the second-level cache that keys and values of segments may fill

ElementType element(DType type) { return type == DType::f32 ? F32 : type == DType::bf16 ? BF16 : F16; }

// Returns the map of a tensor [batch, heads, rows, width], with boxes of 128 bytes of each row.
TensorMap map_of(const void* base, DType type, int64_t width, int64_t rows, int64_t heads, int64_t batch,
                 const TensorStrides& strides, int box_rows) {
  const auto count = [](int64_t n) { return static_cast<uint64_t>(std::max<int64_t>(n, 1)); };
  const auto bytes = [&](int64_t elements) { return static_cast<uint64_t>(elements) * size_bytes(type); };
  return make_tensor_map(
      {.base = base,
       .element = element(type),
       .dims = {count(width), count(rows), count(heads), count(batch), 1},
       .strides_bytes = {bytes(strides.row), bytes(strides.head), bytes(strides.batch),
                         bytes(strides.batch) * count(batch)},
       .box = {static_cast<uint32_t>(128 / size_bytes(type)), static_cast<uint32_t>(box_rows), 1, 1, 1},
       .swizzle = Swizzle::bytes_128});
}

// A task of the kernel is a segment (a part of a sequence) for one slot. A slot is a slice of the value columns of one
// head of one sequence (FusedParams).

// Returns how many segments back a task looks at most: the segments of one slot that run at the same time, from 1 to
// most_reach.
int64_t reach_of(int64_t grid, int64_t slots) { return std::clamp<int64_t>(divided_up(grid, slots), 1, most_reach); }

// Returns how many chunks a segment has. Tries each number of segments up to most_segments, and chooses the number with
// the least expected time of the launch. The unit of time is the time in which a chunk is read and written once.
// Keys and values of a segment count as read twice, except in a sequence's last segment. The second read costs little
// if the cache still has these keys and values, except by channel, where keys are decayed twice too. With two segments
// or more, each task also takes time to look back.
int64_t segment_rule(const FusedShape& shape, int64_t chunks, int64_t slots, int64_t slices, int64_t units) {
  constexpr double look_back = 2, look_back_each = 1.0 / 6;
  const bool by_channel = shape.gate == GATE_CHANNEL && !fused_prepares(shape.gate, shape.head_dim);
  const double again = by_channel ? 0.45 : 0.4, again_cached = by_channel ? 0.4 : 0.1;
  constexpr int64_t most_segments = 1024;  // the largest number that is tried
  const double chunk_bytes = 2.0 * fused_chunk *
                             (static_cast<double>(shape.head_dim) / static_cast<double>(slices) +
                              std::min<double>(static_cast<double>(shape.value_dim), fused_slice));
  int64_t best = chunks;
  double least = static_cast<double>(divided_up(slots, units) * chunks);
  for (int64_t segments = 2; segments <= std::min(chunks, most_segments); ++segments) {
    const int64_t length = divided_up(chunks, segments), actual = divided_up(chunks, length);
    const int64_t tasks = slots * actual, grid = std::min(units, tasks);
    const bool cached = static_cast<double>(grid * length) * chunk_bytes <= cache_bytes;
    // The share of segments that count as read twice.
    const double twice = static_cast<double>(actual - 1) / static_cast<double>(actual);
    const double task = static_cast<double>(length) * (1 + (cached ? again_cached : again) * twice) + look_back +
                        look_back_each * static_cast<double>(reach_of(grid, slots));
    const double time = static_cast<double>(divided_up(tasks, units)) * task;
    if (time < least) {
      least = time;
      best = length;
    }
  }
  return best;
}

// The bytes of the tensors that decay_chunks writes.
struct PreparedBytes {
  size_t keys, weights, decays;  // of Q, too, `keys`
  PreparedBytes(const FusedShape& shape, const FusedPlan& plan) {
    const auto rows = static_cast<size_t>(shape.heads * plan.chunks * fused_chunk);
    const auto whole = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
    keys = whole(rows * static_cast<size_t>(shape.head_dim) * size_bytes(shape.dtype));
    weights = whole(rows * fused_chunk * size_bytes(shape.dtype));
    decays = rows / fused_chunk * static_cast<size_t>(fused_decay_floats(shape.head_dim)) * sizeof(float);
  }
  size_t all() const { return 2 * keys + weights + decays; }
};

}  // namespace

std::optional<std::string> fused_unable(const FusedShape& shape) {
  if (shape.dtype == DType::f32 || shape.out_dtype != shape.dtype) {
    return "the fused kernel on this device takes inputs and outputs of one type, bf16 or f16";
  }
  if (!shape.causal)
    return "the fused kernel on this device is always causal; the variant 'phases' also takes causal 0";
  if (shape.head_dim % 8 != 0 || shape.head_dim > 256 || shape.value_dim % 8 != 0) {
    return fmt::format(
        "the fused kernel on this device takes multiples of 8 as head_dim and value_dim, and head_dim up to 256; "
        "head_dim is {}, value_dim is {}",
        shape.head_dim, shape.value_dim);
  }
  return std::nullopt;
}

FusedPlan fused_plan(const FusedShape& shape, int64_t units) {
  FusedPlan plan;
  const int64_t chunks = std::max<int64_t>(1, divided_up(shape.tokens, fused_chunk));
  const bool prepared = fused_prepares(shape.gate, shape.head_dim);
  const bool by_channel = shape.gate == GATE_CHANNEL && !prepared;
  const auto memory = [&](int64_t stages) {
    return FusedLayout(shape.head_dim, stages, shape.gate, shape.normalised, plan.column_panels).bytes;
  };
  // In one launch by channel, a task computes weights for two panels of value columns at once.
  if (by_channel && shape.value_dim > fused_slice) plan.column_panels = 2;
  plan.slices = divided_up(shape.value_dim, plan.column_panels * fused_slice);
  plan.slots = shape.sequences * shape.heads * plan.slices;
  int64_t stages = most_stages;
  while (stages > 1 && memory(stages) > most_memory) --stages;

  plan.segment_chunks = shape.segments > 0 ? divided_up(chunks, shape.segments)
                                           : segment_rule(shape, chunks, plan.slots, plan.slices, units);
  plan.segments = divided_up(chunks, plan.segment_chunks);
  plan.grid = std::min(units, plan.slots * plan.segments);
  plan.reach = reach_of(plan.grid, plan.slots);
  plan.threads = by_channel ? 512 : 384;
  plan.threadgroup_bytes = memory(stages);
  plan.constants = {{"HEAD_DIM", shape.head_dim},
                    {"STAGES", stages},
                    {"GATE", shape.gate},
                    {"NORMALISED", shape.normalised},
                    {"IN_TYPE", element(shape.dtype)}};
  if (by_channel) plan.constants["COLUMN_PANELS"] = plan.column_panels;

  const auto whole = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
  const size_t flags = static_cast<size_t>(plan.segments * plan.slots);
  plan.zero_bytes = whole(256 + flags * sizeof(unsigned));
  plan.totals_at = plan.zero_bytes;
  const size_t decays = by_channel || prepared ? static_cast<size_t>(divided_up(shape.head_dim, 64) * 64) : 1;
  plan.states_at = plan.totals_at + whole(flags * decays * sizeof(float));
  plan.workspace_bytes = plan.states_at;
  if (plan.segments > 1) {
    plan.workspace_bytes +=
        static_cast<size_t>(2 * plan.reach * plan.slots * 2 *
                            fused_state_floats(shape.head_dim, shape.normalised, plan.column_panels)) *
        sizeof(float);
  }
  if (prepared) {
    plan.chunks = shape.ragged ? shape.all_rows / fused_chunk + shape.sequences : shape.sequences * chunks;
    plan.prepared_at = whole(plan.workspace_bytes);
    plan.workspace_bytes = plan.prepared_at + PreparedBytes(shape, plan).all();
  }
  return plan;
}

FusedParams fused_params(const FusedShape& shape, const FusedPlan& plan, const LinearParams& linear, void* workspace) {
  const int64_t rows = shape.ragged ? shape.all_rows : shape.tokens, batch = shape.ragged ? 1 : shape.sequences;
  const auto map = [&](const void* base, int64_t width, const TensorStrides& strides, int box_rows = fused_chunk) {
    return map_of(base, shape.dtype, width, rows, shape.heads, batch, strides, box_rows);
  };
  auto* const memory = static_cast<std::byte*>(workspace);
  FusedParams params{};
  params.q = map(linear.q, shape.head_dim, linear.q_strides);
  params.k = map(linear.k, shape.head_dim, linear.k_strides);
  params.v = map(linear.v, shape.value_dim, linear.v_strides);
  params.o = map(linear.o, shape.value_dim, linear.o_strides, fused_output_rows);
  if (shape.gate == GATE_CHANNEL) {
    params.gates =
        map_of(linear.gate, DType::f32, shape.head_dim, rows, shape.heads, batch, linear.gate_strides, fused_chunk);
  }
  if (fused_prepares(shape.gate, shape.head_dim)) {  // the maps above have checked addresses and strides
    const PreparedBytes bytes(shape, plan);
    std::byte* const q = memory + plan.prepared_at;
    params.chunks = static_cast<int>(plan.chunks);
    params.decayed_q = q;
    params.decayed_k = q + bytes.keys;
    params.weights = q + 2 * bytes.keys;
    params.chunk_decays = reinterpret_cast<float*>(q + 2 * bytes.keys + bytes.weights);
    const int64_t all = plan.chunks * fused_chunk;
    const auto prepared = [&](const void* base, int64_t width) {
      return map_of(base, shape.dtype, width, all, shape.heads, 1, {shape.heads * all * width, all * width, width},
                    fused_chunk);
    };
    params.q = prepared(params.decayed_q, shape.head_dim);
    params.k = prepared(params.decayed_k, shape.head_dim);
    params.gates = prepared(params.weights, fused_chunk);
  }
  params.linear = linear;
  params.value_dim = static_cast<int>(shape.value_dim);
  params.slices = static_cast<int>(plan.slices);
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
