// The oracle: attention in double precision, straight from the definition, on host threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/attention/hook.h"
#include "common/attention/rope.h"
#include "common/attention/shape.h"
#include "common/data/tensor.h"

namespace attn {

struct RowIndex {
  int64_t batch, head, q;
  bool operator==(const RowIndex&) const = default;
};

/// All query rows, or `count` of them: first and last query of the first and last head (even where `count` is less),
/// the rest drawn with `seed`. In order of (batch, head, q), none twice.
std::vector<RowIndex> all_rows(const AttentionShape& shape);
std::vector<RowIndex> sample_rows(const AttentionShape& shape, int64_t count, uint64_t seed);

struct ReferenceRows {
  std::vector<RowIndex> rows;
  std::vector<double> o;    // rows x head_dim
  std::vector<double> lse;  // natural log of the sum of exponentials of scaled scores, per row

  // What rounding errors grow with (tolerance.cpp), where w are a row's weights and sum to 1:
  std::vector<double> spread;         // rows x head_dim: root of the sum over keys of (w v)^2
  std::vector<double> swing;          // rows x head_dim: the largest size of a sum over the first keys of w v
  std::vector<double> score_size;     // per row: sum over keys of w (scale |q| |k| + |score|)
  std::vector<double> mean_score;     // per row: sum over keys of w |score|
  std::vector<int64_t> tiny_weights;  // per row: keys with w below 2^-22
};

/// O = softmax(scale * Q K^T) V for the given rows. A pair is hidden by the causal mask or by a score of -infinity, and
/// by no other score: what K and V hold there does not matter. A row that sees no key has o = 0 and lse = -infinity, or
/// the sink. A row that sees a score of NaN or +infinity is NaN, and so is its lse; NaN and infinity in V reach the
/// rows that see their key, in their own columns.
/// q is [batch, q_heads, q_len, head_dim]; k and v are [batch, kv_heads, kv_len, head_dim]; any dtype and layout.
/// The spread of f16 counts weights below 2^-14 of the row's largest as that: they are denormals, rounded as it is.
/// Quickest where the rows of one head stand together. Throws std::invalid_argument where tensors or rows do not fit
/// the shape.
ReferenceRows reference_attention(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                                  std::vector<RowIndex> rows, const ScoreFunction& score = {},
                                  const SinkFunction& sink = {});

/// RoPE: the rows of `tensor`, turned in double, as [batch, heads, seq, head_dim]. Row s of batch entry b stands
/// at position offsets[b] + s, or at s without offsets. Throws std::invalid_argument where these do not fit.
std::vector<double> reference_rope(const RopeConfig& config, const Tensor& tensor, std::span<const int> offsets = {});

}  // namespace attn
