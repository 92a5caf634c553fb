#include "proto5_codegen/sweep.h"

#include <algorithm>

#include "common/cases/axes.h"
#include "common/cases/study_cases.h"
#include "common/experiment/sweep_span.h"
#include "proto5_codegen/claims.h"
#include "proto5_codegen/generators.h"
#include "proto5_codegen/problem.h"

namespace attn {

std::vector<AxisInfo> codegen_axes() {
  return {
      {"work",
       "what a kernel computes; scores: S = scale Q K^T; softmax: P of given S; values: P V of given P; attention: "
       "O of given Q, K and V; modified: attention with ALiBi and a soft cap",
       work_names()},
      {"generator",
       "what made the kernel; hand: a programmer; search: a programmer, with constants that a search found",
       generator_names()},
      {"dtype", "type of all tensors", {"f32", "bf16"}},
      {"head_dim", "elements of a row of Q, K or V; 0: the work has no such rows", {}, 0, 128, 64},
      {"batch", "number of sequences", {}, 1, 65535, 1},
      {"heads", "heads of each sequence", {}, 1, 65535, 1},
      {"q_len", "queries of each sequence; there are as many keys", {}, 1, longest_sequence, 1},
      {"causal", "1: query i sees keys up to i; only for a whole attention", {}, 0, 1, 1},
  };
}

Sweep codegen_sweep(const std::string& profile, const DeviceInfo& device) {
  const SweepSpan span = sweep_span(device);
  const bool full = profile == "full", large = span.large();
  Sweep sweep;
  const std::vector<std::string> generators = generators_of(device);
  // Adds a block with the axes in `own`, and with the usual axes that `own` lacks.
  const auto add = [&](Block own) {
    for (Axis& axis :
         Block{texts("generator", generators), texts("dtype", {span.dtype}), integers("head_dim", {64}),
               integers("batch", {1}), integers("heads", {span.heads}), integers("q_len", {large ? 2048 : 1024})}) {
      if (std::ranges::find(own, axis.name, &Axis::name) == own.end()) own.push_back(std::move(axis));
    }
    sweep.blocks.push_back(std::move(own));
  };
  const Axis parts = texts("work", {"scores", "softmax", "values"}), whole = texts("work", {"attention"});
  const Axis modified = texts("work", {"modified"}), both = integers("head_dim", {64, 128});
  const Axis masks = integers("causal", {0, 1});
  add({whole, masks});
  add({whole, integers("head_dim", {128}), integers("causal", {1})});
  add({parts});
  add({modified, integers("causal", {1})});
  if (large) add({whole, texts("dtype", {"f32"})});
  if (!full) return sweep;
  const Axis lengths = integers("q_len", {256, 512, 1024, 2048, 4096, 8192});
  add({parts, both, lengths, integers("heads", {large ? 8 : 1})});
  add({whole, both, masks, lengths});
  add({modified, both, masks, lengths});
  if (large) add({texts("work", work_names()), both, masks, texts("dtype", {"f32"})});
  return sweep;
}

namespace {

Sweep codegen_study(const DeviceInfo& device) {
  return study_cases({texts("generator", generators_of(device)), texts("dtype", {"f32"}), integers("head_dim", {64}),
                      integers("batch", {1}), integers("heads", {1}), integers("q_len", study_lengths)},
                     {{texts("work", {"scores", "attention"})}});
}

}  // namespace

void complete_codegen(Case& config, const DeviceInfo& device) {
  config.set_default("work", std::string("attention"));
  config.set_default("generator", std::string("hand"));
  config.set_default("dtype", sweep_span(device).dtype);
  config.set_default("head_dim", int64_t{64});
  config.set_default("batch", int64_t{1});
  config.set_default("heads", int64_t{8});
  config.set_default("q_len", int64_t{1024});
  config.set_default("causal", int64_t{0});
  const std::string& work = config.text("work");
  if (work == "softmax") {
    config.set("head_dim", int64_t{0});
  } else if (config.integer("head_dim") == 0) {
    config.set("head_dim", int64_t{64});
  }
  if (work != "attention" && work != "modified") config.set("causal", int64_t{0});
}

ExperimentSpec codegen_experiment() {
  return {.name = "proto5_codegen",
          .summary = "Generated kernels against hand-written ones, on the same work.",
          .axes = codegen_axes(),
          .compared_axes = {"generator"},
          .default_tile = false,
          .claims = [](const DeviceInfo&) { return codegen_claims(); },
          .sweep = codegen_sweep,
          .study_sweep = codegen_study,
          .complete = complete_codegen,
          .plan = codegen_case_plan,
          .make = codegen_problems(),
          .source_folders = {"proto5_codegen/generated", "findings/tuning"}};
}

}  // namespace attn
