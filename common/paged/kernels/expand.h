// The parameters of the kernel `expand`, which writes a cache of 8 bits as a contiguous cache of Q's type, for kernels
// that cannot read a cache of 8 bits. Host and kernels share this file; it includes only headers of kernels.
#pragma once

#include "common/paged/kernels/decode.h"

/// An element is the stored number times the scale of its page and head, in f32, then rounded to OUT_TYPE. k, v:
/// [batch, kv_heads, most_keys, HEAD_DIM], dense. Keys from a sequence's length on are not written. On a GPU, if a
/// sequence's length is negative or above most_keys, none of its keys is written. On a GPU a key on a page outside 0 to
/// cache.pages - 1 is NaN, and so is its value.
struct ExpandParams {
  KvCacheView cache;
  GLOBAL void *k, *v;
  const GLOBAL int* lengths;  // [batch]: a sequence's keys
  int most_keys, kv_heads;
};
