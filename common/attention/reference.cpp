#include "common/attention/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <stdexcept>

#include "common/base/parallel.h"

namespace attn {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

void require_shape(const Tensor& tensor, const char* label, int64_t batch, int64_t heads, int64_t seq, int64_t dim) {
  if (tensor.batch == batch && tensor.heads == heads && tensor.seq == seq && tensor.dim == dim) return;
  throw std::invalid_argument(fmt::format("{} is [{}, {}, {}, {}], the shape wants [{}, {}, {}, {}]", label,
                                          tensor.batch, tensor.heads, tensor.seq, tensor.dim, batch, heads, seq, dim));
}

RowIndex row_at(const AttentionShape& shape, int64_t index) {
  return {index / shape.q_len / shape.q_heads, index / shape.q_len % shape.q_heads, index % shape.q_len};
}

/// One head [seq, dim] in double.
std::vector<double> load_head(const Tensor& tensor, int64_t batch, int64_t head) {
  std::vector<double> values(static_cast<size_t>(tensor.seq * tensor.dim));
  const std::span<double> all(values);
  parallel_for(tensor.seq, 256, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      tensor.load(tensor.offset(batch, head, s, 0), all.subspan(s * tensor.dim, tensor.dim));
    }
  });
  return values;
}

/// Writes one row of O and returns its log-sum-exp. `keys` and `values` are [kv_len, head_dim] of the row's head.
double attend(const AttentionShape& shape, const RowIndex& row, std::span<const double> query, const double* keys,
              const double* values, const ScoreFunction& score, std::span<double> o) {
  const int64_t visible =
      shape.causal ? std::clamp<int64_t>(row.q + 1 + shape.kv_len - shape.q_len, 0, shape.kv_len) : shape.kv_len;
  const double scale = shape.effective_scale();

  std::vector<double> scores(static_cast<size_t>(visible));
  double max = -infinity;
  for (int64_t k = 0; k < visible; ++k) {
    scores[k] = scale * std::transform_reduce(query.begin(), query.end(), keys + k * shape.head_dim, 0.0);
  }
  if (score) score(scores, row.batch, row.head, row.q);
  for (const double s : scores) max = std::max(max, s);  // a NaN never wins here, but reaches the sum below
  if (max == -infinity) max = 0;                         // every weight is then exp(-inf) = 0, or NaN

  double sum = 0;
  std::fill(o.begin(), o.end(), 0.0);
  for (int64_t k = 0; k < visible; ++k) {
    const double weight = std::exp(scores[k] - max);
    if (weight == 0) continue;  // a masked pair: whatever V holds there is not read
    sum += weight;
    for (int64_t d = 0; d < shape.head_dim; ++d) o[d] += weight * values[k * shape.head_dim + d];
  }
  if (sum != 0) {
    for (double& value : o) value /= sum;
  }
  return max + std::log(sum);
}

}  // namespace

double AttentionShape::effective_scale() const {
  return scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(head_dim));
}

double AttentionShape::unmasked_pairs() const {
  const double heads = static_cast<double>(batch) * static_cast<double>(q_heads);
  const double keys = static_cast<double>(kv_len);
  if (!causal) return heads * static_cast<double>(q_len) * keys;
  // From the last query backwards: kv_len keys, kv_len - 1, ..., until queries or keys run out.
  const double rows = static_cast<double>(std::min(q_len, kv_len));
  return heads * (rows * keys - rows * (rows - 1) / 2);
}

std::vector<RowIndex> all_rows(const AttentionShape& shape) {
  std::vector<RowIndex> rows(static_cast<size_t>(shape.batch * shape.q_heads * shape.q_len));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = row_at(shape, static_cast<int64_t>(i));
  return rows;
}

std::vector<RowIndex> sample_rows(const AttentionShape& shape, int64_t count, uint64_t seed) {
  const int64_t total = shape.batch * shape.q_heads * shape.q_len;
  if (std::max<int64_t>(count, 0) >= total) return all_rows(shape);
  std::set<int64_t> chosen = {0, shape.q_len - 1, total - shape.q_len, total - 1};
  std::mt19937_64 random(seed);
  while (static_cast<int64_t>(chosen.size()) < count) {
    chosen.insert(static_cast<int64_t>(random() % static_cast<uint64_t>(total)));
  }
  std::vector<RowIndex> rows;
  for (const int64_t index : chosen) rows.push_back(row_at(shape, index));
  return rows;
}

ReferenceRows reference_attention(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                                  std::vector<RowIndex> rows, const ScoreFunction& score) {
  if (shape.kv_heads < 1 || shape.q_heads % shape.kv_heads != 0) {
    throw std::invalid_argument(
        fmt::format("q_heads {} is not a multiple of kv_heads {}", shape.q_heads, shape.kv_heads));
  }
  require_shape(q, "q", shape.batch, shape.q_heads, shape.q_len, shape.head_dim);
  require_shape(k, "k", shape.batch, shape.kv_heads, shape.kv_len, shape.head_dim);
  require_shape(v, "v", shape.batch, shape.kv_heads, shape.kv_len, shape.head_dim);
  const auto inside = [](int64_t index, int64_t size) { return 0 <= index && index < size; };
  for (const RowIndex& row : rows) {
    if (!inside(row.batch, shape.batch) || !inside(row.head, shape.q_heads) || !inside(row.q, shape.q_len)) {
      throw std::invalid_argument(
          fmt::format("row (batch {}, head {}, q {}) is outside the shape", row.batch, row.head, row.q));
    }
  }

  const size_t dim = static_cast<size_t>(shape.head_dim);
  ReferenceRows result{std::move(rows), {}, {}};
  result.o.resize(result.rows.size() * dim);
  result.lse.resize(result.rows.size());
  const int64_t queries_per_kv_head = shape.q_heads / shape.kv_heads;

  // Rows that stand together and read the same keys and values share their conversion to double.
  for (auto first = result.rows.begin(); first != result.rows.end();) {
    const int64_t batch = first->batch, kv_head = first->head / queries_per_kv_head;
    const auto last = std::find_if(first, result.rows.end(), [&](const RowIndex& row) {
      return row.batch != batch || row.head / queries_per_kv_head != kv_head;
    });
    const std::vector<double> keys = load_head(k, batch, kv_head);
    const std::vector<double> values = load_head(v, batch, kv_head);
    const size_t offset = static_cast<size_t>(first - result.rows.begin());
    parallel_for(last - first, 1, [&](int64_t begin, int64_t) {
      const size_t i = offset + static_cast<size_t>(begin);
      const RowIndex& row = result.rows[i];
      std::vector<double> query(dim);
      q.load(q.offset(row.batch, row.head, row.q, 0), query);
      result.lse[i] =
          attend(shape, row, query, keys.data(), values.data(), score, std::span(result.o).subspan(i * dim, dim));
    });
    first = last;
  }
  return result;
}

}  // namespace attn
