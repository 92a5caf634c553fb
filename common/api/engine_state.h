// Engine::State: how a call finds its launch, and which launches the engine keeps. The source files of the engine's
// operations share this header.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/api/checks.h"
#include "common/api/engine.h"
#include "common/api/kernels/stage.h"
#include "common/attention/given_mask.h"
#include "common/attention/launch.h"
#include "common/attention/modifiers.h"
#include "common/base/error.h"
#include "common/device/pipeline_cache.h"
#include "common/linear/launch.h"
#include "common/paged/decode.h"
#include "common/paged/prefill.h"

namespace attn {
namespace engine {  // not anonymous: Engine::State, which engine.h declares, has members of these types

// The most launches and bytes that the engine keeps, captured launches not counted. `most_prepared` is larger than
// the number of shapes that a program usually uses at a time. A launch usually has some KiB of memory on the cpu and
// some MiB on a GPU. A launch with a bias has as many bytes as the bias, a launch with a mask an eighth of the mask's
// bytes, a launch of prefill over a cache of 8 bits up to the larger of most_expanded_bytes() and the bytes of one
// sequence.
constexpr size_t most_prepared = 1024;
constexpr size_t most_bytes_of_cpu = size_t{256} << 20, most_bytes_of_gpu = size_t{1} << 30;
/// The most bytes that a launch keeps for the copy of a cache of 8 bits, unless the copy of one sequence needs more.
inline size_t most_expanded_bytes(const DeviceInfo& info) {
  return (info.on_host ? most_bytes_of_cpu : most_bytes_of_gpu) / 4;
}
// Enough zeros for the lengths of any batch, and for a row of any width (checks.cpp).
constexpr size_t zero_bytes = 65536 * sizeof(int);

// ---- keys

/// The properties of a call that decide which launch serves the call, each as a 64-bit word.
class Key {
 public:
  /// few: a flash() call with few rows (flash.cpp), which a launch of decoding serves.
  enum Op : int64_t { flash, few, decode, prefill, linear, rope, empty };

  Key(Op op, void* stream, uint64_t capture) {
    add(op);
    add(std::bit_cast<int64_t>(reinterpret_cast<uintptr_t>(stream)));
    add(static_cast<int64_t>(capture));
  }
  void add(int64_t word) { words_.at(count_++) = word; }
  void add(double value) { add(std::bit_cast<int64_t>(value)); }
  void add(bool on) { add(int64_t{on}); }
  template <typename... Words>
  void all(Words... words) {
    (add(words), ...);
  }
  bool captured() const { return words_[2] != 0; }
  bool attends() const { return words_[0] <= prefill; }

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

inline int64_t types_of(const TensorView& q, const TensorView& kv, const TensorView& o) {
  return static_cast<int64_t>(q.dtype) | static_cast<int64_t>(kv.dtype) << 8 | static_cast<int64_t>(o.dtype) << 16;
}
/// Throws BadInput if `unable` gives a reason. Calls without rows need this check, because they make no launch that
/// could refuse them.
inline void refuse_where(const std::string& unable) {
  if (!unable.empty()) throw BadInput(unable);
}

/// Returns the call's tensors as a launch takes them: Tensors is AttentionTensors or DecodeTensors.
template <typename Tensors, typename Call>
Tensors tensors_of(const Call& call, const void* hook_data) {
  Tensors tensors;
  tensors.q = call.q.data;
  tensors.k = call.k.data;
  tensors.v = call.v.data;
  tensors.o = call.o.data;
  tensors.lse = call.lse;
  tensors.q_strides = call.q.strides;
  tensors.k_strides = call.k.strides;
  tensors.v_strides = call.v.strides;
  tensors.o_strides = call.o.strides;
  tensors.hook_data = hook_data;
  return tensors;
}

// ---- modifiers

/// Returns the modifiers of a call's kernel.
inline Modifiers modifiers_of(const ModifiedCall& call) {
  Modifiers m;
#define ATTN_MODIFIER(type, name, ...) m.name = call.name;
#define ATTN_MODIFIER_TABLE(element, name, ...) m.name = call.name != nullptr;
#define ATTN_DRAWN_TABLE(element, name, ...)
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
  m.tree = call.tree != nullptr;
  m.ragged = !call.cu_seqlens_q ? 0 : call.causal && call.prefix == 0 ? 2 : 1;
  m.documents = call.documents != nullptr;
  m.block_sparse = call.blocks != nullptr;
  m.mask_bits = call.mask.data != nullptr;
  m.lists = false;  // no lists of keys, because the host would have to make them in every call
  if (call.bias) {
    std::string axes;
    for (int axis = 0; axis < 4; ++axis) {
      if (call.bias_sizes[axis] != 1) axes += "bhqk"[axis];
    }
    m.bias = axes.empty() ? std::string(1, 'q') : axes;  // for a bias of one element any axis but k will do
  }
  return m;
}

/// Whether an option changes the kernel.
inline bool modified(const ModifiedCall& call) {
  bool found = call.tree != nullptr || call.mask.data != nullptr;
#define ATTN_MODIFIER(type, name, off, ...) found |= call.name != off;
#define ATTN_TABLE(element, name, ...) found |= call.name != nullptr;
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
  return found;
}

/// Adds to the key the values of the options, and for each table whether the call has the table.
inline void add_options(Key& key, const ModifiedCall& call) {
  int64_t tables = call.tree != nullptr;
#define ATTN_MODIFIER(type, name, ...) key.add(call.name);
#define ATTN_TABLE(element, name, ...) tables = 2 * tables + (call.name != nullptr);
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
  key.add(tables);
  if (call.cu_seqlens_q) key.all(call.sequences, call.causal);
  for (int axis = 0; call.bias && axis < 4; ++axis) key.add(call.bias_sizes[axis]);
  key.add(call.mask.data ? 1 + int64_t{call.mask.has(0)} + 2 * int64_t{call.mask.has(1)} : 0);
}

/// The tables of a call, on the device. If the call has ALiBi without slopes, the first table is without an address.
struct CallTables {
  std::array<ModifierLayout::Table, most_staged_tables> tables{};
  size_t count = 0;

