// The pages hook: where the row of a key lies in K and V. This file puts the keys of a head one after the other; an
// experiment puts another text in its place (KernelSource::includes["common/attention/kernels/pages.h"]) to look pages
// up in a table that ScoreContext::data points to.
//
// A kernel asks for keys that exist only, which a keys hook with KEYS_END_EARLY may limit further.
//
// `tuned` on the cpu needs COPY_K with another hook. `wgmma` copies boxes of whole pages, or of BLOCK_C keys where a
// page has more; the host makes its tensor maps of K and V for such boxes where FlashConfig::page_size says so: .batch
// is the page, and .row the key's place on it.
#pragma once

#include "common/attention/kernels/attention.h"

/// False in every other hook. True: a key's row is at (batch, kv_head, key).
#define PAGES_ARE_DEFAULT 1
/// From a multiple of PAGE_KEYS on so many keys lie next to each other, strides.row apart. For
/// `wgmma` it is a multiple of 8 that divides BLOCK_C, or that BLOCK_C divides.
#define PAGE_KEYS BLOCK_C

/// key counts from the start of its sequence.
static inline KeyPlace place_of_key(int key, int kv_head, const ScoreContext& context) {
  return {context.batch, kv_head, key};
}
