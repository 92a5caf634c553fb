// Constants of the online softmax, for every dialect. It runs in base 2: scores are scaled by log2(e), so that
// exp(s - m) is exp2 of their difference. (Milakov and Gimelshein 2018; Dao et al. 2022.)
#pragma once

constexpr float log2_e = 1.4426950408889634f;
constexpr float ln_2 = 0.6931471805599453f;

/// Where a row's maximum begins on a GPU: no score is less, and no difference from it is NaN. A hidden pair has a score
/// of -infinity, and so a weight of 0.
constexpr float lowest_score = -3.402823466e38f;
