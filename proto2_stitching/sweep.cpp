#include "proto2_stitching/sweep.h"

#include <algorithm>

#include "common/cases/axes.h"
#include "common/cases/problem.h"
#include "common/cases/study_cases.h"
#include "common/cases/user_functions.h"
#include "common/experiment/sweep_span.h"
#include "proto2_stitching/claims.h"
#include "proto2_stitching/problem.h"

namespace attn {
namespace {

std::vector<std::string> forms_of(const DeviceInfo& device) {
  std::vector<std::string> runnable = score_forms();
  std::erase_if(runnable, [&](const std::string& form) { return !form_runs_on(form, device); });
  return runnable;
}

Sweep stitch_study(const DeviceInfo& device) {
  const Axis alibi = texts("function", {"alibi"});
  return study_cases({texts("variant", {default_variant(device)}), integers("batch", {1}), integers("q_heads", {1}),
                      integers("q_len", study_lengths), integers("head_dim", {64}), integers("causal", {0}),
                      texts("dtype", {"f32"}), texts("out_dtype", {"f32"}), texts("layout", {"bhsd"})},
                     {{alibi, texts("form", forms_of(device)), texts("grain", {"element"})},
                      {alibi, texts("form", {"noinline", "stitched"}), texts("grain", {"row", "tile"})}});
}

}  // namespace

std::vector<AxisInfo> stitch_axes() {
  std::vector<AxisInfo> axes = {
      {"form", "how the kernel reaches the score function", score_forms()},
      {"grain",
       "how many scores a call takes; always `element` with the form monolithic, which makes no calls",
       {"element", "row", "tile"}},
      {"function", "the score function; for a function of your own use --score-function", built_in_functions(), 0, 0,
       1},
      {"work", "multiply-adds of the function `chain`; 0 for other functions", {}, 0, 256, 1}};
  for (AxisInfo& axis : flash_axes()) {
    if (axis.name == "variant") {
      axis.help = "the kernel: tuned on the cpu and on Metal, mma_sync or wgmma on a GPU of NVIDIA";
      axis.choices = {"tuned", "mma_sync", "wgmma"};
    }
    axes.push_back(std::move(axis));
  }
  return axes;
}

Sweep stitch_sweep(const std::string& profile, const DeviceInfo& device) {
  const SweepSpan span = sweep_span(device);
  const bool full = profile == "full", large = span.large();
  const Axis forms = texts("form", forms_of(device));
  const Axis grains = texts("grain", {"element", "row", "tile"}), elements = texts("grain", {"element"});
  const std::vector<std::string> variants = stitch_variants(device);
  // With the small load (SweepSpan::Load) a case has one head, so a launch takes about ten milliseconds on the cpu.
  const Block common = {texts("variant", variants.empty() ? std::vector{default_variant(device)} : variants),
                        integers("batch", {large ? 4 : 1}),
                        integers("q_heads", {large ? 16 : 1}),
                        integers("q_len", {2048}),
                        integers("head_dim", {64}),
                        integers("causal", {0}),
                        texts("dtype", {span.dtype}),
                        texts("out_dtype", {span.dtype}),
                        texts("layout", {"bhsd"})};
  Sweep sweep;
  const auto add = [&](const Block& own) {
    sweep.blocks.push_back(own);
    for (const Axis& axis : common) {
      const bool named =
          std::any_of(own.begin(), own.end(), [&](const Axis& other) { return other.name == axis.name; });
      if (!named) sweep.blocks.back().push_back(axis);
    }
  };
  add({texts("function", {"alibi"}), forms, elements});
  add({texts("function", {"alibi"}), texts("form", {"noinline", "pointer", "stitched", "stitched_nolto"}),
       texts("grain", {"row", "tile"})});
  // The more work the function has, the smaller is the call's share of the time. The variant `wgmma` calls the function
  // for single scores only.
  const Axis by_row = texts("variant", {default_variant(device)}), by_element = texts("variant", {"wgmma"});
  const auto add_chain = [&](const std::vector<int64_t>& work, const std::vector<std::string>& names,
                             const Axis& at_grains) {
    const Axis chain = texts("function", {"chain"}), works = integers("work", work), chosen = texts("form", names);
    add({chain, works, chosen, at_grains, by_row});
    if (std::ranges::find(variants, "wgmma") != variants.end()) add({chain, works, chosen, elements, by_element});
  };
  add_chain({1, 4, 16, 64}, {"monolithic", "noinline"}, texts("grain", {"row", "tile"}));
  add({texts("function", {"scale", "soft_cap"}), texts("form", {"monolithic", "noinline", "stitched"}), elements});
  add({texts("function", {"alibi"}), texts("form", {"monolithic", "inline", "noinline", "stitched"}), elements,
       integers("head_dim", {128})});
  if (!full) return sweep;

  add({texts("function", {"scale", "alibi", "soft_cap"}), forms, grains, integers("head_dim", {64, 128})});
  add({texts("function", {"alibi"}), forms, grains, integers("causal", {1}), integers("head_dim", {64, 128})});
  add({texts("function", {"alibi"}), forms, elements, integers("q_len", {256, 512, 1024, 4096})});
  add({texts("function", {"alibi"}), forms, grains, texts("dtype", {"f32", "f16", "bf16"})});
  add_chain({1, 2, 4, 8, 16, 32, 64, 128}, {"monolithic", "inline", "noinline", "pointer", "stitched"}, grains);
  return sweep;
}

void complete_stitch(Case& config, const DeviceInfo& device) {
  if (!config.has("grain") || config.text("form") == "monolithic") config.set("grain", std::string("element"));
  if (config.text("function") != "chain") {
    config.set("work", int64_t{0});
  } else if (!config.has("work")) {
    config.set("work", int64_t{16});
  }
  if (!config.has("variant")) config.set("variant", default_variant(device));
  complete_flash(config, device);
}

std::vector<Axis> score_function_axes(const std::string& path) {
  return {texts("function", {read_function(FunctionKind::score, path).text_name()}), integers("work", {0})};
}

ExperimentSpec stitch_experiment() {
  return {
      .name = "proto2_stitching",
      .summary = "What it costs to call a score function in the inner loop of attention, for each form of the call.",
      .axes = stitch_axes(),
      .compared_axes = {"form", "grain"},
      .default_tile = false,
      .claims = [](const DeviceInfo& device) { return stitch_claims(device.units); },
      .sweep = stitch_sweep,
      .study_sweep = stitch_study,
      .complete = complete_stitch,
      .plan = stitch_case_plan,
      .make = stitch_problems(),
      .input_axes = flash_input_axes,
      .file_options = {{function_option,
                        "a function of your own in place of the built-in ones:\n"
                        "float score(float s, int q, int k, const ScoreContext& context)",
                        score_function_axes}},
      .prepare =
          [](Experiment& lab) {
            require_compiles(lab.device(), read_function(FunctionKind::score, lab.file(function_option)));
          }};
}

}  // namespace attn
