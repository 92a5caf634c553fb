// Engine: the project's kernels for a program that has its own tensors and streams, such as a framework. A call names
// tensors. The engine finds the launch that it prepared for the shapes of these tensors, or prepares a launch, and puts
// the launch on the stream. A call copies the tables of its modifiers, and prefill() makes a copy of a cache of 8 bits,
// converted to Q's type. No call copies any other tensor.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/attention/mask_view.h"
#include "common/attention/rope.h"
#include "common/data/tensor.h"
#include "common/device/device.h"
#include "common/linear/kernels/linear.h"

namespace attn {

/// A caller's tensor on the engine's device, [batch, heads, tokens, width]. The dimensions may have any order in
/// memory, but the stride along width is 1. On a GPU address and strides are multiples of 16 bytes.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t batch = 0, heads = 0, tokens = 0, width = 0;
  Strides strides{};  // in elements

  bool there() const { return width > 0; }
  bool empty() const { return batch == 0 || heads == 0 || tokens == 0 || width == 0; }
};

/// O = softmax(scale Q K^T) V. q, o: [batch, q_heads, q_len, head_dim]; k, v: [batch, kv_heads, kv_len, head_dim],
/// where kv_heads divides q_heads. q, k and v have one type, f32, f16 or bf16; o has this type or f32. A query's own
/// key is the key at its position; the last query stands at the last key.
///
/// The pointers other than lse name dense tables on the device. The call copies the tables in the order of the stream,
/// and the kernel reads the copies.
///
/// Options have the names, the values and the meanings of attn_flash_options (attn.h): both structs come from the list
/// common/attention/options.def. A table is a pointer; null means no table. The mask is not copied: the call turns the
/// mask into bits.
struct FlashCall {
  TensorView q = {}, k = {}, v = {}, o = {};
#define ATTN_OPTION(type, name, off) type name = off;
#define ATTN_SCALE(name) double name = 0;
#define ATTN_TABLE(element, name, ...) const element* name = nullptr;
#define ATTN_OUTPUT(name, ...) float* name = nullptr;
#define ATTN_TENSOR(name) MaskView name = {};
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
  int64_t bias_sizes[4] = {};
  int64_t sequences = 0;  // of cu_seqlens_q and cu_seqlens_k
};

/// Attention of new queries over a cache. k, v: contiguous [batch, kv_heads, capacity, head_dim], or, with a table, on
/// pages [pages, kv_heads, page_size, head_dim]. Query i of q_len stands at key (length - q_len + i).
struct CacheCall {
  TensorView q, k, v, o;
  float* lse = nullptr;          // dense [batch, q_heads, q_len], natural log; null: not written
  const int* lengths = nullptr;  // [batch]: tokens of a sequence, including the tokens of its queries
  const int* table = nullptr;    // [batch, max_pages]
  int64_t max_pages = 0;
  const float *k_scales = nullptr,
              *v_scales = nullptr;  // of a cache of 8 bits: [pages or batch, kv_heads]
  double scale = 0;
  /// New tokens, which the call writes to the cache: [batch, kv_heads, q_len, head_dim], of Q's type, which is also the
  /// type of a cache without scales. Without new tokens the cache must already have the tokens of the queries. If
  /// rotary_dim is not 0, the call rotates queries and new keys by cosines and sines. Both tables are dense [positions,
  /// rotary_dim / 2], and row i is for position i.
  TensorView new_k = {}, new_v = {};
  int64_t rotary_dim = 0;
  RopePairing pairing = RopePairing::half_split;
  const float *cosines = nullptr, *sines = nullptr;
  int64_t positions = 0;  // rows of cosines and sines: at least as many as a sequence may have tokens
  /// The modifiers of attn_cache_options (attn.h), with the same names and values; null means no table.
#define ATTN_MODIFIER(type, name, off, ...) type name = off;
#define ATTN_MODIFIER_TABLE(element, name, ...) const element* name = nullptr;
#define ATTN_OPTIONS_OF_CACHE
#include "common/attention/options.def"
};

/// Linear attention (common/linear/kernels/linear.h). q, k: [batch, heads, tokens, head_dim]; v, o: [batch, heads,
/// tokens, value_dim].
struct LinearCall {
  TensorView q, k, v, o;
  bool causal = true, normalised = false;
  std::string_view feature = "identity";  // or "elu1", "relu"
  double scale = 0;                       // 0: 1 / sqrt(head_dim); `normalised` has no scale
  Gate gate = GATE_NONE;
  /// Logarithms of decays, dense. Their shape depends on `gate`: [heads] for GATE_HEAD, [batch, heads, tokens] for
  /// GATE_TOKEN, [batch, heads, tokens, head_dim] for GATE_CHANNEL.
  const float* gates = nullptr;
  /// The states before the first token and after the last token, dense [batch, heads, head_dim, value_dim].
  /// initial_state: null means zeros; with `normalised` only null is allowed. final_state: null means that the final
  /// state is not written.
  const float* initial_state = nullptr;
  float* final_state = nullptr;
};

