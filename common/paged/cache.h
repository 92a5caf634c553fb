// The host's side of a paged KV cache: which pages of a pool hold the tokens of which sequence. PagedKvCache never
// sees keys or values. It says which pages the caller copies on the device, and which parts of the page table the
// caller uploads.
//
// The method is PagedAttention (Kwon et al. 2023): a row of pages for each sequence, reference counts on pages that
// sequences share, copy on write.
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

/// All sizes are at least 1. Each of these numbers is less than 2^31: `pages`, max_pages * page_size (the most tokens
/// of a sequence), max_sequences * max_pages (the entries of the page table).
struct CacheSizes {
  int64_t pages;          // of the pool
  int64_t page_size;      // tokens of a page
  int64_t max_sequences;  // rows of the page table
  int64_t max_pages;      // of a sequence: columns of the page table

  bool operator==(const CacheSizes&) const = default;
};

/// Names a sequence of one cache. The id is stale once the sequence is freed, even if a later sequence gets the same
/// row.
struct SequenceId {
  int32_t row = -1;  // of the page table and of the lengths
  int64_t generation = 0;
};

/// A copy that the caller makes on the device: the first `tokens` slots of page `from` to page `to`. A slot is the
/// place of one token on a page.
struct PageCopy {
  int32_t from, to;
  int64_t tokens;

  bool operator==(const PageCopy&) const = default;
};

/// Where a token lies in the pool.
struct TokenPlace {
  int32_t page;
  int64_t slot;  // of the page

  bool operator==(const TokenPlace&) const = default;
};

/// Entries of a row of the page table, from column `first` to column `last` - 1.
struct TableSpan {
  int32_t row, first, last;

  bool operator==(const TableSpan&) const = default;
};

struct CacheFigures {
  int64_t used_pages, free_pages;
  int64_t shared_pages;  // pages that more than one sequence holds
  int64_t peak_pages;    // the most pages that were ever used at once
  int64_t tokens;        // of all sequences; a shared token counts once for each of its sequences
  int64_t wasted_slots;  // on used pages: slots that hold no token of any sequence
  double waste;          // wasted_slots as a share of the slots of used pages; 0 if no page is used
  /// Over all pairs of neighbouring pages in a row of the table: the share of pairs whose second page does not come
  /// directly after the first page in the pool. 0 if each sequence lies in one piece.
  double fragmentation;
};

/// The pool has too few free pages, or the table has no free row. The call may succeed once a sequence is freed.
struct CacheFull : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Which pages hold which sequence's tokens. The time of a function that changes a sequence grows with the pages that
/// the function takes, shares or gives back, and does not depend on the size of the pool. Every function that takes an
/// id throws BadInput if the id is stale. A function that throws changes nothing.
///
/// Free pages are a stack, and so are free rows: what was given back last is taken first. A freed sequence gives back
/// its last page first, so a sequence that then takes these pages usually takes them in the same order.
class PagedKvCache {
 public:
  /// Makes a cache whose pages are all free. Throws BadInput for sizes that CacheSizes does not allow.
  explicit PagedKvCache(const CacheSizes& sizes);

  /// Makes a sequence without tokens. Throws CacheFull if all rows are taken.
  SequenceId create();
  /// Makes a sequence of the first `tokens` tokens of the parent, by default of all its tokens. The new sequence
  /// shares the parent's pages, and takes no free page. Throws BadInput if the parent has fewer tokens, CacheFull if
  /// all rows are taken.
  SequenceId fork(SequenceId parent) { return fork(parent, length(parent)); }
  SequenceId fork(SequenceId parent, int64_t tokens);
  /// Makes room for `tokens` more tokens. If the new tokens begin on a page that another sequence also holds, the
  /// sequence gets a page of its own in place of that page, and append() returns a copy. The caller makes this copy
  /// before writing tokens of this append or of a later append. The caller makes copies in the order of their appends,
  /// or in any order if no fork, truncate or free comes between these appends. Throws BadInput if the sequence would
  /// have more than max_pages pages, CacheFull if too few pages are free.
  std::optional<PageCopy> append(SequenceId id, int64_t tokens);
  /// Keeps only the first `tokens` tokens. Throws BadInput if the sequence has fewer tokens.
  void truncate(SequenceId id, int64_t tokens);
  /// Ends the sequence; then all copies of its id are stale.
  void free(SequenceId id);

