// Engine::linear.
#include <functional>
#include <string>
#include <string_view>

#include "common/api/engine_state.h"

namespace attn {

void Engine::linear(const LinearCall& call, void* stream) {
  State& own = state();
  const DeviceInfo& info = own.device->info();
  const TensorView &q = call.q, &v = call.v;
  if (!check(call, !info.on_host)) {
    named_feature(std::string(call.feature));
    refuse_where(linear_unable(q.width, v.width));
    return own.copy_state(call, stream);
  }
  const bool with_state = call.initial_state || call.final_state;
  Key key(Key::linear, stream, own.capture_of(stream));
  key.all(types_of(q, q, call.o), q.batch, q.heads, q.tokens, q.width, v.width,
          int64_t{call.causal} | int64_t{call.normalised} << 1 | int64_t{with_state} << 2, int64_t{call.gate},
          static_cast<int64_t>(std::hash<std::string_view>()(call.feature)), call.scale);
  own.run(
      key, stream,
      [&](Prepared& ready) {
        LinearConfig config;
        config.sequences = q.batch;
        config.heads = q.heads;
        config.tokens = q.tokens;
        config.all_rows = q.batch * q.tokens;
        config.head_dim = q.width;
        config.value_dim = v.width;
        config.dtype = q.dtype;
        config.out_dtype = call.o.dtype;
        config.causal = call.causal;
        config.gate = call.gate;
        config.normalised = call.normalised;
        config.scale = call.scale;
        config.feature = named_feature(std::string(call.feature));
        constexpr int64_t one_by_one = 16;  // the most tokens for the variant "recurrent"
        config.variant = call.causal && q.tokens <= one_by_one ? "recurrent" : "fused";
        config.chunk = linear_chunk(config.variant, info);
        Plan plan = linear_plan(config, info, with_state);
        if (skip_reason(plan, info)) {
          config.variant = "phases";
          config.scan = "lookback";
          config.chunk = linear_chunk(config.variant, info);
          plan = linear_plan(config, info, with_state);
        }
        ready.linear.emplace(*own.device, own.pipelines, config, plan);
      },
      [&](const Prepared& ready, CommandEncoder& encoder) {
        LinearTensors tensors{.q = q.data,
                              .k = call.k.data,
                              .v = v.data,
                              .o = call.o.data,
                              .q_strides = q.strides,
                              .k_strides = call.k.strides,
                              .v_strides = v.strides,
                              .o_strides = call.o.strides,
                              .gate = call.gates,
                              .initial_state = call.initial_state,
                              .final_state = call.final_state};
        const int64_t width = call.gate == GATE_CHANNEL ? q.width : 1;
        if (call.gate == GATE_HEAD) tensors.gate_strides = {.batch = 0, .head = 1, .row = 0};
        if (call.gate >= GATE_TOKEN) tensors.gate_strides = {q.heads * q.tokens * width, q.tokens * width, width};
        ready.linear->encode(encoder, tensors);
      });
}

}  // namespace attn
