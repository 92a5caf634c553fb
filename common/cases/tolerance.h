// How far a kernel's outputs may be from the oracle's. tolerance.cpp has the derivation.
#pragma once

#include <vector>

#include "common/cases/reference.h"
#include "common/data/tensor.h"

namespace attn {

struct AttentionTolerance {
  std::vector<double> o, lse;  // for each element of ReferenceRows::o and ReferenceRows::lse
};

/// Returns the tolerance for Q, K, V of `dtype` and O of `out_dtype`. `hooked`: a score hook changes the scores.
/// `score_error`: the error that hooks and rounding on the device add to a score, as a share of the score.
AttentionTolerance attention_tolerance(const AttentionShape& shape, DType dtype, DType out_dtype, bool hooked,
                                       const ReferenceRows& want, double score_error = 0);

}  // namespace attn
