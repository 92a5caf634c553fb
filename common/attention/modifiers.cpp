#include "common/attention/modifiers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>

#include "common/base/divided_up.h"
#include "common/base/error.h"

namespace attn {
namespace {

std::string instead(const std::string& hook) {
  return fmt::format("#include \"common/attention/kernels/modifiers/{}.h\"\n", hook);
}

/// Returns the name of the function constant of an option.
std::string constant(std::string option) {
  for (char& c : option) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return option;
}

}  // namespace

int Modifiers::bias_kind() const { return bias == "none" ? 0 : bias_has('k') ? BIAS_OF_KEYS : BIAS_OF_ROWS; }

int Modifiers::score_rules() const {
  int rules = (bias != "none") + tree;
#define ATTN_MODIFIER(...)
#define ATTN_SCORE_MODIFIER(type, name, off, ...) rules += name != off;
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
  return rules;
}

ScoreChange Modifiers::score_change() const {
  if (score_by != "constant" || score_rules() > alibi) return ScoreChange::any;
  return alibi ? ScoreChange::linear : ScoreChange::none;
}

bool Modifiers::mask() const {
  bool masks = block_sparse > 0 || window_by_mask;
#define ATTN_MODIFIER(...)
#define ATTN_MASK_MODIFIER(type, name, off, ...) masks |= name != off;
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
  return masks;
}

bool Modifiers::change_kernel() const {
  bool changes =
      score_change() != ScoreChange::none || mask() || mask_bits || ragged > 0 || documents > 0 || rotary.in_kernel();
#define ATTN_MODIFIER(type, name, off, ...) changes |= name != off;
#define ATTN_MODIFIER_TABLE(element, name, ...) changes |= name;
#define ATTN_DRAWN_TABLE(element, name, ...)
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
  return changes;
}

std::vector<double> alibi_slopes(int64_t heads) {
  int64_t power = 1;
  while (2 * power <= heads) power *= 2;
  std::vector<double> slopes;
  for (int64_t i = 1; i <= power; ++i) {
    slopes.push_back(std::exp2(-8 * static_cast<double>(i) / static_cast<double>(power)));
  }
  for (int64_t i = 1; static_cast<int64_t>(slopes.size()) < heads; i += 2) {
    slopes.push_back(std::exp2(-4 * static_cast<double>(i) / static_cast<double>(power)));
  }
  return slopes;
}

AttentionHooks modifier_hooks(const Modifiers& m, DType dtype) {
  AttentionHooks hooks;
  hooks.text = instead(m.score_by == "constant" ? "score" : "score_" + m.score_by);
  for (const char* hook : {"keys", "mask", "sink"}) {
    hooks.includes[fmt::format("common/attention/kernels/{}.h", hook)] = instead(hook);
  }
  if (m.ragged > 0) hooks.includes["common/attention/kernels/keys.h"] = instead("keys_of_ragged");
  Modifiers compiled = m;
  if (m.score_by == "run_time") {
    compiled.alibi = true;
    compiled.soft_cap = 1;
    compiled.bias = "k";
  }
  std::string fractions;  // function constants are whole numbers, so the kernel gets other numbers as text
  const auto set = [&](const char* name, auto value) {
    if (value == static_cast<decltype(value)>(static_cast<int64_t>(value))) {
      hooks.constants[constant(name)] = static_cast<int64_t>(value);
    } else {
      fractions += fmt::format("[[maybe_unused]] constexpr CONSTANT float {0} = {1:a}f;\n#define {0}_VALUE 1\n",
                               constant(name), static_cast<double>(value));
    }
  };
#define ATTN_MODIFIER(type, name, ...) set(#name, compiled.name);
#define ATTN_MODIFIER_TABLE(element, name, ...) set(#name, m.name);
#define ATTN_DRAWN_TABLE(element, name, ...)
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
  hooks.constants.merge(FunctionConstants{{"BIAS", compiled.bias_kind()},
                                          {"BLOCK_SPARSE", m.block_sparse > 0},
                                          {"DOCUMENTS", m.documents > 0},
                                          {"SCORE_RULES", compiled.score_rules()},
                                          {"TREE", m.tree},
                                          {"WINDOW_BY_MASK", m.window_by_mask || m.global_tokens > 0}});
  if (m.ragged > 0) hooks.constants["RAGGED"] = m.ragged;
  if (!fractions.empty()) {
    const std::string header = "common/attention/kernels/modifiers/modifiers.h";
    hooks.includes[header] = "#include \"common/kernel/spaces.h\"\n" + fractions + read_source({}, header);
  }
  if (m.mask() && m.lists) hooks.lists = m.lengths || m.starts ? ListScope::sequence : ListScope::all;
  if (m.mask_bits) {
    hooks.includes["common/attention/kernels/mask.h"] = instead("mask_in_bits");
    hooks.includes["common/attention/kernels/seen_pairs.h"] = instead("seen_in_bits");
    hooks.lists = ListScope::head;
  }
  if (m.rotary.in_kernel()) {
    const bool keys = m.rotary.by == "kernel";
    hooks.rotation = keys ? Rotation::all : Rotation::queries;
    hooks.includes["common/attention/kernels/rotate.h"] = instead("rotate");
    hooks.constants.merge(FunctionConstants{{"ROTARY_DIM", m.rotary.config.rotary_dim},
                                            {"INTERLEAVED", m.rotary.config.pairing == RopePairing::interleaved},
                                            {"ROTATE_KEYS", keys}});
  }
  hooks.change = m.score_change();
  // The relative error of the hardware's tanh, which CUDA kernels use for 16-bit elements. All other versions of tanh
  // are off by at most 3e-7. The tolerance allows for errors of this size without score_error.
  hooks.score_error = m.soft_cap != 0 && dtype != DType::f32 ? 0x1p-11 : 0;
  return hooks;
}

AttentionHooks without_mask(AttentionHooks hooks) {
  hooks.includes.erase("common/attention/kernels/mask.h");
  hooks.constants.erase("BLOCK_SPARSE");
#define ATTN_MODIFIER(...)
#define ATTN_MASK_MODIFIER(type, name, ...) hooks.constants.erase(constant(#name));
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
  return hooks;
}

ModifierLayout::ModifierLayout(const ModifierData& data, std::span<const Table> tables)
    : head_(data), bytes_(sizeof data) {
  for (const Table& table : tables) {
    bytes_ = divided_up(bytes_, 256) * 256;
    head_.*table.offset = static_cast<int>(bytes_ + table.before * 4);
    bytes_ += (table.words + table.slack) * 4;
    if (bytes_ > INT32_MAX)
      throw BadInput(fmt::format("tables of {} bytes are not allowed; at most 2 GiB are", bytes_));
  }
}

std::vector<std::byte> ModifierLayout::filled(std::span<const Table> tables) const {
  std::vector<std::byte> all(sizeof head_);
  std::memcpy(all.data(), &head_, sizeof head_);
  for (const Table& table : tables) {
    if (!table.from) continue;
    const auto begin = static_cast<size_t>(head_.*table.offset - table.before * 4),
               bytes = static_cast<size_t>(table.words) * 4;
    all.resize(std::max(all.size(), begin + bytes));
    std::memcpy(all.data() + begin, table.from, bytes);
  }
  return all;
}

}  // namespace attn