  explicit CallTables(const ModifiedCall& call) {
    const int64_t batch = call.q.batch, q_heads = call.q.heads, q_len = call.q.tokens, kv_len = call.k.tokens;
    const int64_t sequences = call.sequences, (&bias_sizes)[4] = call.bias_sizes;
    if (call.alibi && !call.alibi_slopes) tables.at(count++) = {&ModifierData::alibi_slopes, q_heads, nullptr};
    const auto add = [&](int ModifierData::* offset, const auto* table, int64_t elements) {
      if (!table) return;
      const int64_t slack = offset == &ModifierData::bias ? bias_slack : 0;
      tables.at(count++) = {offset, elements * static_cast<int64_t>(sizeof *table) / 4, table, slack};
    };
#define ATTN_TABLE(element, name, ...) add(&ModifierData::name, call.name, elements({__VA_ARGS__}));
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
    add(&ModifierData::tree, call.tree, batch * q_len);
  }
  std::span<ModifierLayout::Table> all() { return std::span(tables).first(count); }
};

/// The block of memory that the modifiers' hooks (their code in a kernel) read. Each call may fill the tables anew.
class ModifierBlock {
 public:
  /// `mask` is GivenMask::bits().
  ModifierBlock(Device& device, const ModifiedCall& call, const MaskBits& mask = {}) {
    ModifierData data{};
    data.sequences = static_cast<int>(call.sequences);
    data.mask = mask;
    set_bias_strides(data, call.bias_sizes);
    CallTables tables(call);
    layout_ = ModifierLayout(data, tables.all());
    std::vector<float> slopes;
    for (ModifierLayout::Table& table : tables.all()) {
      if (!table.from) {
        for (const double slope : attn::alibi_slopes(call.q.heads)) slopes.push_back(static_cast<float>(slope));
      }
      table.from = table.from ? nullptr : slopes.data();  // only these slopes are on the host
    }
    memory_ = Buffer(device, static_cast<size_t>(layout_.bytes()));
    const std::vector<std::byte> known = layout_.filled(tables.all());
    memory_.upload(known.data(), known.size());
  }

  void* data() const { return memory_.data(); }
  /// Returns the parameters of the kernel `stage`, which copies the call's tables to the block.
  StageParams staged(const ModifiedCall& call) const {
    StageParams params{};
    params.block = static_cast<unsigned char*>(memory_.data());
    CallTables tables(call);
    for (const ModifierLayout::Table& table : tables.all()) {
      if (!table.from) continue;
      params.table[params.tables++] = {static_cast<const unsigned*>(table.from), table.words,
                                       layout_.head().*table.offset};
    }
    if (call.bias) {  // one launch of decoding serves biases with different numbers of keys and different strides
      ModifierData head = layout_.head();
      set_bias_strides(head, call.bias_sizes);
      static_assert(sizeof head <= most_staged_bytes);
      params.bytes = sizeof head;
      std::memcpy(params.head, &head, sizeof head);
    }
    return params;
  }

 private:
  /// Sets the strides of a dense bias.
  static void set_bias_strides(ModifierData& data, const int64_t (&sizes)[4]) {
    int64_t stride = sizes[3];
    for (int axis = 2; axis >= 0; --axis) {
      data.bias_strides[axis] = sizes[axis] == 1 ? 0 : stride;
      stride *= sizes[axis];
    }
  }

