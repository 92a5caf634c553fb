// Small cases of the experiment, and functions that run a case on the device under test and check it.
#pragma once

#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/testing/tested_device.h"
#include "proto6_linear/problem.h"
#include "proto6_linear/sweep.h"

namespace attn {

/// Returns the case with another variant and scan. On a GPU the fused kernel takes only 16-bit types and chunks of 64,
/// so there a fused case gets chunks of 64, and bf16 in the place of f32.
inline LinearCase in_form(LinearCase config, const std::string& variant, const std::string& scan = "none") {
  LinearConfig& linear = config.linear;
  linear.variant = variant;
  linear.scan = scan;
  if (variant == "recurrent") linear.chunk = 0;
  if (variant != "fused" || !test::on_cuda) return config;
  linear.chunk = 64;
  if (linear.dtype == DType::f32) linear.dtype = DType::bf16;
  linear.out_dtype = linear.dtype;
  return config;
}

/// Returns the cases with these values of axes ("gate=none,head causal=0"), each combination. An axis that is not named
/// has one value. There are three ragged sequences, of which the second is empty; the first has several whole chunks
/// and a part of a chunk. head_dim and value_dim are no powers of two.
inline std::vector<LinearCase> small_cases(const std::string& axes) {
  Sweep sweep;
  Block& block = sweep.blocks.emplace_back();
  std::istringstream all(
      "variant=phases scan=passes batch=3 heads=2 q_len=150 lengths=ragged head_dim=24 value_dim=40 chunk=32 dtype=f32 "
      "state=1 layout=bshd " +
      axes);
  for (std::string text; all >> text;) {
    const Axis axis = parse_axis(text, linear_axes());
    std::erase_if(block, [&](const Axis& known) { return known.name == axis.name; });
    block.push_back(axis);
  }
  std::vector<LinearCase> cases;
  const auto complete = [](Case& config) { complete_linear(config, test::device().info()); };
  for (const Case& config : expand(sweep, linear_axes(), complete)) cases.push_back(LinearCase::from(config));
  return cases;
}
inline LinearCase small_case(const std::string& variant = "phases", const std::string& scan = "passes") {
  return in_form(small_cases("").at(0), variant, variant == "phases" ? scan : "none");
}

/// Returns the case as the experiment would make it. With the feature map `identity` the divisor would have terms of
/// both signs, so a normalised case gets `elu1`.
inline LinearCase completed(LinearCase config) {
  LinearConfig& linear = config.linear;
  linear.all_rows = 0;
  for (const int64_t length : config.sequence_lengths()) linear.all_rows += length;
  if (linear.normalised && linear.feature.name == "identity") linear.feature = named_feature("elu1");
  return config;
}

struct LinearRun {
  Check check;
  Tensor o;
  std::vector<float> state, key_sum;
};

inline LinearRun run_linear(const LinearCase& config, const std::shared_ptr<SharedInputs>& inputs,
                            PipelineCache& cache = test::pipelines(), Device& on = test::device()) {
  LinearRun run;
  const auto keep = [&](const LinearOutputs& outputs, const Check& check) {
    run = {check, outputs.o(), outputs.final_state(), outputs.final_key_sum()};
  };
  if (config.linear.scan == "host") {
    HostScanProblem problem(on, cache, inputs, config, linear_plan(config, on.info()));
    problem.sample();
    keep(problem.outputs(), problem.check());
    return run;
  }
  LinearProblem problem(on, cache, inputs, config, linear_plan(config, on.info()));
  // The second launch finds the scratch memory as the first launch left it.
  for (int launch = 0; launch < 2; ++launch) {
    const Check check = test::launched(problem, on);
    keep(problem.outputs(), check);
    if (!run.check.ok) break;
  }
  return run;
}
inline LinearRun run_linear(const LinearCase& config, PipelineCache& cache = test::pipelines(),
                            Device& on = test::device()) {
  const LinearCase whole = completed(config);
  return run_linear(whole, std::make_shared<SharedInputs>(on, test::pipelines(), whole, 7), cache, on);
}

/// Returns the error that the check finds, or an empty text.
inline std::string difference(const LinearCase& config) {
  const Check check = run_linear(config).check;
  return check.ok ? "" : check.worst;
}

inline std::string words(const LinearCase& config) {
  const LinearConfig& linear = config.linear;
  return linear.variant + " " + linear.scan + " gate " + std::to_string(linear.gate) + " D " +
         std::to_string(linear.head_dim) + " " + std::to_string(linear.value_dim) + " chunk " +
         std::to_string(linear.chunk) + " tokens " + std::to_string(linear.tokens) +
         (linear.normalised ? " normalised" : "") + (linear.causal ? "" : " full") + " " + linear.feature.name + " " +
         std::string(name(linear.dtype));
}

/// Returns the case in each form that the device under test can run.
inline std::vector<LinearCase> forms(const LinearCase& config) {
  std::vector<LinearCase> all;
  for (const auto& [variant, scan] : {std::pair{"phases", "passes"},
                                      {"phases", "lookback"},
                                      {"phases", "host"},
                                      {"fused", "none"},
                                      {"recurrent", "none"}}) {
    const LinearCase one = in_form(config, variant, scan);
    if (!linear_plan(completed(one).linear, test::device().info(), true).unable.empty()) continue;
    all.push_back(one);
  }
  return all;
}

}  // namespace attn
