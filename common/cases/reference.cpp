#include "common/cases/reference.h"

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
constexpr double tiny_weight = 0x1p-22;

void require_shape(const Tensor& tensor, const char* label, int64_t batch, int64_t heads, int64_t seq, int64_t dim) {
  if (tensor.batch == batch && tensor.heads == heads && tensor.seq == seq && tensor.dim == dim) return;
  throw std::invalid_argument(fmt::format("{} is [{}, {}, {}, {}], the shape requires [{}, {}, {}, {}]", label,
                                          tensor.batch, tensor.heads, tensor.seq, tensor.dim, batch, heads, seq, dim));
}

RowIndex row_at(const AttentionShape& shape, int64_t index) {
  return {index / shape.q_len / shape.q_heads, index / shape.q_len % shape.q_heads, index % shape.q_len};
}

/// Returns one head, [seq, dim], in double.
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

double norm(std::span<const double> row) {
  return std::sqrt(std::transform_reduce(row.begin(), row.end(), row.begin(), 0.0));
}

/// The keys and values of one head in double, [kv_len, head_dim], and the norm of each key.
struct Head {
  Head(const Tensor& k, const Tensor& v, int64_t batch, int64_t head)
      : keys(load_head(k, batch, head)), values(load_head(v, batch, head)), key_norms(static_cast<size_t>(k.seq)) {
    for (int64_t s = 0; s < k.seq; ++s) key_norms[s] = norm(std::span(keys).subspan(s * k.dim, k.dim));
  }

  std::vector<double> keys, values, key_norms;
};

/// One row of ReferenceRows.
struct Row {
  std::span<double> o, spread, swing;
  double &lse, &score_size, &mean_score;
  int64_t& tiny_weights;
};

