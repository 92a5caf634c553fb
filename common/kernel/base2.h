// Constants of the online softmax (Milakov and Gimelshein 2018; Dao et al. 2022), for every dialect. If scores are
// scaled by log2(e), exp(s - m) is exp2 of the difference of the scaled scores.
#pragma once

#include "common/kernel/spaces.h"

constexpr CONSTANT float log2_e = 1.4426950408889634f;
constexpr CONSTANT float ln_2 = 0.6931471805599453f;

/// The first value of a row's maximum on a GPU. No finite score is less. On CUDA a hidden pair of a query and a key has
/// a score of -infinity. Because lowest_score is finite, -infinity - lowest_score is -infinity, not NaN, and the pair
/// has a weight of 0. On Metal lowest_score also marks a hidden pair.
constexpr CONSTANT float lowest_score = -3.402823466e38f;
