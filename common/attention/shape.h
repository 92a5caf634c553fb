// Sizes of an attention problem, and quantities that follow from them.
#pragma once

#include <cstdint>

namespace attn {

/// Sizes of one attention problem. q_heads is a multiple of kv_heads: query head h reads key/value head
/// h / (q_heads / kv_heads). The causal mask is aligned to the bottom right: query q sees keys k <= q + kv_len - q_len.
struct AttentionShape {
  int64_t batch = 1, q_heads = 1, kv_heads = 1, q_len = 1, kv_len = 1, head_dim = 64;
  bool causal = false;
  double scale = 0;  // factor on q.k; 0 stands for 1/sqrt(head_dim)

  double effective_scale() const;
  /// Returns how many keys query q sees.
  int64_t keys_seen(int64_t q) const;
  /// Returns the number of query-key pairs that the causal mask does not hide, over all heads of the whole batch.
  double unmasked_pairs() const;
  bool operator==(const AttentionShape&) const = default;
};

}  // namespace attn
