// Constants of the online softmax, for every dialect. The softmax runs in base 2: scores are scaled by log2(e), so that
// exp(s - m) is exp2 of the difference of scaled scores. (Milakov and Gimelshein 2018; Dao et al. 2022.)
#pragma once

#include "common/kernel/spaces.h"

constexpr CONSTANT float log2_e = 1.4426950408889634f;
constexpr CONSTANT float ln_2 = 0.6931471805599453f;

/// The first value of a row's maximum on a GPU. No finite score is less. Because this value is finite, a score of
/// -infinity minus this value is -infinity, not NaN. A hidden pair has a score of -infinity, and so a weight of 0.
constexpr CONSTANT float lowest_score = -3.402823466e38f;
