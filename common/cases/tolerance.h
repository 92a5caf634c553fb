// How far a kernel's outputs may be from the oracle's: by its arithmetic, and by what the row makes of its errors.
#pragma once

#include <vector>

#include "common/cases/reference.h"
#include "common/data/tensor.h"

namespace attn {

struct AttentionTolerance {
  std::vector<double> o, lse;  // of ReferenceRows' o and lse
};

/// For Q, K, V of `dtype` and O of `out_dtype`; `hooked`: a score hook changes the scores, and adds an error of
/// `score_error` times the score. The derivation is in the definition.
AttentionTolerance attention_tolerance(const AttentionShape& shape, DType dtype, DType out_dtype, bool hooked,
                                       const ReferenceRows& want, double score_error = 0);

}  // namespace attn
