// A caller's mask has a byte for each pair of a query and a key. The kernel `mask_bits` turns the mask into the lists
// of key blocks that attention walks (mask_lists.h), and into a bit for each pair (MaskBits). The kernel asks the mask
// hook only about pairs whose byte is not 0.
#pragma once

#include "common/attention/kernels/mask_lists.h"
#include "common/attention/kernels/modifiers/modifiers.h"

/// Returns how many bytes a word has, for a BLOCK_C that is a multiple of 16, at most 256.
constexpr int mask_word_bytes(long long block_c) {
  return block_c <= 32 ? 1 : block_c <= 64 ? 2 : block_c <= 128 ? 4 : 8;
}
template <int BYTES>
struct MaskWordOf {
  using type = unsigned long long;
};
template <>
struct MaskWordOf<1> {
  using type = unsigned char;
};
template <>
struct MaskWordOf<2> {
  using type = unsigned short;
};
template <>
struct MaskWordOf<4> {
  using type = unsigned;
};

/// Returns the index of the word of a query and a key.
static inline INT64 mask_word_index(const MaskBits& bits, int batch, int head, int query, int key, int kv_len,
                                    int block_c) {
  const INT64 row = static_cast<INT64>(query) * ((kv_len + block_c - 1) / block_c * 4);
  return batch * bits.of_batch + head * bits.of_head + row + key / block_c * 4 + key % 8 / 2;
}

/// Parameters of `mask_bits`.
struct MaskBitsParams {
  int q_heads, q_len, kv_len;
  int in_eights;                     // 1: eight bytes of the mask may be read at once, from key 0, 8, 16 ...
  const GLOBAL void* data;           // of the hooks
  const GLOBAL unsigned char* mask;  // the byte of a pair that takes part is not 0
  INT64 strides[4];                  // of the mask's batch, head, query and key, in bytes
  MaskLists lists;
  MaskBits bits;
  GLOBAL unsigned* finished;  // on a GPU: of each list, how many threadgroups are done; 0 before and after a launch
};
