// The parameters of the kernel `stage`, which writes parts of a block of the device's memory. A part is a copy of bytes
// in the launch's parameters, or a copy of a caller's tensor. The kernel runs on the caller's stream, after the work
// that is already on the stream. Host and kernel share this file; it includes only headers of kernels.
#pragma once

#include "common/kernel/spaces.h"

constexpr CONSTANT int most_staged_bytes = 256, most_staged_tables = 16;

/// The kernel copies `words` words of 4 bytes from `from` to byte `at` of the block.
struct StagedTable {
  const GLOBAL unsigned* from;
  INT64 words, at;
};
/// The kernel copies `bytes` bytes of `head` to the beginning of `block`. It also makes the copies that table[0] to
/// table[tables - 1] describe.
struct StageParams {
  GLOBAL unsigned char* block;
  int bytes, tables;
  unsigned char head[most_staged_bytes];
  StagedTable table[most_staged_tables];
};
