// form.h for the Metal dialect. The kernel `tuned` passes single scores, so only SCORE_FORM of choice.h counts.
//
// A function that is compiled apart is a private function of the pipeline (`stitched`), lies in a dynamic library
// (`stitched_nolto`), or is a node of a graph whose function is private (`stitched_graph`). The form `pointer` has a
// header of its own, pointer_metal.h.
//
// With `noinline` a call may have to save the registers in which `tuned` accumulates the output.
#pragma once

#include "common/attention/kernels/attention.h"
#include "common/kernel/metal.h"
#include "proto2_stitching/kernels/choice.h"
#include "proto2_stitching/kernels/forms.h"

#define FORM_STITCHED_GRAPH 9  // a call of a function that a stitching graph makes of fragments

#define SCORE_IS_IDENTITY 0

#define SCORE_IS_ELSEWHERE \
  (SCORE_FORM == FORM_STITCHED || SCORE_FORM == FORM_STITCHED_NOLTO || SCORE_FORM == FORM_STITCHED_GRAPH)

#if defined(SCORE_IS_FRAGMENT) || !SCORE_IS_ELSEWHERE
#pragma clang attribute push(__attribute__((always_inline)), apply_to = function)
namespace {
#include "proto2_stitching/kernels/function.h"
}
#pragma clang attribute pop
#endif

#ifndef SCORE_IS_FRAGMENT
#if SCORE_FORM == FORM_STITCHED_GRAPH
[[visible]] float stitched_function(float s, int q, int k, HookContext context);
INLINE float score_call(float s, int q, int k, const ScoreContext& context) {
  return stitched_function(s, q, k, context);
}
#elif SCORE_IS_ELSEWHERE
[[visible]] float score_fragment(float s, int q, int k, const ScoreContext& context);
INLINE float score_call(float s, int q, int k, const ScoreContext& context) { return score_fragment(s, q, k, context); }
#elif SCORE_FORM == FORM_INLINE
INLINE float score_call(float s, int q, int k, const ScoreContext& context) { return score(s, q, k, context); }
#elif SCORE_FORM == FORM_NOINLINE
NOINLINE static float score_call(float s, int q, int k, const ScoreContext& context) { return score(s, q, k, context); }
#elif SCORE_FORM == FORM_SWITCH
/// The number is known only at run time, and is the same for all scores.
INLINE float score_call(float s, int q, int k, const ScoreContext& context) {
  switch (*static_cast<const device int*>(context.data)) {
    case 1:
      return score(s, q, k, context);
    default:
      return s;
  }
}
#endif

#if SCORE_FORM != FORM_MONOLITHIC
#define score score_call
#endif
#endif
