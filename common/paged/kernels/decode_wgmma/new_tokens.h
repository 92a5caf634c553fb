// New tokens of `decode_wgmma` (APPENDS): their rotation, and their way into the threadgroup's buffers and the cache.
#pragma once

#include "common/paged/kernels/decode/schedule.h"
#include "common/paged/kernels/decode_wgmma/setup.h"

namespace {

/// A pair of elements of a row, and the numbers of their columns.
struct Pair {
  int low, high;
  float x, y;
};

/// Returns pair `number` of HEAD_DIM / 2 without its elements. The first ROTARY_DIM / 2 pairs are rotated.
DEVICE Pair pair_of(int number) {
  constexpr int turning = ROTARY_DIM / 2;
  if (!INTERLEAVED && number < turning) return {number, number + turning, 0, 0};
  return {2 * number, 2 * number + 1, 0, 0};
}
/// Rotates pair `number` by the angle of `position`, if the pair is rotated; a negative position rotates nothing.
DEVICE void turn(const DecodeParams& p, Pair& pair, int number, int position) {
  constexpr int turning = ROTARY_DIM / 2;
  if (number >= turning || position < 0) return;
  const NewTokens& tokens = tokens_of(static_cast<const Params&>(p));
  const long long at = static_cast<long long>(position) * turning + number;
  const float cosine = __ldg(tokens.cosines + at), sine = __ldg(tokens.sines + at), x = pair.x, y = pair.y;
  pair.x = x * cosine - y * sine;
  pair.y = y * cosine + x * sine;
}
/// Loads an element that no launch writes while the kernel runs. So the compiler may move the load before stores.
DEVICE float load_new(const void* tensor, long long index) {
  const unsigned short bits = __ldg(static_cast<const unsigned short*>(tensor) + index);
  return load_float<IN_TYPE>(&bits, 0);
}

/// Puts the new tokens among the block's keys into the block's buffer, K rotated (OF_KEYS) or V. If the tile is the
/// first of its key/value head, also writes them to the cache. All threads of the block's consumers call this function.
template <bool OF_KEYS>
DEVICE void take_new(const DecodeParams& p, const Place& here, int number, int first_key) {
  const int first_new = here.keys - p.q_len, first = max(max(first_new, 0), first_key);
  const int end = min(here.keys, first_key + BLOCK_C);
  if (first >= end) return;
  constexpr int pairs = HEAD_DIM / 2;
  const NewTokens& tokens = tokens_of(static_cast<const Params&>(p));
  const TensorStrides &from = OF_KEYS ? tokens.k_strides : tokens.v_strides,
                      &to = OF_KEYS ? p.cache.k_strides : p.cache.v_strides;
#pragma unroll(HEAD_DIM > 128 ? 1 : 4)
  for (int unit = (threadIdx.x - WARPGROUP) % BLOCK_THREADS; unit < (end - first) * pairs; unit += BLOCK_THREADS) {
    const int key = first + unit / pairs;
    const void* const tensor = OF_KEYS ? tokens.k : tokens.v;
    const long long token = index_of(from, {here.batch, here.kv_head, key - first_new});
    Pair pair = pair_of(unit % pairs);
    pair.x = load_new(tensor, token + pair.low);
    pair.y = load_new(tensor, token + pair.high);
    turn(p, pair, unit % pairs, OF_KEYS ? key : -1);
    store_float<IN_TYPE>(element_at(slot(number), KV_PANEL_BYTES, key - first_key, pair.low), 0, pair.x);
    store_float<IN_TYPE>(element_at(slot(number), KV_PANEL_BYTES, key - first_key, pair.high), 0, pair.y);
    if (here.tile != 0) continue;
    const int page = named_page(p.cache, here.batch, key);
    if (!is_page(p.cache, page)) continue;
    void* const cache = OF_KEYS ? p.cache.k : p.cache.v;
    const long long row = index_of(to, {page, here.kv_head, slot_of(key)});
    store_float<IN_TYPE>(cache, row + pair.low, pair.x);
    store_float<IN_TYPE>(cache, row + pair.high, pair.y);
  }
  fence_stores();
  named_sync(TURNS > 1 ? first_consumer + threadIdx.x / WARPGROUP - 1 : all_consumers, BLOCK_THREADS);
}

}  // namespace
