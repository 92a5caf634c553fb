// The host's side of a paged KV cache: which pages of a pool hold the tokens of which sequence. It keeps count, and
// never sees keys or values: it says which pages the caller copies on the device, and which parts of the page table the
// caller uploads.
//
// The method is that of PagedAttention (Kwon et al. 2023): a row of pages for each sequence, reference counts on pages
// that sequences share, copy on write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "common/base/divided_up.h"

namespace attn {

/// All at least 1. A sequence's tokens (max_pages * page_size), the entries of the table (max_sequences * max_pages)
/// and the pages are less than 2^31.
struct CacheSizes {
  int64_t pages;          // of the pool
  int64_t page_size;      // tokens of a page
  int64_t max_sequences;  // rows of the page table
  int64_t max_pages;      // of a sequence: columns of the page table

  bool operator==(const CacheSizes&) const = default;
};

/// Names a sequence of one cache. It is stale once the sequence is freed, also when its row has another sequence.
struct SequenceId {
  int32_t row = -1;  // of the page table and of the lengths
  int64_t generation = 0;
};

/// What the caller copies on the device: the first `tokens` slots of page `from` to page `to`.
struct PageCopy {
  int32_t from, to;
  int64_t tokens;

  bool operator==(const PageCopy&) const = default;
};

/// Where a token lies.
struct TokenPlace {
  int32_t page;
  int64_t slot;  // of the page

  bool operator==(const TokenPlace&) const = default;
};

/// Entries `first` up to, not including, `last` of a row of the page table.
struct TableSpan {
  int32_t row, first, last;

  bool operator==(const TableSpan&) const = default;
};

struct CacheFigures {
  int64_t used_pages, free_pages;
  int64_t shared_pages;  // that more than one sequence holds
  int64_t peak_pages;    // the most that were ever used at once
  int64_t tokens;        // of all sequences; a token that they share counts for each
  int64_t wasted_slots;  // of used pages, without a token of any sequence
  double waste;          // wasted_slots as a share of the slots of used pages
  double fragmentation;  // the share of neighbours in a row of the table whose second page does not follow the first
                         // one in the pool: 0 where each sequence lies in one piece
};

/// The pool has too few free pages, or the table no free row. It may work once a sequence is freed.
struct CacheFull : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Which pages hold which sequence's tokens. Every function that changes a sequence takes time for the pages that it
/// takes, shares or gives back, however large the pool is. Every function throws BadInput for a stale id, and leaves
/// all as it was where it throws.
///
/// Free pages and free rows are stacks: what was given back last is taken first. A sequence gives back its last page
/// first, so the next one takes the pages in the same order.
class PagedKvCache {
 public:
  /// All pages are free. Throws BadInput for sizes that CacheSizes does not allow.
  explicit PagedKvCache(const CacheSizes& sizes);

  /// A sequence without tokens. Throws CacheFull where all rows are taken.
  SequenceId create();
  /// A sequence that begins with the first `tokens` of another, all of them where none are named. It shares their
  /// pages, and takes none. Throws BadInput where the other is shorter, CacheFull where all rows are taken.
  SequenceId fork(SequenceId parent) { return fork(parent, length(parent)); }
  SequenceId fork(SequenceId parent, int64_t tokens);
  /// Makes room for `tokens` more tokens. Where they begin on a page that another sequence holds too, the sequence gets
  /// a page of its own instead, and the caller has to make the copy before it writes tokens of this or a later append.
  /// Copies are made in their order; between appends alone, without a fork, truncate or free, they may be made in any.
  /// Throws BadInput where the sequence would have more than max_pages, CacheFull where too few pages are free.
  std::optional<PageCopy> append(SequenceId id, int64_t tokens);
  /// Forgets all but the first `tokens`. Throws BadInput where there are fewer.
  void truncate(SequenceId id, int64_t tokens);
  /// Ends the sequence; all copies of its id are stale then.
  void free(SequenceId id);

  /// Tokens.
  int64_t length(SequenceId id) const { return lengths_[checked(id)]; }
  /// In order of the tokens; valid until the sequence changes.
  std::span<const int32_t> pages(SequenceId id) const;
  /// Throws BadInput where the sequence has no such token; they count from 0.
  TokenPlace place(SequenceId id, int64_t token) const;

  /// [max_sequences, max_pages]: the pages of each row's sequence, -1 behind them.
  const std::vector<int32_t>& table() const { return table_; }
  /// [max_sequences]: tokens of each row's sequence, 0 where there is none.
  const std::vector<int32_t>& lengths() const { return lengths_; }
  /// [pages]: how many sequences hold each page, 0 for a free one.
  const std::vector<int32_t>& holders() const { return holders_; }
  /// Where the table may have changed since the last call, at most one span a row. A new cache's table is all -1, and
  /// has no changes. Lengths are few: the caller uploads all of them.
  std::vector<TableSpan> take_changes();

  /// Takes time for max_sequences, because of wasted_slots.
  CacheFigures figures() const;
  /// Memory of the host that the cache takes; it does not grow.
  size_t bytes() const;

  bool operator==(const PagedKvCache&) const = default;

 private:
  int32_t checked(SequenceId id) const;  // its row
  int64_t used_pages() const { return sizes_.pages - static_cast<int64_t>(free_pages_.size()); }
  int64_t pages_for(int64_t tokens) const { return divided_up(tokens, sizes_.page_size); }
  int32_t& entry(int32_t row, int64_t column) { return table_[row * sizes_.max_pages + column]; }
  int32_t take_page();
  void push(int32_t row, int64_t column, int32_t page);  // behind the row's last page
  int32_t pop(int32_t row, int64_t column);              // the row's last page
  void count_neighbour(int32_t row, int64_t column, int64_t by);
  void mark(int32_t row, int64_t column);
  void shorten(int32_t row, int64_t tokens);
  int64_t wasted_slots() const;

  CacheSizes sizes_;
  std::vector<int32_t> table_, lengths_, holders_;
  std::vector<int32_t> free_pages_, free_rows_;       // the last is taken first
  std::vector<int64_t> generations_;                  // of rows: odd while they have a sequence
  std::vector<std::pair<int32_t, int32_t>> changes_;  // of rows: first and last changed column, plus one
  std::vector<int32_t> changed_rows_;                 // those whose change is not empty
  int64_t tokens_ = 0, shared_pages_ = 0, peak_pages_ = 0;
  int64_t neighbours_ = 0, gaps_ = 0;  // of neighbours: whose pages do not follow each other
};

/// Throws BadInput for the first row and column of a page table [lengths.size(), columns] with which a kernel would
/// read outside the pool. Lengths have to fit the columns, and entries of pages with tokens are from 0 to pages - 1;
/// entries behind them may be anything. With `holders`, those of a cache, pages that no sequence holds are refused too.
void validate_page_table(std::span<const int32_t> table, std::span<const int32_t> lengths, int64_t page_size,
                         int64_t pages, std::span<const int32_t> holders = {});

}  // namespace attn
