#include "common/paged/cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "common/base/error.h"

namespace attn {

void PrintTo(const TokenPlace& place, std::ostream* out) { *out << "page " << place.page << " slot " << place.slot; }
void PrintTo(const PageCopy& copy, std::ostream* out) {
  *out << copy.tokens << " tokens from " << copy.from << " to " << copy.to;
}
void PrintTo(const TableSpan& span, std::ostream* out) {
  *out << "row " << span.row << " from " << span.first << " to " << span.last;
}

namespace {

constexpr int64_t max_int = INT32_MAX;

/// The message of the `Exception` that the call throws, or "no error".
template <typename Exception>
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Exception& error) {
    return error.what();
  }
  return "no error";
}

std::string bad_input(const std::function<void()>& call) { return error_of<BadInput>(call); }

std::vector<int32_t> pages_of(const PagedKvCache& cache, SequenceId id) {
  const auto pages = cache.pages(id);
  return {pages.begin(), pages.end()};
}

using Pages = std::vector<int32_t>;
using Spans = std::vector<TableSpan>;

class PagedKvCacheTest : public testing::Test {
 protected:
  PagedKvCache cache{{.pages = 8, .page_size = 4, .max_sequences = 3, .max_pages = 5}};
  SequenceId a = cache.create();
};

TEST_F(PagedKvCacheTest, ASequenceTakesAPageWhenItsLastPageIsFull) {
  EXPECT_EQ(cache.length(a), 0);
  EXPECT_EQ(pages_of(cache, a), Pages());
  EXPECT_EQ(cache.append(a, 0), std::nullopt);
  EXPECT_EQ(pages_of(cache, a), Pages());
  cache.append(a, 3);
  EXPECT_EQ(pages_of(cache, a), Pages({0}));
  cache.append(a, 1);
  EXPECT_EQ(pages_of(cache, a), Pages({0}));
  cache.append(a, 1);
  EXPECT_EQ(pages_of(cache, a), Pages({0, 1}));
  cache.append(a, 9);
  EXPECT_EQ(cache.length(a), 14);
  EXPECT_EQ(pages_of(cache, a), Pages({0, 1, 2, 3}));
  EXPECT_EQ(cache.place(a, 0), (TokenPlace{0, 0}));
  EXPECT_EQ(cache.place(a, 7), (TokenPlace{1, 3}));
  EXPECT_EQ(cache.place(a, 13), (TokenPlace{3, 1}));
}