  /// Returns the number of the sequence's tokens.
  int64_t length(SequenceId id) const { return lengths_[checked(id)]; }
  /// Returns the sequence's pages in the order of their tokens. The span is valid until the sequence changes.
  std::span<const int32_t> pages(SequenceId id) const;
  /// Returns where a token lies. Tokens count from 0. Throws BadInput for a token that the sequence does not have.
  TokenPlace place(SequenceId id, int64_t token) const;

  /// [max_sequences, max_pages]: the pages of each row's sequence, then -1.
  const std::vector<int32_t>& table() const { return table_; }
  /// [max_sequences]: the tokens of each row's sequence; 0 for a row without a sequence.
  const std::vector<int32_t>& lengths() const { return lengths_; }
  /// [pages]: the number of sequences that hold each page; 0 for a free page.
  const std::vector<int32_t>& holders() const { return holders_; }
  /// Returns the spans of the table that may have changed since the last call, at most one for each row. The table of a
  /// new cache is all -1, and has no changes. Changes of lengths are not listed; the caller uploads all lengths.
  std::vector<TableSpan> take_changes();

  /// The time of figures() grows with max_sequences, because of wasted_slots.
  CacheFigures figures() const;
  /// Returns the bytes of the cache's host memory, which does not grow.
  size_t bytes() const;

  bool operator==(const PagedKvCache&) const = default;

 private:
  int32_t checked(SequenceId id) const;  // returns the sequence's row; throws BadInput if the id is stale
  int64_t used_pages() const { return sizes_.pages - static_cast<int64_t>(free_pages_.size()); }
  int64_t pages_for(int64_t tokens) const { return divided_up(tokens, sizes_.page_size); }
  int32_t& entry(int32_t row, int64_t column) { return table_[row * sizes_.max_pages + column]; }
  int32_t take_page();
  void push(int32_t row, int64_t column, int32_t page);  // after the row's last page
  int32_t pop(int32_t row, int64_t column);              // removes the row's last page
  void count_neighbour(int32_t row, int64_t column, int64_t by);
  void mark(int32_t row, int64_t column);
  void shorten(int32_t row, int64_t tokens);
  int64_t wasted_slots() const;

  CacheSizes sizes_;
  std::vector<int32_t> table_, lengths_, holders_;
  std::vector<int32_t> free_pages_, free_rows_;       // the last is taken first
  std::vector<int64_t> generations_;                  // of rows: odd while the row has a sequence
  std::vector<std::pair<int32_t, int32_t>> changes_;  // of rows: first changed column, and last changed column plus one
  std::vector<int32_t> changed_rows_;                 // rows whose change is not empty
  int64_t tokens_ = 0, shared_pages_ = 0, peak_pages_ = 0;
  int64_t neighbours_ = 0, gaps_ = 0;  // CacheFigures::fragmentation is gaps_ / neighbours_
};

/// Checks a page table [lengths.size(), columns], so that no kernel reads outside the pool: each length fits the
/// columns, and the entries that a row's length needs are from 0 to pages - 1. A row's later entries may be anything.
/// If `holders` is given (the holders() of a cache), these entries must also name pages that some sequence holds.
/// Throws BadInput; for a wrong length or entry the text names the first wrong row, and for an entry the column too.
void validate_page_table(std::span<const int32_t> table, std::span<const int32_t> lengths, int64_t page_size,
                         int64_t pages, std::span<const int32_t> holders = {});

}  // namespace attn
