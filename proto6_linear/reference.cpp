#include "proto6_linear/reference.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <random>
#include <utility>

#include "common/base/parallel.h"
#include "common/cases/feature_oracle.h"

namespace attn {
namespace {

constexpr int64_t window = 256;      // the most tokens of a chunk
constexpr int64_t block_rows = 256;  // rows that are loaded at once
constexpr double affordable = 1e9;   // the oracle does this many multiplications in about a second

typedef double Doubles __attribute__((vector_size(32), aligned(8), may_alias));
typedef float Floats __attribute__((vector_size(32), aligned(4), may_alias));
Doubles& doubles(double* at) { return *reinterpret_cast<Doubles*>(at); }
Floats& floats(float* at) { return *reinterpret_cast<Floats*>(at); }

/// The rows of one sequence and head, as doubles.
class Rows {
 public:
  Rows(const LinearConfig& config, const LinearInputs& inputs, const FeatureFunction& feature, std::mutex& mutex,
       int64_t sequence, int64_t head)
      : config_(config), inputs_(inputs), feature_(feature), mutex_(mutex), head_(head) {
    batch_ = config.ragged ? 0 : sequence;
    first_ = config.ragged ? inputs.starts[static_cast<size_t>(sequence)] : 0;
    count_ = config.ragged ? inputs.starts[static_cast<size_t>(sequence) + 1] - first_ : config.tokens;
  }
  int64_t count() const { return count_; }

  /// Returns f(q), f(k) or v of `rows` rows from row `first` on, where f is the feature map.
  std::vector<double> load(const Tensor& tensor, int64_t first, int64_t rows) const {
    std::vector<double> values(static_cast<size_t>(rows * tensor.dim));
    for (int64_t i = 0; i < rows; ++i) {
      tensor.load(tensor.offset(batch_, head_, first_ + first + i, 0),
                  std::span(values).subspan(static_cast<size_t>(i * tensor.dim), static_cast<size_t>(tensor.dim)));
    }
    if (&tensor != &inputs_.v && feature_) {
      const std::lock_guard lock(mutex_);
      feature_(values);
    }
    return values;
  }

  /// Sets to[d] to the factor by which the token `row` decays row d of the state S.
  void decays(int64_t row, std::vector<double>& to) const {
    const int64_t dims = config_.head_dim, all = inputs_.k.seq;
    const int64_t token = (batch_ * config_.heads + head_) * all + first_ + row;
    for (int64_t d = 0; d < dims; ++d) {
      const int64_t at = config_.gate == GATE_HEAD ? head_ : config_.gate == GATE_TOKEN ? token : token * dims + d;
      to[static_cast<size_t>(d)] = d > 0 && config_.gate != GATE_CHANNEL
                                       ? to[0]
                                       : std::exp(static_cast<double>(inputs_.gate[static_cast<size_t>(at)]));
    }
  }

 private:
  const LinearConfig& config_;
  const LinearInputs& inputs_;
  const FeatureFunction& feature_;
  std::mutex& mutex_;
  int64_t batch_ = 0, head_, first_ = 0, count_ = 0;
};

/// The recurrence's sums over tokens, and for each sum the sum of the squares of its terms.
struct RunningSums {
  explicit RunningSums(const LinearConfig& config)
      : dims(static_cast<size_t>(config.head_dim)),
        values(static_cast<size_t>(config.value_dim)),
        s(dims * values),
        z(dims),
        z_squares(dims),
        s_squares(dims * values) {}

  void add(const double* k, const double* v, const std::vector<double>* decays) {
    value_squares.resize(values);
    for (size_t e = 0; e < values; ++e) value_squares[e] = static_cast<float>(v[e] * v[e]);
    double largest = 0;
    for (size_t d = 0; d < dims; ++d) {
      const double decay = decays ? (*decays)[d] : 1;
      const auto decay_square = static_cast<float>(decay * decay), k_square = static_cast<float>(k[d] * k[d]);
      double* const row = &s[d * values];
      float* const squares = &s_squares[d * values];
      for (size_t e = 0; e < values; e += 4) {
        doubles(row + e) = doubles(row + e) * decay + k[d] * doubles(const_cast<double*>(v) + e);
      }
      for (size_t e = 0; e < values; e += 8) {
        floats(squares + e) = floats(squares + e) * decay_square + k_square * floats(&value_squares[e]);
      }
      z[d] = z[d] * decay + k[d];
      z_squares[d] = z_squares[d] * decay * decay + k[d] * k[d];
      largest = std::max(largest, decay);
    }
    length = length * largest + 1;
  }

