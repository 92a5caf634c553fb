// Layouts of threadgroup memory of the cuda kernels of `phases` and `recurrent`, which host and kernels share. This
// file includes only headers of kernels.
#pragma once

#include "common/attention/kernels/round_up.h"
#include "common/linear/kernels/linear.h"

/// Threads of chunk_h and chunk_o.
constexpr int phases_threads = 128;
/// The most bytes of threadgroup memory on Hopper. Two threadgroups fit on a multiprocessor if each has at most half of
/// these bytes, less 1024.
constexpr long long phases_most_bytes = 232448;

/// Returns the bytes from one row to the next. The number is an odd multiple of 16, so a read of the same 16-byte
/// column of eight successive rows has no bank conflict.
constexpr long long odd_row_bytes(long long columns, int element_bytes) {
  return (columns * element_bytes / 16 | 1) * 16;
}
/// Returns the largest of 64, 32 and 16 that divides `chunk` and is at most `most`.
constexpr int block_of_chunk(int chunk, int most) {
  int block = most;
  while (block > 16 && chunk % block != 0) block /= 2;
  return block;
}

/// chunk_h reads blocks of `block` tokens, each into a stage, which is memory for one block. A warp holds `row_tiles`
/// times 16 rows of the state, in `column_units` times 16 columns. If the state has more columns than the warps hold,
/// the kernel makes several passes.
struct ChunkHLayout {
  int k_columns, v_columns;  // rounded up to tiles
  int row_warps, column_warps, row_tiles, column_units;
  int pass_columns, passes;
  int block, blocks, stages;
  bool resident;  // the whole chunk lies in the stages, and is read once
  int stage_v_columns;
  long long k_row_bytes, v_row_bytes, v, gates, stage_bytes;
  long long weights;  // floats [chunk]: the decay from a token to the chunk's end
  // By channel, sums of logarithms of decays. slice_sums: over each group of 16 tokens of a block, floats [block / 16,
  // head_dim]. sum: over all later blocks, floats [head_dim].
  long long slice_sums, sum;
  long long bytes;

  constexpr ChunkHLayout(int head_dim, int value_dim, int chunk, int element_bytes, int gate)
      : k_columns(static_cast<int>(round_up(head_dim, 16))),
        v_columns(static_cast<int>(round_up(value_dim, 16))),
        row_warps(k_columns <= 16   ? 1
                  : k_columns <= 32 ? 2
                                    : 4),
        column_warps(4 / row_warps),
        row_tiles((k_columns / 16 + row_warps - 1) / row_warps),
        column_units((v_columns / 16 + column_warps - 1) / column_warps),
        pass_columns(0),
        passes(0),
        block(block_of_chunk(chunk, element_bytes == 4 ? 32 : 64)),
        blocks(chunk / block),
        stages(0),
        resident(true),
        stage_v_columns(v_columns),
        k_row_bytes(0),
        v_row_bytes(0),
        v(0),
        gates(0),
        stage_bytes(0),
        weights(0),
        slice_sums(0),
        sum(0),
        bytes(0) {
    // A thread has at most 64 registers of sums, so that a multiprocessor has room for four threadgroups. For head_dim
    // above 128 a thread has up to 128, because with fewer the kernel would make too many passes.
    const int most = head_dim > 128 ? 16 : 8;
    if (column_units > most / row_tiles) column_units = most / row_tiles;
    pass_columns = 16 * column_units * column_warps;
    passes = (v_columns + pass_columns - 1) / pass_columns;
    stages = blocks;
    place(head_dim, chunk, element_bytes, gate);
    if (bytes > phases_most_bytes / 2 - 1024 && blocks > 1) {
      resident = false;
      stages = 2;
      stage_v_columns = pass_columns < v_columns ? pass_columns : v_columns;
      place(head_dim, chunk, element_bytes, gate);
    }
  }

 private:
  constexpr void place(int head_dim, int chunk, int element_bytes, int gate) {
    // A warp reads f32 by words, eight words of each of four successive rows at once. Each row begins 8 or 24 banks
    // after the row before it, so the words of the four rows share no bank.
    k_row_bytes = element_bytes == 4 ? k_columns * 4 + 32 : odd_row_bytes(k_columns, 2);
    v_row_bytes = element_bytes == 4 ? stage_v_columns * 4 + 32 : odd_row_bytes(stage_v_columns, 2);
    v = block * k_row_bytes;
    gates = v + block * v_row_bytes;
    stage_bytes = gates + (gate == GATE_CHANNEL ? block * head_dim * 4 : 0);
    weights = stages * stage_bytes;
    slice_sums = weights + chunk * 4;
    sum = slice_sums + (gate == GATE_CHANNEL ? block / 16 * head_dim * 4 : 0);
    bytes = sum + (gate == GATE_CHANNEL ? head_dim * 4 : 0);
  }
};

