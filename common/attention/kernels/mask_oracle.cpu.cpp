// Evaluates a user's mask function for whole rows, for the oracle. The host replaces user_mask.h by a text that
// calls the function, which computes in float, as in the attention kernels.
//
// Grid: a threadgroup for each row.
#include "common/attention/kernels/mask_oracle.h"

#include "common/kernel/cpu.h"

namespace {
#include "common/attention/kernels/user_mask.h"
}

extern "C" void mask_oracle(const MaskOracleParams* params, const Threadgroup* group) {
  const MaskOracleParams& p = *params;
  const int row = static_cast<int>(group->index[0]), q = p.first + row * p.step, keys = p.context.kv_len;
  const KeyRange bound = bound_of(q, p.context);
  unsigned char* const seen = p.visible + static_cast<long long>(row) * keys;
  p.bounds[row] = bound;
  for (int k = 0; k < keys; ++k) seen[k] = bound.begin <= k && k < bound.end && visible(q, k, p.context);
}
