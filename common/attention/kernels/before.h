// The before hook is work that the threadgroups of a launch do together before any of them reads K and V: for example,
// they write a part of K and V. The hook in this file does nothing. An experiment replaces this file by another text
// (KernelSource::includes["common/attention/kernels/before.h"]).
//
// `wgmma` and `mma_sync` on a GPU and `tuned` on the CPU take this hook. On a GPU all THREADS threads of a threadgroup
// call the hook together. `wgmma` reads K and V by tensor copies (TMA), so the hook must end with a fence that makes
// its writes visible to these copies (fence.proxy.async). If a launch has more threadgroups than the device runs at
// once, some threadgroups begin only after others have ended: a hook that waits for such a threadgroup may never end.
#pragma once

#include "common/attention/kernels/attention.h"

/// Other before hooks define this macro as 0.
#define BEFORE_IS_NONE 1

/// memory: on a GPU, 16 bytes or more of threadgroup memory; on the cpu, the Threadgroup.
template <int THREADS, typename Memory>
static inline void before_all(const AttentionParams& /*params*/, const Memory& /*memory*/) {}
