// Lists of key blocks for kernels with a mask hook (mask.h), for the host and for kernels of every dialect.
#pragma once

#include "common/attention/kernels/attention.h"
#include "common/kernel/spaces.h"

/// Each tile of BLOCK_R rows has a list. Tiles with the same rows in different heads or sequences may share a list. The
/// list has, in ascending order, the blocks of BLOCK_C keys in which some pair takes part. An entry is twice the
/// block's number, plus 1 if a kernel must mask the block's pairs: the block reaches beyond the last key, or some pair
/// of the block's keys and the tile's rows does not take part. The first entry of an empty list is 1: block 0, masked.
struct MaskLists {
  GLOBAL int* counts;     // how many entries each list has
  GLOBAL int* entries;    // [lists][capacity]
  int capacity;           // key blocks of a sequence
  int rows;               // of a tile
  int first_query;        // the first row of a head's first tile: FlashOperation::first_query(), at most 0
  int of_batch, of_head;  // how many lists lie from one sequence, or head, to the next; 0 if they share lists
};

/// The list of one tile.
struct MaskList {
  const GLOBAL int* entries;
  int count;
};

static inline INT64 number_of_list(const LOCAL MaskLists& lists, int batch, int head, int first_query) {
  return static_cast<INT64>(batch) * lists.of_batch + static_cast<INT64>(head) * lists.of_head +
         (first_query - lists.first_query) / lists.rows;
}
static inline MaskList list_of(const LOCAL MaskLists& lists, int batch, int head, int first_query) {
  const INT64 list = number_of_list(lists, batch, head, first_query);
  return {lists.entries + list * lists.capacity, lists.counts[list]};
}

/// Parameters of the kernel `mask_blocks`, which makes the lists by asking the hooks.
struct MaskBlocksParams {
  int q_heads, q_len, kv_len;
  const GLOBAL void* data;  // of the hooks
  MaskLists lists;
};

/// The parameters of a kernel that walks lists. ParamsWithLists::type is Params, with lists if LISTS is true.
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
inline MaskLists lists_of(const LOCAL Params& /*params*/) {
  return {};
}
template <typename Params>
inline const LOCAL MaskLists& lists_of(const LOCAL WithLists<Params>& params) {
  return params.lists;
}
