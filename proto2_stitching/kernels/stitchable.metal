// The score function as a node of a stitching graph. Apple's documents name no type that such a function may not take;
// the context is passed by value, as Apple's own stitchable functions take structs.
#define SCORE_IS_FRAGMENT 1
#include "proto2_stitching/kernels/form_metal.h"

[[stitchable]] float score_fragment(float s, int q, int k, HookContext context) { return score(s, q, k, context); }
