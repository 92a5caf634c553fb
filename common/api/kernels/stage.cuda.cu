// Fills a block of memory with bytes of the parameters and with copies of tables (stage.h). Grid: (threadgroups); each
// threadgroup copies a part of every table. Threads: THREADS. No threadgroup memory.
//
// Checked: stage[THREADS=256] without spills
#include "common/api/kernels/stage.h"
#include "common/kernel/cuda.h"

extern "C" __global__ void stage(const __grid_constant__ StageParams p) {
  const long long first = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
  const long long step = static_cast<long long>(gridDim.x) * THREADS;
  for (long long i = first; i < p.bytes; i += step) p.block[i] = p.head[i];
  for (int t = 0; t < p.tables; ++t) {
    auto* const to = reinterpret_cast<unsigned*>(p.block + p.table[t].at);
    for (long long i = first; i < p.table[t].words; i += step) to[i] = p.table[t].from[i];
  }
}
