// What the kernels `decode` and `decode_wgmma` share: types, the pages of keys, and the marks of tiles whose rows are
// computed anew.
#pragma once

#include "common/attention/kernels/keys.h"
#include "common/attention/kernels/score.h"
#include "common/attention/kernels/sink.h"
#include "common/kernel/base2.h"
#include "common/kernel/bytes.h"
#include "common/kernel/cuda.h"
#include "common/paged/kernels/decode.h"

namespace {

constexpr int KV_BYTES = bytes_of_type(CACHE_TYPE);
constexpr bool FOLD = SCORE_IS_IDENTITY;  // scores and shifts are in base 2
using Params = DecodeParamsOf<APPENDS>::type;

// If a result of a tile is not finite, the worker marks the tile (keep_for_later()). After its last block the worker
// computes the rows of marked tiles anew. A marked tile is a kept tile. some_lost: the table has named a page that the
// cache does not have; from then on this worker's sums are NaN. some_kept: this worker has marked a tile.
__shared__ bool some_lost;
__shared__ bool some_kept;
constexpr unsigned kept = 0x80000000;  // value of the counter `arrived` of a kept tile

/// Returns 2^difference, or without FOLD e^difference, for a difference of two scores or shifts. A row's shift is the
/// number that the softmax subtracts from the row's scores.
DEVICE float power(float difference) { return exp2_approx(FOLD ? difference : difference * log2_e); }

// ---- pages

/// Returns the page that the table names for a key. It is possible that the cache does not have this page.
DEVICE int named_page(const KvCacheView& cache, int batch, int key) {
  if constexpr (PAGE_SIZE == 0) {
    return batch;
  } else {
    return __ldg(cache.table + static_cast<long long>(batch) * cache.max_pages + key / PAGE_SIZE);
  }
}
DEVICE bool is_page(const KvCacheView& cache, int page) {
  return PAGE_SIZE == 0 || static_cast<unsigned>(page) < static_cast<unsigned>(cache.pages);
}
DEVICE int slot_of(int key) { return PAGE_SIZE == 0 ? key : key % (PAGE_SIZE == 0 ? 1 : PAGE_SIZE); }

}  // namespace