TEST_F(PagedKvCacheTest, TableAndLengthsHaveARowForEachSequence) {
  const SequenceId b = cache.create();
  cache.append(b, 5);
  cache.append(a, 1);
  EXPECT_EQ(cache.table(), Pages({2, -1, -1, -1, -1, 0, 1, -1, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(cache.lengths(), Pages({1, 5, 0}));
  EXPECT_EQ(cache.holders(), Pages({1, 1, 1, 0, 0, 0, 0, 0}));
  cache.free(b);
  EXPECT_EQ(cache.table(), Pages({2, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(cache.lengths(), Pages({1, 0, 0}));
}

TEST_F(PagedKvCacheTest, PagesOfAFreedSequenceAreTakenAgainInTheSameOrder) {
  const SequenceId b = cache.create();
  cache.append(a, 12);
  cache.append(b, 8);
  cache.free(a);
  cache.append(b, 8);
  EXPECT_EQ(pages_of(cache, b), Pages({3, 4, 0, 1}));
  EXPECT_EQ(cache.create().row, a.row);
}

TEST_F(PagedKvCacheTest, AForkSharesPagesAndTakesNone) {
  cache.append(a, 10);
  const SequenceId whole = cache.fork(a), prefix = cache.fork(a, 5);
  EXPECT_EQ(cache.length(whole), 10);
  EXPECT_EQ(pages_of(cache, whole), Pages({0, 1, 2}));
  EXPECT_EQ(cache.length(prefix), 5);
  EXPECT_EQ(pages_of(cache, prefix), Pages({0, 1}));
  EXPECT_EQ(cache.holders(), Pages({3, 3, 2, 0, 0, 0, 0, 0}));
  EXPECT_EQ(cache.figures().used_pages, 3);
  cache.free(a);
  EXPECT_EQ(cache.holders(), Pages({2, 2, 1, 0, 0, 0, 0, 0}));
  EXPECT_EQ(pages_of(cache, whole), Pages({0, 1, 2}));
}

TEST_F(PagedKvCacheTest, AForkOfZeroTokensHoldsNoPage) {
  cache.append(a, 4);
  EXPECT_EQ(pages_of(cache, cache.fork(a, 0)), Pages());
  EXPECT_EQ(cache.holders(), Pages({1, 0, 0, 0, 0, 0, 0, 0}));
}

TEST_F(PagedKvCacheTest, AnAppendToASharedPageCopiesThePage) {
  cache.append(a, 6);
  const SequenceId b = cache.fork(a);
  EXPECT_EQ(cache.append(a, 4), (PageCopy{.from = 1, .to = 2, .tokens = 2}));
  EXPECT_EQ(pages_of(cache, a), Pages({0, 2, 3}));
  EXPECT_EQ(pages_of(cache, b), Pages({0, 1}));
  EXPECT_EQ(cache.append(b, 1), std::nullopt) << "copied a page that b alone holds";
  EXPECT_EQ(pages_of(cache, b), Pages({0, 1}));
}

TEST_F(PagedKvCacheTest, ACopyHasTheTokensOfTheSequenceThatAppends) {
  cache.append(a, 7);
  const SequenceId b = cache.fork(a, 5);
  EXPECT_EQ(cache.append(b, 1), (PageCopy{.from = 1, .to = 2, .tokens = 1}));
  cache.truncate(a, 6);
  EXPECT_EQ(cache.append(a, 1), std::nullopt);
}

TEST_F(PagedKvCacheTest, AFullPageStaysShared) {
  cache.append(a, 8);
  const SequenceId b = cache.fork(a), c = cache.fork(a, 4);
  EXPECT_EQ(cache.append(a, 1), std::nullopt);
  EXPECT_EQ(cache.append(b, 1), std::nullopt);
  EXPECT_EQ(cache.append(c, 1), std::nullopt);
  EXPECT_EQ(pages_of(cache, a), Pages({0, 1, 2}));
  EXPECT_EQ(pages_of(cache, b), Pages({0, 1, 3}));
  EXPECT_EQ(pages_of(cache, c), Pages({0, 4}));
}

TEST_F(PagedKvCacheTest, AppendingZeroTokensToASharedPageMakesNoCopy) {
  cache.append(a, 3);
  cache.fork(a);
  EXPECT_EQ(cache.append(a, 0), std::nullopt);
  EXPECT_EQ(pages_of(cache, a), Pages({0}));
}

TEST_F(PagedKvCacheTest, TruncatingGivesBackPagesWithoutTokens) {
  cache.append(a, 17);
  cache.truncate(a, 17);
  EXPECT_EQ(pages_of(cache, a), Pages({0, 1, 2, 3, 4}));
  cache.truncate(a, 9);
  EXPECT_EQ(pages_of(cache, a), Pages({0, 1, 2}));
  cache.truncate(a, 8);
  EXPECT_EQ(pages_of(cache, a), Pages({0, 1}));
  cache.truncate(a, 0);
  EXPECT_EQ(pages_of(cache, a), Pages());
  EXPECT_EQ(cache.length(a), 0);
  EXPECT_EQ(cache.figures().free_pages, 8);
}

TEST_F(PagedKvCacheTest, ASharedPageIsFreeWhenItsLastHolderLeaves) {
  cache.append(a, 8);
  const SequenceId b = cache.fork(a);
  cache.truncate(a, 2);
  EXPECT_EQ(cache.holders(), Pages({2, 1, 0, 0, 0, 0, 0, 0}));
  cache.free(b);
  EXPECT_EQ(cache.holders(), Pages({1, 0, 0, 0, 0, 0, 0, 0}));
  cache.free(a);
  EXPECT_EQ(cache.figures().free_pages, 8);
}

TEST_F(PagedKvCacheTest, AStaleIdIsRefusedByEveryFunction) {
  cache.append(a, 2);
  cache.free(a);
  const std::string stale = "paged cache: the id of row 0, generation 1, is stale; its sequence must exist";
  const auto check = [&] {
    const PagedKvCache before = cache;
    EXPECT_EQ(bad_input([&] { cache.free(a); }), stale);
    EXPECT_EQ(bad_input([&] { cache.append(a, 1); }), stale);
    EXPECT_EQ(bad_input([&] { cache.truncate(a, 0); }), stale);
    EXPECT_EQ(bad_input([&] { cache.fork(a); }), stale);
    EXPECT_EQ(bad_input([&] { cache.fork(a, 0); }), stale);
    EXPECT_EQ(bad_input([&] { cache.length(a); }), stale);
    EXPECT_EQ(bad_input([&] { cache.pages(a); }), stale);
    EXPECT_EQ(bad_input([&] { cache.place(a, 0); }), stale);
    EXPECT_EQ(cache, before);
  };
  check();
  const SequenceId again = cache.create();
  ASSERT_EQ(again.row, a.row);
  cache.append(again, 2);
  check();
}

TEST_F(PagedKvCacheTest, AnIdThatNoSequenceHadIsRefused) {
  for (const SequenceId id : {SequenceId(), SequenceId{-1, 1}, SequenceId{3, 1}, SequenceId{1, 0}, SequenceId{1, 1}}) {
    EXPECT_NE(bad_input([&] { cache.length(id); }), "no error") << id.row << " " << id.generation;
  }
}

TEST_F(PagedKvCacheTest, LengthsAndPositionsOutOfRangeAreRefused) {
  cache.append(a, 6);
  const PagedKvCache before = cache;
  EXPECT_EQ(bad_input([&] { cache.append(a, 15); }),
            "paged cache: append of 15 tokens to a sequence of 6; allowed are 0 to 14, because a sequence has at most "
            "5 pages of 4");
  EXPECT_NE(bad_input([&] { cache.append(a, -1); }), "no error");
  EXPECT_NE(bad_input([&] { cache.append(a, INT64_MAX); }), "no error");
  EXPECT_EQ(bad_input([&] { cache.truncate(a, 7); }), "paged cache: truncate to 7 tokens; the sequence has 6");
  EXPECT_NE(bad_input([&] { cache.truncate(a, -1); }), "no error");
  EXPECT_EQ(bad_input([&] { cache.fork(a, 7); }), "paged cache: fork of 7 tokens; the sequence has 6");
  EXPECT_NE(bad_input([&] { cache.fork(a, -1); }), "no error");
  EXPECT_EQ(bad_input([&] { cache.place(a, 6); }), "paged cache: token 6; the sequence has 6, counted from 0");
  EXPECT_NE(bad_input([&] { cache.place(a, -1); }), "no error");
  EXPECT_EQ(cache, before);
  cache.append(a, 14);
  EXPECT_EQ(cache.length(a), 20);
}

TEST_F(PagedKvCacheTest, ExhaustionChangesNothing) {
  const SequenceId b = cache.create();
  cache.append(a, 20);
  cache.append(b, 6);
  {
    const PagedKvCache before = cache;
    EXPECT_EQ(error_of<CacheFull>([&] { cache.append(b, 7); }),
              "paged cache: append needs 2 more pages; 1 of 8 are free");
    EXPECT_EQ(cache, before);
  }
  const SequenceId c = cache.fork(b);
  {
    const PagedKvCache before = cache;
    EXPECT_EQ(error_of<CacheFull>([&] { cache.append(c, 3); }),
              "paged cache: append needs 2 more pages; 1 of 8 are free")
        << "did not count the page for the copy";
    EXPECT_EQ(error_of<CacheFull>([&] { cache.create(); }), "paged cache: all 3 rows have a sequence");
    EXPECT_EQ(error_of<CacheFull>([&] { cache.fork(a); }), "paged cache: all 3 rows have a sequence");
    EXPECT_EQ(cache, before);
  }
  EXPECT_EQ(cache.append(c, 2), (PageCopy{.from = 6, .to = 7, .tokens = 2})) << "did not copy to the last free page";
  cache.append(b, 2);
  const PagedKvCache before = cache;
  EXPECT_NE(error_of<CacheFull>([&] { cache.append(b, 1); }), "no error");
  EXPECT_EQ(cache, before);
}

TEST_F(PagedKvCacheTest, EachChangeIsReturnedOnce) {
  EXPECT_EQ(cache.take_changes(), Spans()) << "a new table has changes";
  const SequenceId b = cache.create();
  cache.append(b, 9);
  cache.append(a, 1);
  EXPECT_EQ(cache.take_changes(), Spans({{1, 0, 3}, {0, 0, 1}}));
  EXPECT_EQ(cache.take_changes(), Spans());
  cache.append(a, 3);
  EXPECT_EQ(cache.take_changes(), Spans()) << "a change although the page had room";
  cache.append(a, 5);
  EXPECT_EQ(cache.take_changes(), Spans({{0, 1, 3}}));
  const SequenceId c = cache.fork(b, 5);
  EXPECT_EQ(cache.take_changes(), Spans({{2, 0, 2}}));
  cache.append(c, 1);
  EXPECT_EQ(cache.take_changes(), Spans({{2, 1, 2}})) << "not the entry of the page that was copied";
  cache.truncate(a, 2);
  EXPECT_EQ(cache.take_changes(), Spans({{0, 1, 3}}));
  cache.free(b);
  EXPECT_EQ(cache.take_changes(), Spans({{1, 0, 3}}));
}

TEST_F(PagedKvCacheTest, FiguresCountPagesTokensAndGaps) {
  EXPECT_EQ(cache.figures().waste, 0);
  EXPECT_EQ(cache.figures().fragmentation, 0);
  const SequenceId b = cache.create();
  cache.append(a, 4);
  cache.append(b, 4);
  cache.append(a, 5);                     // 0 2 3
  const SequenceId c = cache.fork(a, 6);  // 0 2
  cache.append(b, 1);                     // 1 4
  CacheFigures figures = cache.figures();
  EXPECT_EQ(figures.used_pages, 5);
  EXPECT_EQ(figures.free_pages, 3);
  EXPECT_EQ(figures.shared_pages, 2);
  EXPECT_EQ(figures.peak_pages, 5);
  EXPECT_EQ(figures.tokens, 9 + 5 + 6);
  EXPECT_EQ(figures.wasted_slots, 3 + 3) << "of pages 3 and 4; page 2 has no empty slot, because a fills it";
  EXPECT_DOUBLE_EQ(figures.waste, 6.0 / 20);
  EXPECT_DOUBLE_EQ(figures.fragmentation, 3.0 / 4) << "of 4 pairs only (2, 3) is contiguous in the pool";
  cache.truncate(a, 7);
  figures = cache.figures();
  EXPECT_EQ(figures.wasted_slots, 1 + 3) << "1 of page 2, which has 3 tokens of a and 2 of c; 3 of page 4";
  EXPECT_EQ(figures.peak_pages, 5);
  cache.free(a);
  figures = cache.figures();
  EXPECT_EQ(figures.shared_pages, 0);
  EXPECT_EQ(figures.wasted_slots, 2 + 3);
  cache.free(b);
  cache.free(c);
  figures = cache.figures();
  EXPECT_EQ(figures.used_pages, 0);
  EXPECT_EQ(figures.tokens, 0);
  EXPECT_EQ(figures.wasted_slots, 0);
  EXPECT_EQ(figures.fragmentation, 0);
}

TEST(CacheSizesTest, ImpossibleSizesAreRefused) {
  const auto refused = [](const CacheSizes& sizes) { return bad_input([&] { PagedKvCache cache(sizes); }); };
  EXPECT_EQ(refused({0, 16, 4, 4}), "paged cache: pages=0 is not allowed; allowed are 1 to 2147483647");
  EXPECT_EQ(refused({8, 0, 4, 4}), "paged cache: page_size=0 is not allowed; allowed are 1 to 2147483647");
  EXPECT_EQ(refused({8, 16, 0, 4}), "paged cache: max_sequences=0 is not allowed; allowed are 1 to 536870911");
  EXPECT_EQ(refused({8, 16, 4, -1}), "paged cache: max_pages=-1 is not allowed; allowed are 1 to 134217727");
  EXPECT_NE(refused({max_int + 1, 16, 4, 4}), "no error");
  EXPECT_NE(refused({8, 16, 4, 134217728}), "no error");
  EXPECT_NE(refused({8, 16, 536870912, 4}), "no error");
  EXPECT_EQ(refused({1, 1, 1, 1}), "no error");
  EXPECT_EQ(refused({1, max_int, 1, 1}), "no error");
}

TEST(ValidatePageTableTest, TheFirstWrongEntryIsNamed) {
  const Pages lengths = {5, 0, 8}, holders = {1, 1, 0, 2};
  const auto error = [&](Pages table, const Pages& of_lengths, const Pages& of_holders = {}) {
    return bad_input([&] { validate_page_table(table, of_lengths, 4, 4, of_holders); });
  };
  const Pages sound = {0, 3, -1, 77, 3, 1};
  EXPECT_EQ(error(sound, lengths), "no error") << "an entry after a row's last token was refused";
  EXPECT_EQ(error(sound, lengths, holders), "no error");
  EXPECT_EQ(error({0, -1, 0, 0, 4, 1}, lengths), "page table: row 0, column 1: page -1; the pool has pages 0 to 3");
  EXPECT_EQ(error({0, 3, 0, 0, 4, 9}, lengths), "page table: row 2, column 0: page 4; the pool has pages 0 to 3");
  EXPECT_EQ(error({0, 3, 0, 0, 3, 2}, lengths), "no error");
  EXPECT_EQ(error({0, 3, 0, 0, 3, 2}, lengths, holders),
            "page table: row 2, column 1: page 2 is free; a sequence must hold it");
  EXPECT_EQ(error(sound, {5, 9, 8}), "page table: row 1: length 9; lengths from 0 to 2 pages of 4 tokens are allowed");
  EXPECT_NE(error(sound, {-1, 0, 8}), "no error");
  EXPECT_EQ(error(sound, {5, 0, 8, 1}),
            "page table: 6 entries for 4 lengths; each length must have the same number of entries");
  EXPECT_NE(error(sound, {}), "no error");
  EXPECT_EQ(error(sound, lengths, {1, 1}), "page table: holders of 2 pages; the pool has 4");
  EXPECT_NE(bad_input([&] { validate_page_table(sound, lengths, 0, 4); }), "no error");
  EXPECT_EQ(error({}, {}), "no error");
}

TEST(ValidatePageTableTest, TheCachesOwnTableIsSound) {
  PagedKvCache cache({.pages = 6, .page_size = 4, .max_sequences = 3, .max_pages = 4});
  const SequenceId a = cache.create();
  cache.append(a, 9);
  cache.fork(a, 5);
  validate_page_table(cache.table(), cache.lengths(), 4, 6, cache.holders());
}

/// Performs the same operations on the cache, on a simple model, and on a simulated device. The model has each
/// sequence's tokens as a list. The device has the slots of the pool, and a page table to which only changes are
/// uploaded.
class Simulation {
 public:
  Simulation(const CacheSizes& sizes, uint64_t seed)
      : sizes_(sizes),
        random_(seed),
        cache_(sizes),
        slots_(sizes.pages * sizes.page_size, nothing),
        mirror_(cache_.table()) {}

  void step() {
    switch (below(8)) {
      case 0:
        create();
        break;
      case 1:
        fork(below(2) == 0);
        break;
      case 2:
        truncate();
        break;
      case 3:
        free();
        break;
      case 4:
        append_to_each();
        break;
      default:
        append();
        break;
    }
    check();
  }

  void free_all() {
    while (!sequences_.empty()) free();
    check();
  }

  const PagedKvCache& cache() const { return cache_; }
  int refusals() const { return refusals_; }
  int copies() const { return copies_; }

 private:
  struct Sequence {
    SequenceId id;
    std::vector<int> tokens;
  };
  static constexpr int nothing = -1;

  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random_); }
  Sequence& any() { return sequences_[below(sequences_.size())]; }

  /// Returns whether `call` throws CacheFull. If it does, the cache must not have changed.
  bool full(const std::function<void()>& call) {
    const PagedKvCache before = cache_;
    try {
      call();
      return false;
    } catch (const CacheFull&) {
      EXPECT_EQ(cache_, before);
      ++refusals_;
      return true;
    }
  }

  void create() {
    SequenceId id;
    const bool refused = full([&] { id = cache_.create(); });
    EXPECT_EQ(refused, sequences_.size() == static_cast<size_t>(sizes_.max_sequences));
    if (!refused) sequences_.push_back({id, {}});
  }

  void fork(bool whole) {
    if (sequences_.empty()) return;
    const Sequence& parent = any();
    std::vector<int> tokens = parent.tokens;
    if (!whole) tokens.resize(below(tokens.size() + 1));
    SequenceId id;
    const bool refused = full([&] { id = whole ? cache_.fork(parent.id) : cache_.fork(parent.id, tokens.size()); });
    EXPECT_EQ(refused, sequences_.size() == static_cast<size_t>(sizes_.max_sequences));
    if (!refused) sequences_.push_back({id, tokens});
  }

  void truncate() {
    if (sequences_.empty()) return;
    Sequence& sequence = any();
    sequence.tokens.resize(below(sequence.tokens.size() + 1));
    cache_.truncate(sequence.id, sequence.tokens.size());
  }

  void free() {
    if (sequences_.empty()) return;
    Sequence& sequence = any();
    cache_.free(sequence.id);
    EXPECT_THROW(cache_.free(sequence.id), BadInput);
    std::swap(sequence, sequences_.back());
    sequences_.pop_back();
  }

  /// Returns how many pages an append takes, by the model's lengths and the device's table.
  int64_t needed(const Sequence& sequence, int64_t tokens) const {
    const int64_t had = sequence.tokens.size(), size = sizes_.page_size;
    int64_t pages = (had + tokens + size - 1) / size - (had + size - 1) / size;
    if (tokens > 0 && had % size != 0) {
      const int32_t last = mirror_[sequence.id.row * sizes_.max_pages + had / size];
      pages += std::count(mirror_.begin(), mirror_.end(), last) > 1;
    }
    return pages;
  }

  /// Appends to the cache and to the model, but not to the device: the caller makes the copies and writes the tokens.
  /// Returns whether there was room.
  bool reserve(Sequence& sequence, int64_t tokens, std::vector<PageCopy>& copies) {
    const bool refused = full([&] {
      if (const auto copy = cache_.append(sequence.id, tokens)) copies.push_back(*copy);
    });
    for (int64_t i = 0; i < tokens && !refused; ++i) sequence.tokens.push_back(++last_token_);
    return !refused;
  }

  void copy(const PageCopy& copy) {
    ++copies_;
    for (int64_t i = 0; i < copy.tokens; ++i) slot(copy.to, i) = slot(copy.from, i);
  }

  void write(const Sequence& sequence, int64_t tokens) {
    const int64_t length = sequence.tokens.size();
    for (int64_t i = length - tokens; i < length; ++i) {
      const TokenPlace place = cache_.place(sequence.id, i);
      slot(place.page, place.slot) = sequence.tokens[i];
    }
  }

  void append() {
    if (sequences_.empty()) return;
    Sequence& sequence = any();
    const int64_t room = sizes_.max_pages * sizes_.page_size - sequence.tokens.size();
    const int64_t tokens = below(std::min(room, 2 * sizes_.page_size) + 1), wanted = needed(sequence, tokens);
    const int64_t free_pages = cache_.figures().free_pages;
    std::vector<PageCopy> copies;
    const bool done = reserve(sequence, tokens, copies);
    EXPECT_EQ(done, wanted <= free_pages);
    if (!done) return;
    for (const PageCopy& order : copies) copy(order);
    write(sequence, tokens);
  }

  /// Appends to each sequence as a decode step does, and makes the copies in another order than the appends.
  void append_to_each() {
    std::vector<PageCopy> copies;
    std::vector<Sequence*> grown;
    for (Sequence& sequence : sequences_) {
      const bool room = static_cast<int64_t>(sequence.tokens.size()) < sizes_.max_pages * sizes_.page_size;
      if (room && reserve(sequence, 1, copies)) grown.push_back(&sequence);
    }
    std::shuffle(copies.begin(), copies.end(), random_);
    for (const PageCopy& order : copies) copy(order);
    for (const Sequence* sequence : grown) write(*sequence, 1);
  }

  int& slot(int64_t page, int64_t index) { return slots_[page * sizes_.page_size + index]; }

  void check() {
    for (const TableSpan& span : cache_.take_changes()) {
      const int64_t begin = span.row * sizes_.max_pages;
      std::copy(cache_.table().begin() + begin + span.first, cache_.table().begin() + begin + span.last,
                mirror_.begin() + begin + span.first);
    }
    ASSERT_EQ(mirror_, cache_.table());
    check_contents();
    check_figures();
  }

  void check_contents() {
    std::vector<int32_t> lengths(sizes_.max_sequences), columns(sizes_.max_sequences);
    for (const Sequence& sequence : sequences_) {
      lengths[sequence.id.row] = sequence.tokens.size();
      columns[sequence.id.row] = (sequence.tokens.size() + sizes_.page_size - 1) / sizes_.page_size;
    }
    ASSERT_EQ(cache_.lengths(), lengths);
    validate_page_table(mirror_, lengths, sizes_.page_size, sizes_.pages, cache_.holders());
    for (const Sequence& sequence : sequences_) {
      std::vector<int> read;
      for (size_t i = 0; i < sequence.tokens.size(); ++i) {
        const int64_t page = mirror_[sequence.id.row * sizes_.max_pages + i / sizes_.page_size];
        read.push_back(slot(page, i % sizes_.page_size));
      }
      ASSERT_EQ(read, sequence.tokens) << "row " << sequence.id.row;
    }
    for (int64_t row = 0; row < sizes_.max_sequences; ++row) {
      for (int64_t column = columns[row]; column < sizes_.max_pages; ++column) {
        ASSERT_EQ(mirror_[row * sizes_.max_pages + column], -1) << "row " << row << ", column " << column;
      }
    }
  }

  /// Checks the cache's figures against figures computed from the model. Also clears the pages that no sequence holds.
  void check_figures() {
    Pages holders(sizes_.pages);
    std::vector<int64_t> filled(sizes_.pages);
    int64_t tokens = 0, neighbours = 0, gaps = 0;
    for (const Sequence& sequence : sequences_) {
      const auto pages = cache_.pages(sequence.id);
      tokens += sequence.tokens.size();
      for (size_t i = 0; i < pages.size(); ++i) {
        const int64_t before = i * sizes_.page_size, length = sequence.tokens.size();
        ++holders[pages[i]];
        filled[pages[i]] = std::max(filled[pages[i]], std::min(sizes_.page_size, length - before));
        neighbours += i > 0;
        gaps += i > 0 && pages[i] != pages[i - 1] + 1;
      }
    }
    ASSERT_EQ(cache_.holders(), holders);
    int64_t used = 0, shared = 0, wasted = 0;
    for (int64_t page = 0; page < sizes_.pages; ++page) {
      used += holders[page] > 0;
      shared += holders[page] > 1;
      if (holders[page] > 0) wasted += sizes_.page_size - filled[page];
      if (holders[page] == 0) std::fill_n(&slot(page, 0), sizes_.page_size, nothing);
    }
    peak_ = std::max(peak_, used);
    const CacheFigures figures = cache_.figures();
    ASSERT_EQ(figures.used_pages, used);
    ASSERT_EQ(figures.free_pages, sizes_.pages - used);
    ASSERT_EQ(figures.shared_pages, shared);
    ASSERT_EQ(figures.peak_pages, peak_);
    ASSERT_EQ(figures.tokens, tokens);
    ASSERT_EQ(figures.wasted_slots, wasted);
    ASSERT_DOUBLE_EQ(figures.waste, used == 0 ? 0 : static_cast<double>(wasted) / (used * sizes_.page_size));
    ASSERT_DOUBLE_EQ(figures.fragmentation, neighbours == 0 ? 0 : static_cast<double>(gaps) / neighbours);
  }

  CacheSizes sizes_;
  std::mt19937_64 random_;
  PagedKvCache cache_;
  std::vector<int> slots_;
  Pages mirror_;
  std::vector<Sequence> sequences_;
  int last_token_ = 0, refusals_ = 0, copies_ = 0;
  int64_t peak_ = 0;
};

TEST(CacheSimulation, SequencesReadTheirOwnTokens) {
  for (const int64_t page_size : {1, 3, 4, 16}) {
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      SCOPED_TRACE("page_size " + std::to_string(page_size) + ", seed " + std::to_string(seed));
      Simulation simulation({.pages = 20, .page_size = page_size, .max_sequences = 6, .max_pages = 7}, seed);
      for (int i = 0; i < 1500; ++i) {
        simulation.step();
        if (testing::Test::HasFailure()) FAIL() << "at step " << i;
      }
      EXPECT_GT(simulation.refusals(), 10) << "exhaustion is not tested";
      EXPECT_TRUE(page_size == 1 || simulation.copies() > 10) << "copies are not tested";
    }
  }
}

TEST(CacheSimulation, NoPageIsLostAndMemoryDoesNotGrowInAThousandRounds) {
  Simulation simulation({.pages = 64, .page_size = 16, .max_sequences = 12, .max_pages = 16}, 7);
  const size_t bytes = simulation.cache().bytes();
  EXPECT_GE(bytes, (12 * 16 + 64) * sizeof(int32_t)) << "less than the table and the holders";
  for (int round = 0; round < 1000; ++round) {
    for (int i = 0; i < 12; ++i) simulation.step();
    simulation.free_all();
    ASSERT_EQ(simulation.cache().figures().free_pages, 64) << "round " << round << ", seed 7";
    ASSERT_LE(simulation.cache().bytes(), bytes + bytes / 100) << "round " << round << ", seed 7";
    ASSERT_FALSE(testing::Test::HasFailure()) << "round " << round << ", seed 7";
  }
}

}  // namespace
}  // namespace attn
