// The before hook: what the threadgroups of a launch do together before any of them reads K and V, as writing part of
// them. This file does nothing; an experiment puts another text in its place
// (KernelSource::includes["common/attention/kernels/before.h"]).
//
// `wgmma`, `mma_sync` and `tuned` on the cpu take it. On a GPU all THREADS of a threadgroup call it together, and what
// was written has to be there for tensor copies too. Threadgroups may run one after the other: none may wait for one
// that has not begun.
#pragma once

#include "common/attention/kernels/attention.h"

/// False in every other hook.
#define BEFORE_IS_NONE 1

/// memory: threadgroup memory on a GPU, 16 bytes or more; the Threadgroup on the cpu.
template <int THREADS, typename Memory>
static inline void before_all(const AttentionParams& /*params*/, const Memory& /*memory*/) {}
