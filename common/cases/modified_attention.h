// Modifiers of attention, for example biases and windows, with random tables: as hooks for kernels, and as functions in
// double precision for the oracle.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/attention/flash.h"
#include "common/attention/modifiers.h"

namespace attn {

/// Modifiers on one shape, with the tables that they read. The seed of the tables is fixed.
class ModifiedAttention {
 public:
  ModifiedAttention(Modifiers modifiers, const FlashConfig& config);

  /// Returns the hooks with their tables and the oracle's functions.
  AttentionHooks hooks() const;
  /// Some rules let a query see one range of keys: causal, prefix, lengths, starts, documents, and a window without
  /// global_tokens. Returns the range [begin, end) within [0, kv_len] that all these rules let the query see. If begin
  /// >= end, the query sees no key.
  std::pair<int64_t, int64_t> range(int64_t batch, int64_t q) const;
  /// Whether the other rules (a window with global_tokens, and block_sparse) let a query see a key.
  bool unmasked(int64_t q, int64_t k) const;
  /// The number of query-key pairs that no rule hides, over all batch entries and query heads.
  double visible_pairs() const;
  const AttentionShape& shape() const { return shape_; }
  /// The number of elements of the bias, including the padding of its rows; 0 without a bias.
  int64_t bias_elements() const { return bias_elements_; }
  /// Why no kernel can read the tables; empty if kernels can. hooks() throws BadInput with this text.
  std::string unable() const;

 private:
  float bias_at(int64_t element) const;
  std::vector<ModifierLayout::Table> tables(const float* bias) const;
  double changed(double s, int64_t batch, int64_t head, int64_t q, int64_t k) const;
  /// The last key that a causal mask would show the query; negative if there is none.
  int64_t own_key(int64_t q) const { return q + shape_.kv_len - shape_.q_len; }
  std::pair<int64_t, int64_t> window(int64_t own) const;
  bool block_seen(int64_t own, int64_t block) const;
  /// range() without the rule `starts`, for a sequence of `keys` keys.
  std::pair<int64_t, int64_t> range_of(int64_t q, int64_t keys) const;
  /// Calls `add` for each range of keys that query q sees under all rules except `lengths` and `starts`. The ranges do
  /// not overlap.
  void for_ranges(int64_t q, const std::function<void(int64_t begin, int64_t end)>& add) const;

  Modifiers modifiers_;
  AttentionShape shape_;
  DType dtype_;
  struct Tables;
  std::shared_ptr<const Tables> tables_;
  int64_t bias_strides_[3] = {}, bias_elements_ = 0;
};

}  // namespace attn
