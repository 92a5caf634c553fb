// proto3_paged: does a paged key/value cache cost time, and which page size is best?
//
// Each sequence has new queries, which attend over the cached keys of the sequence: a few queries for decoding, many
// for prefill. The keys lie on pages or contiguously, and the same kernel reads both. Each case is checked against the
// oracle, a reference on the host. The hypotheses are in claims.cpp.
#include "proto3_paged/sweep.h"

int main(int argc, char** argv) {
  using namespace attn;
  return run_experiment(argc, argv, paged_experiment());
}
