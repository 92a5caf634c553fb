// Fills a block of memory with bytes of the parameters and with copies of tables (stage.h). Grid: (threadgroups); each
// threadgroup copies a part of every table.
#include "common/api/kernels/stage.h"

#include "common/kernel/cpu.h"

extern "C" void stage(const StageParams* params, const Threadgroup* group) {
  const StageParams& p = *params;
  const long long index = group->index[0], count = group->count[0];
  if (index == 0) {
    for (int i = 0; i < p.bytes; ++i) p.block[i] = p.head[i];
  }
  for (int t = 0; t < p.tables; ++t) {
    auto* const to = reinterpret_cast<unsigned*>(p.block + p.table[t].at);
    const long long words = p.table[t].words;
    for (long long i = words * index / count; i < words * (index + 1) / count; ++i) to[i] = p.table[t].from[i];
  }
}
