// The data that the hooks of modifiers read at run time, for host and kernels: one block of memory that begins with a
// ModifierData; the tables follow (ModifierLayout in ../../modifiers.h).
#pragma once

#include "common/attention/kernels/attention.h"

/// A bit for each pair of a query and a key (mask_in_bits.h). A row has four words for each block of BLOCK_C keys. Word
/// i has a bit for each key k of the block with k % 8 == 2 i or k % 8 == 2 i + 1, in the order of the keys from the
/// lowest bit on. After a matrix product on a GPU, one thread has a row's scores for exactly these keys (seen_pairs.h).
/// The bits of keys after the last key are 0. Words of blocks that are not in the list of the row's tile may be
/// anything.
struct MaskBits {
  GLOBAL void* words;       // [sequences][heads][q_len][blocks][4]; 1 instead of sequences, or heads, that share words
  INT64 of_batch, of_head;  // how many words lie from one sequence, or head, to the next; 0 if they share words
};

struct ModifierData {
  // Offsets of tables in the block, in bytes. A table of a caller has the name of its option (options.def).
  int alibi_slopes;      // float [q_heads]
  int sinks;             // float [q_heads]
  int lengths;           // int [batch], keys of each sequence
  int starts;            // int [batch], the first key of each sequence after the padding
  int documents;         // KeyRange [kv_len], the document of each key
  int blocks;            // a bit for each block of keys, [blocks of queries][sparse_words]
  int bias;              // float, element (b, h, q, k) at index b bias_strides[0] + h bias_strides[1] +
                         // q bias_strides[2] + k; with BIAS_OF_ROWS k is 0
  int tree;              // long long [batch, q_len], the new tokens that a new token sees: bit i is new token i
  int cosines, sines;    // ROTARY_DIM: float [keys, ROTARY_DIM / 2] from key 0 on; rows for queries before key 0 lie
                         // before this offset
  int cu_seqlens_q;      // int [sequences + 1], where the queries of each sequence begin, and where the last sequence's
                         // queries end
  int cu_seqlens_k;      // int [sequences + 1], the same for keys
  int sequences;         // how many sequences lie in the tensors (RAGGED)
  int alibi, bias_kind;  // for score_run_time.h: whether ALiBi is on; a value of BIAS
  float soft_cap;        // for score_run_time.h: the cap; 0: none
  INT64 bias_strides[3];  // of b, h and q, in elements; multiples of 4 if the tensor has an axis of keys
  MaskBits mask;          // of mask_in_bits.h
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

static inline const GLOBAL ModifierData& modifiers_of(const ScoreContext& context) {
  return *static_cast<const GLOBAL ModifierData*>(context.data);
}

template <typename T>
static inline const GLOBAL T* table_at(const ScoreContext& context, int offset) {
  return reinterpret_cast<const GLOBAL T*>(static_cast<const GLOBAL char*>(context.data) + offset);
}

static inline int least(int a, int b) { return a < b ? a : b; }
static inline int most(int a, int b) { return a > b ? a : b; }
