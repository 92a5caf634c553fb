// proto6_linear: what does each form of linear attention cost, and from which length on is linear attention faster than
// softmax attention?
//
// An oracle computes the recurrence in double (reference.h), and checks each case of linear attention. The hypotheses
// are in claims.cpp.
#include "common/cases/user_functions.h"
#include "proto6_linear/crossover.h"
#include "proto6_linear/problem.h"
#include "proto6_linear/sweep.h"

int main(int argc, char** argv) {
  using namespace attn;
  return run_experiment(argc, argv, linear_experiment(), run_with_crossovers);
}
