// The parameters of the kernel `stage`, which puts a block of memory together on the device, in the order of a stream.
// The block consists of bytes that are part of the launch's parameters, and of copies of the caller's tables. Host and
// kernel share this file; it includes only headers of kernels.
#pragma once

#include "common/kernel/spaces.h"

constexpr CONSTANT int most_staged_bytes = 256, most_staged_tables = 16;

/// The kernel copies `words` words of 4 bytes from `from` to byte `at` of the block.
struct StagedTable {
  const GLOBAL unsigned* from;
  INT64 words, at;
};
/// The kernel copies `bytes` bytes of `head` to the beginning of `block`, and the tables of the first `tables` entries
/// of `table` to their places.
struct StageParams {
  GLOBAL unsigned char* block;
  int bytes, tables;
  unsigned char head[most_staged_bytes];
  StagedTable table[most_staged_tables];
};
