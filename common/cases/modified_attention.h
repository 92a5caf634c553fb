// Modifiers of attention with drawn tables: hooks for the kernels, and the same in double for the oracle.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/attention/backend.h"
#include "common/attention/modifiers.h"

namespace attn {

/// Modifiers on one shape, with the tables that they read: drawn with a seed of their own, from the shape alone.
class ModifiedAttention {
 public:
  ModifiedAttention(Modifiers modifiers, const FlashConfig& config);

  /// modifier_hooks() with the tables that the kernel reads, and the oracle's functions.
  AttentionHooks hooks() const;
  /// First and last key, plus one, that a query sees but for unmasked(), within [0, kv_len]; none where the first is
  /// not before the last.
  std::pair<int64_t, int64_t> range(int64_t batch, int64_t q) const;
  /// Whether the rules that are no range let a query see a key: of global tokens, with their window, and of blocks.
  bool unmasked(int64_t q, int64_t k) const;
  /// Query-key pairs that no rule hides, over the whole batch.
  double visible_pairs() const;
  const AttentionShape& shape() const { return shape_; }
  /// Of the tensor that is added to the scores; 0 where there is none.
  int64_t bias_elements() const { return bias_elements_; }

 private:
  float bias_at(int64_t element) const;
  double changed(double s, int64_t batch, int64_t head, int64_t q, int64_t k) const;
  int64_t own_key(int64_t q) const { return q + shape_.kv_len - shape_.q_len; }
  std::pair<int64_t, int64_t> window(int64_t own) const;
  bool block_seen(int64_t own, int64_t block) const;
  int64_t keys_between(int64_t own, int64_t begin, int64_t end) const;  // that are seen, by the blocks
  int64_t keys_seen(int64_t batch, int64_t q) const;

  Modifiers modifiers_;
  AttentionShape shape_;
  DType dtype_;
  std::vector<float> slopes_, sinks_;
  RopeTable angles_;                      // from the first position that a query or a key has
  std::vector<int> lengths_, documents_;  // documents: begin and end for each key
  std::vector<unsigned> blocks_;          // as ModifierData has them
  int64_t bias_strides_[3] = {}, bias_elements_ = 0;
};

}  // namespace attn
