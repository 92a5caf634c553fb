// Takes the place of common/attention/kernels/score.h. Says how the kernel reaches the score function, and how many
// scores a call takes.
//
// The host writes choice.h, which defines:
//   SCORE_FORM   one of the forms of forms.h
//   CALL_GRAIN   the scores that a call takes: one (SCORE_ELEMENT), a row (SCORE_ROW) or a tile (SCORE_TILE), in the
//                order of common/attention/kernels/score.h
//   KERNEL_GRAIN the scores that the kernel passes at once: one (SCORE_ELEMENT) or several (SCORE_ROW)
//   SCORE_LANES  (not for SCORE_ELEMENT) SCORE_ROW: the number of scores of one call. SCORE_TILE: on the cpu the scores
//                in one row of the tile, on a GPU the scores of the tile that one thread has
#pragma once

#include "common/attention/kernels/attention.h"
#include "proto2_stitching/kernels/choice.h"
#include "proto2_stitching/kernels/forms.h"
#ifdef __CUDACC__
#include "common/kernel/cuda.h"
#define SCORE_INLINE DEVICE
#define SCORE_NOINLINE __device__ __noinline__
#define SCORE_DEVICE __device__
#else
#include "common/kernel/cpu.h"
#define SCORE_INLINE INLINE
#define SCORE_NOINLINE NOINLINE
#define SCORE_DEVICE
#endif

#define SCORE_IS_IDENTITY 0

// ---- the function, in this translation unit or in a fragment that is compiled apart (fragment.h)

#if SCORE_FORM == FORM_STITCHED || SCORE_FORM == FORM_STITCHED_NOLTO || SCORE_FORM == FORM_STD_FUNCTION || \
    SCORE_FORM == FORM_VIRTUAL
#define SCORE_IS_ELSEWHERE 1
#else
#define SCORE_IS_ELSEWHERE 0
#endif

#if CALL_GRAIN == SCORE_ELEMENT
#define SCORE_RESULT float
#define SCORE_PARAMETERS float s, int q, int k, const ScoreContext &context
#define SCORE_ARGUMENTS s, q, k, context
#elif CALL_GRAIN == SCORE_ROW
#define SCORE_RESULT void
#define SCORE_PARAMETERS float *s, int q, int k, const ScoreContext &context
#define SCORE_ARGUMENTS s, q, k, context
#else
#define SCORE_RESULT void
#define SCORE_PARAMETERS float *s, int keys, int q, int k, const ScoreContext &context
#define SCORE_ARGUMENTS s, keys, q, k, context
#endif

#if defined(SCORE_IS_FRAGMENT) || !SCORE_IS_ELSEWHERE

// On the cpu the compiler contracts products and sums only within one expression of the function. So the function gives
// the same bits in every form.
#ifndef __CUDACC__
#pragma clang fp contract(on)
#pragma clang attribute push(__attribute__((always_inline)), apply_to = function)
#endif
namespace {
#include "proto2_stitching/kernels/function.h"
}
#ifndef __CUDACC__
#pragma clang attribute pop
#pragma clang fp contract(fast)
#endif

#if SCORE_FORM != FORM_MONOLITHIC
SCORE_INLINE SCORE_RESULT score_in_place(SCORE_PARAMETERS) {
#if CALL_GRAIN == SCORE_ELEMENT
  return score(s, q, k, context);
#elif defined(__CUDACC__) && CALL_GRAIN == SCORE_ROW
  UNROLL for (int i = 0; i < SCORE_LANES; ++i) s[i] = score(s[i], q, k + i / 2 * 8 + i % 2, context);
#elif defined(__CUDACC__)
  UNROLL for (int i = 0; i < SCORE_LANES; ++i) {
    s[i] = score(s[i], q + i / 2 % 2 * 8, k + i / 4 * 8 + i % 2, context);
  }
#elif CALL_GRAIN == SCORE_ROW
  VECTORIZE for (int i = 0; i < SCORE_LANES; ++i) s[i] = score(s[i], q + i, k, context);
#else
  for (int row = 0; row < keys; ++row) {
    float* const of_key = s + row * SCORE_LANES;
    VECTORIZE for (int i = 0; i < SCORE_LANES; ++i) of_key[i] = score(of_key[i], q + i, k + row, context);
  }
#endif
}
#endif

#endif

#if SCORE_FORM == FORM_VIRTUAL
struct ScoreObject {
  virtual SCORE_RESULT operator()(SCORE_PARAMETERS) const = 0;
};
#endif

#if !defined(SCORE_IS_FRAGMENT) && SCORE_FORM != FORM_MONOLITHIC

// ---- the call

#if SCORE_FORM == FORM_SWITCH || SCORE_FORM == FORM_POINTER
/// Known only at run time, and the same for all scores.
SCORE_INLINE int score_choice(const ScoreContext& context) { return *static_cast<const int*>(context.data); }
#endif

