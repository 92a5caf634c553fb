// proto1_flash: which tile makes flash attention fast on the device at hand?
//
// The hypotheses are registered (claims.cpp) before the sweep (sweep.cpp) runs. The sweep's results only pick the cases
// and pairs of cases that are measured again. The new measurements judge the hypotheses.
#include "common/cases/axes.h"
#include "common/cases/problem.h"
#include "common/experiment/experiment.h"
#include "proto1_flash/claims.h"
#include "proto1_flash/sweep.h"

int main(int argc, char** argv) {
  using namespace attn;
  const ExperimentSpec spec = {.name = "proto1_flash",
                               .summary = "Flash attention forward: tile sizes, and what each step of tuning saves.",
                               .axes = flash_axes(),
                               .compared_axes = flash_compared_axes(),
                               .claims = flash_claims,
                               .answer = flash_answer(),
                               .sweep = flash_sweep,
                               .complete = complete_flash,
                               .plan = flash_plan,
                               .make = flash_problems(),
                               .input_axes = flash_input_axes,
                               .study_bytes = flash_study_bytes};
  return run_experiment(argc, argv, spec);
}
