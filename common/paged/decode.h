// Attention of a few new queries of each sequence over its cached keys. The cache is contiguous or on pages. This file
// has the plans and the launches; a launch gets its tensors only in encode(). kernels/decode.h explains workers, tiles,
// blocks and parts.
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

/// Whether a cache of this type has scales: caches of 8 bits do.
inline bool has_scales(DType cache_dtype) { return size_bytes(cache_dtype) == 1; }

struct DecodeConfig {
  AttentionShape shape;  // kv_len: the most keys that a sequence can have
  DType dtype = DType::f32, cache_dtype = DType::f32, out_dtype = DType::f32;  // of Q, of K and V, of O
  int64_t page_size = 0;                                                       // tokens; 0: contiguous
  int64_t block_c = 64;                                                        // keys of a block
  int64_t workers = 0;                                                         // 0: decode_workers() chooses
  bool join_last = true;  // a tile's last worker, or its workers together, join its parts; false: a second launch does
  /// The last q_len tokens of a sequence are not in the cache yet; the launch writes them to the cache. If rotary_dim
  /// is not 0, the launch rotates the queries and keys of these tokens by the angles of DecodeTensors. If the cache has
  /// scales, a separate, earlier launch rotates and writes (AppendScaledLaunch).
  bool appends = false;
  int64_t rotary_dim = 0;  // even, at most head_dim
  RopePairing pairing = RopePairing::half_split;

  /// Returns how many rows of Q of one sequence share a key/value head.
  int64_t rows() const { return shape.q_heads / shape.kv_heads * shape.q_len; }
  /// Returns the bytes of the scales of `keys` cached tokens; 0 for a cache without scales. The scales of a contiguous
  /// cache, one for each sequence and head in K and in V, are not counted.
  double scale_bytes(int64_t keys) const {
    return has_scales(cache_dtype) && page_size > 0
               ? static_cast<double>(2 * keys * shape.kv_heads) / static_cast<double>(page_size) * sizeof(float)
               : 0;
  }
};

/// Decoding as an operation of a device.
class DecodeOperation {
 public:
  static constexpr int64_t most_rows = 64;  // of a tile

  virtual ~DecodeOperation() = default;
  /// Returns why no launch takes the configuration's types and widths; an empty text if a launch does.
  virtual std::string unable(const DecodeConfig& config) const = 0;
  /// Returns why no launch takes the configuration's block_c; an empty text if a launch does.
  virtual std::string unable_block(const DecodeConfig& config, const DeviceInfo& device) const = 0;
  /// Returns how many rows a tile has. With this number there are as few tiles as possible.
  virtual int64_t tile_rows(const DecodeConfig& config, const DeviceInfo& device) const = 0;
  /// Returns how many workers run at once.
  virtual int64_t workers_at_once(const DecodeConfig& config, const DeviceInfo& device) const = 0;
  /// Returns the threadgroup memory of the launch "attend".
  virtual size_t threadgroup_bytes(const DecodeConfig& config, const DeviceInfo& device) const = 0;
  /// Adds to the launch what only this device's kernel needs: constants and threads.
  virtual void complete(Launch& attend, const DecodeConfig& config, const DeviceInfo& device) const = 0;
  /// Encodes the launch "attend". A kernel of a configuration that does not append gets `params` without `tokens`.
  virtual void encode(CommandEncoder& encoder, const Kernel& kernel, const Launch& attend,
                      const FusedDecodeParams& params, const DecodeConfig& config) const {
    encode_plainly(encoder, kernel, attend, params, config);
  }
  static void encode_plainly(CommandEncoder& encoder, const Kernel& kernel, const Launch& launch,
                             const FusedDecodeParams& params, const DecodeConfig& config);
  /// Returns the threadgroup memory of the launch "join". attend_bytes is the threadgroup memory of the launch
  /// "attend".
  virtual size_t join_bytes(size_t attend_bytes) const = 0;
  /// Does what complete() does, for the kernel that joins the result over a shared prefix and the result over each
  /// sequence's own keys.
  virtual void complete_merge(Launch& merge, const DecodeConfig& config, const DeviceInfo& device) const = 0;
};

/// Returns how many workers share the work: as many as run at once, or up to a tenth fewer if the smaller number shares
/// the tiles more evenly. The result is at most the number of blocks of all tiles if each sequence has kv_len keys.
int64_t decode_workers(const DecodeConfig& config, const DeviceInfo& device);

/// Returns why no launch of decoding or prefill appends tokens to the configuration's cache; an empty text if a launch
/// does.
std::string append_unable(const DecodeConfig& config);

/// Returns why no launch takes the configuration's types and widths on the device; an empty text if a launch does.
std::string decode_unable(const DecodeConfig& config, const DeviceInfo& device);

/// Whether a launch takes the configuration's types and widths, and its threadgroup memory fits the device.
bool decode_takes(const DecodeConfig& config, const DeviceInfo& device);

/// Returns a plan with the launch "attend", the launch "join" after it if a second launch joins the parts, and the
/// launch "append" before both if appends_first(config). If the device does not take the configuration, the plan has
/// the reason instead. The work is memory-bound, and follows from `keys`, the tokens of all sequences together.
Plan decode_plan(const DecodeConfig& config, const DeviceInfo& device, int64_t keys,
                 const AttentionHooks* hooks = nullptr);

