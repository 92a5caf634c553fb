// Fills a block of memory with bytes of the parameters and with copies of tables (stage.h). The kernel has not run on
// Apple hardware yet. Grid: (threadgroups); each threadgroup copies a part of every table. Threads: THREADS. No
// threadgroup memory.
#include "common/api/kernels/stage.h"
#include "common/kernel/metal.h"

kernel void stage(constant StageParams& p [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                  uint3 groups [[threadgroups_per_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  const long first = static_cast<long>(group.x) * THREADS + thread_index;
  const long step = static_cast<long>(groups.x) * THREADS;
  for (long i = first; i < p.bytes; i += step) p.block[i] = p.head[i];
  for (int t = 0; t < p.tables; ++t) {
    device uint* const to = reinterpret_cast<device uint*>(p.block + p.table[t].at);
    for (long i = first; i < p.table[t].words; i += step) to[i] = p.table[t].from[i];
  }
}
