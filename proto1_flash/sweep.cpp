#include "proto1_flash/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "common/error.h"
#include "common/tensor.h"
#include "proto1_flash/problem.h"

namespace attn {

namespace {

constexpr int64_t longest = int64_t{1} << 24;

Axis integers(const std::string& name, const std::vector<int64_t>& values) {
  Axis axis{name, {}};
  for (const int64_t value : values) axis.values.emplace_back(value);
  return axis;
}

Axis texts(const std::string& name, const std::vector<std::string>& values) {
  Axis axis{name, {}};
  for (const std::string& value : values) axis.values.emplace_back(value);
  return axis;
}

// The axes of a block: `own` ones, and the common values of those it does not name.
Block block(const std::vector<Axis>& own) {
  Block axes = own;
  const std::array common = {texts("variant", {"tuned"}), integers("batch", {1}),      integers("q_heads", {8}),
                             integers("q_len", {1024}),   integers("head_dim", {128}), integers("causal", {0}),
                             texts("dtype", {"f32"}),     texts("out_dtype", {"f32"}), texts("layout", {"bhsd"})};
  for (const Axis& axis : common) {
    const bool named = std::any_of(own.begin(), own.end(), [&](const Axis& other) { return other.name == axis.name; });
    if (!named) axes.push_back(axis);
  }
  return axes;
}

}  // namespace

std::vector<AxisInfo> flash_axes() {
  return {{"variant",
           "how the kernel is written, from textbook to tuned",
           {"naive", "tiled_scalar", "tiled_vector", "tuned"},
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

Sweep flash_sweep(const std::string& profile, const DeviceInfo& /*device*/) {
  const bool full = profile == "full";
  const Axis tiles_r = integers("block_r", {16, 32, 64, 128});
  const Axis tiles_c = integers("block_c", {64, 80, 128, 256});
  const Axis dims = integers("head_dim", {64, 128, 256});
  const Axis masks = integers("causal", {0, 1});
  const Axis dtypes = texts("dtype", {"f32", "f16", "bf16"});
  Sweep sweep;
  // Tiles.
  sweep.blocks.push_back(block({dims, tiles_r, tiles_c}));
  // The ladder of variants.
  sweep.blocks.push_back(
      block({texts("variant", {"naive", "tiled_scalar", "tiled_vector", "tuned"}), integers("q_len", {512}),
             integers("head_dim", {64}), integers("block_r", {64}), integers("block_c", {64})}));
  // Rate against length, with the default tile.
  const std::vector<int64_t> quick_lengths = {256, 512, 1024, 2048};
  sweep.blocks.push_back(
      block({dims, masks, integers("q_len", full ? std::vector<int64_t>{256, 512, 1024, 2048, 4096} : quick_lengths)}));
  // Element types, layouts, other head dims and odd lengths.
  sweep.blocks.push_back(block({dtypes, integers("head_dim", {64, 128})}));
  sweep.blocks.push_back(block({texts("layout", {"bhsd", "bshd"}), integers("head_dim", {64, 128})}));
  sweep.blocks.push_back(block({integers("head_dim", {80, 96, 192})}));
  sweep.blocks.push_back(block({integers("q_len", {1000, 1537})}));
  if (!full) return sweep;

  sweep.blocks.push_back(block({dims, tiles_r, tiles_c, masks, dtypes, integers("q_len", {1024, 2048})}));
  sweep.blocks.push_back(
      block({texts("variant", {"naive", "tiled_scalar", "tiled_vector", "tuned"}), dims, masks,
             integers("q_len", {256, 512, 1024}), integers("block_r", {64}), integers("block_c", {64})}));
  // One head, so that a launch of the longest stays short.
  sweep.blocks.push_back(
      block({integers("q_heads", {1}), dims, masks, dtypes, integers("q_len", {4096, 8192, 16384})}));
  // Grouped heads, few queries against many keys, and 16-bit outputs.
  sweep.blocks.push_back(block({integers("q_heads", {12}), integers("kv_heads", {1, 4, 12}), masks}));
  sweep.blocks.push_back(block({integers("q_len", {1, 17, 100}), integers("kv_len", {4096}), masks}));
  sweep.blocks.push_back(block({dtypes, texts("out_dtype", {"f32", "f16", "bf16"})}));
  sweep.blocks.push_back(block({integers("batch", {3}), texts("layout", {"bhsd", "bshd"}), masks, dtypes}));
  return sweep;
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

  // From the fastest tile down: rows as many as fit beside K and V in threadgroup memory, so that these are read as
  // seldom as possible, but no more than there are queries, and several tiles for each thread, so that none waits long.
  constexpr std::pair<int64_t, int64_t> tiles[] = {{256, 128}, {128, 128}, {64, 128}, {128, 64},
                                                   {64, 64},   {32, 64},   {16, 64}};
  const bool name_r = !config.has("block_r"), name_c = !config.has("block_c");
  const int64_t heads = config.integer("batch") * config.integer("q_heads");
  const int64_t q_len = config.integer("q_len");
  for (const auto& [rows, keys] : tiles) {
    if (name_r) config.set("block_r", rows);
    if (name_c) config.set("block_c", keys);
    const bool fits = flash_threadgroup_bytes(FlashConfig::from(config), device) <= device.threadgroup_memory_bytes;
    const bool useful = rows < 2 * q_len;
    const bool balanced = heads * ((q_len + rows - 1) / rows) >= 4 * int64_t{device.units};
    if (fits && useful && balanced) return;
  }
}

std::optional<std::string> flash_skip_reason(const Case& config, const DeviceInfo& device) {
  const size_t needed = flash_threadgroup_bytes(FlashConfig::from(config), device);
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
