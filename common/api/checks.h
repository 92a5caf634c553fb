// Checks of a call before a kernel runs: sizes, types, options, values of tables, and overlaps in memory.
//
// The checks throw BadInput with one line that says what is wrong and what is allowed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "common/api/engine.h"

namespace attn {

// check() returns whether the call has any rows to compute. On the cpu check() also checks the numbers in the call's
// tables. If `gpu` is true, check() does not read the tables, because they are in device memory. If `asked` is true,
// the call is only asked about: check() reads no table. Addresses may then be no_address.
bool check(const FlashCall& call, bool gpu, bool asked = false);
bool check(const CacheCall& call, bool gpu, bool asked = false);
bool check(const LinearCall& call, bool gpu);
bool check(const RopeCall& call, bool gpu, bool asked = false);

namespace detail {
alignas(16) inline std::byte nowhere[16];
}
/// The address of memory that a call without elements, or a question about a call, does not name. It overlaps no
/// memory.
inline constexpr void* no_address = detail::nowhere;

/// Returns the largest number of keys that a sequence of the cache may have.
int64_t capacity_of(const CacheCall& call);

/// The modifiers of a call of attention, or of a call over a cache.
struct ModifiedCall : FlashCall {
  const int64_t* tree = nullptr;  // CacheCall::tree
};

/// Returns the modifiers of a call over a cache as a call of attention. The result's q is the call's q. The
/// result's k has capacity_of(call) tokens. The result is causal: a query sees the keys up to its own key.
ModifiedCall modified_part(const CacheCall& call);

/// Checks the sizes of k, max_pages, the number of sequences (q.batch), and that lengths are given.
void check_cache(const CacheCall& call, bool gpu);
/// Checks the values of lengths and table. The caller has them on the host.
void check_cache_values(const CacheCall& call);
/// Checks that no page gets tokens of new_k through two entries of the table, and that no sequence sees, through
/// another entry, a slot that gets a token: threads write the slot while others read it. Tables and lengths are as for
/// check_new_scales().
void check_appended_pages(const CacheCall& call);
/// Checks the scales of the pages, or of the sequences, that get the tokens of new_k. All tables are on the host, and
/// lengths and table have passed check_cache_values().
void check_new_scales(const CacheCall& call);

constexpr int64_t most_elements = int64_t{1} << 59;  // 8 * most_elements fits int64_t; no memory has so many bytes
/// Returns the number of elements of a dense tensor, at most most_elements.
constexpr int64_t elements(std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) {
    if (__builtin_mul_overflow(product, size, &product)) product = most_elements;
    product = std::min(product, most_elements);
  }
  return product;
}

/// Returns the number of elements in a row of FlashCall::bias for `keys` keys. Rows are padded to a multiple of 4.
constexpr int64_t padded_keys(int64_t keys) { return (keys + 3) / 4 * 4; }

/// Turns off options that change nothing, for example a window that reaches all keys. So these options need no separate
/// kernel. Each window, prefix and number of global tokens that stays on is below the larger of the numbers of queries
/// and keys. The call must have passed check(), and must have at least one key.
void simplify(FlashCall& call);

}  // namespace attn
