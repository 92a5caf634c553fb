#include "common/paged/cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <unordered_map>

#include "common/base/error.h"

namespace attn {
namespace {

constexpr int64_t max_index = std::numeric_limits<int32_t>::max();
constexpr int32_t no_page = -1;

CacheSizes checked_sizes(const CacheSizes& sizes) {
  const auto check = [](const char* what, int64_t value, int64_t allowed) {
    if (value >= 1 && value <= allowed) return;
    throw BadInput(fmt::format("paged cache: {}={} is not allowed; allowed are 1 to {}", what, value, allowed));
  };
  check("pages", sizes.pages, max_index);
  check("page_size", sizes.page_size, max_index);
  check("max_pages", sizes.max_pages, max_index / sizes.page_size);
  check("max_sequences", sizes.max_sequences, max_index / sizes.max_pages);
  return sizes;
}

/// Returns the numbers from n - 1 down to 0.
std::vector<int32_t> all_below(int64_t n) {
  std::vector<int32_t> numbers(n);
  std::iota(numbers.rbegin(), numbers.rend(), 0);
  return numbers;
}

}  // namespace

PagedKvCache::PagedKvCache(const CacheSizes& sizes)
    : sizes_(checked_sizes(sizes)),
      table_(sizes.max_sequences * sizes.max_pages, no_page),
      lengths_(sizes.max_sequences),
      holders_(sizes.pages),
      free_pages_(all_below(sizes.pages)),
      free_rows_(all_below(sizes.max_sequences)),
      generations_(sizes.max_sequences),
      changes_(sizes.max_sequences) {
  changed_rows_.reserve(sizes.max_sequences);
}

int32_t PagedKvCache::checked(SequenceId id) const {
  const bool known = id.row >= 0 && id.row < sizes_.max_sequences && id.generation == generations_[id.row];
  if (known && id.generation % 2 == 1) return id.row;
  throw BadInput(fmt::format("paged cache: the id of row {}, generation {}, is stale; its sequence must exist", id.row,
                             id.generation));
}

SequenceId PagedKvCache::create() {
  if (free_rows_.empty()) {
    throw CacheFull(fmt::format("paged cache: all {} rows have a sequence", sizes_.max_sequences));
  }
  const int32_t row = free_rows_.back();
  free_rows_.pop_back();
  return {row, ++generations_[row]};
}

SequenceId PagedKvCache::fork(SequenceId parent, int64_t tokens) {
  const int32_t from = checked(parent);
  if (tokens < 0 || tokens > lengths_[from]) {
    throw BadInput(fmt::format("paged cache: fork of {} tokens; the sequence has {}", tokens, lengths_[from]));
  }
  const SequenceId child = create();
  for (int64_t column = 0; column < pages_for(tokens); ++column) push(child.row, column, entry(from, column));
  lengths_[child.row] = tokens;
  tokens_ += tokens;
  return child;
}

std::optional<PageCopy> PagedKvCache::append(SequenceId id, int64_t tokens) {
  const int32_t row = checked(id);
  const int64_t length = lengths_[row], room = sizes_.max_pages * sizes_.page_size - length;
  if (tokens < 0 || tokens > room) {
    throw BadInput(
        fmt::format("paged cache: append of {} tokens to a sequence of {}; allowed are 0 to {}, because a sequence has "
                    "at most {} pages of {}",
                    tokens, length, room, sizes_.max_pages, sizes_.page_size));
  }
  const int64_t filled = length % sizes_.page_size;  // tokens on the last page; 0 if it is full or there is none
  const int64_t had = pages_for(length), has = pages_for(length + tokens);
  const bool copies = tokens > 0 && filled > 0 && holders_[entry(row, had - 1)] > 1;
  const int64_t needed = has - had + copies, left = free_pages_.size();
  if (needed > left) {
    throw CacheFull(
        fmt::format("paged cache: append needs {} more pages; {} of {} are free", needed, left, sizes_.pages));
  }
  std::optional<PageCopy> copy;
  if (copies) {
    const int32_t from = pop(row, had - 1), to = take_page();
    push(row, had - 1, to);
    copy = {from, to, filled};
  }
  for (int64_t column = had; column < has; ++column) push(row, column, take_page());
  lengths_[row] += tokens;
  tokens_ += tokens;
  peak_pages_ = std::max(peak_pages_, used_pages());
  return copy;
}

void PagedKvCache::truncate(SequenceId id, int64_t tokens) {
  const int32_t row = checked(id);
  if (tokens < 0 || tokens > lengths_[row]) {
    throw BadInput(fmt::format("paged cache: truncate to {} tokens; the sequence has {}", tokens, lengths_[row]));
  }
  shorten(row, tokens);
}

void PagedKvCache::free(SequenceId id) {
  const int32_t row = checked(id);
  shorten(row, 0);
  ++generations_[row];
  free_rows_.push_back(row);
}

std::span<const int32_t> PagedKvCache::pages(SequenceId id) const {
  const int32_t row = checked(id);
  return std::span(table_).subspan(row * sizes_.max_pages, pages_for(lengths_[row]));
}

TokenPlace PagedKvCache::place(SequenceId id, int64_t token) const {
  const auto held = pages(id);
  if (token < 0 || token >= lengths_[id.row]) {
    throw BadInput(fmt::format("paged cache: token {}; the sequence has {}, counted from 0", token, lengths_[id.row]));
  }
  return {held[token / sizes_.page_size], token % sizes_.page_size};
}

std::vector<TableSpan> PagedKvCache::take_changes() {
  std::vector<TableSpan> spans;
  spans.reserve(changed_rows_.size());
  for (const int32_t row : changed_rows_) {
    const auto [first, last] = std::exchange(changes_[row], {});
    spans.push_back({row, first, last});
  }
  changed_rows_.clear();
  return spans;
}

CacheFigures PagedKvCache::figures() const {
  const auto share = [](int64_t part, int64_t whole) { return whole == 0 ? 0 : static_cast<double>(part) / whole; };
  const int64_t used = used_pages(), wasted = wasted_slots();
  return {.used_pages = used,
          .free_pages = sizes_.pages - used,
          .shared_pages = shared_pages_,
          .peak_pages = peak_pages_,
          .tokens = tokens_,
          .wasted_slots = wasted,
          .waste = share(wasted, used * sizes_.page_size),
          .fragmentation = share(gaps_, neighbours_)};
}

size_t PagedKvCache::bytes() const {
  const auto bytes_of = [](const auto&... vectors) {
    return (sizeof(PagedKvCache) + ... + (vectors.capacity() * sizeof(vectors[0])));
  };
  return bytes_of(table_, lengths_, holders_, free_pages_, free_rows_, generations_, changes_, changed_rows_);
}

int32_t PagedKvCache::take_page() {
  const int32_t page = free_pages_.back();
  free_pages_.pop_back();
  return page;
}

void PagedKvCache::push(int32_t row, int64_t column, int32_t page) {
  entry(row, column) = page;
  if (++holders_[page] == 2) ++shared_pages_;
  count_neighbour(row, column, 1);
  mark(row, column);
}

int32_t PagedKvCache::pop(int32_t row, int64_t column) {
  count_neighbour(row, column, -1);
  mark(row, column);
  const int32_t page = std::exchange(entry(row, column), no_page);
  const int32_t holders = --holders_[page];
  if (holders == 1) --shared_pages_;
  if (holders == 0) free_pages_.push_back(page);
  return page;
}

void PagedKvCache::count_neighbour(int32_t row, int64_t column, int64_t by) {
  if (column == 0) return;
  neighbours_ += by;
  if (entry(row, column) != entry(row, column - 1) + 1) gaps_ += by;
}

void PagedKvCache::mark(int32_t row, int64_t column) {
  auto& [first, last] = changes_[row];
  const int32_t changed = column;
  if (first == last) {
    changed_rows_.push_back(row);
    first = changed;
  }
  first = std::min(first, changed);
  last = std::max(last, changed + 1);
}

void PagedKvCache::shorten(int32_t row, int64_t tokens) {
  for (int64_t column = pages_for(lengths_[row]); column > pages_for(tokens); --column) pop(row, column - 1);
  tokens_ -= lengths_[row] - tokens;
  lengths_[row] = tokens;
}

// Only the last page of a sequence can have empty slots. Suppose that a page is the last page of every sequence that
// holds it: then the slots after the last token of the longest of these sequences are wasted. Otherwise some sequence
// goes on after the page, and fills all slots of the page.
int64_t PagedKvCache::wasted_slots() const {
  struct Last {
    int32_t holders = 0;
    int64_t filled = 0;
  };
  std::unordered_map<int32_t, Last> last_pages;
  for (int32_t row = 0; row < sizes_.max_sequences; ++row) {
    const int64_t filled = lengths_[row] % sizes_.page_size;
    if (filled == 0) continue;
    Last& last = last_pages[table_[row * sizes_.max_pages + lengths_[row] / sizes_.page_size]];
    ++last.holders;
    last.filled = std::max(last.filled, filled);
  }
  int64_t slots = 0;
  for (const auto& [page, last] : last_pages) {
    if (last.holders == holders_[page]) slots += sizes_.page_size - last.filled;
  }
  return slots;
}

void validate_page_table(std::span<const int32_t> table, std::span<const int32_t> lengths, int64_t page_size,
                         int64_t pages, std::span<const int32_t> holders) {
  const auto fail = [](const std::string& what) { throw BadInput("page table: " + what); };
  const int64_t rows = lengths.size();
  if (page_size < 1) fail(fmt::format("a page has {} tokens; at least 1 is allowed", page_size));
  if (rows == 0 ? !table.empty() : table.size() % rows != 0) {
    fail(
        fmt::format("{} entries for {} lengths; each length must have the same number of entries", table.size(), rows));
  }
  if (!holders.empty() && static_cast<int64_t>(holders.size()) != pages) {
    fail(fmt::format("holders of {} pages; the pool has {}", holders.size(), pages));
  }
  const int64_t columns = rows == 0 ? 0 : table.size() / rows;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t length = lengths[row], held = length > 0 ? (length - 1) / page_size + 1 : 0;
    if (length < 0 || held > columns) {
      fail(fmt::format("row {}: length {}; lengths from 0 to {} pages of {} tokens are allowed", row, length, columns,
                       page_size));
    }
    for (int64_t column = 0; column < held; ++column) {
      const int64_t page = table[row * columns + column];
      if (page < 0 || page >= pages) {
        fail(fmt::format("row {}, column {}: page {}; the pool has pages 0 to {}", row, column, page, pages - 1));
      }
      if (!holders.empty() && holders[page] == 0) {
        fail(fmt::format("row {}, column {}: page {} is free; a sequence must hold it", row, column, page));
      }
    }
  }
}

}  // namespace attn
