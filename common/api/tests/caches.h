// Caches of tests: the places of their tokens, and copies of rows.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/divided_up.h"
#include "common/data/tensor.h"

namespace attn::test {

/// A page table whose pages lie in a mixed order, or a contiguous cache (page_size 0), where a sequence has one page.
struct CachePlaces {
  /// capacity: tokens of a sequence. Only the pages of the first `held` tokens exist; the other entries are -1.
  CachePlaces(int64_t sequences, int64_t capacity, int64_t page_size, int64_t held)
      : page(page_size == 0 ? capacity : page_size), max_pages(capacity / page) {
    const int64_t of_each = divided_up(held, page);
    pages = sequences * of_each;
    table.assign(static_cast<size_t>(sequences * max_pages), -1);
    for (int64_t i = 0; i < pages; ++i) {
      const int64_t number = page_size == 0 ? i : (i * 7 + 3) % pages;
      table[static_cast<size_t>(i / of_each * max_pages + i % of_each)] = static_cast<int>(number);
    }
  }

  int64_t page_of(int64_t sequence, int64_t token) const {
    return table[static_cast<size_t>(sequence * max_pages + token / page)];
  }
  /// Calls visit(sequence, head, token, page, slot) for each token of sequences of these lengths.
  template <typename Visit>
  void for_tokens(std::span<const int> lengths, int64_t heads, const Visit& visit) const {
    for (int64_t sequence = 0; sequence < static_cast<int64_t>(lengths.size()); ++sequence) {
      for (int64_t head = 0; head < heads; ++head) {
        for (int64_t token = 0; token < lengths[static_cast<size_t>(sequence)]; ++token) {
          visit(sequence, head, token, page_of(sequence, token), token % page);
        }
      }
    }
  }

  int64_t page, max_pages, pages = 0;
  std::vector<int> table;
};

using RowPlace = std::array<int64_t, 3>;  // batch, head, token

/// Copies a row, times `factor`. The products are rounded to the type of `to`.
inline void copy_row(Tensor& to, const RowPlace& there, const Tensor& from, const RowPlace& here, double factor = 1) {
  for (int64_t d = 0; d < to.dim; ++d) {
    to.set(there[0], there[1], there[2], d, from.at(here[0], here[1], here[2], d) * factor);
  }
}

/// Returns the first `tokens` tokens of one sequence.
inline Tensor part_of(const Tensor& tensor, int64_t sequence, int64_t tokens) {
  Tensor part = Tensor::zeros(1, tensor.heads, tokens, tensor.dim, tensor.dtype, Layout::bhsd);
  for (int64_t head = 0; head < tensor.heads; ++head) {
    for (int64_t token = 0; token < tokens; ++token) copy_row(part, {0, head, token}, tensor, {sequence, head, token});
  }
  return part;
}

inline std::vector<double> numbers_of(const Tensor& tensor) {
  std::vector<double> numbers(static_cast<size_t>(tensor.count()));
  tensor.load(0, numbers);
  return numbers;
}

}  // namespace attn::test