void attend(const AttentionShape& shape, const RowIndex& row, std::span<const double> query, const Head& head,
            double least_weight, const ScoreFunction& score, double sink, const Row& result) {
  const int64_t visible = shape.keys_seen(row.q);
  const double scale = shape.effective_scale();

  std::vector<double> scores(static_cast<size_t>(visible));
  double max = sink;
  for (int64_t k = 0; k < visible; ++k) {
    scores[k] = scale * std::transform_reduce(query.begin(), query.end(), head.keys.data() + k * shape.head_dim, 0.0);
  }
  if (score) score(scores, row.batch, row.head, row.q);
  for (const double s : scores) max = std::max(max, s);  // a NaN is never the maximum, but it reaches the sum below
  if (max == -infinity) max = 0;                         // each pair is hidden or has the score NaN

  std::fill(result.o.begin(), result.o.end(), 0.0);
  std::fill(result.spread.begin(), result.spread.end(), 0.0);
  std::fill(result.swing.begin(), result.swing.end(), 0.0);
  const double query_norm = std::abs(scale) * norm(query);
  std::vector<double> weights(scores.size());
  double sum = std::exp(sink - max), score_size = 0, mean_score = 0;
  for (int64_t k = 0; k < visible; ++k) {
    if (scores[k] == -infinity) continue;  // hidden: V is not read
    const double weight = weights[k] = std::exp(scores[k] - max);
    sum += weight;
    score_size += weight * (query_norm * head.key_norms[k] + std::abs(scores[k]));
    mean_score += weight * std::abs(scores[k]);
    const double rounded = std::max(weight, least_weight);
    const double* v = head.values.data() + k * shape.head_dim;
    for (int64_t d = 0; d < shape.head_dim; ++d) {
      result.o[d] += weight * v[d];
      result.swing[d] = std::max(result.swing[d], std::abs(result.o[d]));
      result.spread[d] += rounded * v[d] * (rounded * v[d]);
    }
  }
  if (sum != 0) {
    for (double& value : result.o) value /= sum;
    for (double& value : result.swing) value /= sum;
    for (double& value : result.spread) value = std::sqrt(value) / sum;
    score_size /= sum;
    mean_score /= sum;
  }
  result.lse = max + std::log(sum);
  result.score_size = score_size;
  result.mean_score = mean_score;
  result.tiny_weights =
      std::count_if(weights.begin(), weights.end(), [&](double w) { return w != 0 && w < tiny_weight * sum; });
}

}  // namespace

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
                                  std::vector<RowIndex> rows, const ScoreFunction& score, const SinkFunction& sink) {
  if (shape.kv_heads < 1 || shape.q_heads % shape.kv_heads != 0) {
    throw std::invalid_argument(fmt::format("kv_heads {} is not allowed; it must be at least 1 and divide q_heads, {}",
                                            shape.kv_heads, shape.q_heads));
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
  ReferenceRows result;
  result.rows = std::move(rows);
  result.o.resize(result.rows.size() * dim);
  result.spread.resize(result.rows.size() * dim);
  result.swing.resize(result.rows.size() * dim);
  result.lse.resize(result.rows.size());
  result.score_size.resize(result.rows.size());
  result.mean_score.resize(result.rows.size());
  result.tiny_weights.resize(result.rows.size());
  const double least_weight = v.dtype == DType::f16 ? 0x1p-14 : 0;
  const int64_t queries_per_kv_head = shape.q_heads / shape.kv_heads;

  // Consecutive rows that read the same key/value head share its conversion to double.
  for (auto first = result.rows.begin(); first != result.rows.end();) {
    const int64_t batch = first->batch, kv_head = first->head / queries_per_kv_head;
    const auto last = std::find_if(first, result.rows.end(), [&](const RowIndex& row) {
      return row.batch != batch || row.head / queries_per_kv_head != kv_head;
    });
    const Head head(k, v, batch, kv_head);
    const size_t offset = static_cast<size_t>(first - result.rows.begin());
    parallel_for(last - first, 1, [&](int64_t begin, int64_t) {
      const size_t i = offset + static_cast<size_t>(begin);
      const RowIndex& row = result.rows[i];
      std::vector<double> query(dim);
      q.load(q.offset(row.batch, row.head, row.q, 0), query);
      attend(shape, row, query, head, least_weight, score, sink ? sink(row.batch, row.head) : -infinity,
             {std::span(result.o).subspan(i * dim, dim), std::span(result.spread).subspan(i * dim, dim),
              std::span(result.swing).subspan(i * dim, dim), result.lse[i], result.score_size[i], result.mean_score[i],
              result.tiny_weights[i]});
    });
    first = last;
  }
  return result;
}

std::vector<double> reference_rope(const RopeConfig& config, const Tensor& tensor, std::span<const int> offsets) {
  const std::vector<double> frequencies = rope_frequencies(config);
  const double factor = rope_attention_factor(config);
  if (tensor.dim != config.head_dim || (!offsets.empty() && std::ssize(offsets) != tensor.batch)) {
    throw std::invalid_argument(
        "reference_rope: rows must have head_dim elements, and there must be no offsets or one for each batch entry");
  }
  const auto dim = static_cast<size_t>(tensor.dim), pairs = frequencies.size();
  const bool interleaved = config.pairing == RopePairing::interleaved;
  std::vector<double> turned(static_cast<size_t>(tensor.count()));
  parallel_for(tensor.batch * tensor.heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      const int64_t batch = head / tensor.heads;
      const int64_t offset = offsets.empty() ? 0 : offsets[static_cast<size_t>(batch)];
      for (int64_t s = 0; s < tensor.seq; ++s) {
        const std::span row(turned.data() + static_cast<size_t>(head * tensor.seq + s) * dim, dim);
        tensor.load(tensor.offset(batch, head % tensor.heads, s, 0), row);
        for (size_t i = 0; i < pairs; ++i) {
          double& x = row[interleaved ? 2 * i : i];
          double& y = row[interleaved ? 2 * i + 1 : i + pairs];
          const double angle = static_cast<double>(offset + s) * frequencies[i];
          const double c = factor * std::cos(angle), sine = factor * std::sin(angle), old_x = x;
          x = old_x * c - y * sine;
          y = y * c + old_x * sine;
        }
      }
    }
  });
  return turned;
}

}  // namespace attn