  size_t dims, values;
  std::vector<double> s, z, z_squares;
  std::vector<float> s_squares;
  std::vector<float> value_squares;
  double length = 0;  // tokens in the sums; decayed tokens count less
};

// The errors of a kernel. u is 2^-24, half a unit in the last place of f32. `unit` is half a unit in the last place of
// the inputs' type: 2^-11 for f16 and 2^-8 for bf16. For f32 `unit` is 0, because a kernel must multiply inputs of f32
// as exactly as f32 does. The oracle reads the rounded inputs.
//
// An output is a sum of decayed terms t_dj = scale q_d k_jd v_j, one for each pair of a row d of S and a token j that
// the output's token sees. A kernel adds up the terms in other orders, and on the way rounds the following numbers:
//
//   the state S       before the product with q. The error is one unit of each q_d S_d.
//   f(q)              with a feature map f or a gate: after the product with the gate's decay. The error is one unit of
//                     each q_d S_d.
//   score_j           the product of the query with k_j, for the tokens j of the same chunk, at most 256. The error is
//                     one unit of each score_j v_j.
//   f(k) or v         with a feature map only: f(k); with a gate only: the one of the two that the decay multiplies.
//                     The error is one unit of each term.
//   f(k) and v        with a feature map and a gate. The error is sqrt(2) units of each term.
//
// Without a gate and without a feature map nothing rounds k and v, and their products are exact in f32. A kernel may
// still multiply q by the scale, and round this product to tf32, which has an error of 2^-11.
//
// Errors of different numbers are independent, so their squares add up. over_rows is the root of the sum of (q_d
// S_d)^2, over_keys is the root of the sum of (score_j v_j)^2 over the last 256 tokens, and over_terms is the root of
// the sum of t_dj^2. The error of one rounding has a standard deviation of 0.29 to 0.58 units: the most for numbers
// just above a power of two. An H200 shows 0.48 units of the root for the states of `fused`. The largest of ten million
// errors is below six standard deviations, which is 3 units of the root: of_element. The rounding of O to its own type
// errs by at most one unit of that type; of_element units are allowed.
//
// A whole row of o or of the state errs by less. The root mean square of the row's value_dim errors is about one
// standard deviation of one error. Two standard deviations are allowed, which is 1 unit: of_row. The errors of scores,
// of f(q) and of f(k) are the same in all elements of a row of o. If a few scores, or a few q_d S_d, are much larger
// than the others, their errors may exceed two standard deviations in the whole row. The tolerance is still large
// enough: over_rows, over_keys, over_terms and |o| are then about equally large, and the tolerance has a term for each.
//
// Sums are computed in f32. A sum over n tokens, rounded to nearest with an error of u of the sum for each token, errs
// by about sqrt(n) u (Higham and Mary 2019); twice this error is allowed. If decays make the sum forget old tokens, n
// is the number of tokens that the sum remembers. Tensor cores round all sums in one direction, towards zero, by u on
// average in each step. Tensor cores take (head_dim + 256) / 16 steps within a chunk. In some kernels the state is the
// accumulator of the tensor cores; then they take n / 16 more steps. For each of these n / 16 steps 2 u are allowed,
// because partial sums may have been larger than the last sum. For f32, kernels split each operand into two numbers of
// tf32, and tensor cores compute three products of these numbers in the place of one product of f32. A step then takes
// 8 terms in the place of 16 terms. With inputs of f32 the state is never an accumulator of tensor cores. A dot product
// over head_dim errs by about sqrt(head_dim) u; twice this error is allowed, and 16 u more. All these errors are
// relative to the sizes of partial sums, which are about as large as the roots above and the result.
//
// A chunk's decay is an exponential of a sum of logarithms, or a product of up to 256 decays. The exponential itself
// errs by 2^-20. The error of the sum, 8 u of its value, adds 88 * 8 u at a sum of -88, which is 4.2e-5 of the weight.
// A weight this small no longer counts: below -88 the exponential of f32 is 0. 4e-5 is allowed for all errors of a
// decay.
//
// If the case is normalised, the numerator and the divisor each err like such a sum. The divisor's error is the same in
// all elements of a row.
//
// Why the check notices missing tokens: if all n tokens are drawn alike and m tokens are missing, o and each element of
// the state change by about sqrt(m / n) of their size, times a normally distributed random number. For 65,536 tokens:
//
//   f32     an element's tolerance is 1.2e-4 of the size of o; a missing token changes o by 4e-3
//   bf16    without a gate a row's tolerance is 0.009; a missing chunk of 64 changes each later row by 0.03
//   f16     without a gate a row's tolerance is 0.003; a missing chunk of 64 changes each later row by 0.03
//
// If more than 10,000 tokens are summed, one missing token changes a row by less than the row's tolerance in bf16. But
// kernels keep the state in f32, and round only a copy of it for the product with q. So each check compares the final
// state, whose tolerance is 5e-4 of its size: a missing token changes all its elements, by 4e-3 times a random number.
// After a million tokens the state's tolerance is 0.008. A missing chunk of 64 changes thousands of elements by 0.008
// times a normally distributed number, so some elements change by more than the tolerance. A missing token changes
// these elements by 0.001, which no check notices.
//
// With a gate the sums remember few tokens, so a missing token changes the next rows by more than without a gate. But
// the final state depends on the last tokens only, so the check must compare a row that is near enough to the missing
// token. With a gate by token (GATE_TOKEN) the sums remember about 13 tokens. A missing token changes the next row by
// 0.4 of its size, and the row 40 tokens later by 0.02, which is the row's tolerance in bf16. reference_linear() draws
// rows for each head separately, so the heads differ. With head_dim 64 or 128 some row of some head is compared at
// least every 16 tokens. With a gate by head (GATE_HEAD) the head with the slowest decay remembers 4096 tokens. In this
// head all compared rows show a missing chunk, and some compared rows show a missing token.
//
// Two faults may pass every check: a token that is missing only from the outputs of one late chunk, and not from the
// state; and a token that is missing only in one head, if the compared rows of this head are far apart.
struct Errors {
  double unit, q_unit, term_unit, out_unit, f32, decay;

