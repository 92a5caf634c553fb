// The oracle: the recurrence of kernels/linear.h in double precision, token by token, on host threads. It shares no
// code with any kernel.
#pragma once

#include <cstdint>
#include <vector>

#include "common/cases/feature_oracle.h"
#include "common/data/tensor.h"
#include "common/linear/launch.h"

namespace attn {

/// The inputs of a configuration, on the host. Ragged sequences lie one after the other in batch 0.
struct LinearInputs {
  Tensor q, k, v;           // [batch, heads, rows, head_dim], v with value_dim
  std::vector<float> gate;  // by LinearConfig::gate, [heads], [batch, heads, rows] or [batch, heads, rows, head_dim]
  std::vector<float> initial_state = {}, initial_key_sum = {};  // empty: zeros
  std::vector<int> starts = {};                                 // [sequences + 1]
};

struct LinearRow {
  int64_t sequence, head, row;  // row: within the sequence
};

/// The oracle's answers, and how far a kernel's values may be from them (reference.cpp derives the tolerances).
struct LinearReference {
  std::vector<LinearRow> rows;
  std::vector<double> o, o_allowed;                                    // rows x value_dim
  std::vector<double> state, state_allowed, key_sum, key_sum_allowed;  // final, laid out as in LinearTensors
};

/// All rows go through the recurrence. `most_rows` of them, drawn with `seed`, are answered. The first and the last row
/// of each sequence and head are among these. `feature` is called from one thread at a time.
LinearReference reference_linear(const LinearConfig& config, const LinearInputs& inputs, const FeatureFunction& feature,
                                 int64_t most_rows, uint64_t seed);

/// The number of rows that the oracle answers in about a second.
int64_t affordable_rows(const LinearConfig& config);

}  // namespace attn
