// The before hook is work that the threadgroups of a launch do together before any of them reads K and V, for example
// writing a part of K and V. This file does nothing. An experiment replaces this file by another text
// (KernelSource::includes["common/attention/kernels/before.h"]).
//
// `wgmma`, `mma_sync` and `tuned` on the cpu take this hook. On a GPU all THREADS of a threadgroup call the hook
// together. Tensor copies must see the hook's writes too. Some threadgroups can begin only after others have ended. So
// a threadgroup must not wait for a threadgroup that has not begun.
#pragma once

#include "common/attention/kernels/attention.h"

/// Other hooks define this as false.
#define BEFORE_IS_NONE 1

/// memory: threadgroup memory on a GPU, 16 bytes or more; the Threadgroup on the cpu.
template <int THREADS, typename Memory>
static inline void before_all(const AttentionParams& /*params*/, const Memory& /*memory*/) {}