/// The tensors of a launch, on its device. All strides are in elements. On a GPU the addresses and strides of q, o, k,
/// v, new_k and new_v are multiples of 16 bytes.
struct DecodeTensors {
  const void* q = nullptr;  // q and o: [batch, q_heads, q_len, head_dim]
  void* o = nullptr;
  float* lse = nullptr;  // [batch, q_heads, q_len], natural log; null: not written
  Strides q_strides{}, o_strides{};
  const void *k = nullptr, *v = nullptr;
  Strides k_strides{}, v_strides{};  // .batch: the stride of a page, or of a sequence in a contiguous cache
  const int* table = nullptr;        // [batch, max_pages]: pages of a sequence; null for a contiguous cache
  int64_t max_pages = 0;
  int64_t pages = 0;  // pages of k and v; on a GPU, a row of O that sees a key on a page outside 0 to pages - 1 is NaN
  /// Scales of a cache of 8 bits, all finite: [pages, kv_heads], or [batch, kv_heads] if the cache is contiguous.
  const float *k_scales = nullptr, *v_scales = nullptr;
  /// [batch]: tokens of a sequence, including the tokens of its queries; at most kv_len. On a GPU, if a sequence's
  /// length is negative or greater than kv_len, the sequence's rows of O are NaN, and no token is appended to it.
  const int* lengths = nullptr;
  const void* hook_data = nullptr;  // ScoreContext::data
  /// The new tokens, if DecodeConfig::appends, or for AppendLaunch: [batch, kv_heads, q_len, head_dim], of Q's type,
  /// which is the cache's type unless the cache has scales. Of the members above, AppendLaunch reads only `lengths` and
  /// the members from k to pages. Token i becomes key (length - q_len + i); it is not appended if this number is
  /// negative. A page that takes new tokens must belong to one sequence only.
  const void *new_k = nullptr, *new_v = nullptr;
  Strides new_k_strides{}, new_v_strides{};
  const float *cosines = nullptr, *sines = nullptr;  // [positions, rotary_dim / 2] (rope_table()), from position 0 on
};

/// These functions return the kernels' parameters for the cache and for the new tokens.
KvCacheView cache_view(const DecodeTensors& tensors);
NewTokens new_tokens(const DecodeTensors& tensors);

/// Writes new keys and values to a cache of their type, and rotates no key.
class AppendLaunch {
 public:
  /// encode() runs the launch "append" of `plan`, which must be the plan of `config`. Throws CompileError, and BadInput
  /// if the device does not take the plan.
  AppendLaunch(Device& device, PipelineCache& pipelines, const DecodeConfig& config, const Plan& plan);
  void encode(CommandEncoder& encoder, const DecodeTensors& tensors) const;

 private:
  DecodeConfig config_;
  Launch launch_;
  const Kernel* kernel_;
};
Plan append_plan(const DecodeConfig& config, const DeviceInfo& device);

/// Writes new tokens to a cache that has scales, before the launch that attends. If rotary_dim is not 0, rotates the
/// new keys and the queries. The scales stay as they are: an element beyond the range of its scale becomes the nearer
/// end of the range. Plans of decoding and of prefill begin with this launch if they append to a cache with scales,
/// because the attention kernels themselves can append only to a cache of Q's type.
class AppendScaledLaunch {
 public:
  /// encode() runs the launch "append" of `plan`, which must be the plan of `config` for decoding or for prefill.
  /// Throws as AppendLaunch does, and OutOfMemory.
  AppendScaledLaunch(Device& device, PipelineCache& pipelines, const DecodeConfig& config, const Plan& plan);
  /// Encodes the launch. Returns the tensors for the launch that attends; if queries are rotated, the rotated queries
  /// are in memory of this object.
  DecodeTensors encode(CommandEncoder& encoder, const DecodeTensors& tensors) const;
  /// Whether no guard band was overwritten.
  bool guards_intact() const { return turned_q_.guards_intact(); }

 private:
  DecodeConfig config_;
  Launch launch_;
  const Kernel* kernel_;
  Buffer turned_q_;  // [batch, q_heads, q_len, head_dim], in Q's type; empty if nothing is rotated
};

/// Whether an AppendScaledLaunch comes before the launch that attends.
inline bool appends_first(const DecodeConfig& config) { return config.appends && has_scales(config.cache_dtype); }
/// Returns the configuration of the launch that attends: after an AppendScaledLaunch it neither appends nor rotates.
DecodeConfig attending(const DecodeConfig& config);
/// Adds the launch "append" to a plan of decoding or of prefill, before the other launches.
void append_first(Plan& plan, const DecodeConfig& config, const DeviceInfo& device);

/// The loaded kernels of one configuration, and the memory in which workers leave their parts. One DecodeLaunch must
/// not run twice at the same time. Its device and pipelines must outlive it.
class DecodeLaunch {
 public:
  /// encode() runs the launches "append", "attend" and "join", as far as `config` needs them. `plan` must have the
  /// launches of `config`, with `prefix` before the names "attend" and "join". Throws CompileError, OutOfMemory, and
  /// BadInput if the device does not take the plan.
  DecodeLaunch(Device& device, PipelineCache& pipelines, const DecodeConfig& config, const Plan& plan,
               const std::string& prefix = "");

  void encode(CommandEncoder& encoder, const DecodeTensors& tensors) const;
  int64_t workers() const { return config_.workers; }
  /// Returns the threadgroup memory of each worker.
  size_t threadgroup_bytes() const { return launches_.front().threadgroup_bytes; }
  /// Whether all counters in arrived_ are 0, as between two launches, and no guard band was overwritten.
  bool at_rest() const;

 private:
  DecodeConfig config_;  // of the launch that attends, with the number of workers
  const DecodeOperation* operation_;
  std::optional<AppendScaledLaunch> append_;
  std::vector<Launch> launches_;
  std::vector<const Kernel*> kernels_;
  Buffer part_o_, part_stats_, arrived_;
};

}  // namespace attn
