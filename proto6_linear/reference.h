// The oracle: the recurrence of common/linear/kernels/linear.h in double precision, token by token, on host threads. It
// shares no code with any kernel, except the text of a user's feature map.
#pragma once

#include <cstdint>
#include <vector>

#include "common/cases/feature_oracle.h"
#include "common/data/tensor.h"
#include "common/linear/launch.h"

namespace attn {

/// The inputs of a configuration, on the host. Ragged sequences lie one after the other in batch 0.
struct LinearInputs {
  Tensor q, k, v;  // [batch, heads, rows, head_dim]; v: [batch, heads, rows, value_dim]
  /// Log decays: empty without a gate, [heads] for a gate by head, [batch, heads, rows] by token, [batch, heads, rows,
  /// head_dim] by channel.
  std::vector<float> gate;
  std::vector<float> initial_state = {}, initial_key_sum = {};  // empty: zeros
  std::vector<int> starts = {};  // ragged: [sequences + 1], the first row of each sequence, then the number of rows
};

struct LinearRow {
  int64_t sequence, head, row;  // row: counted from the sequence's first row
};

/// The oracle's results, and for each result the tolerance of a kernel's value (reference.cpp derives the tolerances).
struct LinearReference {
  std::vector<LinearRow> rows;
  std::vector<double> o, o_allowed;  // rows x value_dim
  std::vector<double> row_allowed;   // per row: tolerance of the root mean square of the row's errors; infinite where
                                     // the row has a NaN or an infinity
  std::vector<double> state, state_allowed, key_sum, key_sum_allowed;  // final values, laid out as in LinearTensors
  std::vector<double> state_row_allowed;                               // per row of the states: as row_allowed
};

/// Computes the recurrence over all tokens. The result has all rows if all heads together have at most `most_rows`
/// rows. Else it has about `most_rows` rows: of each sequence and head the first row, the last row, and one row of each
/// equal part between these two, drawn with `seed`. Only one thread at a time calls `feature`.
LinearReference reference_linear(const LinearConfig& config, const LinearInputs& inputs, const FeatureFunction& feature,
                                 int64_t most_rows, uint64_t seed);

/// Returns the number of rows that the oracle computes in about a second, but at least 64.
int64_t affordable_rows(const LinearConfig& config);

}  // namespace attn
