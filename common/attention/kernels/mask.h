// The mask hook says which pairs of a query and a key take part, within the ranges of the keys hook. A pair takes part
// if its key is in the row's range (keys.h) and visible() is true. This file has no mask. An experiment replaces this
// file by another text (KernelSource::includes["common/attention/kernels/mask.h"]) for rules that are no range: windows
// with global tokens, blocks of a table, a user's function.
//
// If another text replaces this file, kernels with tiles have the function constant MASK_LISTS. 1: a tile walks a list
// of key blocks, which another kernel has made (mask_lists.h). 0: a tile walks its rows' range of keys, and asks about
// every pair.
//
// A kernel asks only about rows and keys that exist. A hook may hide all keys of a row (attention.h says what the
// results of a row without keys are).
#pragma once

#include "common/attention/kernels/attention.h"

/// A hook that hides pairs defines this macro as 0.
#define MASK_IS_NONE 1
#define MASK_LISTS 0

/// q and k count from the start of their sequence.
static inline bool visible(int /*q*/, int /*k*/, const ScoreContext& /*context*/) { return true; }
