// One problem of proto3_paged: a cache, contiguous or on pages, that holds the same random keys and values either way.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/attention/modifiers.h"
#include "common/cases/reference.h"
#include "common/experiment/experiment.h"
#include "common/paged/cascade.h"
#include "common/paged/decode.h"
#include "common/paged/prefill.h"

namespace attn {

/// Everything a case of proto3_paged says, typed.
struct PagedConfig {
  DecodeConfig decode;
  std::string cache_layout = "nhd";     // [pages, page_size, kv_heads, head_dim]; "hnd": kv_heads before page_size
  std::string page_order = "identity";  // of the pages of the pool: by sequence; "reversed", "random", "shared"
  /// "equal": all kv_len. "ragged": from 1 to kv_len, each as likely, but one of several 0. "chat": as requests to a
  /// chat model have it, many short and a few long, nearly log-normal: half of them below a quarter of kv_len, two
  /// thirds within a factor of 2.8 of it, about one in eleven cut off at kv_len. Of both the first has kv_len.
  std::string lengths = "equal";
  /// How the last q_len tokens of a sequence get into the cache: "none": they are there; "fused": decode turns and
  /// writes them; "chain": a launch turns Q and K, and one writes K and V.
  std::string append = "none";
  int64_t shared_pct = 25;   // of kv_len, the tokens that all sequences begin with
  bool cascade = false;      // the pages that all sequences share are read once for all of them
  Modifiers modifiers = {};  // alibi, soft_cap, sinks and window_left
  bool prefill = false;      // queries are many (PrefillLaunch)

  static PagedConfig from(const Case& config);
  /// Tokens of each sequence; the same in every run.
  std::vector<int64_t> sequence_lengths() const;
  RopeConfig rope() const;
  /// Tokens of each sequence that are in the cache before the launch.
  int64_t cached_tokens(int64_t length) const;
  bool same_inputs(const PagedConfig& other) const;
};

/// Which pages the sequences have: [batch, max_pages], -1 where a sequence has no page.
struct PageTable {
  std::vector<int> pages;
  int64_t max_pages = 0, pool = 0;  // pool: pages in all
};
/// A contiguous cache is a page of kv_len tokens for each sequence. With page_order=shared the pages that hold the
/// first shared_tokens() of all sequences are those of the first sequence, the others lie as in order.
PageTable page_table(const PagedConfig& config);

/// As CacheFigures has them, of the pages of a page_table(); a contiguous cache's are the kv_len slots of each
/// sequence.
struct PoolFigures {
  double waste = 0;          // the share of slots without a token
  double fragmentation = 0;  // the share of neighbours in a row whose second page does not follow the first one
  int64_t tokens = 0;        // that the pool holds; those that sequences share once
};
PoolFigures pool_figures(const PagedConfig& config);
/// Of K and V, what sequences read again that another has read.
double repeated_bytes(const PagedConfig& config);
/// Tokens that all sequences begin with, whatever their pages.
int64_t shared_tokens(const PagedConfig& config);

/// What the kernel is made of where a modifier is on.
std::optional<AttentionHooks> paged_texts(const PagedConfig& config);
/// The same with what it reads; for the oracle each sequence has its own length.
std::optional<AttentionHooks> paged_hooks(const PagedConfig& config);

/// The work of a decoding window is that of the keys that some query sees.
Plan paged_plan(const Case& config, const Setting& setting);

/// K and V of PagedInputs on the device, as a case wants them laid out; scales are empty but for a cache of 8 bits.
struct PagedCache {
  PageTable pages;
  Buffer k, v, k_scales, v_scales, table;

  size_t bytes() const { return k.bytes() + v.bytes() + k_scales.bytes() + v_scales.bytes() + table.bytes(); }
};

/// Queries, keys and values of one shape, with the oracle's answer: what cases of one shape share.
struct PagedInputs {
  PagedInputs(Device& device, const PagedConfig& config, uint64_t seed);
  /// Cases that only read their cache share those of one layout; one that appends has a cache of its own.
  std::shared_ptr<PagedCache> cache(Device& device, const PagedConfig& config);
  /// Of tensors and shared caches, on host and device.
  size_t bytes() const;
  /// The oracle's answer for each sequence, computed once for each name of hooks.
  const std::vector<ReferenceRows>& reference(const AttentionHooks* hooks);
  /// Of a cache of 8 bits: the root of the mean square by which the oracle's O errs where it reads the cache instead of
  /// the values that were drawn, as a share of that of O.
  double cache_error(const AttentionHooks* hooks);

  PagedConfig config;
  uint64_t seed;
  std::vector<int64_t> lengths;
  Tensor q, k, v;                // [batch, heads, tokens, head_dim]; what lies behind a sequence's length is not read
  Tensor new_k, new_v;           // of what is appended, [batch, kv_heads, q_len, head_dim]; before they turn,
  std::vector<double> turned_k;  // and afterwards
  std::vector<float> k_scales, v_scales;                       // of a cache of 8 bits: page_scales()
  Buffer q_buffer, lengths_buffer;                             // Q before it turns
  Buffer new_k_buffer, new_v_buffer, cosines, sines, offsets;  // offsets: position of the first new token

 private:
  void take_new_tokens(Device& device);
  ReferenceRows answer(size_t sequence, const Tensor& keys, const Tensor& values, const AttentionHooks* hooks) const;

  Tensor drawn_k_, drawn_v_;  // of a cache of 8 bits, in f32
  std::map<std::string, std::vector<ReferenceRows>> references_;
  std::map<std::string, std::shared_ptr<PagedCache>> caches_;  // by layout
};

class PagedProblem : public Problem {
 public:
  /// Throws as DecodeLaunch does.
  PagedProblem(Device& device, PipelineCache& pipelines, std::shared_ptr<PagedInputs> inputs, const PagedConfig& config,
               std::optional<AttentionHooks> hooks = {});

  void encode(CommandEncoder& encoder) const override;
  void poison() override;
  Check check() override;
  /// How many workers decode, the threadgroup memory of each, and the figures of the pool; of a cache of 8 bits
  /// PagedInputs::cache_error() too.
  Json values() const override;

  /// What the last launch wrote: O, and the log-sum-exp behind it, byte by byte.
  std::vector<std::byte> output() const;
  /// K and V as they are on the device, byte by byte.
  std::vector<std::byte> cache() const;

 private:
  /// Calls visit(batch, head, token, offset in bytes) for each new row, by its place in the cache.
  void for_new_rows(const std::function<void(int64_t, int64_t, int64_t, int64_t)>& visit) const;
  void check_new_rows(Check& check) const;

  Device* device_;
  std::shared_ptr<PagedInputs> inputs_;
  PagedConfig config_;
  std::shared_ptr<PagedCache> cache_;
  std::optional<AttentionHooks> hooks_;
  Buffer o_, lse_, hook_buffer_;
  Buffer turned_q_, turned_k_;  // of a chain
  std::optional<RopeLaunch> rope_;
  std::optional<AppendLaunch> append_;
  Buffer own_lengths_;  // of a cascade
  std::optional<DecodeLaunch> launch_;
  std::optional<CascadeLaunch> cascade_;
  std::optional<PrefillLaunch> prefill_;
  DecodeTensors tensors_;
};

/// Makes problems of the experiment; cases of one shape share their inputs, and the oracle's answer. Inputs of the last
/// shapes, up to 4 GiB, are kept for the comparisons to come.
std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const Plan&)> paged_problems();

}  // namespace attn
