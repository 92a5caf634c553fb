// Lists of key blocks for kernels with a mask hook (mask.h), as host and kernel (of every dialect) see them. No other
// headers than the kernels' own.
#pragma once

#include "common/attention/kernels/attention.h"

/// For each tile of BLOCK_R rows the blocks of BLOCK_C keys of which some pair takes part, in ascending order. An entry
/// is twice the block's number, plus 1 where pairs are to be masked: where not all of its keys exist, or not all pairs
/// of them and the tile's rows take part. Where there is none, the first entry is all the same one that is masked.
struct MaskLists {
  int* counts;            // entries of each list
  int* entries;           // [lists][capacity]
  int capacity;           // blocks of a sequence
  int rows;               // of a tile
  int first_query;        // where the first tile of a head begins: before 0 if rows are cut into tiles from the last on
  int of_batch, of_head;  // lists from one to the next; 0 where they share theirs
};

/// One of them.
struct MaskList {
  const int* entries;
  int count;
};

static inline long long number_of_list(const MaskLists& lists, int batch, int head, int first_query) {
  return static_cast<long long>(batch) * lists.of_batch + static_cast<long long>(head) * lists.of_head +
         (first_query - lists.first_query) / lists.rows;
}
static inline MaskList list_of(const MaskLists& lists, int batch, int head, int first_query) {
  const long long list = number_of_list(lists, batch, head, first_query);
  return {lists.entries + list * lists.capacity, lists.counts[list]};
}

/// Parameters of the kernel that makes the lists, `mask_blocks`: its grid is (tiles, heads, batches) that have their
/// own.
struct MaskBlocksParams {
  int q_heads, q_len, kv_len;
  const void* data;  // of the hooks
  MaskLists lists;
};

/// Parameters of a kernel that walks lists, and of one that does not.
template <typename Params>
struct WithLists : Params {
  MaskLists lists;
};
template <bool LISTS, typename Params>
struct ParamsWithLists {
  using type = Params;
};
template <typename Params>
struct ParamsWithLists<true, Params> {
  using type = WithLists<Params>;
};
template <typename Params>
inline MaskLists lists_of(const Params& /*params*/) {
  return {};
}
template <typename Params>
inline const MaskLists& lists_of(const WithLists<Params>& params) {
  return params.lists;
}
