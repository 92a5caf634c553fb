#include "common/api/engine.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/api/checks.h"
#include "common/api/kernels/stage.h"
#include "common/attention/kernels/modifiers/modifiers.h"
#include "common/attention/launch.h"
#include "common/attention/modifiers.h"
#include "common/base/error.h"
#include "common/device/pipeline_cache.h"
#include "common/linear/launch.h"
#include "common/paged/decode.h"
#include "common/paged/prefill.h"

namespace attn {
namespace engine {  // with a name, since Engine::State, which a header knows, has parts of these types

// Launches that are kept, captured ones apart: more shapes than a program has at a time. As a rule one has some KiB on
// the cpu and some MiB on a GPU; with a mask as many bytes as that has.
constexpr size_t most_prepared = 1024;
constexpr size_t most_bytes_of_cpu = size_t{256} << 20, most_bytes_of_gpu = size_t{1} << 30;
constexpr size_t zero_bytes = 65536 * sizeof(int);  // of any batch, and of any row (checks.h)
constexpr int stage_threads = 256;

// ---- keys

/// All that decides which launch serves a call, as words.
class Key {
 public:
  enum Op : int64_t { flash, few, decode, prefill, linear, rope, empty };

  Key(Op op, void* stream, uint64_t capture) {
    add(op);
    add(std::bit_cast<int64_t>(reinterpret_cast<uintptr_t>(stream)));
    add(static_cast<int64_t>(capture));
  }
  void add(int64_t word) { words_.at(count_++) = word; }
  void add(double value) { add(std::bit_cast<int64_t>(value)); }
  template <typename... Words>
  void all(Words... words) {
    (add(words), ...);
  }
  bool captured() const { return words_[2] != 0; }

  bool operator==(const Key& other) const {
    return count_ == other.count_ && std::equal(words_.begin(), words_.begin() + count_, other.words_.begin());
  }
  size_t hash() const {
    uint64_t hash = count_;
    for (size_t i = 0; i < count_; ++i) {
      hash = (hash ^ static_cast<uint64_t>(words_[i])) * 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio
      hash ^= hash >> 29;
    }
    return hash;
  }

 private:
  std::array<int64_t, 32> words_;  // only the first count_ are set
  size_t count_ = 0;
};
struct KeyHash {
  size_t operator()(const Key& key) const { return key.hash(); }
};

int64_t types_of(const TensorView& q, const TensorView& kv, const TensorView& o) {
  return static_cast<int64_t>(q.dtype) | static_cast<int64_t>(kv.dtype) << 8 | static_cast<int64_t>(o.dtype) << 16;
}

// ---- modifiers

Modifiers modifiers_of(const FlashCall& call) {
  Modifiers m;
  m.alibi = call.alibi;
  m.sinks = call.sinks != nullptr;
  m.lengths = call.lengths != nullptr;
  m.soft_cap = call.soft_cap;
  m.window_left = call.window_left;
  m.window_right = call.window_right;
  m.prefix = call.prefix;
  m.documents = call.documents != nullptr;
  m.global_tokens = call.global_tokens;
  m.block_sparse = call.blocks != nullptr;
  m.lists = false;  // they would be made on the host's time
  if (call.bias) {
    std::string axes;
    for (int axis = 0; axis < 4; ++axis) {
      if (call.bias_sizes[axis] != 1) axes += "bhqk"[axis];
    }
    m.bias = axes.empty() ? std::string(1, 'q') : axes;  // of one element: any axis but k
  }
  return m;
}

bool modified(const FlashCall& call) {
  return call.alibi || call.sinks || call.lengths || call.soft_cap != 0 || call.window_left >= 0 ||
         call.window_right >= 0 || call.prefix > 0 || call.documents || call.blocks || call.bias;
}

int64_t kind_of_bias(const FlashCall& call) {
  return !call.bias ? 0 : call.bias_sizes[3] == 1 ? BIAS_OF_ROWS : BIAS_OF_KEYS;
}

int64_t up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

/// The block of memory that modifiers read: the head, then tables that a call may fill anew.
class ModifierBlock {
 public:
  ModifierBlock(Device& device, const FlashCall& call) {
    ModifierData head{};
    const AttentionShape s{
        .batch = call.q.batch, .q_heads = call.q.heads, .q_len = call.q.tokens, .kv_len = call.k.tokens};
    const auto place = [&](int& offset, int64_t words) {
      bytes_ = up(bytes_, 256);
      offset = static_cast<int>(bytes_);
      bytes_ += words * 4;
      if (bytes_ > INT32_MAX) throw BadInput(fmt::format("tables of {} bytes: 2 GiB are allowed", bytes_));
    };
    bytes_ = sizeof head;
    if (call.alibi) place(head.slopes, s.q_heads);
    if (call.sinks) place(head.sinks, s.q_heads);
    if (call.lengths) place(head.lengths, s.batch);
    if (call.documents) place(head.documents, 2 * s.kv_len);
    if (call.blocks) place(head.blocks, block_words(s.kv_len));
    if (call.bias) {
      int64_t stride = call.bias_sizes[3];
      for (int axis = 2; axis >= 0; --axis) {
        if (call.bias_sizes[axis] == 1) continue;
        head.bias_strides[axis] = stride;
        stride *= call.bias_sizes[axis];
      }
      bias_words_ = stride;
      place(head.bias, stride + bias_slack);
    }
    head_ = head;
    memory_ = Buffer(device, static_cast<size_t>(bytes_));
    memory_.upload(&head, sizeof head);
    if (call.alibi && !call.alibi_slopes) {
      std::vector<std::byte> bytes(static_cast<size_t>(head.slopes) + static_cast<size_t>(s.q_heads) * 4);
      std::memcpy(bytes.data(), &head, sizeof head);
      size_t at = static_cast<size_t>(head.slopes);
      for (const double slope : attn::alibi_slopes(s.q_heads)) {
        const auto value = static_cast<float>(slope);
        std::memcpy(bytes.data() + at, &value, sizeof value);
        at += sizeof value;
      }
      memory_.upload(bytes.data(), bytes.size());
    }
  }

