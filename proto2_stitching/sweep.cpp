#include "proto2_stitching/sweep.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/attention/axes.h"
#include "proto2_stitching/problem.h"

namespace attn {
namespace {

std::vector<std::string> forms_of(const DeviceInfo& device) {
  std::vector<std::string> forms = score_forms();
  std::erase_if(forms, [&](const std::string& form) { return !form_runs_on(form, device); });
  return forms;
}

}  // namespace

std::vector<AxisInfo> stitch_axes() {
  std::vector<AxisInfo> axes = {
      {"form", "how the kernel comes to the score function", score_forms(), 0, 0, 1},
      {"grain",
       "scores that a call takes; `element` for monolithic, which has no calls",
       {"element", "row", "tile"},
       0,
       0,
       1},
      {"function", "the score function; --score-function brings one of your own", built_in_functions(), 0, 0, 1},
      {"work", "multiply-adds of the function `chain`; 0 for every other", {}, 0, 256, 1}};
  for (AxisInfo& axis : flash_axes()) {
    if (axis.name != "variant") axes.push_back(std::move(axis));
  }
  return axes;
}

std::vector<std::string> stitch_compared_axes() { return {"form", "grain"}; }

Sweep stitch_sweep(const std::string& profile, const DeviceInfo& device) {
  const bool full = profile == "full", cuda = device.backend == "cuda";
  const Axis forms = texts("form", forms_of(device));
  const Axis grains = texts("grain", {"element", "row", "tile"}), elements = texts("grain", {"element"});
  // One head on the cpu, so that a launch takes some ten milliseconds.
  const Block common = {integers("batch", {cuda ? 4 : 1}),
                        integers("q_heads", {cuda ? 16 : 1}),
                        integers("q_len", {2048}),
                        integers("head_dim", {64}),
                        integers("causal", {0}),
                        texts("dtype", {cuda ? "bf16" : "f32"}),
                        texts("out_dtype", {cuda ? "bf16" : "f32"}),
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
  add({texts("function", {"chain"}), integers("work", {1, 4, 16, 64}), texts("form", {"monolithic", "noinline"}),
       texts("grain", {"row", "tile"})});
  add({texts("function", {"scale", "soft_cap"}), texts("form", {"monolithic", "noinline", "stitched"}), elements});
  add({texts("function", {"alibi"}), texts("form", {"monolithic", "inline", "noinline", "stitched"}), elements,
       integers("head_dim", {128})});
  if (!full) return sweep;

  add({texts("function", {"scale", "alibi", "soft_cap"}), forms, grains, integers("head_dim", {64, 128})});
  add({texts("function", {"alibi"}), forms, grains, integers("causal", {1}), integers("head_dim", {64, 128})});
  add({texts("function", {"alibi"}), forms, elements, integers("q_len", {256, 512, 1024, 4096})});
  add({texts("function", {"alibi"}), forms, grains, texts("dtype", {"f32", "f16", "bf16"})});
  add({texts("function", {"chain"}), integers("work", {1, 2, 4, 8, 16, 32, 64, 128}),
       texts("form", {"monolithic", "inline", "noinline", "pointer", "stitched"}), grains});
  return sweep;
}

void complete_stitch(Case& config, const DeviceInfo& device) {
  if (!config.has("grain") || config.text("form") == "monolithic") config.set("grain", std::string("element"));
  if (config.text("function") != "chain") {
    config.set("work", int64_t{0});
  } else if (!config.has("work")) {
    config.set("work", int64_t{16});
  }
  Case flash = flash_case(config, device);
  complete_flash(flash, device);
  for (const auto& [axis, value] : flash.axes()) {
    if (axis != "variant") config.set(axis, value);
  }
}

std::vector<Axis> score_function_axes(const std::string& path) {
  read_function(path);
  return {texts("function", {file_function}), integers("work", {0})};
}

}  // namespace attn
