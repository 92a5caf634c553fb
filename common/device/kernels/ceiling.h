// Parameters of the kernels that measure what a device reaches at most, as host and kernel see them.
#pragma once

/// Each threadgroup copies one contiguous part, a multiple of 256 bytes.
struct CopyParams {
  const void* source;
  void* target;
  unsigned long long part_bytes;
};

/// Each threadgroup reads one contiguous part, a multiple of 256 bytes. `result` takes a float of each thread (cuda) or
/// lane (cpu), so that no load can be left out.
struct ReadParams {
  const void* source;
  float* result;
  unsigned long long part_bytes;
};

/// `result` takes one float per lane, so that the arithmetic cannot be left out. The operands come at run time, so that
/// it cannot be done at compile time either: sums become sum * factor + addend, with |factor| < 1 for finite ones.
struct ArithmeticParams {
  float* result;
  long long iterations;
  float factor, addend;
};

/// Of the kernels in the cuda dialect: threads of a threadgroup (of a copy: many that do little each come closest to
/// what the memory gives), and the product that it does in an iteration of ceiling_mma, of M rows of so many bytes and
/// N columns.
constexpr int ceiling_threads = 128, copy_threads = 512, ceiling_m = 64, ceiling_n = 256, ceiling_row_bytes = 128;

/// Of a threadgroup in an iteration of ceiling_amx: four products of 16 x 32 by 32 x 16.
constexpr double ceiling_amx_flops = 4 * 2.0 * 16 * 32 * 16;