  void* data() const { return memory_.data(); }
  /// The tables of a call.
  StageParams staged(const FlashCall& call) const {
    StageParams params{};
    params.block = static_cast<unsigned char*>(memory_.data());
    const auto add = [&](const void* from, int64_t words, int at) {
      if (from) params.table[params.tables++] = {static_cast<const unsigned*>(from), words, at};
    };
    add(call.alibi_slopes, call.q.heads, head_.slopes);
    add(call.sinks, call.q.heads, head_.sinks);
    add(call.lengths, call.q.batch, head_.lengths);
    add(call.documents, 2 * call.k.tokens, head_.documents);
    add(call.blocks, block_words(call.k.tokens), head_.blocks);
    add(call.bias, bias_words_, head_.bias);
    return params;
  }

 private:
  int64_t bytes_ = 0, bias_words_ = 0;
  ModifierData head_{};
  Buffer memory_;
};

/// What is ready for the calls of one key: a launch, and the memory that it reads beside the caller's.
struct Prepared {
  std::optional<AttentionLaunch> attention;
  std::optional<ModifierBlock> modifiers;
  std::optional<DecodeLaunch> decode;
  std::optional<PrefillLaunch> prefill;
  std::optional<LinearLaunch> linear;
  std::optional<RopeLaunch> rope;
  Buffer memory;           // of few: lengths of equal sequences; of prefill: a PrefillData
  PrefillData known = {};  // what it holds
  bool has_known = false;
  size_t bytes = 0;        // on the device, of all of them
  uint64_t last_call = 0;  // that used it
};

std::atomic<unsigned> forks = 0;  // that this process came from, behind the first engine

}  // namespace engine
using namespace engine;

class Engine::State {
 public:
  State(const std::string& spec, const EngineOptions& options)
      : born(forks),
        device(Device::open_for_caller(spec)),
        pipelines(*device, options.cache_folder.empty() ? PipelineCache::default_folder() : options.cache_folder) {
    if (!options.archive.empty()) pipelines.attach(PipelineArchive::load(options.archive));
  }

  uint64_t capture_of(void* stream) const { return device->capture_of(stream); }

