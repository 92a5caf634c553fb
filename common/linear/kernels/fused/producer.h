// The producer of `fused`: one thread that takes tasks and issues the tensor copies of their chunks.
#pragma once

#include "common/kernel/grid.h"
#include "common/linear/kernels/fused/schedule.h"

namespace {

DEVICE void copy_chunk(const FusedParams& p, const Task& task, int number, int chunk, bool with_q, Ring<STAGES>& ring) {
  Barriers& bars = barriers();
  unsigned char* const stage = memory + ring.index * layout.stage_bytes;
  Barrier& full = bars.full[ring.index];
  bars.empty[ring.index].wait(ring.parity ^ 1);
  bars.task[ring.index] = number;
  const bool weights = PREPARED && with_q;
  full.arrive_expect((PANELS * (with_q ? 2 : 1) + COLUMN_PANELS + (BY_CHANNEL ? 2 * PANELS : weights)) * PANEL_BYTES);
  const int row = task.first_row + chunk * CHUNK;
  UNROLL for (int box = 0; BY_CHANNEL && box < 2 * PANELS; ++box) {
    copy_box(stage + layout.gates + box * PANEL_BYTES, p.gates, full, box * 32, row, task.head, task.batch, 0);
  }
  const int key_row = PREPARED ? (task.number + chunk) * CHUNK : row, batch = PREPARED ? 0 : task.batch;
  UNROLL for (int panel = 0; panel < PANELS; ++panel) {
    copy_box(stage + layout.k + panel * PANEL_BYTES, p.k, full, panel * 64, key_row, task.head, batch, 0);
    if (with_q) copy_box(stage + panel * PANEL_BYTES, p.q, full, panel * 64, key_row, task.head, batch, 0);
  }
  UNROLL for (int panel = 0; panel < COLUMN_PANELS; ++panel) {
    copy_box(stage + layout.v + panel * PANEL_BYTES, p.v, full, (task.slice * COLUMN_PANELS + panel) * 64, row,
             task.head, task.batch, 0);
  }
  if (weights) copy_box(stage + layout.gates, p.gates, full, 0, key_row, task.head, 0, 0);
  ring.advance();
}

// Passes a stage without a chunk, to tell the consumers `number`: the number of a task without chunks, or
// no_more_tasks.
DEVICE void tell(int number, Ring<STAGES>& ring) {
  Barriers& bars = barriers();
  bars.empty[ring.index].wait(ring.parity ^ 1);
  bars.task[ring.index] = number;
  bars.full[ring.index].arrive();
  ring.advance();
}

DEVICE void produce(const FusedParams& p) {
  Ring<STAGES> ring;
  int next;
  for (int number = blockIdx.x; number < p.tasks; number = next) {
    next = static_cast<int>(next_item(p.counters));
    const Task task = task_of(p, number);
    if (is_beyond(task)) continue;
    if (!task.last && !task.resident) {
#pragma unroll 1
      for (int chunk = task.chunk; chunk < task.end; ++chunk) copy_chunk(p, task, number, chunk, false, ring);
    }
#pragma unroll 1
    for (int chunk = task.chunk; chunk < task.end; ++chunk) copy_chunk(p, task, number, chunk, true, ring);
    if (task.chunk >= task.end) tell(number, ring);
  }
  tell(no_more_tasks, ring);
  if (leave(p.counters)) p.counters[2] += 1;
}

}  // namespace
