// proto8_extension: what does it cost to call the kernels from a framework that is not forked?
//
// The experiment times one call of attention on each of seven paths to the device:
// - direct: the program encodes the kernel itself;
// - engine: the call goes through Engine;
// - c: the call goes through the C interface, attn.h;
// - dlpack: the call goes through attn.h, with tensors that are described anew for each call;
// - concept: the call goes through a C++ framework to which this project adds attention;
// - torch: the call goes through PyTorch's dispatcher;
// - copies: the call goes through attn.h, and all tensors are copied from the host and back to the host.
// The hypotheses are in claims.cpp.
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
