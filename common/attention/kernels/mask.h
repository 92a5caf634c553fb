// The mask hook hides pairs of a query and a key. A pair takes part if its key is in the row's range (keys.h) and
// visible() is true. This file has no mask. An experiment replaces this file by another text
// (KernelSource::includes["common/attention/kernels/mask.h"]) for rules that are no range: for example a window with
// global tokens, blocks of a table, a user's function.
//
// If another text replaces this file, kernels with tiles have the function constant MASK_LISTS. 1: a tile walks a list
// of key blocks (mask_lists.h). 0: a tile walks its rows' range of keys, and asks about every pair.
//
// A kernel asks only about rows and keys that exist. A hook may hide all keys of a row (attention.h defines the results
// of a row without keys).
#pragma once

#include "common/attention/kernels/attention.h"

/// A hook that hides pairs defines this macro as 0.
#define MASK_IS_NONE 1
#define MASK_LISTS 0

/// q and k count from the start of their sequence.
static inline bool visible(int /*q*/, int /*k*/, const ScoreContext& /*context*/) { return true; }
