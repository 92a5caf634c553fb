// Engine: the project's kernels for a program with tensors and streams of its own, such as a framework. A call names
// tensors; the engine finds the kernel that it prepared for their shapes, or prepares it, and puts it on the stream. No
// call copies a tensor, but for the tables that FlashCall names.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/attention/rope.h"
#include "common/data/tensor.h"
#include "common/device/device.h"
#include "common/linear/kernels/linear.h"

namespace attn {

/// A caller's tensor on the engine's device, [batch, heads, tokens, width], whatever the order in memory; an element's
/// neighbour along width lies beside it. On a GPU address and strides are multiples of 16 bytes.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t batch = 0, heads = 0, tokens = 0, width = 0;
  Strides strides{};  // in elements

  bool there() const { return width > 0; }
  bool empty() const { return batch == 0 || heads == 0 || tokens == 0 || width == 0; }
};

/// O = softmax(scale Q K^T) V. q, o: [batch, q_heads, q_len, head_dim]; k, v: [batch, kv_heads, kv_len, head_dim],
/// where kv_heads divides q_heads. q, k and v have one type, f32, f16 or bf16; o that or f32. A query's own key is that
/// of its position; the last query stands at the last key.
///
/// The tables that the pointers name are read when the kernel runs, on the device, through a copy that the call puts
/// before it. They are dense.
///
/// Options have the names, the values and the meanings of attn_flash_options (attn.h): common/attention/options.def is
/// the list of both. A table is a pointer, null where there is none.
struct FlashCall {
  TensorView q = {}, k = {}, v = {}, o = {};
#define ATTN_OPTION(type, name, off) type name = off;
#define ATTN_SCALE(name) double name = 0;
#define ATTN_TABLE(element, name, ...) const element* name = nullptr;
#define ATTN_OUTPUT(name, ...) float* name = nullptr;
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
  int64_t bias_sizes[4] = {};
};

/// Attention of new queries over a cache: contiguous, k, v: [batch, kv_heads, capacity, head_dim], or with a table on
/// pages, [pages, kv_heads, page_size, head_dim]. Query i of q_len stands at key length - q_len + i.
struct CacheCall {
  TensorView q, k, v, o;
  float* lse = nullptr;          // dense [batch, q_heads, q_len], natural log; null: unwanted
  const int* lengths = nullptr;  // [batch]: tokens of a sequence, its queries' own among them
  const int* table = nullptr;    // [batch, max_pages]
  int64_t max_pages = 0;
  const float *k_scales = nullptr,
              *v_scales = nullptr;  // of a cache of 8 bits, for decode(): [pages or batch, kv_heads]
  double scale = 0;
  /// Tokens that the call writes to the cache, [batch, kv_heads, q_len, head_dim] of its type; without, they are there.
  /// It turns queries and new keys where rotary_dim is not 0, by cosines and sines of positions from 0 on, dense
  /// [positions, rotary_dim / 2].
  TensorView new_k, new_v;
  int64_t rotary_dim = 0;
  RopePairing pairing = RopePairing::half_split;
  const float *cosines = nullptr, *sines = nullptr;
  int64_t positions = 0;  // that they have, as many as a sequence may have tokens
};

/// Linear attention (common/linear/kernels/linear.h). q, k: [batch, heads, tokens, head_dim]; v, o: [..., value_dim].
struct LinearCall {
  TensorView q, k, v, o;
  bool causal = true, normalised = false;
  std::string_view feature = "identity";  // or "elu1", "relu"
  double scale = 0;                       // 0: 1 / sqrt(head_dim); where normalised there is none
  Gate gate = GATE_NONE;
  const float* gates =
      nullptr;  // logarithms of decays, dense: [heads], [batch, heads, tokens], or by channel [..., head_dim]
  const float* initial_state = nullptr;  // dense [batch, heads, head_dim, value_dim]; null: zeros, as normalised wants
  float* final_state = nullptr;          // the same; null: unwanted
};

/// Turns q, k or both, which may be their own outputs.
struct RopeCall {
  TensorView q, k, q_out, k_out;  // [batch, heads, tokens, head_dim]
  RopeConfig config;
  const int* offsets = nullptr;  // [batch]: positions of first tokens; null: zeros
};

struct EngineOptions {
  std::string cache_folder = {};  // of compiled kernels; empty: PipelineCache::default_folder()
  std::string archive = {};       // compiled kernels that were shipped; empty: none
};

/// Safe to use from several threads. On a GPU a call returns when the kernel is on the stream; on the cpu when it is
/// done. In a process that was forked a cpu engine begins anew; a GPU's throws DeviceMissing.
///
/// While a stream is captured into a graph, calls may prepare kernels as ever. What such a call keeps on the device
/// stays there as long as the engine, since the graph may be replayed.
class Engine {
 public:
  /// "cpu", "cpu:threads=N", "cuda:N". Throws as Device::open() does, and BadInput for an archive that is none.
  explicit Engine(std::string spec, EngineOptions options = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // All throw BadInput for tensors that a kernel does not take, and CompileError, OutOfMemory and DeviceLost. `stream`
  // is a GPU's, of the program (a cudaStream_t; null is the default stream).
  void flash(const FlashCall& call, void* stream = nullptr);
  void decode(const CacheCall& call, void* stream = nullptr);   // few queries a sequence
  void prefill(const CacheCall& call, void* stream = nullptr);  // many
  void linear(const LinearCall& call, void* stream = nullptr);
  void rope(const RopeCall& call, void* stream = nullptr);
  /// What decode() and prefill() ask of the values of lengths and table: every length fits the cache, and every page
  /// that holds a token is one of k's. On the cpu they ask it themselves; on a GPU this waits for the stream, and
  /// throws BadInput while that is captured. Of the call it reads k's sizes, lengths, table, max_pages, and q.batch.
  void check_cache(const CacheCall& call, void* stream = nullptr);
  /// A kernel that does nothing.
  void empty(void* stream = nullptr);

  const DeviceInfo& info();
  /// Launches that are ready, and the bytes on the device that they have beside the caller's tensors. Where there are
  /// more than 1024, or more than 256 MiB (on a GPU 1 GiB), those that were not used for longest go; captured ones
  /// stay.
  size_t prepared();
  size_t prepared_bytes();
  /// Writes all kernels that were loaded as an archive, for EngineOptions. Throws BadInput.
  void save_archive(const std::string& path);

  class State;

 private:
  State& state();

  const std::string spec_;
  const EngineOptions options_;
  std::atomic<State*> state_;
};

}  // namespace attn
