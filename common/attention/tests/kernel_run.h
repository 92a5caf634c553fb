// Runs one kernel of attention on the device under test, with hooks and tensors that a test gives. The kernel runs
// alone, without the other launches of a plan.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/attention/flash.h"
#include "common/attention/kernels/tuned.h"
#include "common/attention/tests/emulated.h"
#include "common/cases/reference.h"
#include "common/testing/tested_device.h"

namespace attn::test {

inline constexpr double infinity = std::numeric_limits<double>::infinity();
inline constexpr const char* score_file = "common/attention/kernels/score.h";
inline constexpr const char* keys_file = "common/attention/kernels/keys.h";
inline constexpr const char* mask_file = "common/attention/kernels/mask.h";
inline constexpr const char* sink_file = "common/attention/kernels/sink.h";

// Returns a text for the start of a hook's body. On the cpu the text ends the program if a kernel asks for an index
// outside [0, length).
inline std::string only_within(const std::string& index, const std::string& length) {
  return fmt::format("#ifndef __CUDACC__\n  if ({0} < 0 || {0} >= {1}) __builtin_trap();\n#endif\n", index, length);
}

// ---- the kernels. Most kernels have the name of their variant. A variant can have several kernels, for different
// element types or hosts: for example, `amx` is the kernel of `tuned` for bf16 on hosts with AMX.

struct Tested {
  FlashConfig config;
  bool copies = false;  // `tuned` works on a copy of K
  int64_t apart = 0;    // unused elements after each row, head and batch of every tensor
};

inline std::vector<std::string> kernels() {
  if (on_cuda) return {"naive", "mma_sync", "mma_sync_f32", "wgmma"};
  return {"naive",       "tiled_scalar", "tiled_vector", "tuned",    "tuned_copy",
          "tuned_pairs", "amx",          "neon",         "neon_f16", "neon_bf16"};
}

inline Tested tested(const std::string& name) {
  Tested tested;
  FlashConfig& config = tested.config;
  config.variant = name.substr(0, name.find("_f32"));
  if (name.starts_with("tuned") || name.starts_with("neon") || name == "amx") config.variant = "tuned";
  for (const char* of_bf16 : {"wgmma", "mma_sync", "amx", "tuned_pairs", "neon_bf16"}) {
    if (name == of_bf16) config.dtype = DType::bf16;
  }
  if (name == "neon_f16") config.dtype = DType::f16;
  if (name == "tuned_copy") config.dtype = DType::f16;  // K is converted, and therefore copied
  config.shape = {.batch = 3, .q_heads = 4, .kv_heads = 2, .q_len = 75, .kv_len = 141, .head_dim = 40};
  config.block_r = on_cuda ? 64 : 48;
  config.block_c = 32;
  return tested;
}

inline Tested tested(const std::string& name, int64_t q_len, int64_t kv_len, bool causal) {
  Tested setup = tested(name);
  setup.config.shape.q_len = q_len;
  setup.config.shape.kv_len = kv_len;
  setup.config.shape.causal = causal;
  setup.config.layout = causal ? Layout::bhsd : Layout::bshd;
  return setup;
}

/// Returns whether the device can run the kernel. A GPU may lack the instructions of wgmma. Instructions that a host of
/// the cpu lacks are emulated.
inline bool is_here(const std::string& name) { return name != "wgmma" || device().info().has("wgmma"); }

/// Returns the description of the device under test. For a kernel that only some hosts run, returns a description of
/// the device as one of these hosts.
inline DeviceInfo info_of(const std::string& name) {
  DeviceInfo info = device().info();
  if (name.starts_with("neon")) {
    info.arch = "neoverse-v1";
    info.simd_width = 4;
    info.vector_registers = 32;
    info.features = neon_features;
    return info;
  }
  if (name != "amx" && name != "tuned_pairs") return info;
  info.arch = name == "amx" ? "sapphirerapids" : "znver4";
  info.simd_width = 16;
  info.vector_registers = 32;
  info.features = {"avx512bf16"};
  if (name == "amx") info.features.insert(info.features.begin(), "amx-bf16");
  return info;
}

using Includes = std::map<std::string, std::string>;

inline Launch kernel_of(const std::string& name, const Tested& tested, const Includes& includes) {
  const DeviceInfo info = info_of(name), &here = device().info();
  // Without hooks FlashOperation::kernel() chooses the AMX kernel for bf16 on a host with AMX. So for the other kernels
  // of the cpu this function asks for a kernel that takes a score hook.
  const bool hooked = includes.contains(score_file) || (!on_cuda && name != "amx");
  const AttentionHooks any;
  Launch kernel = FlashOperation::of(info).kernel(tested.config, info, hooked ? &any : nullptr);
  kernel.source.includes = includes;
  const bool lacks = std::any_of(info.features.begin(), info.features.end(),
                                 [&](const std::string& feature) { return !here.has(feature); });
  if (lacks) kernel.source.includes.merge(emulated_instructions());
  FunctionConstants& constants = kernel.source.constants;
  if (includes.contains(mask_file) && name != "naive") constants["MASK_LISTS"] = 0;
  if (!constants.contains("COPY_K") || !tested.copies) return kernel;
  constants["COPY_K"] = 1;
  const TunedLayout layout(tested.config.shape.head_dim, tested.config.block_r, tested.config.block_c,
                           constants.at("VECTOR_WIDTH"), constants.at("TILE_VECTORS"), constants.at("TILE_ROWS"),
                           constants.at("BF16_DOT") != 0, true);
  kernel.threadgroup_bytes = static_cast<size_t>(layout.words) * sizeof(float);
  return kernel;
}

// ---- launches

struct Tensors {
  Tensor q, k, v;
};

inline Tensors random_tensors(const FlashConfig& config) {
  const AttentionShape& s = config.shape;
  const auto random = [&](int64_t heads, int64_t length, uint64_t stream) {
    return random_tensor(s.batch, heads, length, s.head_dim, config.dtype, config.layout, 7, stream);
  };
  return {random(s.q_heads, s.q_len, 0), random(s.kv_heads, s.kv_len, 1), random(s.kv_heads, s.kv_len, 2)};
}

struct Attended {
  std::vector<double> o, lse;
  bool guards_intact = true;
  bool operator==(const Attended&) const = default;
};

/// A tensor in memory, with gaps of Tested::apart elements. All bytes of the gaps are 0xff, which is NaN.
struct Spread {
  TensorStrides strides;
  std::vector<std::byte> data;