  Errors(const LinearConfig& config, double length) {
    constexpr double u = 0x1p-24, tf32 = 0x1p-11;
    const auto unit_of = [](DType type) { return type == DType::f32 ? 0 : type == DType::f16 ? 0x1p-11 : 0x1p-8; };
    const auto dims = static_cast<double>(config.head_dim);
    const bool exact = config.dtype == DType::f32;
    const double steps = (exact ? 3 * 2 : 1) * (dims + window) / 16 + (exact ? 0 : 2 * length / 16);
    const bool mapped = config.feature.name != "identity", gated = config.gate != GATE_NONE;
    unit = unit_of(config.dtype);
    q_unit = mapped || gated ? unit : std::min(unit, tf32);
    term_unit = mapped && gated ? std::sqrt(2.0) * unit : mapped || gated ? unit : 0;
    out_unit = std::max(unit_of(config.out_dtype), u);
    f32 = u * (16 + 2 * std::sqrt(dims) + 2 * std::sqrt(length) + steps);
    decay = gated ? 4e-5 : 0;
  }

  /// Returns the tolerance of a sum, if each rounding to a type of 16 bits may err by `roundings` units.
  double of_sum(double value, double over_rows, double over_keys, double over_terms, double roundings) const {
    const double size = std::abs(value) + over_rows + over_keys + over_terms;
    return roundings * ((unit + q_unit) * over_rows + unit * over_keys + term_unit * over_terms) + (f32 + decay) * size;
  }
};

// The units that are allowed for the error of a single element, and for the root mean square of a row's errors.
constexpr double of_element = 3, of_row = 1;

/// Returns the root of the mean of `count` squares, or infinity if their sum is not finite.
double root_mean_square(double squares, int64_t count) {
  return std::isfinite(squares) ? std::sqrt(squares / static_cast<double>(count)) : HUGE_VAL;
}

/// Writes the row's outputs and their tolerances. Returns the tolerance of the whole row.
double answer(const LinearConfig& config, const LinearInputs& inputs, const Rows& rows, const RunningSums& state,
              int64_t row, double* o, double* allowed) {
  const size_t dims = state.dims, values = state.values;
  const std::vector<double> q = rows.load(inputs.q, row, 1);
  std::vector<double> sum(values), over_rows(values), over_keys(values), over_terms(values);
  double divisor = 0, divisor_rows = 0, divisor_keys = 0, divisor_terms = 0;
  for (size_t d = 0; d < dims; ++d) {
    for (size_t e = 0; e < values; ++e) {
      const double part = q[d] * state.s[d * values + e];
      sum[e] += part;
      over_rows[e] += part * part;
      over_terms[e] += q[d] * q[d] * static_cast<double>(state.s_squares[d * values + e]);
    }
    divisor += q[d] * state.z[d];
    divisor_rows += q[d] * state.z[d] * q[d] * state.z[d];
    divisor_terms += q[d] * q[d] * state.z_squares[d];
  }
  if (config.causal) {
    const int64_t first = std::max<int64_t>(0, row + 1 - window);
    const std::vector<double> k = rows.load(inputs.k, first, row + 1 - first);
    const std::vector<double> v = rows.load(inputs.v, first, row + 1 - first);
    std::vector<double> since(dims, 1), decays(dims, 1);
    for (int64_t j = row; j >= first; --j) {
      const auto at = static_cast<size_t>(j - first);
      double score = 0;
      for (size_t d = 0; d < dims; ++d) score += q[d] * since[d] * k[at * dims + d];
      for (size_t e = 0; e < values; ++e) over_keys[e] += score * score * v[at * values + e] * v[at * values + e];
      divisor_keys += score * score;
      if (config.gate == GATE_NONE) continue;
      rows.decays(j, decays);
      for (size_t d = 0; d < dims; ++d) since[d] *= decays[d];
    }
  }
  const Errors errors(config, state.length);
  const double least = config.out_dtype == DType::f16 ? 0x1p-24 : 1e-30;
  const double divisor_error =
      errors.of_sum(divisor, std::sqrt(divisor_rows), std::sqrt(divisor_keys), std::sqrt(divisor_terms), of_element);
  double squares = 0;
  for (size_t e = 0; e < values; ++e) {
    o[e] = !config.normalised ? config.effective_scale() * sum[e] : divisor == 0 ? 0 : sum[e] / divisor;
    const auto tolerance = [&](double roundings) {
      double error =
          errors.of_sum(sum[e], std::sqrt(over_rows[e]), std::sqrt(over_keys[e]), std::sqrt(over_terms[e]), roundings);
      if (config.normalised) {
        error = divisor == 0 ? 0 : (error + std::abs(o[e]) * divisor_error) / std::abs(divisor);
      } else {
        error *= std::abs(config.effective_scale());
      }
      return error + roundings * errors.out_unit * std::abs(o[e]) + least;
    };
    allowed[e] = tolerance(of_element);
    squares += tolerance(of_row) * tolerance(of_row);
  }
  return root_mean_square(squares, config.value_dim);
}

}  // namespace

int64_t affordable_rows(const LinearConfig& config) {
  const auto row = static_cast<double>(3 * config.state_elements() + 2 * window * (config.head_dim + config.value_dim));
  return std::max<int64_t>(static_cast<int64_t>(affordable / row), 64);
}

LinearReference reference_linear(const LinearConfig& config, const LinearInputs& inputs, const FeatureFunction& feature,
                                 int64_t most_rows, uint64_t seed) {
  LinearReference reference;
  const int64_t tasks = config.sequences * config.heads, dims = config.head_dim, values = config.value_dim;
  std::mutex mutex;
  std::vector<int64_t> first_row;  // the index of each task's first row in reference.rows
  std::vector<std::vector<int64_t>> wanted;
  std::mt19937_64 random(seed);
  for (int64_t task = 0; task < tasks; ++task) {
    const int64_t count = Rows(config, inputs, feature, mutex, task / config.heads, task % config.heads).count();
    const int64_t own = config.all_rows * config.heads <= most_rows ? count : std::min(count, most_rows / tasks);
    std::vector<int64_t> chosen;
    if (own == count) {
      for (int64_t row = 0; row < count; ++row) chosen.push_back(row);
    } else {
      chosen.push_back(0);
      const int64_t parts = std::max<int64_t>(own - 2, 0);
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t begin = 1 + (count - 2) * part / parts, end = 1 + (count - 2) * (part + 1) / parts;
        chosen.push_back(begin + static_cast<int64_t>(random() % static_cast<uint64_t>(end - begin)));
      }
      if (count > 1) chosen.push_back(count - 1);
    }
    first_row.push_back(static_cast<int64_t>(reference.rows.size()));
    for (const int64_t row : chosen) reference.rows.push_back({task / config.heads, task % config.heads, row});
    wanted.push_back(std::move(chosen));
  }
  reference.o.resize(reference.rows.size() * static_cast<size_t>(values));
  reference.o_allowed.resize(reference.o.size());
  reference.row_allowed.resize(reference.rows.size());
  const auto resize = [&](std::vector<double>& sums, int64_t width) {
    sums.resize(static_cast<size_t>(tasks * width));
  };
  for (auto* sums : {&reference.state, &reference.state_allowed}) resize(*sums, dims * values);
  for (auto* sums : {&reference.key_sum, &reference.key_sum_allowed, &reference.state_row_allowed}) resize(*sums, dims);

