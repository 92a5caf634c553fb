#include "common/attention/modifiers.h"

#include <fmt/format.h>

#include <cmath>

#include "common/attention/kernels/modifiers/modifiers.h"

namespace attn {
namespace {

std::string instead(const std::string& hook) {
  return fmt::format("#include \"common/attention/kernels/modifiers/{}.h\"\n", hook);
}

}  // namespace

int Modifiers::bias_kind() const { return bias == "none" ? 0 : bias_has('k') ? BIAS_OF_KEYS : BIAS_OF_ROWS; }

bool Modifiers::change_kernel() const {
  return mask() || mask_bits || changes_scores() || score_by != "constant" || sinks || lengths || starts ||
         ragged > 0 || window() || prefix > 0 || documents > 0 || rotary.in_kernel();
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
  const bool at_run_time = m.score_by == "run_time", whole_cap = at_run_time || m.soft_cap == std::trunc(m.soft_cap);
  hooks.text = instead(m.tree ? "score_in_trees" : m.score_by == "constant" ? "score" : "score_" + m.score_by);
  for (const char* hook : {"keys", "mask", "sink"}) {
    hooks.includes[fmt::format("common/attention/kernels/{}.h", hook)] = instead(hook);
  }
  if (m.starts) hooks.includes["common/attention/kernels/keys.h"] = instead("keys_from_starts");
  if (m.ragged > 0) hooks.includes["common/attention/kernels/keys.h"] = instead("keys_of_ragged");
  hooks.constants = {{"ALIBI", m.alibi || at_run_time},
                     {"BIAS", at_run_time ? BIAS_OF_KEYS : m.bias_kind()},
                     {"SINKS", m.sinks},
                     {"WINDOW_LEFT", m.window_left},
                     {"WINDOW_RIGHT", m.window_right},
                     {"PREFIX", m.prefix},
                     {"DOCUMENTS", m.documents > 0},
                     {"LENGTHS", m.lengths},
                     {"GLOBAL_TOKENS", m.global_tokens},
                     {"BLOCK_SPARSE", m.block_sparse > 0},
                     {"WINDOW_BY_MASK", m.window_by_mask}};
  if (m.ragged > 0) hooks.constants["RAGGED"] = m.ragged;
  if (whole_cap) {
    hooks.constants.merge({{"SOFT_CAP", at_run_time ? 1 : static_cast<int64_t>(m.soft_cap)}});
  } else {  // function constants are whole numbers, so the header gets the cap as text
    const std::string header = "common/attention/kernels/modifiers/score.h";
    hooks.includes[header] = fmt::format("constexpr float SOFT_CAP = {:a}f;\n#define SOFT_CAP_VALUE 1\n", m.soft_cap) +
                             read_source({}, header);
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
  hooks.change = m.soft_cap != 0 || m.bias != "none" || m.score_by != "constant" || m.tree ? ScoreChange::any
                 : m.alibi                                                                 ? ScoreChange::linear
                                                                                           : ScoreChange::none;
  // The relative error of the hardware's tanh, which CUDA kernels use for 16-bit elements. All other versions of tanh
  // are off by at most 3e-7. The tolerance allows for errors of this size without score_error.
  hooks.score_error = m.soft_cap != 0 && dtype != DType::f32 ? 0x1p-11 : 0;
  return hooks;
}

AttentionHooks without_mask(AttentionHooks hooks) {
  hooks.includes.erase("common/attention/kernels/mask.h");
  hooks.constants.erase("BLOCK_SPARSE");
  return hooks;
}

}  // namespace attn
