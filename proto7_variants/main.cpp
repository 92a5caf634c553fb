// proto7_variants: what does each modifier of attention cost, if all modifiers are hooks of one kernel?
//
// Modifiers are, for example, ALiBi, windows, packed documents, RoPE and functions of the user. They run alone and
// together, in the tuned kernels of common/attention. An oracle that computes the same modifiers in double checks each
// case. The hypotheses are in claims.cpp.
#include "proto7_variants/functions.h"
#include "proto7_variants/sweep.h"

int main(int argc, char** argv) {
  using namespace attn;
  return run_experiment(argc, argv, variants_experiment());
}
