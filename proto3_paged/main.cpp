// proto3_paged: does a paged key/value cache cost time, and which page size is best?
//
// Each sequence has new queries, which attend over the cached keys of the sequence: a few queries for decoding, many
// for prefill. The keys lie on pages or contiguously, and the same kernel reads both. Each case is checked against the
// oracle, a reference on the host. The hypotheses are in claims.cpp.
#include "common/experiment/experiment.h"
#include "proto3_paged/claims.h"
#include "proto3_paged/problem.h"
#include "proto3_paged/sweep.h"

int main(int argc, char** argv) {
  using namespace attn;
  const ExperimentSpec spec = {.name = "proto3_paged",
                               .summary = "Attention over paged and contiguous key/value caches.",
                               .axes = paged_axes(),
                               .compared_axes = paged_compared_axes(),
                               .default_tile = false,
                               .claims = paged_claims,
                               .answer = paged_answer(),
                               .sweep = paged_sweep,
                               .complete = complete_paged,
                               .plan = paged_case_plan,
                               .make = paged_problems(),
                               .study_bytes = paged_study_bytes};
  return run_experiment(argc, argv, spec);
}
