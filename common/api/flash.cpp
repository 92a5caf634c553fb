// Engine::flash.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/api/engine_state.h"
#include "common/api/limits.h"

namespace attn {
namespace {

AttentionShape shape_of(const FlashCall& call) {
  return {.batch = call.q.batch,
          .q_heads = call.q.heads,
          .kv_heads = call.k.heads,
          .q_len = call.q.tokens,
          .kv_len = call.k.tokens,
          .head_dim = call.q.width,
          // With a prefix or cu_seqlens_q, a keys hook applies `causal`.
          .causal = call.causal && call.prefix == 0 && !call.cu_seqlens_q,
          .scale = call.scale};
}

/// Returns the smallest power of 2 that is at least `keys` and at least 512. A decoding launch is prepared for this
/// number of keys.
int64_t key_capacity(int64_t keys) {
  constexpr uint64_t least = 512;
  return static_cast<int64_t>(std::bit_ceil(std::max(static_cast<uint64_t>(keys), least)));
}

/// Returns the configuration of the decoding launch that serves a call with few rows. One launch serves calls with
/// different numbers of keys (key_capacity()).
DecodeConfig decoding_of(const FlashCall& call, const AttentionShape& shape) {
  DecodeConfig config{.shape = shape, .dtype = call.q.dtype, .cache_dtype = call.k.dtype, .out_dtype = call.o.dtype};
  config.shape.kv_len = key_capacity(shape.kv_len);
  return config;
}

/// Whether decoding can serve the call: decoding has all options of the call, the call's sizes are within decoding's
/// limits, and decoding is usually faster than flash attention. Decoding divides the keys of few rows among all cores
/// or multiprocessors.
bool has_few_rows(const FlashCall& call) {
  constexpr int64_t least_keys = 64, most_lengths = int64_t{1} << 24, most_biases = int64_t{1} << 24;
  // Decoding has none of these options except lengths, which mean something else there. In decoding the last query
  // stands at the last key that a sequence has. In a FlashCall the last query stands at K's last row, which may be
  // padding.
  bool decodes =
      call.prefix == 0 && !call.lengths && !call.documents && !call.blocks && !call.cu_seqlens_q && !call.mask.data;
#define ATTN_MODIFIER(...)
#define ATTN_MASK_MODIFIER(type, name, off, ...) decodes &= call.name == off;
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
  const auto& sizes = call.bias_sizes;
  return decodes && call.q.tokens <= few_rows.queries && call.q.heads / call.k.heads * call.q.tokens <= few_rows.rows &&
         call.k.tokens * call.q.batch < most_lengths &&
         (call.bias ? sizes[0] * sizes[1] * sizes[2] * key_capacity(call.k.tokens) <= most_biases
                    : call.k.tokens >= least_keys);
}

/// Returns the call that replaces a call without keys. The replacement has one key, and no query sees this key. So the
/// outputs are 0, and lse has only the sinks. `zeros` has room for a key's row and for a length of each sequence of the
/// batch.
FlashCall with_a_hidden_key(const FlashCall& given, void* zeros) {
  FlashCall call;
  call.q = given.q;
  call.k = given.k;
  call.k.data = zeros;
  call.k.tokens = 1;
  call.k.strides = {};
  call.v = call.k;
  call.o = given.o;
  call.lse = given.lse;
  call.scale = given.scale;
  call.sinks = given.sinks;
  call.lengths = static_cast<const int*>(zeros);
  return call;
}

/// How the kernel `tuned` computes a call that has passed simplify().
struct FlashPlan {
  FlashPlan(const ModifiedCall& call, const AttentionShape& shape, const DeviceInfo& info)
      : config{.variant = "tuned", .shape = shape, .dtype = call.q.dtype, .out_dtype = call.o.dtype} {
    std::optional<AttentionHooks> hooks;
    if (modified(call)) hooks = modifier_hooks(modifiers_of(call), config.dtype);
    const int64_t window = call.window_left >= 0 && (call.causal || call.window_right >= 0)
                               ? call.window_left + std::max<int64_t>(call.window_right, 0) + 1
                               : 0;
    choose_tile(config, info,
                {.change = hooks ? hooks->change : ScoreChange::none,
                 .reads = call.bias || call.cu_seqlens_q || call.mask.data,
                 .window = window});
    plan = attention_plan(config, info, hooks ? &*hooks : nullptr);
  }

