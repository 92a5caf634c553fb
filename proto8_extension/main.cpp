// proto8_extension: what does it cost to call the kernels from a framework that is not forked?
//
// The experiment times calls of attention on several paths to the device (the axis `path`), and the first call of an
// engine. The hypotheses are in claims.cpp.
#include <string>
#include <vector>

#include "common/experiment/experiment.h"
#include "proto8_extension/claims.h"
#include "proto8_extension/problem.h"
#include "proto8_extension/sweep.h"

int main(int argc, char** argv) {
  using namespace attn;
  const ExperimentSpec spec = {.name = "proto8_extension",
                               .summary = "Attention inside a framework: what each way to call it costs.",
                               .axes = extension_axes(),
                               .compared_axes = extension_compared_axes(),
                               .default_tile = false,
                               .claims = [](const DeviceInfo&) { return extension_claims(); },
                               .answer = extension_answer(),
                               .sweep = extension_sweep,
                               .complete = complete_extension,
                               .plan = extension_plan,
                               .make = {},
                               .make_host = extension_problems()};
  return run_experiment(argc, argv, spec);
}