  Spread(const Tensor& tensor, int64_t apart) {
    const bool rows_first = tensor.layout == Layout::bhsd;
    const int64_t inner = tensor.dim + apart, middle = inner * (rows_first ? tensor.seq : tensor.heads) + apart;
    strides = {middle * (rows_first ? tensor.heads : tensor.seq) + apart, rows_first ? middle : inner,
               rows_first ? inner : middle};
    data.resize(static_cast<size_t>(tensor.batch * strides.batch) * size_bytes(tensor.dtype), std::byte{0xff});
    for_rows(tensor, [&](size_t here, size_t there, size_t bytes) {
      std::memcpy(data.data() + here, tensor.data.data() + there, bytes);
    });
  }

  /// Reads the rows back. Returns whether the bytes between the rows are unchanged.
  bool gather(Tensor& tensor) {
    for_rows(tensor, [&](size_t here, size_t there, size_t bytes) {
      std::memcpy(tensor.data.data() + there, data.data() + here, bytes);
      std::memset(data.data() + here, 0xff, bytes);
    });
    return std::all_of(data.begin(), data.end(), [](std::byte byte) { return byte == std::byte{0xff}; });
  }

 private:
  template <typename Body>
  void for_rows(const Tensor& tensor, Body body) const {
    const auto element = static_cast<int64_t>(size_bytes(tensor.dtype));
    for (int64_t b = 0; b < tensor.batch; ++b) {
      for (int64_t h = 0; h < tensor.heads; ++h) {
        for (int64_t s = 0; s < tensor.seq; ++s) {
          const int64_t here = b * strides.batch + h * strides.head + s * strides.row;
          body(static_cast<size_t>(here * element), static_cast<size_t>(tensor.offset(b, h, s, 0) * element),
               static_cast<size_t>(tensor.dim * element));
        }
      }
    }
  }
};

inline Attended run(const std::string& name, const Tested& tested, const Tensors& tensors, const Includes& includes,
                    const std::vector<std::byte>& data, PipelineCache& cache = pipelines()) {
  const FlashConfig& config = tested.config;
  const AttentionShape& shape = config.shape;
  Tensor o = Tensor::zeros(shape.batch, shape.q_heads, shape.q_len, shape.head_dim, config.out_dtype, config.layout);
  const Spread of_q(tensors.q, tested.apart), of_k(tensors.k, tested.apart), of_v(tensors.v, tested.apart);
  Spread of_o(o, tested.apart);
  std::fill(of_o.data.begin(), of_o.data.end(), std::byte{0xff});
  const Buffer q = uploaded(device(), of_q.data), k = uploaded(device(), of_k.data), v = uploaded(device(), of_v.data),
               table = uploaded(device(), data);
  const Buffer o_buffer = uploaded(device(), of_o.data);
  Buffer lse_buffer(device(), static_cast<size_t>(shape.batch * shape.q_heads * shape.q_len) * sizeof(float));
  lse_buffer.poison();
  AttentionParams params{};
  params.pages = config.pool_pages > 0 ? static_cast<int>(config.pool_pages) : std::numeric_limits<int>::max();
  params.q = q.data();
  params.k = k.data();
  params.v = v.data();
  params.o = o_buffer.data();
  params.lse = static_cast<float*>(lse_buffer.data());
  params.q_strides = of_q.strides;
  params.k_strides = of_k.strides;
  params.v_strides = of_v.strides;
  params.o_strides = of_o.strides;
  params.batch = static_cast<int>(shape.batch);
  params.q_heads = static_cast<int>(shape.q_heads);
  params.kv_heads = static_cast<int>(shape.kv_heads);
  params.q_len = static_cast<int>(shape.q_len);
  params.kv_len = static_cast<int>(shape.kv_len);
  params.scale = static_cast<float>(shape.effective_scale());
  params.score_data = table.data();

  const Launch kernel = kernel_of(name, tested, includes);
  const Pipeline& pipeline = cache.get(kernel.source);
  CommandEncoder encoder;
  // `encode` keeps further data of the launch on the device, such as a list of tiles.
  const auto encode = FlashOperation::of(device().info()).encode_function(device(), config, kernel, *pipeline.kernel);
  encode(encoder, params);
  device().submit(encoder);
  o_buffer.download(of_o.data.data(), of_o.data.size());
  const std::vector<float> lse = downloaded<float>(lse_buffer);
  Attended outcome;
  outcome.guards_intact = of_o.gather(o) && o_buffer.guards_intact() && lse_buffer.guards_intact();
  for (const RowIndex& row : all_rows(shape)) {
    for (int64_t d = 0; d < shape.head_dim; ++d) outcome.o.push_back(o.at(row.batch, row.head, row.q, d));
  }
  outcome.lse.assign(lse.begin(), lse.end());
  return outcome;
}

/// Describes the first wrong element. Returns an empty text if all elements are right. NaN is right only where NaN is
/// wanted.
inline std::string difference(const FlashConfig& config, const Attended& got, const std::vector<double>& o,
                              const std::vector<double>& lse) {
  const bool exact = config.dtype == DType::f32;
  const double absolute = exact ? 2e-5 : 1e-2, relative = exact ? 2e-4 : 1e-2;
  const auto compare = [&](const char* what, const std::vector<double>& is, const std::vector<double>& wanted) {
    for (size_t i = 0; i < wanted.size(); ++i) {
      const bool right =
          is.at(i) == wanted[i] || (std::isnan(is[i]) && std::isnan(wanted[i])) ||
          (std::isfinite(wanted[i]) && std::abs(is[i] - wanted[i]) <= absolute + relative * std::abs(wanted[i]));
      if (!right) return fmt::format("{}[{}] is {}, not {}", what, i, is[i], wanted[i]);
    }
    return std::string();
  };
  if (!got.guards_intact) return "bytes next to the outputs were overwritten";
  const std::string of_o = compare("o", got.o, o);
  return of_o.empty() ? compare("lse", got.lse, lse) : of_o;
}

template <typename T = int>
std::vector<std::byte> bytes_of_table(const std::vector<T>& table) {
  const auto bytes = std::as_bytes(std::span(table));
  return {bytes.begin(), bytes.end()};
}

/// Hooks of a kernel, the data that the hooks read, and functions with the same rules for the oracle.
struct Hooks {
  std::string name = {};
  Includes includes = {};
  std::vector<std::byte> data = bytes_of_table({0});
  ScoreFunction reference = {};
  SinkFunction sink = {};
  bool causal = false;
};

/// Runs a kernel, and describes the first element that differs from the oracle's. Returns an empty text if none does.
inline std::string wrong_of(const std::string& name, const Tested& tested, const Tensors& tensors, const Hooks& hooks,
                            PipelineCache& cache = pipelines()) {
  const AttentionShape& shape = tested.config.shape;
  const ReferenceRows want =
      reference_attention(shape, tensors.q, tensors.k, tensors.v, all_rows(shape), hooks.reference, hooks.sink);
  return difference(tested.config, run(name, tested, tensors, hooks.includes, hooks.data, cache), want.o, want.lse);
}

inline std::string describe(const std::string& name, const FlashConfig& c) {
  const AttentionShape& s = c.shape;
  return fmt::format("{} b{} h{}/{} q{} k{} d{} causal={} {} {}x{}", name, s.batch, s.q_heads, s.kv_heads, s.q_len,
                     s.kv_len, s.head_dim, s.causal, attn::name(c.layout), c.block_r, c.block_c);
}

// ---- which keys a row sees

/// A keys hook. `body` is its text for kernels. `range` is the same rule for the oracle: it returns the range of keys
/// that a query sees, without the causal mask. Its arguments are the table, the shape, the batch entry and the query.
struct KeysHook {
  const char* name;
  bool at_zero;      // every range begins at key 0
  const char* body;  // the body of visible_keys()
  std::function<std::vector<int>(const AttentionShape&)> table;
  std::function<std::pair<int64_t, int64_t>(const std::vector<int>&, const AttentionShape&, int64_t, int64_t)> range;
  bool takes_causal = true;