  FlashConfig config;
  Plan plan;
};

}  // namespace

void ask_flash(const FlashCall& given, bool gpu, const DeviceInfo* device) {
  if (!check(given, gpu, true)) return;
  ModifiedCall call{given.k.tokens > 0 ? given : with_a_hidden_key(given, no_address)};
  simplify(call);
  if (CallTables tables(call); tables.count > 0) ModifierLayout({}, tables.all());  // throws if they are too large
  if (!device) return;
  const AttentionShape shape = shape_of(call);
  if (has_few_rows(call) && decode_takes(decoding_of(call, shape), *device)) return;
  refuse_where(skip_reason(FlashPlan(call, shape, *device).plan, *device).value_or(""));
}

void Engine::flash(const FlashCall& given, void* stream) {
  State& own = state();
  const DeviceInfo& info = own.device->info();
  if (!check(given, !info.on_host)) return;
  ModifiedCall call{given.k.tokens > 0 ? given : with_a_hidden_key(given, own.zeros())};
  simplify(call);
  const uint64_t capture = own.capture_of(stream);
  const AttentionShape shape = shape_of(call);
  const bool changed = modified(call);
  if (const DecodeConfig config = decoding_of(call, shape); has_few_rows(call) && decode_takes(config, info)) {
    const AttentionShape& room = config.shape;
    Key key(Key::few, stream, capture);
    key.all(types_of(call.q, call.k, call.o), room.batch, room.q_heads, room.kv_heads, room.q_len, room.kv_len,
            room.head_dim, int64_t{room.causal}, room.scale);
    ModifiedCall roomy = call;
    if (call.bias && call.bias_sizes[3] != 1) roomy.bias_sizes[3] = room.kv_len;
    if (changed) add_options(key, roomy);
    own.run(
        key, stream,
        [&](Prepared& ready) {
          std::optional<AttentionHooks> hooks;
          if (changed) {
            hooks = without_mask(modifier_hooks(modifiers_of(call), config.dtype));
            ready.modifiers.emplace(*own.device, roomy);
          }
          ready.decode.emplace(*own.device, own.pipelines, config,
                               decode_plan(config, info, room.batch * room.kv_len, hooks ? &*hooks : nullptr));
          // `batch` lengths of 0, then `batch` lengths of 1, and so on. A call reads the part for its number of keys.
          std::vector<int> lengths(static_cast<size_t>((room.kv_len + 1) * room.batch));
          for (size_t i = 0; i < lengths.size(); ++i)
            lengths[i] = static_cast<int>(i / static_cast<size_t>(room.batch));
          ready.memory = uploaded(*own.device, lengths);
        },
        [&](const Prepared& ready, CommandEncoder& encoder) {
          auto tensors = tensors_of<DecodeTensors>(call, own.staged(encoder, ready, call));
          tensors.lengths = static_cast<const int*>(ready.memory.data()) + shape.kv_len * shape.batch;
          ready.decode->encode(encoder, tensors);
        });
    return;
  }
  Key key(Key::flash, stream, capture);
  key.all(types_of(call.q, call.k, call.o), shape.batch, shape.q_heads, shape.kv_heads, shape.q_len, shape.kv_len,
          shape.head_dim, int64_t{shape.causal}, shape.scale);
  if (changed) add_options(key, call);
  own.run(
      key, stream,
      [&](Prepared& ready) {
        const auto [config, plan] = FlashPlan(call, shape, info);
        FlashOperation::Lists lists;
        if (call.mask.data) {
          ready.mask.emplace(*own.device, own.pipelines, config, plan, call.mask, call.lengths || call.starts);
          lists = [lists = ready.mask->lists()](const AttentionParams&) { return lists; };
        }
        if (changed) ready.modifiers.emplace(*own.device, call, ready.mask ? ready.mask->bits() : MaskBits{});
        ready.attention.emplace(*own.device, own.pipelines, config, plan, ListScope::none, std::move(lists));
      },
      [&](const Prepared& ready, CommandEncoder& encoder) {
        ready.attention->encode(encoder, tensors_of<AttentionTensors>(call, own.staged(encoder, ready, call)));
      });
}

}  // namespace attn
