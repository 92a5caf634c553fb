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

/// Both functions return query rows in order of (batch, head, q), without duplicates. sample_rows() returns `count`
/// rows, drawn with `seed`, or all rows if there are fewer. The sample always has the first and the last query of the
/// first head of the first batch entry and of the last head of the last batch entry, even if `count` is less than 4.
std::vector<RowIndex> all_rows(const AttentionShape& shape);
std::vector<RowIndex> sample_rows(const AttentionShape& shape, int64_t count, uint64_t seed);

struct ReferenceRows {
  std::vector<RowIndex> rows;
  std::vector<double> o;  // rows x head_dim
  /// Per row: ln(e^sink + sum over keys of e^score), where the ScoreFunction has changed the scaled score. Without a
  /// sink, e^sink is 0.
  std::vector<double> lse;

  // Quantities that bound rounding errors (tolerance.cpp). w is the weight of a key; the weights of a row's keys and
  // sink add up to 1.
  std::vector<double> spread;         // rows x head_dim: root of the sum over keys of (w v)^2
  std::vector<double> swing;          // rows x head_dim: the maximum over n of |sum of w v over the first n keys|
  std::vector<double> score_size;     // per row: sum over keys of w (scale |q| |k| + |score|)
  std::vector<double> mean_score;     // per row: sum over keys of w |score|
  std::vector<int64_t> tiny_weights;  // per row: how many keys have a w above 0 and below 2^-22
};

/// O = softmax(scale * Q K^T) V for the given rows. q is [batch, q_heads, q_len, head_dim]; k and v are [batch,
/// kv_heads, kv_len, head_dim]; any dtype and layout. Fastest if the rows of a key/value head are consecutive in
/// `rows`. Throws std::invalid_argument if tensors or rows do not fit the shape.
///
/// Only the causal mask and a score of -infinity hide a query-key pair. V is not read at a hidden pair. A row that sees
/// no key has o = 0, and its lse is the head's sink, or -infinity without a sink. A row that sees a score of NaN or
/// +infinity is NaN, and its lse is NaN. A NaN or an infinity in V reaches only its own column of the rows that see its
/// key.
///
/// If V is f16, kernels round p = exp(score - maximum) to f16. A p below 2^-14 is a denormal: its absolute rounding
/// error is as large as that of 2^-14, so `spread` counts the p as 2^-14.
ReferenceRows reference_attention(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                                  std::vector<RowIndex> rows, const ScoreFunction& score = {},
                                  const SinkFunction& sink = {});

/// Returns the rows of `tensor`, rotated by RoPE in double precision, as [batch, heads, seq, head_dim]. Row s of batch
/// entry b has position offsets[b] + s, or s without offsets. Throws std::invalid_argument if the tensor or the offsets
/// do not fit.
std::vector<double> reference_rope(const RopeConfig& config, const Tensor& tensor, std::span<const int> offsets = {});

}  // namespace attn
