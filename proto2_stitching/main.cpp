// proto2_stitching: what does it cost an attention kernel to call a score function that somebody else wrote?
//
// The function is built in, or in a file of the user. The score hook of an attention kernel reaches the function in
// several forms. Each comparison measures a form and `monolithic`, the function's text in the kernel, in turns.
#include <string>

#include "common/cases/axes.h"
#include "common/cases/user_functions.h"
#include "common/experiment/experiment.h"
#include "proto2_stitching/claims.h"
#include "proto2_stitching/problem.h"
#include "proto2_stitching/sweep.h"

int main(int argc, char** argv) {
  using namespace attn;
  const ExperimentSpec spec = {
      .name = "proto2_stitching",
      .summary = "What it costs to call a score function in the inner loop of attention, for each form of the call.",
      .axes = stitch_axes(),
      .compared_axes = stitch_compared_axes(),
      .default_tile = false,
      .claims = [](const DeviceInfo& device) { return stitch_claims(device.units); },
      .answer = stitch_answer(),
      .sweep = stitch_sweep,
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
  return run_experiment(argc, argv, spec);
}
