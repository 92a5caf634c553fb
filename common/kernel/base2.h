// Constants of the online softmax, for every dialect. It runs in base 2: scores are scaled by log2(e), so that
// exp(s - m) is exp2 of their difference. (Milakov and Gimelshein 2018; Dao et al. 2022.)
#pragma once

constexpr float log2_e = 1.4426950408889634f;
constexpr float ln_2 = 0.6931471805599453f;

/// Score of a masked pair. Finite, so that a row that has seen only masked keys computes 0 - 0 and not inf - inf.
constexpr float masked_score = -1e30f;
/// A running maximum below this has seen no unmasked key.
constexpr float no_score = -1e29f;
/// What scores are shifted by in a row that has seen no unmasked key: far above masked_score and far below every other,
/// so that weights are 0 and no difference is NaN.
constexpr float no_shift = -1e15f;

/// Where a row's maximum begins on a GPU: no score is less, and no difference from it is NaN. A hidden pair has a score of
/// -infinity, and so a weight of 0.
constexpr float lowest_score = -3.402823466e38f;
