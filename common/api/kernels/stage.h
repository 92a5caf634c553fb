// What host and kernel share that put a block of memory together on the device, in the order of a stream: bytes that
// travel with the launch, and tables of the caller's. No other headers than the kernels' own.
#pragma once

constexpr int most_staged_bytes = 256, most_staged_tables = 8;

/// `words` words of 4 bytes go from `from` to `at` bytes behind the block's begin.
struct StagedTable {
  const unsigned* from;
  long long words, at;
};
struct StageParams {
  unsigned char* block;
  int bytes, tables;
  unsigned char head[most_staged_bytes];
  StagedTable table[most_staged_tables];
};
