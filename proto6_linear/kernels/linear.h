// What host and kernels of linear attention share. No other headers than the kernels' own.
//
// Each sequence and head has a state S [HEAD_DIM, VALUE_DIM] and, where NORMALISED, a key sum z [HEAD_DIM]. With the
// feature map f (feature.h), applied to each element:
//
//   S_t = decay_t S_{t-1} + f(k_t) v_t^T        z_t = decay_t z_{t-1} + f(k_t)
//   o_t = scale f(q_t)^T S_t                    NORMALISED: o_t = f(q_t)^T S_t / (f(q_t)^T z_t)
//
// (Katharopoulos et al. 2020; with decays RetNet, Sun et al. 2023, Mamba-2, Dao and Gu 2024, and GLA, Yang et al. 2024.)
// Without CAUSAL every o_t reads the state behind the last token, and there is no gate. A token's decay is at most 1 and
// stands as its natural logarithm; it applies to what the token finds, not to the token itself.
#pragma once

#include "common/attention/kernels/attention.h"

/// Which decay a token has: none, one for each head, for each token and head, or for each token, head and row of S.
enum Gate { GATE_NONE = 0, GATE_HEAD = 1, GATE_TOKEN = 2, GATE_CHANNEL = 3 };

/// q, k: [batch, heads, tokens, HEAD_DIM]; v, o: [batch, heads, tokens, VALUE_DIM]; strides make the layout.
struct LinearParams {
  const void *q, *k, *v;
  void* o;
  TensorStrides q_strides, k_strides, v_strides, o_strides;
  /// Logarithms of decays, f32: by GATE [heads], [batch, heads, tokens] or [batch, heads, tokens, HEAD_DIM]; else null.
  const float* gate;
  TensorStrides gate_strides;
  /// [sequences, heads, HEAD_DIM, VALUE_DIM], and of z [sequences, heads, HEAD_DIM]. Null: zeros, or nobody wants it.
  const float *initial_state, *initial_key_sum;
  float *final_state, *final_key_sum;
  /// Of sequences of unlike lengths, which lie one after the other in batch 0: the first row of each, and behind them the
  /// number of rows, [sequences + 1]. Null: sequence s is batch s, and has `tokens` rows.
  const int* starts;
  int sequences, heads;
  int tokens;  // of the longest sequence
  float scale;
  const void* feature_data;  // what a user's feature map reads, else null
};
