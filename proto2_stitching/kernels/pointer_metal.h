// The form `pointer` in the Metal dialect: a call through a visible_function_table. A kernel whose text has such a
// table is linked with its functions so that the table can hold them (common/backends/metal/table.h).
#pragma once

#include "common/attention/kernels/attention.h"
#include "common/kernel/metal.h"

#define SCORE_IS_IDENTITY 0

typedef float ScoreFunction(float s, int q, int k, const ScoreContext& context);

/// What ScoreContext::data points to: which function is called, and the functions (problem.cpp).
struct ScoreTable {
  int choice;
  visible_function_table<ScoreFunction> functions;
};

INLINE float score_call(float s, int q, int k, const ScoreContext& context) {
  const device ScoreTable* const table = static_cast<const device ScoreTable*>(context.data);
  return table->functions[table->choice](s, q, k, context);
}
#define score score_call
