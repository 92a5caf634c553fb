#include "common/cases/modifier_axes.h"

#include <fmt/format.h>

#include "common/base/error.h"
#include "common/cases/axes.h"
#include "common/cases/configurations.h"

namespace attn {
namespace {

RopeScaling scaling_of(const std::string& name) {
  if (name == "linear") return RopeLinear{4};
  if (name == "ntk") return RopeNtk{4};
  if (name == "yarn") return RopeYarn{.factor = 4, .original_length = 4096};
  if (name == "llama3") return RopeLlama3{};
  return {};
}

}  // namespace

const std::vector<std::pair<std::string, AxisValue>>& rotary_axes() {
  static const std::vector<std::pair<std::string, AxisValue>> axes = {{"rotary_dim", int64_t{0}},
                                                                      {"rope_pairing", std::string("half_split")},
                                                                      {"rope_theta", int64_t{10000}},
                                                                      {"rope_scaling", std::string("none")},
                                                                      {"rope_angles", std::string("computed")},
                                                                      {"rope_position", int64_t{0}},
                                                                      {"rope_in_place", int64_t{0}}};
  return axes;
}

Rotary rotary_of(const Case& config) {
  Rotary rotary;
  rotary.by = config.text("rope");
  if (rotary.by == "none") return rotary;
  const int64_t dim = config.integer("head_dim"), rotary_dim = config.integer("rotary_dim");
  rotary.config = {
      .head_dim = dim,
      .rotary_dim = rotary_dim == 0 ? dim : rotary_dim,
      .pairing = config.text("rope_pairing") == "interleaved" ? RopePairing::interleaved : RopePairing::half_split,
      .theta = static_cast<double>(config.integer("rope_theta")),
      .scaling = scaling_of(config.text("rope_scaling"))};
  rotary.table = config.text("rope_angles") == "table";
  rotary.in_place = config.integer("rope_in_place") != 0;
  rotary.position = config.integer("rope_position");
  rope_frequencies(rotary.config);  // throws if the configuration is invalid
  if (rotary.in_kernel() && rotary.config.rotary_dim % 8 != 0) {
    throw BadInput(fmt::format(
        "rope={}: rotary_dim={}: a kernel that rotates loaded rows takes a multiple of 8; rope=before takes any even "
        "number",
        rotary.by, rotary.config.rotary_dim));
  }
  if (rotary.in_place && rotary.by != "before") {
    throw BadInput(fmt::format("rope_in_place=1 is allowed only with rope=before, not with rope={}", rotary.by));
  }
  const int64_t first_query = rotary.position + config.integer("kv_len") - config.integer("q_len");
  if (rotary.table && first_query < 0) {
    throw BadInput(
        fmt::format("rope_angles=table: the first query is at position {}; a table begins at 0", first_query));
  }
  return rotary;
}

Modifiers modifiers_of(const Case& config) {
  Modifiers m;
  m.alibi = config.integer("alibi") != 0;
  m.soft_cap = static_cast<double>(config.integer("soft_cap"));
  m.bias = config.text("bias");
  m.score_by = config.text("score_by");
  m.sinks = config.integer("sinks") != 0;
  m.window_left = config.integer("window_left");
  m.window_right = config.integer("window_right");
  m.prefix = config.integer("prefix");
  m.documents = config.integer("documents");
  m.lengths = config.integer("lengths") != 0;
  m.starts = config.integer("starts") != 0;
  m.rotary = rotary_of(config);
  m.global_tokens = config.integer("global_tokens");
  m.block_sparse = config.integer("block_sparse");
  m.window_by_mask = config.text("window_by") == "mask";
  m.lists = config.integer("lists") != 0;
  return m;
}

std::string pointless(const Modifiers& m, const Case& config) {
  if (m.prefix > 0 && config.integer("causal") == 0) {
    return fmt::format("prefix={}: without causal=1 every query sees the keys of the prefix anyway", m.prefix);
  }
  if (m.global_tokens > 0 && !m.window()) {
    return fmt::format("global_tokens={}: without window_left or window_right global tokens change nothing",
                       m.global_tokens);
  }
  if (m.window_by_mask && !m.window()) return "window_by=mask: there is no window_left or window_right";
  if (m.score_by == "noinline" && !m.changes_scores()) return "score_by=noinline: there is no alibi, soft_cap or bias";
  if (m.score_by != "constant" && config.text("score_function") != "none") {
    return fmt::format("score_by={}: with a score function of yours only score_by=constant is allowed", m.score_by);
  }
  if (!m.lists && !m.mask() && config.text("mask_function") == "none") {
    return "lists=0: only global_tokens, block_sparse, window_by=mask and a mask function have lists";
  }
  return "";
}

FlashConfig modified_config(const Case& config) {
  FlashConfig flash = flash_config_of(config);
  if (config.integer("prefix") > 0) flash.shape.causal = false;
  return flash;
}

const std::vector<std::pair<std::string, AxisValue>>& modifier_axes() {
  static const std::vector<std::pair<std::string, AxisValue>> axes = {{"alibi", int64_t{0}},
                                                                      {"soft_cap", int64_t{0}},
                                                                      {"bias", std::string("none")},
                                                                      {"score_by", std::string("constant")},
                                                                      {"sinks", int64_t{0}},
                                                                      {"window_left", int64_t{-1}},
                                                                      {"window_right", int64_t{-1}},
                                                                      {"prefix", int64_t{0}},
                                                                      {"documents", int64_t{0}},
                                                                      {"lengths", int64_t{0}},
                                                                      {"starts", int64_t{0}},
                                                                      {"global_tokens", int64_t{0}},
                                                                      {"block_sparse", int64_t{0}},
                                                                      {"window_by", std::string("range")},
                                                                      {"lists", int64_t{1}},
                                                                      {"rope", std::string("none")},
                                                                      {"score_function", std::string("none")},
                                                                      {"mask_function", std::string("none")}};
  return axes;
}

std::vector<AxisInfo> modifier_infos() {
  return {
      {"alibi", "1: a penalty that grows with distance, with a slope per head", {}, 0, 1, 1},
      {"soft_cap", "cap * tanh(score / cap); 0: none", {}, 0, 1000, 1},
      {"bias", "the axes of a tensor that is added to the scores", {"none", "k", "bk", "qk", "hqk", "bhqk"}, 0, 0, 1},
      {"score_by",
       "how a kernel gets alibi, soft_cap and bias; constant: only those that are on are compiled; run_time: all are "
       "compiled, and the kernel branches; noinline: as constant, in a function that is called for each score",
       {"constant", "run_time", "noinline"},
       0,
       0,
       1},
      {"sinks", "1: each head has a logit whose exponential is added to the denominator of the softmax", {}, 0, 1, 1},
      {"window_left", "how many keys before its own key a query sees; -1: all", {}, -1, longest_sequence, 1},
      {"window_right", "how many keys after its own key a query sees; -1: all", {}, -1, longest_sequence, 1},
      {"prefix",
       "how many of the first keys every query sees, in addition to the causal keys; 0: none",
       {},
       0,
       longest_sequence,
       1},
      {"documents",
       "average number of keys of a document; a query sees only its own document; 0: no documents",
       {},
       0,
       longest_sequence,
       1},
      {"lengths", "1: each sequence has its own length, and padding after it", {}, 0, 1, 1},
      {"starts", "1: each sequence has its own first key, and padding before it", {}, 0, 1, 1},
      {"global_tokens",
       "with a window: how many of the first tokens see all keys and are seen by all queries; 0: none",
       {},
       0,
       4096,
       1},
      {"block_sparse", "per cent of the blocks of 128 queries x 128 keys that are seen; 0: all", {}, 0, 99, 1},
      {"window_by", "how a kernel applies the window: as a range of keys, or as a mask", {"range", "mask"}, 0, 0, 1},
      {"lists", "1: kernels read a mask's lists of key blocks; 0: they ask the mask for each pair", {}, 0, 1, 1}};
}

std::vector<std::string> modifiers_on(const Case& config) {
  std::vector<std::string> on;
  for (const auto& [axis, off] : modifier_axes()) {
    if (config.has(axis) && config.value_text(axis) != to_string(off)) on.push_back(axis);
  }
  return on;
}

}  // namespace attn
