// fragment.h for the Metal dialect.
#define SCORE_IS_FRAGMENT 1
#include "proto2_stitching/kernels/form_metal.h"

[[visible]] float score_fragment(float s, int q, int k, const ScoreContext& context) { return score(s, q, k, context); }