  parallel_for(tasks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const Rows rows(config, inputs, feature, mutex, task / config.heads, task % config.heads);
      RunningSums state(config);
      for (int64_t i = 0; !inputs.initial_state.empty() && i < dims * values; ++i) {
        const double value = static_cast<double>(inputs.initial_state[static_cast<size_t>(task * dims * values + i)]);
        state.s[static_cast<size_t>(i)] = value;
        state.s_squares[static_cast<size_t>(i)] = static_cast<float>(value * value);
      }
      for (int64_t i = 0; !inputs.initial_key_sum.empty() && i < dims; ++i) {
        const double value = static_cast<double>(inputs.initial_key_sum[static_cast<size_t>(task * dims + i)]);
        state.z[static_cast<size_t>(i)] = value;
        state.z_squares[static_cast<size_t>(i)] = value * value;
      }
      const std::vector<int64_t>& own = wanted[static_cast<size_t>(task)];
      const auto answer_next = [&](size_t number) {
        const size_t place = static_cast<size_t>(first_row[static_cast<size_t>(task)]) + number;
        const size_t at = place * static_cast<size_t>(values);
        reference.row_allowed[place] =
            answer(config, inputs, rows, state, own[number], &reference.o[at], &reference.o_allowed[at]);
      };
      std::vector<double> decays(static_cast<size_t>(dims), 1);
      size_t next = 0;
      for (int64_t first = 0; first < rows.count(); first += block_rows) {
        const int64_t count = std::min(block_rows, rows.count() - first);
        const std::vector<double> k = rows.load(inputs.k, first, count), v = rows.load(inputs.v, first, count);
        for (int64_t i = 0; i < count; ++i) {
          if (config.gate == GATE_TOKEN || config.gate == GATE_CHANNEL ||
              (config.gate == GATE_HEAD && first + i == 0)) {
            rows.decays(first + i, decays);
          }
          state.add(&k[static_cast<size_t>(i * dims)], &v[static_cast<size_t>(i * values)],
                    config.gate == GATE_NONE ? nullptr : &decays);
          if (config.causal && next < own.size() && own[next] == first + i) answer_next(next++);
        }
      }
      for (; next < own.size(); ++next) answer_next(next);

      const Errors errors(config, state.length);
      const auto final = [&](size_t at, double value, double squares, std::vector<double>& want,
                             std::vector<double>& allowed) {
        const double over_terms = std::sqrt(squares);
        want[at] = value;
        allowed[at] = errors.of_sum(value, 0, 0, over_terms, of_element) + 1e-30;
        return errors.of_sum(value, 0, 0, over_terms, of_row) + 1e-30;
      };
      for (int64_t row = 0; row < dims; ++row) {
        double squares = 0;
        for (int64_t i = row * values; i < (row + 1) * values; ++i) {
          const auto n = static_cast<size_t>(i);
          squares += std::pow(final(static_cast<size_t>(task * dims * values + i), state.s[n],
                                    static_cast<double>(state.s_squares[n]), reference.state, reference.state_allowed),
                              2);
        }
        const auto n = static_cast<size_t>(row), at = static_cast<size_t>(task * dims + row);
        reference.state_row_allowed[at] = root_mean_square(squares, values);
        final(at, state.z[n], state.z_squares[n], reference.key_sum, reference.key_sum_allowed);
      }
    }
  });
  return reference;
}

}  // namespace attn
