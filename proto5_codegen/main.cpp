// proto5_codegen: can a generator replace the hand-written kernel?
//
// The experiment compares hand-written kernels with kernels for the same work that the compiler makes from plain loops,
// and with kernels of Halide, Triton and TileLang. An oracle in double checks each case. The hypotheses are in
// claims.cpp.
#include "proto5_codegen/sweep.h"

int main(int argc, char** argv) {
  using namespace attn;
  return run_experiment(argc, argv, codegen_experiment());
}
