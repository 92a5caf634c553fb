// Engine::decode, prefill and check_cache.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <vector>

#include "common/api/engine_state.h"
#include "common/base/divided_up.h"

namespace attn {
namespace {

DecodeConfig config_of(const CacheCall& call) {
  return {.shape = {.batch = call.q.batch,
                    .q_heads = call.q.heads,
                    .kv_heads = call.k.heads,
                    .q_len = call.q.tokens,
                    .kv_len = capacity_of(call),
                    .head_dim = call.q.width,
                    .causal = call.tree == nullptr,  // a tree says which new tokens a query sees
                    .scale = call.scale},
          .dtype = call.q.dtype,
          .cache_dtype = call.k.dtype,
          .out_dtype = call.o.dtype,
          .page_size = call.table ? call.k.tokens : 0,
          .appends = call.new_k.there(),
          .rotary_dim = call.rotary_dim,
          .pairing = call.pairing};
}

DecodeTensors cache_tensors(const CacheCall& call, const void* hook_data) {
  auto tensors = tensors_of<DecodeTensors>(call, hook_data);
  tensors.table = call.table;
  tensors.max_pages = call.max_pages;
  tensors.pages = call.k.batch;
  tensors.k_scales = call.k_scales;
  tensors.v_scales = call.v_scales;
  tensors.lengths = call.lengths;
  tensors.new_k = call.new_k.data;
  tensors.new_v = call.new_v.data;
  tensors.new_k_strides = call.new_k.strides;
  tensors.new_v_strides = call.new_v.strides;
  tensors.cosines = call.cosines;
  tensors.sines = call.sines;
  return tensors;
}

/// `part` is the result of modified_part(call), after simplify().
Key key_of(Key::Op op, const CacheCall& call, const ModifiedCall& part, void* stream, uint64_t capture) {
  Key key(op, stream, capture);
  key.all(types_of(call.q, call.k, call.o), call.q.batch, call.q.heads, call.k.heads, call.q.tokens, call.q.width,
          call.k.tokens, call.k.batch, call.table ? call.max_pages : int64_t{-1}, int64_t{call.new_k.there()},
          call.rotary_dim, static_cast<int64_t>(call.pairing), call.scale);
  if (modified(part)) add_options(key, part);
  return key;
}

/// Returns the hooks of a call's kernel; none if no option changes the kernel.
std::optional<AttentionHooks> hooks_of(const ModifiedCall& part) {
  if (!modified(part)) return {};
  return without_mask(modifier_hooks(modifiers_of(part), part.q.dtype));
}

ModifiedCall modifiers_in(const CacheCall& call) {
  ModifiedCall part = modified_part(call);
  simplify(part);
  return part;
}

Plan plan_of_decode(const CacheCall& call, const std::optional<AttentionHooks>& hooks, const DeviceInfo& info) {
  const DecodeConfig config = config_of(call);
  return decode_plan(config, info, config.shape.batch * config.shape.kv_len, hooks ? &*hooks : nullptr);
}

DecodeConfig config_of_prefill(const CacheCall& call) {
  DecodeConfig config = config_of(call);
  config.block_c = 0;  // prefill_config() chooses block_c
  return config;
}
Plan plan_of_prefill(const CacheCall& call, const std::optional<AttentionHooks>& hooks, const DeviceInfo& info) {
  return prefill_plan(config_of_prefill(call), info, 0, 0, hooks ? &*hooks : nullptr);
}

void refuse_tree(const CacheCall& call) {
  if (call.tree) throw BadInput("tree is not allowed in attn_prefill; attn_decode takes one");
}

/// Returns how many sequences a launch of prefill serves. A cache of 8 bits is first converted to a copy that has Q's
/// type. The batch is cut into the fewest launches whose copies fit in most_expanded_bytes() each, but a launch serves
/// at least one sequence. Without copies one launch serves the whole batch.
int64_t sequences_at_once(const CacheCall& call, const DeviceInfo& info) {
  const int64_t bytes = expanded_bytes(config_of(call));
  if (bytes == 0) return call.q.batch;
  const auto most = static_cast<int64_t>(most_expanded_bytes(info));
  return divided_up(call.q.batch, divided_up(call.q.batch, std::clamp<int64_t>(most / bytes, 1, call.q.batch)));
}

/// Returns the call for `count` sequences of the batch, from sequence `first` on.
CacheCall part_of(const CacheCall& call, int64_t first, int64_t count) {
  CacheCall part = call;
  const auto take = [&](TensorView& tensor) {
    tensor.data = static_cast<std::byte*>(tensor.data) +
                  first * tensor.strides.batch * static_cast<int64_t>(size_bytes(tensor.dtype));
    tensor.batch = count;
  };
  const auto skip = [&](auto& table, int64_t entries) {
    if (table) table += first * entries;
  };
  take(part.q);
  take(part.o);
  skip(part.lse, call.q.heads * call.q.tokens);
  skip(part.lengths, 1);
  skip(part.starts, 1);
  skip(part.table, call.max_pages);
  if (call.new_k.there()) take(part.new_k), take(part.new_v);
  if (call.table) return part;
  take(part.k);
  take(part.v);
  skip(part.k_scales, call.k.heads);
  skip(part.v_scales, call.k.heads);
  return part;
}

}  // namespace

void ask_decode(const CacheCall& call, bool gpu, const DeviceInfo* device) {
  const bool rows = check(call, gpu, true);
  if (!device) return refuse_where(call.new_k.there() ? append_unable(config_of(call)) : "");
  if (!rows) return refuse_where(decode_unable(config_of(call), *device));
  refuse_where(skip_reason(plan_of_decode(call, hooks_of(modifiers_in(call)), *device), *device).value_or(""));
}

void ask_prefill(const CacheCall& call, bool gpu, const DeviceInfo* device) {
  refuse_tree(call);
  if (!check(call, gpu, true) || !device) return refuse_where(prefill_unable(config_of(call)));
  const CacheCall part = part_of(call, 0, sequences_at_once(call, *device));
  refuse_where(skip_reason(plan_of_prefill(part, hooks_of(modifiers_in(part)), *device), *device).value_or(""));
}

void Engine::decode(const CacheCall& call, void* stream) {
  State& own = state();
  const DeviceInfo& info = own.device->info();
  if (!check(call, !info.on_host)) return refuse_where(decode_unable(config_of(call), info));
  const ModifiedCall part = modifiers_in(call);
  own.run(
      key_of(Key::decode, call, part, stream, own.capture_of(stream)), stream,
      [&](Prepared& ready) {
        const std::optional<AttentionHooks> hooks = hooks_of(part);
        if (hooks) ready.modifiers.emplace(*own.device, part);
        ready.decode.emplace(*own.device, own.pipelines, config_of(call), plan_of_decode(call, hooks, info));
      },
      [&](const Prepared& ready, CommandEncoder& encoder) {
        ready.decode->encode(encoder, cache_tensors(call, own.staged(encoder, ready, part)));
      });
}

void Engine::check_cache(const CacheCall& call, void* stream) {
  State& own = state();
  attn::check_cache(call, !own.device->info().on_host);
  const auto check_values = [](const CacheCall& on_host) {
    check_cache_values(on_host);
    if (on_host.new_k.there()) check_appended_pages(on_host);
    if (on_host.new_k.there() && on_host.k_scales && on_host.v_scales) check_new_scales(on_host);
  };
  if (own.device->info().on_host) return check_values(call);
  if (own.capture_of(stream) != 0) throw BadInput("a cache cannot be checked while the stream is captured");
  const auto on_host = [&]<typename T>(const T* table, int64_t count) {
    std::vector<T> copy(static_cast<size_t>(table ? count : 0));
    own.device->download_after(stream, copy.data(), table, copy.size() * sizeof(T));
    return copy;
  };
  const int64_t scales = call.new_k.there() ? call.k.batch * call.k.heads : 0;
  const std::vector<int> lengths = on_host(call.lengths, call.q.batch);
  const std::vector<int> starts = on_host(call.starts, call.q.batch);
  const std::vector<int> table = on_host(call.table, call.q.batch * call.max_pages);
  const std::vector<float> k_scales = on_host(call.k_scales, scales), v_scales = on_host(call.v_scales, scales);
  CacheCall copy = call;
  copy.lengths = lengths.data();
  if (call.table) copy.table = table.data();
  if (call.starts) copy.starts = starts.data();
  if (call.k_scales) copy.k_scales = k_scales.data();
  if (call.v_scales) copy.v_scales = v_scales.data();
  check_values(copy);
}

void Engine::prefill(const CacheCall& call, void* stream) {
  State& own = state();
  refuse_tree(call);
  const DeviceInfo& info = own.device->info();
  if (!check(call, !info.on_host)) return refuse_where(prefill_unable(config_of(call)));
  const int64_t at_once = sequences_at_once(call, info);
  const auto encode_part = [&](Prepared& ready, CommandEncoder& encoder, const CacheCall& part) {
    const DecodeTensors tensors = cache_tensors(part, own.staged(encoder, ready, modifiers_in(part)));
    const PrefillData data = ready.prefill->data(tensors);
    // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): other padding only copies the data once more
    if (!ready.has_known || std::memcmp(&data, &ready.known, sizeof data) != 0) {
      StageParams params{};
      params.block = static_cast<unsigned char*>(ready.memory.data());
      params.bytes = sizeof data;
      static_assert(sizeof data <= most_staged_bytes);
      std::memcpy(params.head, &data, sizeof data);
      own.stage(encoder, params);
      ready.has_known = false;  // if encode() throws, the next call stages the data again
    }
    ready.prefill->encode(encoder, tensors, ready.memory.data());
    ready.known = data;
    ready.has_known = true;
  };
  own.run(
      key_of(Key::prefill, call, modifiers_in(call), stream, own.capture_of(stream)), stream,
      [&](Prepared& ready) {
        const CacheCall part = part_of(call, 0, at_once);
        const ModifiedCall modifiers = modifiers_in(part);
        const std::optional<AttentionHooks> hooks = hooks_of(modifiers);
        if (hooks) ready.modifiers.emplace(*own.device, modifiers);
        ready.prefill.emplace(*own.device, own.pipelines, config_of_prefill(part), plan_of_prefill(part, hooks, info),
                              part.k.batch);
        ready.memory = Buffer(*own.device, sizeof(PrefillData));
      },
      [&](Prepared& ready, CommandEncoder& encoder) {
        // The last launch serves as many sequences as the others, so it may compute some sequences, and write their new
        // tokens, once more.
        for (int64_t first = 0; first < call.q.batch; first += at_once) {
          encode_part(ready, encoder, part_of(call, std::min(first, call.q.batch - at_once), at_once));
        }
      });
}

}  // namespace attn
