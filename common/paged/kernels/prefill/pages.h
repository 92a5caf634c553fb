// Finds a key's row in a cache of pages of PAGE_SIZE tokens.
#pragma once

#include "common/paged/kernels/prefill/prefill.h"

#define PAGES_ARE_DEFAULT 0
#define PAGE_KEYS PAGE_SIZE

static inline KeyPlace place_of_key(int key, int kv_head, const ScoreContext& context) {
  const GLOBAL PrefillData& data = prefill_of(context);
  const INT64 row = static_cast<INT64>(context.batch) * data.max_pages;
  return {data.table[row + key / static_cast<int>(PAGE_SIZE)], kv_head, key % static_cast<int>(PAGE_SIZE)};
}
