// What a call has to be before a kernel may run: sizes, types, options, values of tables, and what lies where in
// memory.
//
// Every function throws BadInput with one line, which says what is wrong and what is allowed.
#pragma once

#include <initializer_list>

#include "common/api/engine.h"

namespace attn {

// Whether the call has any rows to compute. On the cpu, tables are read: lengths, page numbers, documents and offsets
// with which a kernel would leave a tensor are refused. With `gpu` they stand where the host cannot look.
bool check(const FlashCall& call, bool gpu);
bool check(const CacheCall& call, bool gpu);
bool check(const LinearCall& call, bool gpu);
bool check(const RopeCall& call, bool gpu);

/// Keys that a sequence of the cache may have.
int64_t capacity_of(const CacheCall& call);

/// Of a cache alone: k's sizes, max_pages, and q.batch, the number of sequences.
void check_cache(const CacheCall& call, bool gpu);
/// The same, and what lengths and table say, which are on the host.
void check_cache_values(const CacheCall& call);

/// Elements of a dense tensor.
constexpr int64_t elements(std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

/// Keys of a row of FlashCall::bias.
constexpr int64_t padded_keys(int64_t keys) { return (keys + 3) / 4 * 4; }

/// Turns off what changes nothing: a window that reaches all keys, whatever its size, a prefix that all queries see
/// anyway, a window to the right of causal attention. So they need no kernel of their own, and no number in a kernel is
/// larger than the sequence. The call is one that check() let pass, with keys.
void simplify(FlashCall& call);

}  // namespace attn