  ModifierLayout layout_;
  Buffer memory_;
};
/// A launch that is prepared for the calls of one key, with the memory that it reads in addition to the caller's
/// memory.
struct Prepared {
  std::optional<GivenMask> mask;
  std::optional<AttentionLaunch> attention;
  std::optional<ModifierBlock> modifiers;
  std::optional<DecodeLaunch> decode;
  std::optional<PrefillLaunch> prefill;
  std::optional<LinearLaunch> linear;
  std::optional<RopeLaunch> rope;
  Buffer memory;           // Key::few: lengths for each number of keys (flash.cpp); Key::prefill: a PrefillData
  PrefillData known = {};  // Key::prefill: the content of `memory`, if has_known
  bool has_known = false;
  size_t bytes = 0;        // all device memory of this entry
  uint64_t last_call = 0;  // the number of the last call that used this entry
};

inline std::atomic<unsigned> forks = 0;  // how many forks lead from the process of the first engine to this process
}  // namespace engine
using namespace engine;

class Engine::State {
 public:
  State(const std::string& spec, const EngineOptions& options)
      : born(forks),
        device(Device::open_for_caller(spec, options.caller)),
        pipelines(*device, options.cache_folder.empty() ? PipelineCache::default_folder() : options.cache_folder) {
    if (!options.archive.empty()) pipelines.attach(PipelineArchive::load(options.archive));
  }

  uint64_t capture_of(void* stream) const { return device->capture_of(stream); }

  /// Finds the entry of the key, or makes it with `prepare`. Then runs `encode` on the entry, and enqueues the
  /// commands.
  template <typename Prepare, typename Encode>
  void run(const Key& key, void* stream, const Prepare& prepare, const Encode& encode) {
    const Device::Scope scope(*device);
    std::unique_lock lock(mutex);
    auto found = ready.find(key);
    if (found == ready.end()) {
      lock.unlock();
      const std::lock_guard one_at_a_time(preparing);  // calls with prepared launches go on meanwhile
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
    launches += key.attends();
  }

  void stage(CommandEncoder& to, const StageParams& params) {
    int64_t words = params.bytes / 4;
    for (int i = 0; i < params.tables; ++i) words = std::max<int64_t>(words, params.table[i].words);
    const std::optional<ElementKernel>& operation = device->info().operations->stage;
    if (!operation) throw BadInput(no_kernel_for("copying tables of a caller"));
    const ElementKernel shape = *operation;
    const auto groups = static_cast<uint32_t>(std::clamp<int64_t>(words / shape.elements, 1, 4 * device->info().units));
    if (!stage_) {
      stage_ =
          &kernel("stage", shape.threads > 1 ? FunctionConstants{{"THREADS", shape.threads}} : FunctionConstants{});
    }
    to.dispatch(*stage_, {groups}, shape.threads, 0, params);
  }
  /// Encodes the copy of the call's tables to the entry's ModifierBlock and, if the call has a mask, the launch that
  /// makes lists and bits from the mask. Returns the data that the entry's hooks read; null if the entry has no hooks.
  const void* staged(CommandEncoder& to, const Prepared& entry, const ModifiedCall& call) {
    if (!entry.modifiers) return nullptr;
    if (const StageParams params = entry.modifiers->staged(call); params.tables > 0) stage(to, params);
    if (entry.mask) entry.mask->encode(to, call.mask, entry.modifiers->data());
    return entry.modifiers->data();
  }
  /// For a call without tokens: writes the final state, which is the initial state, or zeros without an initial state.
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
  std::mutex preparing, mutex;  // mutex guards all members below, and data that a launch keeps between its runs
  CommandEncoder encoder;
  std::unordered_map<Key, std::unique_ptr<Prepared>, KeyHash> ready;
  uint64_t calls = 0, launches = 0;  // launches: what Engine::launches() returns

 private:
  const Kernel& kernel(const std::string& entry, FunctionConstants constants) {
    return *pipelines
                .get({.path = device->info().operations->kernel_file("common/api/kernels/" + entry),
                      .entry = entry,
                      .constants = std::move(constants)})
                .kernel;
  }

  // Makes room for one more launch of `bytes` bytes. A launch that is released may still run on some stream. The
  // release waits for the launch's end, and waiting is not allowed during a capture. So make_room() releases seldom,
  // and then many launches at once, the least recently used first.
  void make_room(size_t bytes) {
    const size_t most_bytes = device->info().on_host ? most_bytes_of_cpu : most_bytes_of_gpu;
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

  const Kernel *stage_ = nullptr, *empty_ = nullptr;  // loaded at their first use
  std::optional<Buffer> zeros_;
};

}  // namespace attn
