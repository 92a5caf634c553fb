// The other node of the graph, which gets the result of the score function, and leaves it as it is.
#include "common/attention/kernels/attention.h"
#include "common/kernel/metal.h"

[[stitchable]] float score_unchanged(float s, int q, int k, HookContext context) {
  (void)q, (void)k, (void)context;
  return s;
}
