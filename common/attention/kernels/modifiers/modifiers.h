// The data that the hooks of modifiers read at run time, for host and kernels: one block of memory that begins with
// ModifierData; the tables follow. Each `int` member of ModifierData is the offset of a table in the block, in bytes.
#pragma once

#include "common/attention/kernels/attention.h"

struct ModifierData {
  int slopes;             // ALIBI: float [q_heads]
  int sinks;              // SINKS: float [q_heads]
  int lengths;            // LENGTHS: int [batch], keys of each sequence
  int documents;          // DOCUMENTS: KeyRange [kv_len], the document of each key
  int bias;               // BIAS: float, element (b, h, q, k) at index b bias_strides[0] + h bias_strides[1] +
                          // q bias_strides[2] + k; with BIAS_OF_ROWS k is 0
  int blocks;             // BLOCK_SPARSE: a bit for each block of keys, [blocks of queries][sparse_words]
  int cosines, sines;     // ROTARY_DIM: float [keys, ROTARY_DIM / 2] from key 0 on; rows for queries before key 0 lie
                          // before this offset
  INT64 bias_strides[3];  // of b, h and q, in elements; multiples of 4 if the tensor has an axis of keys
};

// Values of BIAS: a row of the tensor has one element for all keys, or an element for each key.
#define BIAS_OF_ROWS 1
#define BIAS_OF_KEYS 2
/// Elements of memory that the host keeps after the tensor of BIAS. A block of keys may reach beyond the last key;
/// kernels then read elements there, and do not use them.
constexpr CONSTANT int bias_slack = 4096;

/// For BLOCK_SPARSE: the positions of a block, and the 32-bit words in a row of the table of bits.
constexpr CONSTANT int sparse_block = 128;
constexpr int sparse_words(int kv_len) { return (kv_len + 32 * sparse_block - 1) / (32 * sparse_block); }

/// Whether the window is a rule of mask.h, not a range of keys.h.
#define WINDOW_IN_MASK (WINDOW_BY_MASK || GLOBAL_TOKENS != 0)

static inline const GLOBAL ModifierData& modifiers_of(const ScoreContext& context) {
  return *static_cast<const GLOBAL ModifierData*>(context.data);
}

template <typename T>
static inline const GLOBAL T* table_at(const ScoreContext& context, int offset) {
  return reinterpret_cast<const GLOBAL T*>(static_cast<const GLOBAL char*>(context.data) + offset);
}
