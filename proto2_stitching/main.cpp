// proto2_stitching: what does it cost an attention kernel to call a score function that somebody else wrote?
//
// The function is built in, or in a file of the user. The score hook of an attention kernel reaches the function in
// several forms. Each comparison measures a form and `monolithic`, the function's text in the kernel, in turns.
#include <string>

#include "common/cases/user_functions.h"
#include "proto2_stitching/problem.h"
#include "proto2_stitching/sweep.h"

int main(int argc, char** argv) {
  using namespace attn;
  return run_experiment(argc, argv, stitch_experiment());
}
