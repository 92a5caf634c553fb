// proto6_linear: what does each form of linear attention cost, and from which length on is linear attention faster than
// softmax attention?
//
// An oracle computes the recurrence in double (reference.h), and checks each case of linear attention. The hypotheses
// are in claims.cpp.
#include "common/cases/user_functions.h"
#include "common/experiment/experiment.h"
#include "proto6_linear/claims.h"
#include "proto6_linear/crossover.h"
#include "proto6_linear/problem.h"
#include "proto6_linear/sweep.h"

int main(int argc, char** argv) {
  using namespace attn;
  const ExperimentSpec spec = {.name = "proto6_linear",
                               .summary = "Linear attention, its forms, and where it overtakes softmax attention.",
                               .axes = linear_axes(),
                               .compared_axes = linear_compared_axes(),
                               .default_tile = false,
                               .claims = linear_claims,
                               .answer = linear_answer(),
                               .sweep = linear_sweep,
                               .complete = complete_linear,
                               .plan = linear_case_plan,
                               .make = linear_problems(),
                               .make_host = host_scan_problems(),
                               .file_options = {feature_file()},
                               .file_sweep = feature_sweep,
                               .study_bytes = linear_study_bytes,
                               .prepare = [](Experiment& lab) {
                                 const std::string file = lab.file(feature_option);
                                 require_compiles(lab.device(), read_function(FunctionKind::feature, file));
                               }};
  return run_experiment(argc, argv, spec, run_with_crossovers);
}
