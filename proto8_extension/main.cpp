// proto8_extension: what does it cost to call the kernels from a framework that is not forked?
//
// The experiment times calls of attention on several paths to the device (the axis `path`), and the first call of an
// engine. The hypotheses are in claims.cpp.
#include "proto8_extension/sweep.h"

int main(int argc, char** argv) {
  using namespace attn;
  return run_experiment(argc, argv, extension_experiment());
}