/// chunk_o computes `rows` rows of Q at a time, at most 64, 16 for each warp. Blocks of `block` keys, and of
/// `state_rows` rows of the state, pass through a ring of stages.
struct ChunkOLayout {
  int rows;
  int k_columns, v_columns;  // rounded up to the columns of a product
  int pass_columns, passes;  // columns of V that registers hold at once; products of f32 need more registers
  int block, state_rows, stages;
  long long k_row_bytes, v_row_bytes, state_row_bytes, decay_row_bytes;
  long long v, gates, stage_bytes;
  long long q;
  long long decays;      // by channel: floats [rows, head_dim], log2 of each row's decay since the first row
  long long key_sum;     // NORMALISED: floats [head_dim]
  long long prefixes;    // by head or token: float pairs [chunk]; a pair's sum is log2 of the decay since token 0
  long long slice_sums;  // by channel: slice_sums(), from_slice() and done() of chunk_o.cuda.cu, one after the other
  long long bytes;

  constexpr ChunkOLayout(int head_dim, int value_dim, int chunk, int element_bytes, int gate)
      : rows(chunk < 64 ? chunk : 64),
        k_columns(static_cast<int>(round_up(head_dim, 32 / element_bytes))),
        v_columns(static_cast<int>(round_up(value_dim, 32 / element_bytes))),
        pass_columns(element_bytes == 4 && v_columns > 128 ? 128 : v_columns),
        passes((v_columns + pass_columns - 1) / pass_columns),
        block(chunk < 32   ? 16
              : chunk < 64 ? 32
                           : 64),
        state_rows(static_cast<int>(round_up(head_dim, 16))),
        stages(3),
        k_row_bytes(odd_row_bytes(k_columns, element_bytes)),
        v_row_bytes(odd_row_bytes(pass_columns, element_bytes)),
        // Row r + 2 lies 8 or 24 banks after row r. Neighbouring threads read rows that are two apart.
        state_row_bytes(pass_columns * 4 + 16),
        decay_row_bytes(head_dim * 4 + 16),
        v(0),
        gates(0),
        stage_bytes(0),
        q(0),
        decays(0),
        key_sum(0),
        prefixes(0),
        slice_sums(0),
        bytes(0) {
    constexpr long long stage = 20480;
    const long long key_bytes = k_row_bytes + v_row_bytes + (gate == GATE_CHANNEL ? head_dim * 4 : 0);
    while (block > 16 && block * key_bytes > stage) block /= 2;
    while (state_rows > 16 && state_rows * state_row_bytes > stage) {
      state_rows = static_cast<int>(round_up(state_rows / 2, 16));
    }
    v = block * k_row_bytes;
    gates = v + block * v_row_bytes;
    stage_bytes = block * key_bytes;
    if (stage_bytes < state_rows * state_row_bytes) stage_bytes = state_rows * state_row_bytes;
    const int jobs = (chunk + block - 1) / block + (head_dim + state_rows - 1) / state_rows;
    if (stages > jobs) stages = jobs;
    place(head_dim, chunk, gate);
    while (stages > 1 && bytes > phases_most_bytes) {
      --stages;
      place(head_dim, chunk, gate);
    }
  }

 private:
  constexpr void place(int head_dim, int chunk, int gate) {
    q = stages * stage_bytes;
    decays = q + rows * k_row_bytes;
    key_sum = decays + (gate == GATE_CHANNEL ? rows * decay_row_bytes : 0);
    prefixes = key_sum + head_dim * 4;
    slice_sums = prefixes + (gate == GATE_HEAD || gate == GATE_TOKEN ? chunk * 8 : 0);
    bytes = slice_sums + (gate == GATE_CHANNEL ? (block / 16 * 2 + 1) * head_dim * 4 : 0);
  }
};

/// Returns SCAN_ROWS of the cuda scans: the largest divisor of head_dim with which at most 128 threads have four
/// elements of S each. If normalised, cuda_scan_threads() adds one thread for each row of z.
constexpr int cuda_scan_rows(int head_dim, int value_dim) {
  int rows = head_dim;
  while (rows > 1 && (head_dim % rows != 0 || rows * value_dim / 4 > 128)) --rows;
  return rows;
}
constexpr int cuda_scan_threads(int rows, int value_dim, bool normalised) {
  return static_cast<int>(round_up(rows * value_dim / 4 + (normalised ? rows : 0), 32));
}
/// Chunks of a span that scan_lookback holds in registers, and reads once.
constexpr int held_chunks = 8;

/// recurrent: a threadgroup has `columns` columns of a state. A thread has four of these columns, in every 16th row.
struct CudaRecurrentLayout {
  static constexpr int threads = 128, columns = 32, token_block = 8;

  int slices;  // of a state
  int rows;    // of a thread
  // Offsets in bytes. For each token of a block: q, k and decays, [16 * rows] each (one decay unless by channel); v
  // [columns]; `parts`, what each warp adds to o [columns]; `sums`, what each warp adds to o's divisor.
  long long q, k, decays, v, parts, sums, bytes;

  constexpr CudaRecurrentLayout(int head_dim, int value_dim, int gate)
      : slices((value_dim + columns - 1) / columns),
        rows((head_dim + 15) / 16),
        q(0),
        k(token_block * rows * 16 * 4),
        decays(2 * k),
        v(decays + (gate == GATE_CHANNEL ? k : token_block * 4)),
        parts(v + token_block * columns * 4),
        sums(parts + threads / 32 * token_block * columns * 4),
        bytes(sums + threads / 32 * token_block * 4) {}
};
