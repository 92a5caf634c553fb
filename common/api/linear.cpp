// Engine::linear.
#include <functional>
#include <string>
#include <string_view>

#include "common/api/engine_state.h"

namespace attn {
namespace {

bool with_state(const LinearCall& call) { return call.initial_state || call.final_state; }

/// How the kernels compute a call: `recurrent` for few tokens, else `fused`, or `phases` if the device cannot run it.
struct LinearLaunches {
  LinearLaunches(const LinearCall& call, const DeviceInfo& info) {
    const TensorView &q = call.q, &v = call.v;
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
    plan = linear_plan(config, info, with_state(call));
    if (skip_reason(plan, info)) {
      config.variant = "phases";
      config.scan = "lookback";
      config.chunk = linear_chunk(config.variant, info);
      plan = linear_plan(config, info, with_state(call));
    }
  }

  LinearConfig config;
  Plan plan;
};

/// Refuses what no device takes. Calls without rows need this check, because they make no launch.
void refuse_on_any_device(const LinearCall& call) {
  named_feature(std::string(call.feature));
  refuse_where(linear_unable(call.q.width, call.v.width));
}

}  // namespace

void ask_linear(const LinearCall& call, bool gpu, const DeviceInfo* device) {
  if (!check(call, gpu) || !device) return refuse_on_any_device(call);
  refuse_where(skip_reason(LinearLaunches(call, *device).plan, *device).value_or(""));
}

void Engine::linear(const LinearCall& call, void* stream) {
  State& own = state();
  const DeviceInfo& info = own.device->info();
  const TensorView &q = call.q, &v = call.v;
  if (!check(call, !info.on_host)) {
    refuse_on_any_device(call);
    return own.copy_state(call, stream);
  }
  Key key(Key::linear, stream, own.capture_of(stream));
  key.all(types_of(q, q, call.o), q.batch, q.heads, q.tokens, q.width, v.width,
          int64_t{call.causal} | int64_t{call.normalised} << 1 | int64_t{with_state(call)} << 2, int64_t{call.gate},
          static_cast<int64_t>(std::hash<std::string_view>()(call.feature)), call.scale);
  own.run(
      key, stream,
      [&](Prepared& ready) {
        const auto [config, plan] = LinearLaunches(call, info);
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
