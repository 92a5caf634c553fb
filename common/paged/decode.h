// Attention of a few new queries of each sequence over its cached keys, whether these lie one after the other or on
// pages: a plan, and a launch that needs no inputs. kernels/decode.h says how the work is shared out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/attention/hook.h"
#include "common/attention/rope.h"
#include "common/attention/shape.h"
#include "common/device/pipeline_cache.h"
#include "common/launch/plan.h"
#include "common/paged/kernels/decode.h"

namespace attn {

/// Whether a cache of this type has scales: those of 8 bits.
inline bool has_scales(DType cache_dtype) { return size_bytes(cache_dtype) == 1; }

struct DecodeConfig {
  AttentionShape shape;  // kv_len: the most keys that a sequence can have
  DType dtype = DType::f32, cache_dtype = DType::f32, out_dtype = DType::f32;  // of Q, of K and V, of O
  int64_t page_size = 0;                                                       // tokens; 0: contiguous
  int64_t block_c = 64;                                                        // keys of a block
  int64_t workers = 0;                                                         // 0: decode_workers()
  bool join_last = true;  // the last worker of a tile joins its parts; false: a second launch does
  /// The last q_len tokens of a sequence are not in the cache yet: the launch writes them there. It turns their queries
  /// and keys by the angles of DecodeTensors where rotary_dim is not 0.
  bool appends = false;
  int64_t rotary_dim = 0;  // even, at most head_dim
  RopePairing pairing = RopePairing::half_split;

  /// Query rows that share a key/value head: each key is read once for as many of them as a tile has.
  int64_t rows() const { return shape.q_heads / shape.kv_heads * shape.q_len; }
};

/// As many workers as run at once, or up to a tenth fewer where they then share tiles evenly; no more than there are
/// blocks where all sequences are as long as they can be.
int64_t decode_workers(const DecodeConfig& config, const DeviceInfo& device);

/// Why no launch takes such types and widths on the device; empty where some do.
std::string decode_unable(const DecodeConfig& config, const DeviceInfo& device);

/// The launch "attend", behind it "join" where a second launch joins; memory is the bound of the work, which is that of
/// `keys`, the tokens of all sequences together. Or why the device does not take it.
Plan decode_plan(const DecodeConfig& config, const DeviceInfo& device, int64_t keys,
                 const AttentionHooks* hooks = nullptr);

/// What a launch reads and writes, on its device; all strides are in elements. On a GPU addresses and strides are
/// multiples of 16 bytes.
struct DecodeTensors {
  const void* q = nullptr;  // [batch, q_heads, q_len, head_dim], as o
  void* o = nullptr;
  float* lse = nullptr;  // [batch, q_heads, q_len], natural log; null where nobody wants it
  Strides q_strides{}, o_strides{};
  const void *k = nullptr, *v = nullptr;
  Strides k_strides{}, v_strides{};  // batch: from page to page; of a contiguous cache from sequence to sequence
  const int* table = nullptr;        // [batch, max_pages]: pages of a sequence; a contiguous cache has none
  int64_t max_pages = 0;
  int64_t pages = 0;  // that k and v have; on a GPU, rows that see a key are NaN where the table names none of them
  const float *k_scales = nullptr,
              *v_scales = nullptr;  // of a cache of 8 bits, finite: [pages, kv_heads], or [batch, kv_heads]
  /// [batch]: tokens of a sequence, its queries' own among them; at most kv_len. On a GPU the rows of a sequence are
  /// NaN where its length is negative, or greater, and nothing is appended to it.
  const int* lengths = nullptr;
  const void* hook_data = nullptr;  // what ScoreContext::data points to
  /// Where new tokens are appended, by decode or by AppendLaunch, which takes nothing of the above but k to max_pages
  /// and lengths: [batch, kv_heads, q_len, head_dim], of the cache's type. Token i becomes key length - q_len + i;
  /// where that is negative there is none. No page of a sequence that takes new tokens belongs to another sequence as
  /// well.
  const void *new_k = nullptr, *new_v = nullptr;
  Strides new_k_strides{}, new_v_strides{};
  const float *cosines = nullptr, *sines = nullptr;  // [positions, rotary_dim / 2] (rope_table()), from position 0 on
};

/// Those that are appended, as kernels see them.
NewTokens new_tokens(const DecodeTensors& tensors);

/// Writes new keys, as they are, and values to the cache.
class AppendLaunch {
 public:
  /// Throws CompileError; BadInput as append_plan() says.
  AppendLaunch(Device& device, PipelineCache& pipelines, const DecodeConfig& config);
  void encode(CommandEncoder& encoder, const DecodeTensors& tensors) const;

 private:
  DecodeConfig config_;
  Launch launch_;
  const Kernel* kernel_;
};
Plan append_plan(const DecodeConfig& config, const DeviceInfo& device);

/// Kernels that are loaded for one configuration, with the memory in which workers leave their parts. Two launches of
/// one DecodeLaunch must not run at the same time. It lives no longer than its device and pipelines.
class DecodeLaunch {
 public:
  /// Throws CompileError, OutOfMemory, and BadInput where the device does not take the configuration.
  DecodeLaunch(Device& device, PipelineCache& pipelines, const DecodeConfig& config,
               const AttentionHooks* hooks = nullptr);

  void encode(CommandEncoder& encoder, const DecodeTensors& tensors) const;
  int64_t workers() const { return config_.workers; }
  /// Of each worker.
  size_t threadgroup_bytes() const { return launches_.front().threadgroup_bytes; }
  /// Whether all counters of parts are 0 again, as they are between two launches, and no guard band was overwritten.
  bool at_rest() const;

 private:
  DecodeConfig config_;  // with the number of workers
  std::vector<Launch> launches_;
  std::vector<const Kernel*> kernels_;
  Buffer part_o_, part_stats_, arrived_;
};

}  // namespace attn
