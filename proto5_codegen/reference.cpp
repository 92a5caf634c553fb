#include "proto5_codegen/reference.h"

#include <algorithm>
#include <cmath>

#include "common/attention/modifiers.h"
#include "common/base/parallel.h"
#include "common/cases/modified_attention.h"
#include "common/cases/tolerance.h"

namespace attn {
namespace {

// All rows are checked if the oracle needs at most full_check_products multiplications for them (for a softmax:
// exponentials). Else a sample of at least fewest_rows rows is checked, which takes about sampled_check_products
// multiplications.
constexpr double full_check_products = 1e8;
constexpr double sampled_check_products = 3e7;
constexpr int64_t fewest_rows = 64;

constexpr double u = 0x1p-24;  // the unit roundoff of f32
double unit(DType type) { return type == DType::f32 ? u : type == DType::f16 ? 0x1p-11 : 0x1p-8; }

std::vector<double> row_of(const Tensor& tensor, const RowIndex& row) {
  std::vector<double> values(static_cast<size_t>(tensor.dim));
  tensor.load(tensor.offset(row.batch, row.head, row.q, 0), values);
  return values;
}

// A sum of n products in f32, rounded to nearest at each step, has an error of about sqrt(n) u times the sum of the
// products' sizes (Higham and Mary 2019). Tensor cores compute the products of 16-bit types. Tensor cores add up in n /
// 16 steps, and round towards zero with an error of 2 u in each step. Scores are rounded once more for the scale. The
// callers add the error of rounding the output to its type.
double product_error(DType dtype, double products, double sum_of_sizes) {
  return (2 * std::sqrt(products) + (dtype == DType::f32 ? 0 : products / 8) + 8) * u * sum_of_sizes;
}

void score_row(const CodegenCase& config, const CodegenTensors& tensors, const RowIndex& row, double* out,
               double* allowed) {
  const std::vector<double> q = row_of(tensors.q, row);
  const double scale = config.shape.effective_scale();
  for (int64_t key = 0; key < config.shape.kv_len; ++key) {
    const std::vector<double> k = row_of(tensors.k, {row.batch, row.head, key});
    double sum = 0, size = 0;
    for (size_t d = 0; d < q.size(); ++d) {
      sum += q[d] * k[d];
      size += std::abs(q[d] * k[d]);
    }
    out[key] = scale * sum;
    allowed[key] = product_error(config.dtype, static_cast<double>(q.size()), scale * size) +
                   2 * unit(config.dtype) * std::abs(out[key]);
  }
}

// The error of a weight has four parts: the rounding of its exponent (the difference from the maximum is rounded, and
// the product with log2(e) is rounded), the error of the exponential (at most 2^-20 on all devices; Halide's fast_exp
// errs by half of this bound), the error of the sum of n weights, and the rounding of the weight to its type. A kernel
// may flush a weight below 2^-126 to zero, or give 2^-126 instead.
void softmax_row(const CodegenCase& config, const CodegenTensors& tensors, const RowIndex& row, double* out,
                 double* allowed) {
  const std::vector<double> in = row_of(tensors.in, row);
  const double maximum = *std::ranges::max_element(in);
  double sum = 0;
  for (size_t key = 0; key < in.size(); ++key) sum += out[key] = std::exp(in[key] - maximum);
  const double sum_error = (2 * std::sqrt(static_cast<double>(in.size())) + 8) * u;
  for (size_t key = 0; key < in.size(); ++key) {
    out[key] /= sum;
    const double exponent = 4 * u * (1 + std::abs(in[key]) + std::abs(maximum));
    allowed[key] = out[key] * (exponent + 0x1p-20 + sum_error + 2 * unit(config.dtype)) + 0x1p-125;
  }
}

void value_row(const CodegenCase& config, const CodegenTensors& tensors, const RowIndex& row, double* out,
               double* allowed) {
  const std::vector<double> weights = row_of(tensors.in, row);
  std::vector<double> sizes(static_cast<size_t>(config.shape.head_dim));
  for (size_t key = 0; key < weights.size(); ++key) {
    const std::vector<double> v = row_of(tensors.v, {row.batch, row.head, static_cast<int64_t>(key)});
    for (size_t d = 0; d < v.size(); ++d) {
      out[d] += weights[key] * v[d];
      sizes[d] += std::abs(weights[key] * v[d]);
    }
  }
  for (size_t d = 0; d < sizes.size(); ++d) {
    allowed[d] = product_error(config.dtype, static_cast<double>(weights.size()), sizes[d]) +
                 2 * unit(config.dtype) * std::abs(out[d]);
  }
}

CodegenReference whole_reference(const CodegenCase& config, const CodegenTensors& tensors,
                                 const std::vector<RowIndex>& rows) {
  const FlashConfig flash{.variant = "tuned", .shape = config.shape, .dtype = config.dtype, .out_dtype = config.dtype};
  const bool modified = config.work == WORK_MODIFIED;
  AttentionHooks hooks;
  if (modified) hooks = ModifiedAttention(config.modifiers(), flash).hooks();
  const ReferenceRows want =
      reference_attention(config.shape, tensors.q, tensors.k, tensors.v, rows, hooks.reference, hooks.sink);
  const AttentionTolerance allowed =
      attention_tolerance(config.shape, config.dtype, config.dtype, modified, want, hooks.score_error);
  return {want.rows, want.o, allowed.o, want.lse, allowed.lse};
}

}  // namespace

CodegenTensors random_tensors(const CodegenCase& config, uint64_t seed, double size) {
  const AttentionShape& shape = config.shape;
  const auto random = [&](int64_t columns, uint64_t stream) {
    Tensor tensor =
        random_tensor(shape.batch, shape.q_heads, shape.q_len, columns, config.dtype, Layout::bhsd, seed, stream);
    if (size != 1) {
      for (int64_t i = 0; i < tensor.count(); ++i) tensor.store(i, size * tensor.load(i));
    }
    return tensor;
  };
  CodegenTensors tensors;
  if (config.whole() || config.work == WORK_SCORES) {
    tensors.q = random(shape.head_dim, 0);
    tensors.k = random(shape.head_dim, 1);
  }
  if (config.whole() || config.work == WORK_VALUES) tensors.v = random(shape.head_dim, 2);
  if (config.reads_in()) tensors.in = random(shape.kv_len, 3);
  return tensors;
}

std::vector<RowIndex> checked_rows(const CodegenCase& config, uint64_t seed) {
  const AttentionShape& shape = config.shape;
  const double row_products = static_cast<double>(shape.kv_len * std::max<int64_t>(shape.head_dim, 1));
  const double rows = static_cast<double>(config.heads() * shape.q_len);
  if (rows * row_products <= full_check_products) return all_rows(shape);
  return sample_rows(shape, std::max(fewest_rows, static_cast<int64_t>(sampled_check_products / row_products)), seed);
}

CodegenReference codegen_reference(const CodegenCase& config, const CodegenTensors& tensors,
                                   const std::vector<RowIndex>& rows) {
  if (config.whole()) return whole_reference(config, tensors, rows);
  const auto columns = static_cast<size_t>(config.columns());
  CodegenReference reference{rows, std::vector<double>(rows.size() * columns),
                             std::vector<double>(rows.size() * columns)};
  const auto fill = config.work == WORK_SCORES ? score_row : config.work == WORK_SOFTMAX ? softmax_row : value_row;
  parallel_for(static_cast<int64_t>(rows.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      fill(config, tensors, rows[i], &reference.out[i * columns], &reference.allowed[i * columns]);
    }
  });
  return reference;
}

}  // namespace attn