  /// Runs `encode` on what is ready for the key, made by `prepare` where it is not, and hands the commands over.
  template <typename Prepare, typename Encode>
  void run(const Key& key, void* stream, const Prepare& prepare, const Encode& encode) {
    const Device::Scope scope(*device);
    std::unique_lock lock(mutex);
    auto found = ready.find(key);
    if (found == ready.end()) {
      lock.unlock();
      const std::lock_guard one_at_a_time(preparing);  // others that are ready go on meanwhile
      lock.lock();
      found = ready.find(key);
      if (found == ready.end()) {
        lock.unlock();
        auto made = std::make_unique<Prepared>();
        const size_t before = device->buffer_bytes();
        prepare(*made);
        made->bytes = device->buffer_bytes() - before;
        lock.lock();
        if (!key.captured()) make_room(made->bytes);
        found = ready.emplace(key, std::move(made)).first;
      }
    }
    found->second->last_call = ++calls;
    encoder.clear();
    encode(*found->second, encoder);
    device->enqueue(encoder, stream);
  }

  void stage(CommandEncoder& to, const StageParams& params) {
    int64_t words = params.bytes / 4;
    for (int i = 0; i < params.tables; ++i) words = std::max<int64_t>(words, params.table[i].words);
    const bool cuda = device->info().is_cuda();
    const auto groups = static_cast<uint32_t>(
        std::clamp<int64_t>(words / (cuda ? 4 * stage_threads : 65536), 1, 4 * device->info().units));
    if (!stage_) stage_ = &kernel("stage", cuda ? FunctionConstants{{"THREADS", stage_threads}} : FunctionConstants{});
    to.dispatch(*stage_, {groups}, cuda ? stage_threads : 1, 0, params);
  }
  /// Of a call without tokens: the state stays what it was.
  void copy_state(const LinearCall& call, void* stream) {
    const int64_t words = call.q.batch * call.q.heads * call.q.width * call.v.width;
    if (!call.final_state || call.final_state == call.initial_state || words == 0) return;
    run(
        Key(Key::empty, stream, 0), stream, [](Prepared&) {},
        [&](const Prepared&, CommandEncoder& to) {
          if (!call.initial_state) return to.fill(call.final_state, 0, static_cast<size_t>(words) * sizeof(float));
          StageParams params{};
          params.block = reinterpret_cast<unsigned char*>(call.final_state);
          params.tables = 1;
          params.table[0] = {reinterpret_cast<const unsigned*>(call.initial_state), words, 0};
          stage(to, params);
        });
  }
  void* zeros() {
    const std::lock_guard lock(mutex);
    if (!zeros_) {
      zeros_.emplace(*device, zero_bytes);
      zeros_->upload(std::vector<std::byte>(zero_bytes).data(), zero_bytes);
    }
    return zeros_->data();
  }
  void do_nothing(CommandEncoder& to) {
    if (!empty_) empty_ = &kernel("empty", {});
    to.dispatch(*empty_, {1}, 32, 0, 0);
  }

  const unsigned born;
  std::unique_ptr<Device> device;
  PipelineCache pipelines;
  std::mutex preparing, mutex;  // mutex: of all below, and of what a launch keeps between its own launches
  CommandEncoder encoder;
  std::unordered_map<Key, std::unique_ptr<Prepared>, KeyHash> ready;
  uint64_t calls = 0;

 private:
  const Kernel& kernel(const std::string& entry, FunctionConstants constants) {
    const char* const dialect = device->info().is_cuda() ? "cuda.cu" : "cpu.cpp";
    return *pipelines
                .get({.path = fmt::format("common/api/kernels/{}.{}", entry, dialect),
                      .entry = entry,
                      .constants = std::move(constants)})
                .kernel;
  }

  // For one launch more, of so many bytes. What is released may still be under way on some stream: releasing waits for
  // that, which a capture forbids. So much goes at once, the longest unused first.
  void make_room(size_t bytes) {
    const size_t most_bytes = device->info().is_cuda() ? most_bytes_of_gpu : most_bytes_of_cpu;
    using Entry = decltype(ready)::iterator;
    std::vector<Entry> kept;
    for (Entry entry = ready.begin(); entry != ready.end(); ++entry) {
      if (entry->first.captured()) continue;
      kept.push_back(entry);
      bytes += entry->second->bytes;
    }
    if (kept.size() < most_prepared && bytes <= most_bytes) return;
    std::sort(kept.begin(), kept.end(), [](Entry a, Entry b) { return a->second->last_call < b->second->last_call; });
    size_t count = kept.size();
    for (const Entry entry : kept) {
      if (count <= most_prepared / 2 && bytes <= most_bytes / 2) return;
      --count;
      bytes -= entry->second->bytes;
      ready.erase(entry);
    }
  }

