#include "common/attention/shape.h"

#include <algorithm>
#include <cmath>

namespace attn {

double AttentionShape::effective_scale() const {
  return scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(head_dim));
}

int64_t AttentionShape::keys_seen(int64_t q) const {
  return causal ? std::clamp<int64_t>(q + 1 + kv_len - q_len, 0, kv_len) : kv_len;
}

double AttentionShape::unmasked_pairs() const {
  const double heads = static_cast<double>(batch) * static_cast<double>(q_heads);
  const double keys = static_cast<double>(kv_len);
  if (!causal) return heads * static_cast<double>(q_len) * keys;
  // The last query sees kv_len keys, and each earlier query sees one key less, down to none.
  const double rows = static_cast<double>(std::min(q_len, kv_len));
  return heads * (rows * keys - rows * (rows - 1) / 2);
}

}  // namespace attn
