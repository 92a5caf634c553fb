// proto4_constants: what does a compiled variant of a kernel cost, and what does it save?
//
// A variant is a kernel with one set of constants compiled in. The experiment compiles variants of the kernels of
// proto1_flash, and gets the variants again from memory, from disk and from an archive. It measures the time that the
// host takes. The experiment also launches kernels that read constants at run time. The hypotheses are in claims.cpp.
#include <exception>
#include <string>

#include "proto4_constants/problem.h"
#include "proto4_constants/sweep.h"

int main(int argc, char** argv) {
  using namespace attn;
  if (argc > 1 && std::string(argv[1]) == first_result_option) {
    try {
      return first_result({argv + 2, argv + argc});
    } catch (const std::exception& error) {
      std::fprintf(stderr, "proto4_constants %s: %s\n", first_result_option, error.what());
      return 1;
    }
  }
  return run_experiment(argc, argv, constants_experiment());
}
