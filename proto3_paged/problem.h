// One problem of proto3_paged: attention over a key/value cache, contiguous or on pages. A contiguous cache and a cache
// on pages are filled with the same random keys and values.
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

/// The values of all axes of a case, in C++ types.
struct PagedConfig {
  DecodeConfig decode;
  /// "nhd": [pages, page_size, kv_heads, head_dim]. "hnd": [pages, kv_heads, page_size, head_dim].
  std::string cache_layout = "nhd";
  /// Where pages lie in the pool, the memory of all pages. "identity": one sequence after another. "reversed": in the
  /// opposite order. "random": in a random order. "shared": as "identity", but sequences share pages: page_table().
  std::string page_order = "identity";
  /// "equal": each sequence has kv_len tokens.
  /// "ragged": the first sequence has kv_len tokens. The others have 1 to kv_len tokens, each length equally likely. If
  /// there are several sequences, the sequence in the middle of the batch has 0 tokens.
  /// "chat": the lengths of requests to a chat model. The first sequence has kv_len tokens. The other lengths are
  /// nearly log-normal: the median is a quarter of kv_len, two thirds are within a factor of 2.8 of the median, and
  /// about one in eleven is cut off at kv_len.
  std::string lengths = "equal";
  /// How the last q_len tokens of a sequence get into the cache. "none": the tokens are in the cache before the launch.
  /// "fused": the launch of attention turns Q and K of the new tokens (RoPE) and writes K and V; for an 8-bit cache a
  /// separate, earlier launch turns and writes them (AppendScaledLaunch). "chain": one launch turns Q and K, and
  /// another launch writes K and V.
  std::string append = "none";
  int64_t shared_pct = 25;   // tokens that all sequences begin with, in percent of kv_len
  bool cascade = false;      // true: the pages that all sequences share are read once for all sequences
  Modifiers modifiers = {};  // the options of caches with a number, and sinks
  bool prefill = false;      // true: PrefillLaunch, many queries; false: DecodeLaunch or CascadeLaunch, few queries

  static PagedConfig from(const Case& config);
  /// Returns the number of tokens of each sequence. The numbers are the same in every run.
  std::vector<int64_t> sequence_lengths() const;
  RopeConfig rope() const;
  /// Returns how many tokens of a sequence of `length` tokens are in the cache before the launch.
  int64_t cached_tokens(int64_t length) const;
  /// Whether both configurations can use the same PagedInputs.
  bool same_inputs(const PagedConfig& other) const;
};

/// The pages of all sequences of a case.
struct PageTable {
  std::vector<int> pages;           // [batch, max_pages], -1 where a sequence has no page
  int64_t max_pages = 0, pool = 0;  // pool: the number of different pages
};
/// Returns the pages of a case. A contiguous cache has one page of kv_len tokens for each sequence. With
/// `page_order=shared` a sequence uses a page of the first sequence if the page lies wholly within the first
/// shared_tokens(), and within the tokens that the sequence has in the cache before the launch.
PageTable page_table(const PagedConfig& config);

/// Figures of the pages of a page_table(), defined as in CacheFigures. A contiguous cache has kv_len slots for each
/// sequence.
struct PoolFigures {
  double waste = 0;  // the share of slots (places for tokens) that are empty
  /// The share of steps from a page of a sequence to the sequence's next page that do not lead to the pool's next page.
  double fragmentation = 0;
};
PoolFigures pool_figures(const PagedConfig& config);
/// Returns the bytes of shared pages of K and V that sequences read again, after the first sequence.
double repeated_bytes(const PagedConfig& config);
/// Returns the number of tokens that all sequences begin with, on shared pages or not.
int64_t shared_tokens(const PagedConfig& config);

/// Returns the hooks that put the modifiers into a kernel, without data, or nothing if no modifier changes the kernel.
std::optional<AttentionHooks> paged_texts(const PagedConfig& config);
/// Returns the hooks of paged_texts(), with the data that the texts read and with functions for the oracle (the
/// reference on the host).
std::optional<AttentionHooks> paged_hooks(const PagedConfig& config);

/// The work of decoding counts the keys that at least one query sees.
Plan paged_plan(const PagedConfig& config, const DeviceInfo& device);
CasePlan paged_case_plan(const Case& config, const Setting& setting);

/// K and V of PagedInputs on the device, in the layout of a case. Only a cache of 8 bits has scales.
struct PagedCache {
  PageTable pages;
  Buffer k, v, k_scales, v_scales, table;