  const Kernel *stage_ = nullptr, *empty_ = nullptr;  // found with their first use
  std::optional<Buffer> zeros_;
};

Engine::Engine(std::string spec, EngineOptions options) : spec_(std::move(spec)), options_(std::move(options)) {
  static const int watched = pthread_atfork(nullptr, nullptr, [] { ++forks; });
  (void)watched;
  state_ = new State(spec_, options_);
}

Engine::~Engine() { delete state_.load(); }

// Threads did not come along with a fork, and locks may be held by those that did not: the old state is left alone.
Engine::State& Engine::state() {
  State* old = state_.load(std::memory_order_acquire);
  if (old->born == forks.load(std::memory_order_relaxed)) return *old;
  if (old->device->info().is_cuda()) {
    throw DeviceMissing(spec_ +
                        ": a process that was forked behind the first use of CUDA has no GPU; spawn it instead");
  }
  auto fresh = std::make_unique<State>(spec_, options_);
  if (state_.compare_exchange_strong(old, fresh.get(), std::memory_order_acq_rel)) return *fresh.release();
  return *old;
}

const DeviceInfo& Engine::info() { return state().device->info(); }

size_t Engine::prepared() {
  State& own = state();
  const std::lock_guard lock(own.mutex);
  return own.ready.size();
}

size_t Engine::prepared_bytes() {
  State& own = state();
  const std::lock_guard lock(own.mutex);
  size_t bytes = 0;
  for (const auto& [key, prepared] : own.ready) bytes += prepared->bytes;
  return bytes;
}

void Engine::save_archive(const std::string& path) { state().pipelines.archive().save(path); }

void Engine::empty(void* stream) {
  State& own = state();
  own.run(
      Key(Key::empty, stream, 0), stream, [](Prepared&) {},
      [&](const Prepared&, CommandEncoder& encoder) { own.do_nothing(encoder); });
}

// ---- attention

namespace {

AttentionShape shape_of(const FlashCall& call) {
  return {.batch = call.q.batch,
          .q_heads = call.q.heads,
          .kv_heads = call.k.heads,
          .q_len = call.q.tokens,
          .kv_len = call.k.tokens,
          .head_dim = call.q.width,
          .causal = call.causal && call.prefix == 0,  // the keys hook has both
          .scale = call.scale};
}

AttentionTensors tensors_of(const FlashCall& call, const void* hook_data) {
  return {.q = call.q.data,
          .k = call.k.data,
          .v = call.v.data,
          .o = call.o.data,
          .lse = call.lse,
          .q_strides = call.q.strides,
          .k_strides = call.k.strides,
          .v_strides = call.v.strides,
          .o_strides = call.o.strides,
          .hook_data = hook_data};
}

/// Whether the launch of decoding serves it, which shares the keys of few rows out among all units, and whatever their
/// number with the same launch.
bool few_rows(const FlashCall& call) {
  constexpr int64_t most_queries = 16, most_rows = 64, least_keys = 64, most_row_bytes = 512,
                    most_lengths = int64_t{1} << 24;
  return !modified(call) && call.q.tokens <= most_queries && call.q.heads / call.k.heads * call.q.tokens <= most_rows &&
         call.q.width % 16 == 0 && call.q.width * static_cast<int64_t>(size_bytes(call.q.dtype)) <= most_row_bytes &&
         call.k.tokens >= least_keys && call.k.tokens * call.q.batch < most_lengths;
}

int64_t room_for(int64_t keys) {
  constexpr uint64_t least = 512;
  return static_cast<int64_t>(std::bit_ceil(std::max(static_cast<uint64_t>(keys), least)));
}

/// For no keys, one that no query sees: outputs are 0, and lse has the sinks alone. `zeros` are as many as a key's
/// width and the batch.
void hide_all_keys(FlashCall& call, void* zeros) {
  call.k.data = call.v.data = zeros;
  call.k.tokens = call.v.tokens = 1;
  call.k.strides = call.v.strides = {};
  call.lengths = static_cast<const int*>(zeros);
  call.causal = call.alibi = false;
  call.soft_cap = call.prefix = call.global_tokens = 0;
  call.window_left = call.window_right = -1;
  call.documents = nullptr;
  call.blocks = nullptr;
  call.bias = call.alibi_slopes = nullptr;
}

}  // namespace

void Engine::flash(const FlashCall& given, void* stream) {
  State& own = state();
  const DeviceInfo& info = own.device->info();
  if (!check(given, info.is_cuda())) return;
  FlashCall call = given;
  if (call.k.tokens > 0) {
    simplify(call);
  } else {
    hide_all_keys(call, own.zeros());
  }
  const uint64_t capture = own.capture_of(stream);
  const AttentionShape shape = shape_of(call);
  if (few_rows(call)) {
    AttentionShape room = shape;
    room.kv_len = room_for(shape.kv_len);
    Key key(Key::few, stream, capture);
    key.all(types_of(call.q, call.k, call.o), room.batch, room.q_heads, room.kv_heads, room.q_len, room.kv_len,
            room.head_dim, int64_t{room.causal}, room.scale);
    own.run(
        key, stream,
        [&](Prepared& ready) {
          ready.decode.emplace(
              *own.device, own.pipelines,
              DecodeConfig{
                  .shape = room, .dtype = call.q.dtype, .cache_dtype = call.k.dtype, .out_dtype = call.o.dtype});
          std::vector<int> lengths(static_cast<size_t>((room.kv_len + 1) * room.batch));
          for (size_t i = 0; i < lengths.size(); ++i)
            lengths[i] = static_cast<int>(i / static_cast<size_t>(room.batch));
          ready.memory = Buffer(*own.device, lengths.size() * sizeof(int));
          ready.memory.upload(lengths.data(), ready.memory.bytes());
        },
        [&](const Prepared& ready, CommandEncoder& encoder) {
          ready.decode->encode(encoder,
                               {.q = call.q.data,
                                .o = call.o.data,
                                .lse = call.lse,
                                .q_strides = call.q.strides,
                                .o_strides = call.o.strides,
                                .k = call.k.data,
                                .v = call.v.data,
                                .k_strides = call.k.strides,
                                .v_strides = call.v.strides,
                                .lengths = static_cast<const int*>(ready.memory.data()) + shape.kv_len * shape.batch});
        });
    return;
  }
  const bool changed = modified(call);
  Key key(Key::flash, stream, capture);
  key.all(types_of(call.q, call.k, call.o), shape.batch, shape.q_heads, shape.kv_heads, shape.q_len, shape.kv_len,
          shape.head_dim, int64_t{shape.causal}, shape.scale);
  if (changed) {
    key.all(call.soft_cap, call.window_left, call.window_right, call.prefix, call.global_tokens, kind_of_bias(call),
            call.bias_sizes[0], call.bias_sizes[1], call.bias_sizes[2],
            int64_t{call.alibi} | int64_t{call.alibi_slopes != nullptr} << 1 | int64_t{call.sinks != nullptr} << 2 |
                int64_t{call.lengths != nullptr} << 3 | int64_t{call.documents != nullptr} << 4 |
                int64_t{call.blocks != nullptr} << 5);
  }
  own.run(
      key, stream,
      [&](Prepared& ready) {
        FlashConfig config{.variant = "tuned", .shape = shape, .dtype = call.q.dtype, .out_dtype = call.o.dtype};
        std::optional<AttentionHooks> hooks;
        if (changed) {
          hooks = modifier_hooks(modifiers_of(call), config.dtype);
          ready.modifiers.emplace(*own.device, call);
        }
        const int64_t window = call.window_left >= 0 && (call.causal || call.window_right >= 0)
                                   ? call.window_left + std::max<int64_t>(call.window_right, 0) + 1
                                   : 0;
        FlashBackend::of(info).choose_tile(
            config, info,
            {.change = hooks ? hooks->change : ScoreChange::none, .reads = call.bias != nullptr, .window = window});
        ready.attention.emplace(*own.device, own.pipelines, config, hooks ? &*hooks : nullptr);
      },
      [&](const Prepared& ready, CommandEncoder& encoder) {
        if (changed) {
          if (const StageParams params = ready.modifiers->staged(call); params.tables > 0) own.stage(encoder, params);
        }
        ready.attention->encode(encoder, tensors_of(call, changed ? ready.modifiers->data() : nullptr));
      });
}

namespace {

/// Of a call without rows, which makes no launch to refuse it.
void refuse_where(const std::string& unable) {
  if (!unable.empty()) throw BadInput(unable);
}

DecodeConfig config_of(const CacheCall& call) {
  return {.shape = {.batch = call.q.batch,
                    .q_heads = call.q.heads,
                    .kv_heads = call.k.heads,
                    .q_len = call.q.tokens,
                    .kv_len = capacity_of(call),
                    .head_dim = call.q.width,
                    .causal = true,
                    .scale = call.scale},
          .dtype = call.q.dtype,
          .cache_dtype = call.k.dtype,
          .out_dtype = call.o.dtype,
          .page_size = call.table ? call.k.tokens : 0,
          .appends = call.new_k.there(),
          .rotary_dim = call.rotary_dim,
          .pairing = call.pairing};
}

DecodeTensors tensors_of(const CacheCall& call) {
  return {.q = call.q.data,
          .o = call.o.data,
          .lse = call.lse,
          .q_strides = call.q.strides,
          .o_strides = call.o.strides,
          .k = call.k.data,
          .v = call.v.data,
          .k_strides = call.k.strides,
          .v_strides = call.v.strides,
          .table = call.table,
          .max_pages = call.max_pages,
          .pages = call.k.batch,
          .k_scales = call.k_scales,
          .v_scales = call.v_scales,
          .lengths = call.lengths,
          .new_k = call.new_k.data,
          .new_v = call.new_v.data,
          .new_k_strides = call.new_k.strides,
          .new_v_strides = call.new_v.strides,
          .cosines = call.cosines,
          .sines = call.sines};
}

Key key_of(Key::Op op, const CacheCall& call, void* stream, uint64_t capture) {
  Key key(op, stream, capture);
  key.all(types_of(call.q, call.k, call.o), call.q.batch, call.q.heads, call.k.heads, call.q.tokens, call.q.width,
          call.k.tokens, call.k.batch, call.table ? call.max_pages : int64_t{-1}, int64_t{call.new_k.there()},
          call.rotary_dim, static_cast<int64_t>(call.pairing), call.scale);
  return key;
}

}  // namespace

void Engine::decode(const CacheCall& call, void* stream) {
  State& own = state();
  const DeviceInfo& info = own.device->info();
  if (!check(call, info.is_cuda())) return refuse_where(decode_unable(config_of(call), info));
  own.run(
      key_of(Key::decode, call, stream, own.capture_of(stream)), stream,
      [&](Prepared& ready) { ready.decode.emplace(*own.device, own.pipelines, config_of(call)); },
      [&](const Prepared& ready, CommandEncoder& encoder) { ready.decode->encode(encoder, tensors_of(call)); });
}

void Engine::check_cache(const CacheCall& call, void* stream) {
  State& own = state();
  attn::check_cache(call, own.device->info().is_cuda());
  if (!own.device->info().is_cuda()) return check_cache_values(call);
  if (own.capture_of(stream) != 0) throw BadInput("a cache cannot be checked while the stream is captured");
  const auto on_host = [&](const int* table, int64_t count) {
    std::vector<int> copy(static_cast<size_t>(table ? count : 0));
    own.device->download_after(stream, copy.data(), table, copy.size() * sizeof(int));
    return copy;
  };
  const std::vector<int> lengths = on_host(call.lengths, call.q.batch);
  const std::vector<int> table = on_host(call.table, call.q.batch * call.max_pages);
  CacheCall copy = call;
  copy.lengths = lengths.data();
  if (call.table) copy.table = table.data();
  check_cache_values(copy);
}

void Engine::prefill(const CacheCall& call, void* stream) {
  State& own = state();
  if (!check(call, own.device->info().is_cuda())) return refuse_where(prefill_unable(config_of(call)));
  own.run(
      key_of(Key::prefill, call, stream, own.capture_of(stream)), stream,
      [&](Prepared& ready) {
        DecodeConfig config = config_of(call);
        config.block_c = 0;  // as prefill chooses
        ready.prefill.emplace(*own.device, own.pipelines, config, call.k.batch);
        ready.memory = Buffer(*own.device, sizeof(PrefillData));
      },
      [&](Prepared& ready, CommandEncoder& encoder) {
        const DecodeTensors tensors = tensors_of(call);
        const PrefillData data = ready.prefill->data(tensors);
        if (!ready.has_known || std::memcmp(&data, &ready.known, sizeof data) != 0) {
          StageParams params{};
          params.block = static_cast<unsigned char*>(ready.memory.data());
          params.bytes = sizeof data;
          static_assert(sizeof data <= most_staged_bytes);
          std::memcpy(params.head, &data, sizeof data);
          own.stage(encoder, params);
          ready.has_known = false;  // until all is encoded
        }
        ready.prefill->encode(encoder, tensors, ready.memory.data());
        ready.known = data;
        ready.has_known = true;
      });
}

// ---- linear attention, RoPE

void Engine::linear(const LinearCall& call, void* stream) {
  State& own = state();
  const DeviceInfo& info = own.device->info();
  const TensorView &q = call.q, &v = call.v;
  if (!check(call, info.is_cuda())) {
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
        constexpr int64_t one_by_one = 16;  // tokens, up to which a state is read once
        config.variant = call.causal && q.tokens <= one_by_one ? "recurrent" : "fused";
        config.chunk = info.is_cuda() ? 64 : 16;
        if (const Plan plan = linear_plan(config, info, with_state); !plan.unable.empty() || skip_reason(plan, info)) {
          config.variant = "phases";
          config.scan = "lookback";
          config.chunk = info.is_cuda() ? 64 : 128;
        }
        ready.linear.emplace(*own.device, own.pipelines, config);
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

void Engine::rope(const RopeCall& call, void* stream) {
  State& own = state();
  if (!check(call, own.device->info().is_cuda())) return;
  const TensorView& some = call.q.there() ? call.q : call.k;
  const RopeShape shape{
      .batch = some.batch, .q_heads = call.q.heads, .kv_heads = call.k.heads, .rows = some.tokens, .dtype = some.dtype};
  Key key(Key::rope, stream, own.capture_of(stream));
  key.all(static_cast<int64_t>(shape.dtype), shape.batch, shape.q_heads, shape.kv_heads, shape.rows, some.width,
          call.config.rotary_dim, static_cast<int64_t>(call.config.pairing), call.config.theta,
          static_cast<int64_t>(call.config.scaling.index()));
  std::visit(
      [&](const auto& scaling) {
        using Scaling = std::decay_t<decltype(scaling)>;
        if constexpr (std::is_same_v<Scaling, RopeLinear> || std::is_same_v<Scaling, RopeNtk>) {
          key.add(scaling.factor);
        } else if constexpr (std::is_same_v<Scaling, RopeYarn>) {
          key.all(scaling.factor, scaling.original_length, scaling.beta_fast, scaling.beta_slow);
        } else if constexpr (std::is_same_v<Scaling, RopeLlama3>) {
          key.all(scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_length);
        }
      },
      call.config.scaling);
  own.run(
      key, stream, [&](Prepared& ready) { ready.rope.emplace(*own.device, own.pipelines, call.config, shape); },
      [&](const Prepared& ready, CommandEncoder& encoder) {
        ready.rope->encode(encoder, {.q = call.q.data,
                                     .k = call.k.data,
                                     .q_out = call.q_out.data,
                                     .k_out = call.k_out.data,
                                     .q_strides = call.q.strides,
                                     .k_strides = call.k.strides,
                                     .q_out_strides = call.q_out.strides,
                                     .k_out_strides = call.k_out.strides,
                                     .offsets = call.offsets});
      });
}

}  // namespace attn
