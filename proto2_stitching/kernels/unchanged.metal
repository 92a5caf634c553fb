// The other function of the table of the form `pointer`, which leaves scores as they are.
#include "common/attention/kernels/attention.h"
#include "common/kernel/metal.h"

[[visible]] float score_unchanged(float s, int q, int k, const ScoreContext& context) {
  (void)q, (void)k, (void)context;
  return s;
}