  size_t bytes() const { return k.bytes() + v.bytes() + k_scales.bytes() + v_scales.bytes() + table.bytes(); }
};

/// Queries, keys and values, with the oracle's answers.
struct PagedInputs {
  PagedInputs(Device& device, const PagedConfig& config, uint64_t seed);
  /// Returns the cache in the layout of a case. Cases that only read the cache may share it. A case that appends gets
  /// its own cache.
  std::shared_ptr<PagedCache> cache(Device& device, const PagedConfig& config);
  /// Returns the bytes of Q, K and V on the host, and of the shared caches on the device.
  size_t bytes() const;
  /// Returns the oracle's answer for each sequence. The answer is computed once for each AttentionHooks::name.
  const std::vector<ReferenceRows>& reference(const AttentionHooks* hooks);
  /// Returns the error that a cache of 8 bits causes. The oracle computes O twice: from the keys and values as they
  /// were drawn, and from the keys and values in the cache. The error is the root mean square of the difference,
  /// divided by the root mean square of the first O.
  double cache_error(const AttentionHooks* hooks);

  PagedConfig config;
  uint64_t seed;
  std::vector<int64_t> lengths;
  /// [batch, heads, tokens, head_dim]; tokens after a sequence's length are not read. k and v have the numbers that the
  /// cache stores. If tokens are appended, q and the new keys in k are turned (RoPE).
  Tensor q, k, v;
  Tensor new_k, new_v;           // appended rows, [batch, kv_heads, q_len, head_dim]; new_k is the K before RoPE
  std::vector<double> turned_k;  // new_k after RoPE
  std::vector<float> k_scales, v_scales;                       // page_scales() of an 8-bit cache
  Buffer q_buffer, lengths_buffer;                             // q_buffer: Q before RoPE turns it
  Buffer new_k_buffer, new_v_buffer, cosines, sines, offsets;  // offsets: positions of first new tokens

 private:
  void take_new_tokens(Device& device);
  ReferenceRows answer(size_t sequence, const Tensor& keys, const Tensor& values, const AttentionHooks* hooks) const;

  Tensor drawn_k_, drawn_v_;  // only with a cache of 8 bits: K and V in f32, before quantisation
  std::map<std::string, std::vector<ReferenceRows>> references_;
  std::map<std::string, std::shared_ptr<PagedCache>> caches_;  // the key names page size, order and layout
};

class PagedProblem : public Problem {
 public:
  /// encode() runs `plan`, which must be the plan of `config`. Throws what the constructors of the launches throw.
  PagedProblem(Device& device, PipelineCache& pipelines, std::shared_ptr<PagedInputs> inputs, const PagedConfig& config,
               const Plan& plan, std::optional<AttentionHooks> hooks = {});

  void encode(CommandEncoder& encoder) const override;
  void poison() override;
  Check check() override;
  Json values() const override;

  /// Returns the bytes of the last launch's output: O, then the log-sum-exp.
  std::vector<std::byte> output() const;
  /// Returns the bytes of the cache of K and then of the cache of V, as they are on the device.
  std::vector<std::byte> cache() const;

 private:
  /// Calls visit(batch, head, token, offset) for each new row. `token` counts the new tokens of a sequence from 0.
  /// `offset` is the number of bytes from the cache's start to the row.
  void for_new_rows(const std::function<void(int64_t, int64_t, int64_t, int64_t)>& visit) const;
  void check_new_rows(Check& check) const;

  Device* device_;
  std::shared_ptr<PagedInputs> inputs_;
  PagedConfig config_;
  std::shared_ptr<PagedCache> cache_;
  std::optional<AttentionHooks> hooks_;
  Buffer o_, lse_, hook_buffer_;
  Buffer turned_q_, turned_k_;  // only with append=chain
  std::optional<RopeLaunch> rope_;
  std::optional<AppendLaunch> append_;
  Buffer own_lengths_;  // tokens after the shared prefix, only with a cascade
  std::optional<DecodeLaunch> launch_;
  std::optional<CascadeLaunch> cascade_;
  std::optional<PrefillLaunch> prefill_;
  size_t threadgroup_bytes_ = 0;  // only with prefill
  DecodeTensors tensors_;
};

/// Makes problems of the experiment. Two cases share one PagedInputs if PagedConfig::same_inputs() is true for them,
/// but A', the second baseline of a comparison, has its own. The PagedInputs that were used last, up to 4 GiB, are kept
/// for later comparisons.
std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const CasePlan&)> paged_problems();

}  // namespace attn
