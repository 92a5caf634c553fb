// proto5_codegen: can a generator replace the hand-written kernel?
//
// The experiment compares hand-written kernels with kernels for the same work that the compiler makes from plain loops,
// and with kernels of Halide, Triton and TileLang. An oracle in double checks each case. The hypotheses are in
// claims.cpp.
#include "common/experiment/experiment.h"
#include "proto5_codegen/claims.h"
#include "proto5_codegen/problem.h"
#include "proto5_codegen/sweep.h"

int main(int argc, char** argv) {
  using namespace attn;
  const ExperimentSpec spec = {.name = "proto5_codegen",
                               .summary = "Generated kernels against hand-written ones, on the same work.",
                               .axes = codegen_axes(),
                               .compared_axes = {"generator"},
                               .default_tile = false,
                               .claims = [](const DeviceInfo&) { return codegen_claims(); },
                               .answer = codegen_answer(),
                               .sweep = codegen_sweep,
                               .complete = complete_codegen,
                               .plan = codegen_case_plan,
                               .make = codegen_problems(),
                               .source_folders = {"proto5_codegen/generated", "findings/tuning"}};
  return run_experiment(argc, argv, spec);
}
