#include "common/cases/modifier_axes.h"

#include <fmt/format.h>

#include <algorithm>

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

const std::vector<ModifierAxis>& rotary_axes() {
  static const std::vector<ModifierAxis> axes = {
      {{"rotary_dim", "columns of a row that RoPE turns; 0: all", {}, 0, 512, 2}, int64_t{0}},
      {{"rope_pairing",
        "which columns turn as a pair: i and i + rotary_dim / 2, or 2i and 2i + 1",
        {"half_split", "interleaved"}},
       std::string("half_split")},
      {{"rope_theta", "the base of the frequencies", {}, 2, 1000000000, 1}, int64_t{10000}},
      {{"rope_scaling",
        "for long sequences: linear, NTK or YaRN by a factor of 4, or the scaling of Llama 3.1",
        {"none", "linear", "ntk", "yarn", "llama3"}},
       std::string("none")},
      {{"rope_angles", "whether a launch computes the angles, or reads them from a table", {"computed", "table"}},
       std::string("computed")},
      {{"rope_position", "position of the first key", {}, 0, 1 << 30, 1}, int64_t{0}},
      {{"rope_in_place", "1: the launch before attention overwrites Q and K; 0: it writes other tensors", {}, 0, 1, 1},
       int64_t{0}}};
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
#define ATTN_MODIFIER(type, name, ...) m.name = static_cast<type>(config.integer(#name));
#define ATTN_MODIFIER_TABLE(element, name, ...) m.name = config.integer(#name) != 0;
#define ATTN_DRAWN_TABLE(element, name, ...)
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
  m.bias = config.text("bias");
  m.score_by = config.text("score_by");
  m.documents = config.integer("documents");
  m.rotary = rotary_of(config);
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
  if (m.score_by == "noinline" && m.score_rules() == 0) return "score_by=noinline: there is no alibi, soft_cap or bias";
  if (m.score_by == "run_time" && m.score_rules() > m.alibi + (m.soft_cap != 0) + (m.bias != "none")) {
    return "score_by=run_time is allowed only with alibi, soft_cap and bias";
  }
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

namespace {

/// Returns the help text of an axis that turns a table on. `comment` begins with the table's shape and a colon.
std::string meaning(const std::string& comment) { return fmt::format("1{}", comment.substr(comment.find(": "))); }

/// Returns the axis of an option with a number.
template <typename T>
ModifierAxis axis_of(const char* name, T off, T least, T most, const std::string& help) {
  const auto whole = [](T value) { return std::min(static_cast<int64_t>(value), longest_sequence); };
  return {{name, help, {}, whole(std::min(off, least)), whole(most), 1}, whole(off)};
}

}  // namespace

const std::vector<ModifierAxis>& modifier_axes() {
  static const std::vector<ModifierAxis> axes = {
#define ATTN_MODIFIER(type, name, off, least, most, help) axis_of<type>(#name, off, least, most, help),
#define ATTN_SWITCHED_TABLE(comment, element, name, ...) axis_of<bool>(#name, false, false, true, meaning(comment)),
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
      {{"bias", "the axes of a tensor that is added to the scores", {"none", "k", "bk", "qk", "hqk", "bhqk"}},
       std::string("none")},
      {{"documents",
        "average number of keys of a document; a query sees only its own document; 0: no documents",
        {},
        0,
        longest_sequence,
        1},
       int64_t{0}},
      {{"block_sparse", "per cent of the blocks of 128 queries x 128 keys that are seen; 0: all", {}, 0, 99, 1},
       int64_t{0}},
      {{"score_by",
        "how a kernel gets alibi, soft_cap and bias; constant: only those that are on are compiled; run_time: all are "
        "compiled, and the kernel branches; noinline: as constant, in a function that is called for each score",
        {"constant", "run_time", "noinline"}},
       std::string("constant")},
      {{"window_by", "how a kernel applies the window: as a range of keys, or as a mask", {"range", "mask"}},
       std::string("range")},
      {{"lists", "1: kernels read a mask's lists of key blocks; 0: they ask the mask for each pair", {}, 0, 1, 1},
       int64_t{1}},
      {{"rope",
        "rotary positions. before: a launch turns Q and K; query: a launch turns K, the attention kernel turns Q; "
        "kernel: the attention kernel turns both",
        {"none", "before", "query", "kernel"}},
       std::string("none")},
      {{"score_function", "a function of yours changes the scores (--score-function)", {"none"}}, std::string("none")},
      {{"mask_function", "a function of yours hides pairs (--mask-function)", {"none"}}, std::string("none")}};
  return axes;
}

std::vector<std::string> modifiers_on(const Case& config) {
  std::vector<std::string> on;
  for (const auto& [axis, off] : modifier_axes()) {
    if (config.has(axis.name) && config.value_text(axis.name) != to_string(off)) on.push_back(axis.name);
  }
  return on;
}

}  // namespace attn
