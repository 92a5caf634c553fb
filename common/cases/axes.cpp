#include "common/cases/axes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/attention/launch.h"
#include "common/base/error.h"
#include "common/cases/configurations.h"
#include "common/cases/inputs.h"
#include "common/data/tensor.h"

namespace attn {

std::vector<AxisInfo> flash_axes() {
  return {{"variant",
           "how the kernel is written, from textbook to tuned",
           {"naive", "tiled_scalar", "tiled_vector", "mma_sync", "wgmma", "tuned"},
           0,
           0,
           1},
          {"batch", "sequences", {}, 1, 4096, 1},
          {"q_heads", "query heads", {}, 1, 1024, 1},
          {"kv_heads", "key/value heads, a divisor of q_heads; if not given: q_heads", {}, 1, 1024, 1},
          {"q_len", "queries per sequence", {}, 1, longest_sequence, 1},
          {"kv_len", "keys per sequence; if not given: q_len", {}, 1, longest_sequence, 1},
          {"head_dim", "elements of a head", {}, 8, 256, 8},
          {"causal", "1: query q sees keys up to q + kv_len - q_len", {}, 0, 1, 1},
          {"dtype", "element type of Q, K and V", {"f32", "f16", "bf16"}, 0, 0, 1},
          {"out_dtype", "element type of O", {"f32", "f16", "bf16"}, 0, 0, 1},
          {"layout", "order of the dimensions: batch, heads, sequence, dim", {"bhsd", "bshd"}, 0, 0, 1},
          {"block_r", "query rows of a tile (Br); 0 where the variant has no tile", {}, 16, 256, 16},
          {"block_c", "keys of a tile (Bc); 0 where the variant has no tile", {}, 16, 1024, 16}};
}

void complete_flash(Case& config, const DeviceInfo& device) { complete_modified(config, device, {}); }

void complete_modified(Case& config, const DeviceInfo& device, const TileHints& hints) {
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
  FlashConfig flash = flash_config_of(config);
  choose_tile(flash, device, hints);
  config.set("block_r", flash.block_r);
  config.set("block_c", flash.block_c);
}

CasePlan flash_plan(const Case& config, const Setting& setting) {
  const FlashConfig flash = flash_config_of(config);
  CasePlan plan{attention_plan(flash, setting.device), flash};
  plan.memory = flash_memory(flash, 2);  // two sets of inputs: InputKind::random and InputKind::needles
  return plan;
}

std::vector<Axis> flash_input_axes(const std::string& path) {
  const auto stored = read_safetensors(path, {"q", "k", "v"});
  const StoredTensor &q = stored.at("q"), &k = stored.at("k"), &v = stored.at("v");
  for (const auto& [name, tensor] : stored) {
    const bool empty = std::any_of(tensor.shape.begin(), tensor.shape.end(), [](int64_t size) { return size < 1; });
    if (tensor.shape.size() != 4 || empty) {
      throw BadInput(fmt::format("{}: {} has shape [{}]; the shape must be [batch, heads, seq, head_dim], without a 0",
                                 path, name, fmt::join(tensor.shape, ", ")));
    }
  }
  const auto fail = [&](const std::string& what) { throw BadInput(path + ": " + what); };
  if (k.shape != v.shape)
    fail(fmt::format("k [{}] and v [{}] differ in shape", fmt::join(k.shape, ", "), fmt::join(v.shape, ", ")));
  if (q.dtype != k.dtype || k.dtype != v.dtype) fail("q, k and v differ in dtype");
  if (q.shape[0] != k.shape[0]) fail(fmt::format("q has batch {}, k and v have batch {}", q.shape[0], k.shape[0]));
  if (q.shape[3] != k.shape[3])
    fail(fmt::format("q has head_dim {}, k and v have head_dim {}", q.shape[3], k.shape[3]));
  if (q.shape[1] % k.shape[1] != 0)
    fail(fmt::format("{} key/value heads do not divide {} query heads", k.shape[1], q.shape[1]));
  std::vector<Axis> axes = {integers("batch", {q.shape[0]}),
                            integers("q_heads", {q.shape[1]}),
                            integers("kv_heads", {k.shape[1]}),
                            integers("q_len", {q.shape[2]}),
                            integers("kv_len", {k.shape[2]}),
                            integers("head_dim", {q.shape[3]}),
                            texts("dtype", {std::string(name(q.dtype))})};
  // Throws BadInput if the file has a shape that the command line would not allow.
  const std::vector<AxisInfo> known = flash_axes();
  for (const Axis& axis : axes) parse_axis(axis.name + "=" + to_string(axis.values.front()), known);
  return axes;
}

}  // namespace attn