  Includes includes() const {
    return {{keys_file, fmt::format("#pragma once\n#include \"common/attention/kernels/attention.h\"\n"
                                    "#define KEYS_ARE_DEFAULT 0\n#define KEYS_BEGIN_AT_ZERO {}\n"
                                    "static inline KeyRange visible_keys(int q, const ScoreContext& c) {{\n"
                                    "{}"
                                    "  [[maybe_unused]] const int* table = static_cast<const int*>(c.data);\n"
                                    "  const int own = q + c.kv_len - c.q_len;\n"
                                    "  [[maybe_unused]] const int end = CAUSAL ? own + 1 : c.kv_len;\n  {}\n}}\n",
                                    at_zero ? 1 : 0, only_within("q", "c.q_len"), body)}};
  }
};

inline int64_t own_key(const AttentionShape& shape, int64_t q) { return q + shape.kv_len - shape.q_len; }

// Returns a table with two numbers for each key: where the key's document begins, and where it ends. The documents have
// 1, 2, 3 .. keys, one after the other.
inline std::vector<int> documents(const AttentionShape& shape) {
  std::vector<int> table;
  const int keys = static_cast<int>(shape.kv_len);
  for (int begin = 0, length = 1; begin < keys; begin += length++) {
    for (int key = begin; key < std::min(begin + length, keys); ++key) {
      table.push_back(begin);
      table.push_back(std::min(begin + length, keys));
    }
  }
  return table;
}

inline std::vector<KeysHook> keys_hooks() {
  const auto nothing = [](const AttentionShape&) { return std::vector<int>{0}; };
  return {{"window_left", false, "return {own - 7, own + 1 < end ? own + 1 : end};", nothing,
           [](const auto&, const auto& shape, int64_t, int64_t q) {
             return std::pair{own_key(shape, q) - 7, own_key(shape, q) + 1};
           }},
          {"window_right", true, "return {0, own + 40 < end ? own + 40 : end};", nothing,
           [](const auto&, const auto& shape, int64_t, int64_t q) {
             return std::pair{int64_t{0}, own_key(shape, q) + 40};
           }},
          {"window_both", false, "return {own - 50, own + 20 < end ? own + 20 : end};", nothing,
           [](const auto&, const auto& shape, int64_t, int64_t q) {
             return std::pair{own_key(shape, q) - 50, own_key(shape, q) + 20};
           }},
          // The lengths of sequences: no keys, some keys, all keys.
          {"lengths", true, "return {0, table[c.batch] < end ? table[c.batch] : end};",
           [](const AttentionShape& shape) {
             std::vector<int> lengths(static_cast<size_t>(shape.batch), static_cast<int>(shape.kv_len));
             lengths.front() = 0;
             if (shape.batch > 1) lengths[1] = static_cast<int>(shape.kv_len) * 2 / 3;
             return lengths;
           },
           [](const auto& table, const auto&, int64_t batch, int64_t) {
             return std::pair{int64_t{0}, int64_t{table[static_cast<size_t>(batch)]}};
           }},
          {"prefix", true, "return {0, table[c.batch] > own + 1 ? table[c.batch] : own + 1};",
           [](const AttentionShape& shape) {
             return std::vector<int>(static_cast<size_t>(shape.batch), static_cast<int>(shape.kv_len / 3));
           },
           [](const auto& table, const auto& shape, int64_t batch, int64_t q) {
             return std::pair{int64_t{0}, std::max(int64_t{table[static_cast<size_t>(batch)]}, own_key(shape, q) + 1)};
           },
           false},
          {"documents", false,
           "const int key = own < 0 ? 0 : own;\n"
           "  return {table[2 * key], table[2 * key + 1] < end ? table[2 * key + 1] : end};",
           documents, [](const auto& table, const auto& shape, int64_t, int64_t q) {
             const auto key = static_cast<size_t>(std::max<int64_t>(own_key(shape, q), 0));
             return std::pair{int64_t{table[2 * key]}, int64_t{table[2 * key + 1]}};
           }}};
}

inline const KeysHook& keys_hook(std::string_view name) {
  static const std::vector<KeysHook> hooks = keys_hooks();
  return *std::find_if(hooks.begin(), hooks.end(), [&](const KeysHook& hook) { return hook.name == name; });
}

inline ScoreFunction masked_by(const KeysHook& hook, const std::vector<int>& table, const AttentionShape& shape) {
  return [&hook, table, shape](std::span<double> scores, int64_t batch, int64_t, int64_t q) {
    const auto [begin, end] = hook.range(table, shape, batch, q);
    for (size_t k = 0; k < scores.size(); ++k) {
      if (static_cast<int64_t>(k) < begin || static_cast<int64_t>(k) >= end) scores[k] = -infinity;
    }
  };
}

inline std::string keys_difference(const std::string& name, const Tested& tested, const KeysHook& hook,
                                   PipelineCache& cache = pipelines()) {
  const AttentionShape& shape = tested.config.shape;
  const std::vector<int> table = hook.table(shape);
  return wrong_of(
      name, tested, random_tensors(tested.config),
      {.includes = hook.includes(), .data = bytes_of_table(table), .reference = masked_by(hook, table, shape)}, cache);
}

/// A test of each kernel. A test is skipped if the device lacks the kernel.
class EachKernel : public OnDevice<testing::TestWithParam<std::string>> {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (!IsSkipped() && !is_here(GetParam())) GTEST_SKIP() << "not on this device";
  }
};

}  // namespace attn::test
