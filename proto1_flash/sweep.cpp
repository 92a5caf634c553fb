#include "proto1_flash/sweep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "common/error.h"
#include "common/tensor.h"
#include "proto1_flash/backend.h"

namespace attn {

namespace {

constexpr int64_t longest = int64_t{1} << 24;

/// Makes blocks: of the axes named, and the common values of those that are not.
class Blocks {
 public:
  explicit Blocks(Block common) : common_(std::move(common)) {}
  void add(const Block& own) {
    Block axes = own;
    for (const Axis& axis : common_) {
      const bool named =
          std::any_of(own.begin(), own.end(), [&](const Axis& other) { return other.name == axis.name; });
      if (!named) axes.push_back(axis);
    }
    sweep_.blocks.push_back(std::move(axes));
  }
  Sweep take() { return std::move(sweep_); }

 private:
  Block common_;
  Sweep sweep_;
};

const Axis dims = integers("head_dim", {64, 128, 256});
const Axis masks = integers("causal", {0, 1});
const Axis dtypes = texts("dtype", {"f32", "f16", "bf16"});
const Axis layouts = texts("layout", {"bhsd", "bshd"});

Sweep cpu_sweep(bool full) {
  const Axis tiles_r = integers("block_r", {16, 32, 64, 128});
  const Axis tiles_c = integers("block_c", {64, 80, 128, 256});
  const Axis ladder = texts("variant", {"naive", "tiled_scalar", "tiled_vector", "tuned"});
  const Axis small_r = integers("block_r", {64}), small_c = integers("block_c", {64});
  Blocks blocks({texts("variant", {"tuned"}), integers("batch", {1}), integers("q_heads", {8}),
                 integers("q_len", {1024}), integers("head_dim", {128}), integers("causal", {0}),
                 texts("dtype", {"f32"}), texts("out_dtype", {"f32"}), texts("layout", {"bhsd"})});
  blocks.add({dims, tiles_r, tiles_c});
  blocks.add({ladder, integers("q_len", {512}), integers("head_dim", {64}), small_r, small_c});
  // Rate against length, with the default tile.
  const std::vector<int64_t> lengths = {256, 512, 1024, 2048, 4096};
  blocks.add({dims, masks, integers("q_len", full ? lengths : std::vector(lengths.begin(), lengths.end() - 1))});
  blocks.add({dtypes, integers("head_dim", {64, 128})});
  blocks.add({layouts, integers("head_dim", {64, 128})});
  blocks.add({integers("head_dim", {80, 96, 192})});
  blocks.add({integers("q_len", {1000, 1537})});
  if (!full) return blocks.take();

  blocks.add({dims, tiles_r, tiles_c, masks, dtypes, integers("q_len", {1024, 2048})});
  blocks.add({ladder, dims, masks, integers("q_len", {256, 512, 1024}), small_r, small_c});
  // One head, so that a launch of the longest stays short.
  blocks.add({integers("q_heads", {1}), dims, masks, dtypes, integers("q_len", {4096, 8192, 16384})});
  // Grouped heads, few queries against many keys, and 16-bit outputs.
  blocks.add({integers("q_heads", {12}), integers("kv_heads", {1, 4, 12}), masks});
  blocks.add({integers("q_len", {1, 17, 100}), integers("kv_len", {4096}), masks});
  blocks.add({dtypes, texts("out_dtype", {"f32", "f16", "bf16"})});
  blocks.add({integers("batch", {3}), layouts, masks, dtypes});
  return blocks.take();
}

// As the published tables have it: 16384 tokens in all, 2048 / head_dim heads, 16-bit elements.
Sweep cuda_sweep(bool full) {
  constexpr int64_t tokens = 16384, width = 2048;
  const Axis tiles_r = integers("block_r", {64, 128, 192});
  const Axis tiles_c = integers("block_c", {64, 80, 96, 112, 128, 176, 192});
  Blocks blocks({texts("variant", {"tuned"}), integers("batch", {4}), integers("q_heads", {16}),
                 integers("q_len", {4096}), integers("head_dim", {128}), integers("causal", {0}),
                 texts("dtype", {"bf16"}), texts("out_dtype", {"bf16"}), texts("layout", {"bhsd"})});
  const auto of_length = [](int64_t length) {
    return std::pair(integers("batch", {std::max<int64_t>(1, tokens / length)}), integers("q_len", {length}));
  };
  for (const int64_t dim : {64, 128, 256}) {
    const Axis head_dim = integers("head_dim", {dim}), heads = integers("q_heads", {width / dim});
    blocks.add({head_dim, heads, tiles_r, tiles_c, full ? masks : integers("causal", {0})});
    // Rate against length, with the default tile.
    for (const int64_t length : {512, 1024, 2048, 4096, 8192, 16384}) {
      if (!full && length > 4096) continue;
      const auto [batch, q_len] = of_length(length);
      blocks.add({head_dim, heads, batch, q_len, masks});
    }
  }
  blocks.add({texts("variant", {"naive", "mma_sync", "tuned"}), integers("batch", {1}), integers("q_len", {1024}),
              integers("head_dim", {64, 128})});
  blocks.add({dtypes, integers("head_dim", {64, 128}), integers("batch", {1})});
  blocks.add({layouts, integers("head_dim", {64, 128})});
  blocks.add({integers("head_dim", {80, 96, 192})});
  blocks.add({integers("q_len", {1000, 1537})});
  // Grouped heads of a large model.
  for (const int64_t length : {2048, 4096, 8192, 16384, 32768}) {
    if (!full && length > 2048) continue;
    blocks.add({integers("batch", {1}), integers("q_heads", {64}), integers("kv_heads", {8}),
                integers("q_len", {length}), masks});
  }
  if (!full) return blocks.take();

  blocks.add({integers("q_heads", {12}), integers("kv_heads", {1, 4, 12}), masks});
  blocks.add({integers("q_len", {1, 17, 100}), integers("kv_len", {4096}), masks});
  blocks.add({texts("dtype", {"f16", "bf16"}), texts("out_dtype", {"f32", "f16", "bf16"})});
  blocks.add({integers("batch", {3}), layouts, masks, dtypes, integers("q_len", {1024})});
  return blocks.take();
}

}  // namespace

std::vector<AxisInfo> flash_axes() {
  return {{"variant",
           "how the kernel is written, from textbook to tuned",
           {"naive", "tiled_scalar", "tiled_vector", "mma_sync", "wgmma", "tuned"},
           0,
           0,
           1},
          {"batch", "sequences", {}, 1, 4096, 1},
          {"q_heads", "query heads", {}, 1, 1024, 1},
          {"kv_heads", "key/value heads, a divisor of q_heads; as q_heads where not named", {}, 1, 1024, 1},
          {"q_len", "queries per sequence", {}, 1, longest, 1},
          {"kv_len", "keys per sequence; as q_len where not named", {}, 1, longest, 1},
          {"head_dim", "elements of a head", {}, 8, 256, 8},
          {"causal", "1: query q sees keys up to q + kv_len - q_len", {}, 0, 1, 1},
          {"dtype", "of Q, K and V", {"f32", "f16", "bf16"}, 0, 0, 1},
          {"out_dtype", "of O", {"f32", "f16", "bf16"}, 0, 0, 1},
          {"layout", "order in memory: batch, heads, sequence, dim", {"bhsd", "bshd"}, 0, 0, 1},
          {"block_r", "query rows of a tile (Br); 0 where the variant has no tile", {}, 16, 256, 16},
          {"block_c", "keys of a tile (Bc); 0 where the variant has no tile", {}, 16, 1024, 16}};
}

std::vector<std::string> flash_compared_axes() { return {"variant", "block_r", "block_c"}; }

Sweep flash_sweep(const std::string& profile, const DeviceInfo& device) {
  return (device.backend == "cuda" ? cuda_sweep : cpu_sweep)(profile == "full");
}

void complete_flash(Case& config, const DeviceInfo& device) {
  if (!config.has("kv_len")) config.set("kv_len", config.integer("q_len"));
  if (!config.has("kv_heads")) config.set("kv_heads", config.integer("q_heads"));
  if (config.text("variant") == "naive") {
    config.set("block_r", int64_t{0});
    config.set("block_c", int64_t{0});
    return;
  }
  if (config.has("block_r") && config.has("block_c")) return;
  for (const char* axis : {"block_r", "block_c"}) {
    if (!config.has(axis)) config.set(axis, int64_t{0});
  }
  FlashConfig flash = FlashConfig::from(config);
  FlashBackend::of(device).choose_tile(flash, device);
  config.set("block_r", flash.block_r);
  config.set("block_c", flash.block_c);
}

std::optional<std::string> flash_skip_reason(const Case& config, const DeviceInfo& device) {
  const FlashConfig flash = FlashConfig::from(config);
  const FlashBackend& backend = FlashBackend::of(device);
  const std::vector<std::string> variants = backend.variants();
  if (std::find(variants.begin(), variants.end(), flash.variant) == variants.end()) {
    return fmt::format("variant {} is not one of {}'s: {}", flash.variant, device.backend, fmt::join(variants, ", "));
  }
  if (auto reason = backend.skip_reason(flash, device)) return reason;
  const size_t needed = backend.kernel(flash, device, false).threadgroup_bytes;
  if (needed <= device.threadgroup_memory_bytes) return std::nullopt;
  return fmt::format("needs {} bytes of threadgroup memory, {} has {}", needed, device.spec,
                     device.threadgroup_memory_bytes);
}

std::vector<Axis> flash_input_axes(const std::string& path) {
  const auto stored = read_safetensors(path, {"q", "k", "v"});
  const StoredTensor &q = stored.at("q"), &k = stored.at("k"), &v = stored.at("v");
  for (const auto& [name, tensor] : stored) {
    const bool empty = std::any_of(tensor.shape.begin(), tensor.shape.end(), [](int64_t size) { return size < 1; });
    if (tensor.shape.size() != 4 || empty) {
      throw BadInput(fmt::format("{}: {} has shape [{}]; [batch, heads, seq, head_dim] is wanted, none of them 0", path,
                                 name, fmt::join(tensor.shape, ", ")));
    }
  }
  const auto fail = [&](const std::string& what) { throw BadInput(path + ": " + what); };
  if (k.shape != v.shape)
    fail(fmt::format("k [{}] and v [{}] differ in shape", fmt::join(k.shape, ", "), fmt::join(v.shape, ", ")));
  if (q.dtype != k.dtype || k.dtype != v.dtype) fail("q, k and v differ in dtype");
  if (q.shape[0] != k.shape[0]) fail(fmt::format("q has batch {}, k and v {}", q.shape[0], k.shape[0]));
  if (q.shape[3] != k.shape[3]) fail(fmt::format("q has head_dim {}, k and v {}", q.shape[3], k.shape[3]));
  if (q.shape[1] % k.shape[1] != 0)
    fail(fmt::format("{} key/value heads do not divide {} query heads", k.shape[1], q.shape[1]));
  std::vector<Axis> axes = {integers("batch", {q.shape[0]}),
                            integers("q_heads", {q.shape[1]}),
                            integers("kv_heads", {k.shape[1]}),
                            integers("q_len", {q.shape[2]}),
                            integers("kv_len", {k.shape[2]}),
                            integers("head_dim", {q.shape[3]}),
                            texts("dtype", {std::string(name(q.dtype))})};
  // What the command line could not ask for is no better from a file.
  const std::vector<AxisInfo> known = flash_axes();
  for (const Axis& axis : axes) parse_axis(axis.name + "=" + to_string(axis.values.front()), known);
  return axes;
}

}  // namespace attn
