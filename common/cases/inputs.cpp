#include "common/cases/inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/parallel.h"

namespace attn {
namespace {

// If Q K^T of all rows needs more than full_check_products multiplications, the oracle checks only a sample of rows.
// Q K^T of the sample needs about sampled_check_products multiplications, but the sample has at least
// least_rows_checked rows. So a check usually takes less time than a measurement.
constexpr double full_check_products = 3e8;
constexpr double sampled_check_products = 1e8;
constexpr int64_t least_rows_checked = 64;

// For InputKind::needles. The comment of InputKind explains needles and signatures.
constexpr int64_t signature_keys = 64;  // keys of a block that has one signature
constexpr double needle_margin = 4;     // log of (weight of the needle / weight of all other keys together)

/// Throws BadInput for a number that is not finite. The oracle's rows would be NaN or infinite where they see such a
/// number. A check of these rows would not show the kernel's errors. `bhsd` is the tensor `name` of the file `path`.
void require_finite(const Tensor& bhsd, const std::string& path, const std::string& name) {
  std::vector<double> row(static_cast<size_t>(bhsd.dim));
  for (int64_t i = 0; i < bhsd.batch * bhsd.heads * bhsd.seq; ++i) {
    bhsd.load(i * bhsd.dim, row);
    const auto found = std::ranges::find_if(row, [](double value) { return !std::isfinite(value); });
    if (found == row.end()) continue;
    throw BadInput(fmt::format("{}: {}[{}, {}, {}, {}] is {}; --input takes finite numbers", path, name,
                               i / bhsd.seq / bhsd.heads, i / bhsd.seq % bhsd.heads, i % bhsd.seq, found - row.begin(),
                               *found));
  }
}

AttentionInputs from_file(const std::string& path, Layout layout) {
  const auto stored = read_safetensors(path, {"q", "k", "v"});
  const auto tensor_of = [&](const std::string& name) {
    const StoredTensor& tensor = stored.at(name);
    Tensor bhsd =
        Tensor::zeros(tensor.shape[0], tensor.shape[1], tensor.shape[2], tensor.shape[3], tensor.dtype, Layout::bhsd);
    bhsd.data = tensor.data;
    require_finite(bhsd, path, name);
    return layout == Layout::bhsd ? bhsd : convert(bhsd, tensor.dtype, layout);
  };
  return {tensor_of("q"), tensor_of("k"), tensor_of("v")};
}

// Returns 64 bits, each of which depends on every bit of x (the finaliser of splitmix64; Steele et al. 2014).
uint64_t mixed(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// Calls change(row, batch, head, s) for all rows of the tensor, on all host threads, and stores the changed rows.
template <typename Change>
void change_rows(Tensor& tensor, const Change& change) {
  parallel_for(tensor.batch * tensor.heads * tensor.seq, 256, [&](int64_t begin, int64_t end) {
    std::vector<double> row(static_cast<size_t>(tensor.dim));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / tensor.seq / tensor.heads, h = i / tensor.seq % tensor.heads, s = i % tensor.seq;
      tensor.load(tensor.offset(b, h, s, 0), row);
      change(row, b, h, s);
      tensor.store(tensor.offset(b, h, s, 0), row);
    }
  });
}

// Adds `factor` times a key, the needle, to every second query. With the default scale this addition raises the
// needle's score by about factor * sqrt(dim). The score of each other key changes by a random amount of standard
// deviation `factor`.
void add_needles(const AttentionShape& shape, AttentionInputs& inputs, uint64_t seed) {
  const double dim = static_cast<double>(shape.head_dim);
  change_rows(inputs.q, [&](std::span<double> query, int64_t b, int64_t h, int64_t s) {
    const int64_t keys = shape.keys_seen(s);
    if (s % 2 == 0 || keys == 0) return;
    const uint64_t number = static_cast<uint64_t>((b * shape.q_heads + h) * shape.q_len + s);
    const auto needle = static_cast<int64_t>(mixed(seed ^ mixed(number)) % static_cast<uint64_t>(keys));
    static thread_local std::vector<double> key;
    key.resize(query.size());
    inputs.k.load(inputs.k.offset(b, h / (shape.q_heads / shape.kv_heads), needle, 0), key);
    const double score = std::log(static_cast<double>(keys)) + needle_margin;
    const double factor = score / std::sqrt(dim);
    for (size_t d = 0; d < query.size(); ++d) query[d] += factor * key[d];
  });
}

void add_signatures(Tensor& v, uint64_t seed) {
  change_rows(v, [&](std::span<double> value, int64_t b, int64_t h, int64_t s) {
    const uint64_t block = static_cast<uint64_t>(((b * v.heads + h) * v.seq + s) / signature_keys);
    for (size_t d = 0; d < value.size(); ++d) {
      const uint64_t bits = mixed(seed ^ mixed(block * value.size() + d));
      value[d] += bits % 2 == 0 ? 1 : -1;
    }
  });
}

}  // namespace

AttentionInputs make_inputs(const FlashConfig& config, uint64_t seed, InputKind kind) {
  const AttentionShape& shape = config.shape;
  const auto random = [&](int64_t heads, int64_t length, uint64_t stream) {
    return random_tensor(shape.batch, heads, length, shape.head_dim, config.dtype, config.layout, seed, stream);
  };
  AttentionInputs inputs{random(shape.q_heads, shape.q_len, 0), random(shape.kv_heads, shape.kv_len, 1),
                         random(shape.kv_heads, shape.kv_len, 2)};
  if (kind == InputKind::needles) {
    add_needles(shape, inputs, seed);
    add_signatures(inputs.v, seed);
  }
  return inputs;
}

int64_t rows_checked(const AttentionShape& shape) {
  const double products_per_row = static_cast<double>(shape.kv_len) * static_cast<double>(shape.head_dim);
  const double rows = static_cast<double>(shape.batch * shape.q_heads * shape.q_len);
  if (rows * products_per_row <= full_check_products) return shape.batch * shape.q_heads * shape.q_len;
  return std::max(least_rows_checked, static_cast<int64_t>(sampled_check_products / products_per_row));
}

Memory flash_memory(const FlashConfig& config, int copies) {
  const AttentionShape& shape = config.shape;
  const auto number = [](int64_t n) { return static_cast<double>(n); };
  const double dim = number(shape.head_dim), keys = number(shape.kv_len);
  const double rows = number(shape.batch) * number(shape.q_heads) * number(shape.q_len);
  const double inputs =
      (rows + 2 * number(shape.batch) * number(shape.kv_heads) * keys) * dim * number(size_bytes(config.dtype));
  const double outputs = rows * (dim * number(size_bytes(config.out_dtype)) + sizeof(float));
  // The oracle's memory: a head's keys and values in double; on each thread, the scores and weights of a row; three
  // doubles for each element of the checked rows.
  const double threads = number(std::thread::hardware_concurrency());
  const double oracle =
      sizeof(double) * (2 * keys * (dim + threads) + 3 * std::min(rows, number(rows_checked(shape))) * dim);
  return {.device = copies * (inputs + outputs), .host = copies * (inputs + oracle) + outputs};
}

FlashInputs::FlashInputs(Device& device, const FlashConfig& config, uint64_t seed, const std::string& input,
                         InputKind kind)
    : FlashInputs(device, config, seed,
                  input.empty() ? make_inputs(config, seed, kind) : from_file(input, config.layout)) {}

FlashInputs::FlashInputs(Device& device, FlashConfig config, uint64_t seed, AttentionInputs inputs)
    : config_(std::move(config)),
      seed_(seed),
      inputs_(std::move(inputs)),
      q_buffer_(uploaded(device, inputs_.q.data)),
      k_buffer_(uploaded(device, inputs_.k.data)),
      v_buffer_(uploaded(device, inputs_.v.data)) {
  const AttentionShape& shape = config_.shape;
  const auto rows = static_cast<size_t>(shape.batch * shape.q_heads * shape.q_len);
  o_buffer_ = Buffer(device, rows * static_cast<size_t>(shape.head_dim) * size_bytes(config_.out_dtype));
  lse_buffer_ = Buffer(device, rows * sizeof(float));
}

FlashInputs::~FlashInputs() = default;

const ReferenceRows& FlashInputs::reference(const std::string& name, const ScoreFunction& score,
                                            const SinkFunction& sink) {
  auto known = references_.find(name);
  if (known == references_.end()) {
    const AttentionShape& shape = config_.shape;
    ReferenceRows reference = reference_attention(shape, inputs_.q, inputs_.k, inputs_.v,
                                                  sample_rows(shape, rows_checked(shape), seed_), score, sink);
    known = references_.emplace(name, std::move(reference)).first;
  }
  return known->second;
}

}  // namespace attn
