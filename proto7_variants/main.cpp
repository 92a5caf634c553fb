// proto7_variants: what does each modifier of attention cost, if all modifiers are hooks of one kernel?
//
// Modifiers are, for example, ALiBi, windows, packed documents, RoPE and functions of the user. They run alone and
// together, in the tuned kernels of common/attention. An oracle that computes the same modifiers in double checks each
// case. The hypotheses are in claims.cpp.
#include "common/cases/axes.h"
#include "common/experiment/experiment.h"
#include "proto7_variants/claims.h"
#include "proto7_variants/functions.h"
#include "proto7_variants/problem.h"
#include "proto7_variants/sweep.h"

int main(int argc, char** argv) {
  using namespace attn;
  const ExperimentSpec spec = {.name = "proto7_variants",
                               .summary = "Modifiers of attention: what each costs as a hook of one kernel.",
                               .axes = variants_axes(),
                               .compared_axes = variants_compared_axes(),
                               .default_tile = false,
                               .narrowing_axes = variants_narrowing_axes(),
                               .claims = [](const DeviceInfo&) { return variants_claims(); },
                               .answer = variants_answer(),
                               .sweep = variants_sweep,
                               .complete = complete_variants,
                               .plan = variants_case_plan,
                               .make = variants_problems(),
                               .input_axes = flash_input_axes,
                               .file_options = function_options(),
                               .file_sweep = functions_sweep,
                               .prepare = require_functions};
  return run_experiment(argc, argv, spec);
}
