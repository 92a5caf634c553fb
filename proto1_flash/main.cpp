// proto1_flash: which tile makes flash attention fast on the device at hand?
//
// The hypotheses are registered (claims.cpp) before the sweep (sweep.cpp) runs. The sweep's results only pick the cases
// and pairs of cases that are measured again. The new measurements judge the hypotheses.
#include "proto1_flash/sweep.h"

int main(int argc, char** argv) {
  using namespace attn;
  return run_experiment(argc, argv, flash_experiment());
}
