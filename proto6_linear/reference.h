// The oracle: the recurrence of kernels/linear.h in double precision, token by token, on host threads. It shares no
// code with any kernel.
#pragma once

#include <cstdint>
#include <vector>

#include "common/cases/feature_oracle.h"
#include "common/data/tensor.h"
#include "common/linear/launch.h"

namespace attn {

/// What a configuration reads, on the host. Ragged sequences lie one after the other in batch 0.
struct LinearInputs {
  Tensor q, k, v;           // [batch, heads, rows, head_dim], of v value_dim
  std::vector<float> gate;  // by LinearConfig::gate, [heads], [batch, heads, rows] or [batch, heads, rows, head_dim]
  std::vector<float> initial_state = {}, initial_key_sum = {};  // empty: zeros
  std::vector<int> starts = {};                                 // [sequences + 1]
};

struct LinearRow {
  int64_t sequence, head, row;  // of the sequence
};

/// Answers, and how far a kernel's may be from them (the derivation is in the definition).
struct LinearReference {
  std::vector<LinearRow> rows;
  std::vector<double> o, o_allowed;                                    // rows x value_dim
  std::vector<double> state, state_allowed, key_sum, key_sum_allowed;  // the final ones, as LinearTensors has them
};

/// All rows go through the recurrence; `most_rows` of them, drawn with `seed`, are answered, among them the first and
/// the last of each sequence and head. `feature` is called from one thread at a time.
LinearReference reference_linear(const LinearConfig& config, const LinearInputs& inputs, const FeatureFunction& feature,
                                 int64_t most_rows, uint64_t seed);

/// As many rows as the oracle answers in about a second.
int64_t affordable_rows(const LinearConfig& config);

}  // namespace attn