#if SCORE_FORM == FORM_POINTER
SCORE_NOINLINE SCORE_RESULT score_unchanged(SCORE_PARAMETERS) {
  (void)q, (void)k, (void)context;
#if CALL_GRAIN == SCORE_ELEMENT
  return s;
#elif CALL_GRAIN == SCORE_ROW
  (void)s;
#else
  (void)s, (void)keys;
#endif
}
SCORE_NOINLINE SCORE_RESULT score_target(SCORE_PARAMETERS) { return score_in_place(SCORE_ARGUMENTS); }
/// In the device's memory: the program that loads the kernel may change the table.
extern "C" {
SCORE_DEVICE SCORE_RESULT (*score_table[])(SCORE_PARAMETERS) = {score_unchanged, score_target};
}
#elif SCORE_FORM == FORM_STITCHED || SCORE_FORM == FORM_STITCHED_NOLTO
extern "C" SCORE_DEVICE SCORE_RESULT score_fragment(SCORE_PARAMETERS);
#elif SCORE_FORM == FORM_STD_FUNCTION
/// A kernel has no standard library, so it cannot call a std::function itself. `call` is a function of the host that
/// calls `object`, a std::function of the host.
struct HostCallable {
  SCORE_RESULT (*call)(const void* object, SCORE_PARAMETERS);
  const void* object;
};
#elif SCORE_FORM == FORM_VIRTUAL
extern "C" const ScoreObject* score_object;
#endif

#if SCORE_FORM == FORM_NOINLINE
SCORE_NOINLINE
#else
SCORE_INLINE
#endif
SCORE_RESULT score_call(SCORE_PARAMETERS) {
#if SCORE_FORM == FORM_INLINE || SCORE_FORM == FORM_NOINLINE
  return score_in_place(SCORE_ARGUMENTS);
#elif SCORE_FORM == FORM_SWITCH
  switch (score_choice(context)) {
    case 1:
      return score_in_place(SCORE_ARGUMENTS);
    default:
#if CALL_GRAIN == SCORE_ELEMENT
      return s;
#else
      return;
#endif
  }
#elif SCORE_FORM == FORM_POINTER
  return score_table[score_choice(context)](SCORE_ARGUMENTS);
#elif SCORE_FORM == FORM_STITCHED || SCORE_FORM == FORM_STITCHED_NOLTO
  return score_fragment(SCORE_ARGUMENTS);
#elif SCORE_FORM == FORM_STD_FUNCTION
  const auto& callable = *static_cast<const HostCallable*>(context.data);
  return callable.call(callable.object, SCORE_ARGUMENTS);
#elif SCORE_FORM == FORM_VIRTUAL
  return (*score_object)(SCORE_ARGUMENTS);
#endif
}

// ---- the functions that the kernel calls

#if SCORE_IS_ELSEWHERE && CALL_GRAIN == SCORE_ELEMENT && KERNEL_GRAIN != SCORE_ELEMENT
SCORE_INLINE float score(float s, int q, int k, const ScoreContext& context) { return score_call(s, q, k, context); }
#elif SCORE_IS_ELSEWHERE && CALL_GRAIN == SCORE_ROW
// Changes one score, for a kernel that computes a row anew. Only the first of the SCORE_LANES scores counts.
SCORE_INLINE float score(float s, int q, int k, const ScoreContext& context) {
  float several[SCORE_LANES] = {s};
  score_call(several, q, k, context);
  return several[0];
}
#elif SCORE_IS_ELSEWHERE && CALL_GRAIN == SCORE_TILE
SCORE_INLINE float score(float s, int q, int k, const ScoreContext& context) {
  float several[SCORE_LANES] = {s};
  score_call(several, 1, q, k, context);
  return several[0];
}
#endif

#if CALL_GRAIN == SCORE_TILE
#define SCORE_GRAIN SCORE_TILE
SCORE_INLINE void score_tile(SCORE_PARAMETERS) { score_call(SCORE_ARGUMENTS); }
#elif CALL_GRAIN == SCORE_ROW
#define SCORE_GRAIN SCORE_ROW
SCORE_INLINE void score_row(SCORE_PARAMETERS) { score_call(SCORE_ARGUMENTS); }
#elif KERNEL_GRAIN == SCORE_ELEMENT
#define score score_call
#else
#define SCORE_GRAIN SCORE_ROW
SCORE_INLINE void score_row(float* s, int q, int k, const ScoreContext& context) {
#ifdef __CUDACC__
  UNROLL for (int i = 0; i < BLOCK_C / 4; ++i) s[i] = score_call(s[i], q, k + i / 2 * 8 + i % 2, context);
#elif SCORE_FORM == FORM_INLINE || SCORE_FORM == FORM_SWITCH || SCORE_FORM == FORM_STITCHED
  VECTORIZE for (int i = 0; i < VECTOR_WIDTH; ++i) s[i] = score_call(s[i], q + i, k, context);
#else
  for (int i = 0; i < VECTOR_WIDTH; ++i) s[i] = score_call(s[i], q + i, k, context);
#endif
}
#endif

#endif
