// The parameters of the kernel `append_scaled`, which writes new tokens to a cache of 8 bits and rotates the tokens'
// queries. The attention kernels themselves can write new tokens only to a cache of Q's type. Host and kernels share
// this file; it includes only headers of kernels.
#pragma once

#include "common/paged/kernels/decode.h"

/// If ROTARY_DIM is not 0, the kernel rotates queries and new keys in f32, by the angles of their positions. A stored
/// number is the element divided by the scale of its page and head, rounded as byte_of() says
/// (common/kernel/to_bytes.h). The tokens have the type of q; token i is key length - q_len + i. A token at a negative
/// position is not written, and its query is not rotated. On a GPU, if a sequence's length is negative or above
/// most_keys, none of its tokens is written and none of its queries is rotated. On a GPU no token is written to a page
/// outside 0 to cache.pages - 1.
struct AppendScaledParams {
  KvCacheView cache;
  NewTokens tokens;
  const GLOBAL int* lengths;  // [batch]: a sequence's keys, including the new tokens
  int most_keys, q_heads, kv_heads, q_len;
  const GLOBAL void* q;  // [batch, q_heads, q_len, HEAD_DIM]
  TensorStrides q_strides;
  GLOBAL void* turned_q;  // the rotated queries, dense, in the type of q; written only if ROTARY_DIM is not 0
};
