// The mask hook: which pairs of a query and a key take part, beyond what the keys hook says. A pair takes part if its
// key is in the row's range (keys.h) and visible() says so. This file has no mask; an experiment puts another text in
// its place (KernelSource::includes["common/attention/kernels/mask.h"]) for rules that are no range: windows with
// global tokens, blocks of a table, functions of a user ...
//
// Another text comes with the function constant MASK_LISTS in kernels with tiles. 1: a tile walks a list of key blocks,
// which another kernel has made (mask_lists.h). 0: it walks its rows' range of keys, and asks for every pair.
//
// A kernel asks for rows and keys that exist only. A row that sees no key gives 0, and -infinity as its log-sum-exp.
#pragma once

#include "common/attention/kernels/attention.h"

/// False in every other hook that masks a pair.
#define MASK_IS_NONE 1
#define MASK_LISTS 0

/// q and k count from the start of their sequence.
static inline bool visible(int /*q*/, int /*k*/, const ScoreContext& /*context*/) { return true; }
