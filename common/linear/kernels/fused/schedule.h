// The schedule of `fused`: what a task is.
#pragma once

#include "common/linear/kernels/fused/setup.h"

namespace {

struct Task {
  int segment, slot, sequence, head, slice;
  int batch, first_row;  // of the sequence in the tensors
  int tokens;            // of the sequence
  int chunk, end;        // the segment's chunks
  int number;            // if PREPARED: the number of the sequence's chunk 0 (linear.h)
  bool last;             // no segment of the sequence follows
  bool resident;         // all chunks of the segment stay in shared memory
};

DEVICE Task task_of(const FusedParams& p, int number) {
  Task task;
  task.segment = number / p.slots;
  task.slot = number - task.segment * p.slots;
  const int pair = task.slot / p.slices;
  task.slice = task.slot - pair * p.slices;
  task.sequence = pair / p.linear.heads;
  task.head = pair - task.sequence * p.linear.heads;
  task.batch = task.sequence;
  task.first_row = 0;
  task.tokens = p.linear.tokens;
  if (p.linear.starts) {
    task.batch = 0;
    task.first_row = p.linear.starts[task.sequence];
    task.tokens = p.linear.starts[task.sequence + 1] - task.first_row;
  }
  if constexpr (PREPARED) task.number = rows_of_sequence(p.linear, task.sequence, CHUNK).first_chunk;
  const int chunks = (task.tokens + CHUNK - 1) / CHUNK;
  task.chunk = task.segment * p.segment_chunks;
  task.end = min(task.chunk + p.segment_chunks, chunks);
  task.last = task.end == chunks;
  task.resident = !BY_CHANNEL && task.end - task.chunk <= STAGES;  // by channel the first pass overwrites its keys
  return task;
}

/// Whether the segment lies after the end of its sequence.
DEVICE bool is_beyond(const Task& task) { return task.segment > 0 && task.chunk >= task.end; }

}  // namespace