/// Rotates q, k or both (RoPE). q_out may be q, and k_out may be k.
struct RopeCall {
  TensorView q, k, q_out, k_out;  // [batch, heads, tokens, head_dim]
  RopeConfig config;
  const int* offsets = nullptr;  // [batch]: positions of first tokens; null: zeros
};

struct EngineOptions {
  std::string cache_folder = {};  // the folder of compiled kernels; empty: PipelineCache::default_folder()
  std::string archive = {};       // a file of compiled kernels that was shipped; empty: none
  Caller caller = {};             // the program's threads; a child process after a fork does not use them
};

/// Several threads may use an engine at the same time. On a GPU a call returns when the kernel is on the stream; on the
/// cpu a call returns when the kernel is done. After a fork, a cpu engine of the child process prepares everything
/// anew; a GPU engine throws DeviceMissing.
///
/// While a stream is captured into a graph, calls may still prepare launches. The engine keeps the device memory of a
/// launch that a graph has captured until the engine ends, because the graph may be replayed.
class Engine {
 public:
  /// spec: "cpu", "cpu:threads=N" or "cuda:N". Throws as Device::open() does, and BadInput if the archive's file is not
  /// an archive.
  explicit Engine(std::string spec, EngineOptions options = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // These calls throw BadInput for tensors that no kernel supports, and CompileError, OutOfMemory and DeviceLost.
  // `stream` is the program's stream of a GPU (a cudaStream_t; null is the default stream).
  void flash(const FlashCall& call, void* stream = nullptr);
  void decode(const CacheCall& call, void* stream = nullptr);   // few queries a sequence
  void prefill(const CacheCall& call, void* stream = nullptr);  // many queries a sequence
  void linear(const LinearCall& call, void* stream = nullptr);
  void rope(const RopeCall& call, void* stream = nullptr);
  /// Throws BadInput unless every length fits the cache, and every page that holds a token is a page of k. On the cpu
  /// decode() and prefill() make this check themselves. On a GPU the check waits for the stream, and throws BadInput
  /// while the stream is captured. check_cache() reads lengths, table, max_pages, q.batch and the sizes of k. If the
  /// call has new_k, check_cache() also reads window_left and starts, and throws BadInput if a page that gets tokens is
  /// named twice, or if another sequence sees a slot that gets a token. With scales too, it checks the scales of the
  /// pages or sequences that get tokens.
  void check_cache(const CacheCall& call, void* stream = nullptr);
  /// Runs a kernel that does nothing.
  void empty(void* stream = nullptr);

  const DeviceInfo& info();
  Device& device();  // lives as long as the engine
  /// prepared() returns the number of prepared launches. prepared_bytes() returns the bytes of these launches on the
  /// device, without the caller's tensors. Above 1024 launches, or 256 MiB (on a GPU 1 GiB), the engine drops the least
  /// recently used launches. It keeps captured launches.
  size_t prepared();
  size_t prepared_bytes();
  /// Returns the number of calls of flash(), decode() and prefill() whose work the engine has put on streams. A replay
  /// of a CUDA graph launches without the engine, so the replay does not count.
  uint64_t launches();
  /// Writes an archive of all loaded kernels, for EngineOptions::archive. Throws BadInput if the file cannot be
  /// written.
  void save_archive(const std::string& path);

  class State;

 private:
  State& state();

  const std::string spec_;
  const EngineOptions options_;
  std::atomic<State*> state_;
};

/// Throw BadInput if Engine::flash() and so on would do so for the call, whatever values its tables hold, on a GPU or
/// on the cpu. They read no tensor and no table, and launch nothing; addresses may be no_address (checks.h). With
/// `device`, an engine's info(), they also throw for what this device lacks.
void ask_flash(const FlashCall& call, bool gpu, const DeviceInfo* device = nullptr);
void ask_decode(const CacheCall& call, bool gpu, const DeviceInfo* device = nullptr);
void ask_prefill(const CacheCall& call, bool gpu, const DeviceInfo* device = nullptr);
void ask_linear(const LinearCall& call, bool gpu, const DeviceInfo* device = nullptr);
void ask_rope(const RopeCall& call, bool gpu, const DeviceInfo* device = nullptr);

}  // namespace attn
