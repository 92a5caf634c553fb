// Engine::rope.
#include <cstddef>
#include <type_traits>
#include <variant>

#include "common/api/engine_state.h"
#include "common/api/limits.h"

namespace attn {
namespace {

RopeShape shape_of(const RopeCall& call) {
  const TensorView& some = call.q.there() ? call.q : call.k;
  return {
      .batch = some.batch, .q_heads = call.q.heads, .kv_heads = call.k.heads, .rows = some.tokens, .dtype = some.dtype};
}

RopeTensors tensors_in(const RopeCall& call) {
  return {.q = call.q.data,
          .k = call.k.data,
          .q_out = call.q_out.data,
          .k_out = call.k_out.data,
          .q_strides = call.q.strides,
          .k_strides = call.k.strides,
          .q_out_strides = call.q_out.strides,
          .k_out_strides = call.k_out.strides,
          .offsets = call.offsets};
}

}  // namespace

void ask_rope(const RopeCall& call, bool gpu, const DeviceInfo* device) {
  if (!check(call, gpu, true) || !device) return;
  refuse_where(skip_reason(rope_plan(call.config, shape_of(call), *device), *device).value_or(""));
  RopeTensors tensors = tensors_in(call);
  for (void** const out : {&tensors.q_out, &tensors.k_out}) {
    if (*out == no_address) *out = static_cast<std::byte*>(no_address) + alignment_bytes;  // not the input's
  }
  rope_check_tensors(tensors, call.config, shape_of(call), *device);
}

void Engine::rope(const RopeCall& call, void* stream) {
  State& own = state();
  if (!check(call, !own.device->info().on_host)) return;
  const RopeShape shape = shape_of(call);
  Key key(Key::rope, stream, own.capture_of(stream));
  key.all(static_cast<int64_t>(shape.dtype), shape.batch, shape.q_heads, shape.kv_heads, shape.rows,
          call.config.head_dim, call.config.rotary_dim, static_cast<int64_t>(call.config.pairing), call.config.theta,
          static_cast<int64_t>(call.config.scaling.index()));
  std::visit(
      [&](const auto& scaling) {
        using Scaling = std::decay_t<decltype(scaling)>;
        if constexpr (std::is_same_v<Scaling, RopeLinear> || std::is_same_v<Scaling, RopeNtk>) {
          key.add(scaling.factor);
        } else if constexpr (std::is_same_v<Scaling, RopeYarn>) {
          key.all(scaling.factor, scaling.original_length, scaling.beta_fast, scaling.beta_slow,
                  scaling.attention_factor, scaling.mscale, scaling.mscale_all_dim, scaling.truncate);
        } else if constexpr (std::is_same_v<Scaling, RopeLlama3>) {
          key.all(scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_length);
        }
      },
      call.config.scaling);
  own.run(
      key, stream,
      [&](Prepared& ready) {
        ready.rope.emplace(*own.device, own.pipelines, call.config, shape,
                           rope_plan(call.config, shape, own.device->info()));
      },
      [&](const Prepared& ready, CommandEncoder& encoder) { ready.rope->encode(encoder, tensors_in(call)); });
}

}  // namespace attn
