// The pages hook says where the row of a key lies in K and V. In this file the keys of a head lie one after the other.
// An experiment replaces this file by another text (KernelSource::includes["common/attention/kernels/pages.h"]), for
// example to look pages up in a table that ScoreContext::data points to.
//
// Unless PAGES_ARE_DEFAULT, a kernel asks only for keys from 0 to kv_len - 1, and loads only rows of keys that exist.
// With KEYS_END_EARLY (keys.h) only keys before end_of_keys() exist.
//
// If another text replaces this file, `tuned` on the cpu must be compiled with COPY_K=1. `wgmma` copies boxes of a
// tensor map: whole pages, or BLOCK_C keys if a page has more keys. If FlashConfig::page_size is set, the host makes
// the tensor maps of K and V for these boxes; then KeyPlace::batch must be the page, and KeyPlace::row the key's row on
// the page.
#pragma once

#include "common/attention/kernels/attention.h"

/// Whether a key's row is at (batch, kv_head, key). Other pages hooks define this macro as 0.
#define PAGES_ARE_DEFAULT 1
/// Keys of a page. The keys from each multiple of PAGE_KEYS on lie next to each other, strides.row apart. For `wgmma`
/// PAGE_KEYS is a multiple of 8 that divides BLOCK_C, or a multiple of BLOCK_C.
#define PAGE_KEYS BLOCK_C

/// key counts from the start of its sequence.
static inline KeyPlace place_of_key(int key, int kv_head, const ScoreContext& context) {
  return {context.batch, kv_head, key};
}
