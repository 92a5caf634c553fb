#include "common/paged/cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <ostream>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/testing/messages.h"

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

TEST_F(PagedKvCacheTest, AnAppendToASharedPageCopiesThePage) {
  cache.append(a, 6);
  const SequenceId b = cache.fork(a);
  EXPECT_EQ(cache.append(a, 4), (PageCopy{.from = 1, .to = 2, .tokens = 2}));
  EXPECT_EQ(pages_of(cache, a), Pages({0, 2, 3}));
  EXPECT_EQ(pages_of(cache, b), Pages({0, 1}));
  EXPECT_EQ(cache.append(b, 1), std::nullopt) << "copied a page that b alone holds";
  EXPECT_EQ(pages_of(cache, b), Pages({0, 1}));
}

// A refused call changes nothing. CacheSimulation tests copies, shared pages, figures and exhaustion with many calls.
TEST_F(PagedKvCacheTest, RefusesStaleIdsAndLengthsOutOfRange) {
  cache.append(a, 2);
  cache.free(a);
  const SequenceId again = cache.create();
  ASSERT_EQ(again.row, a.row);
  cache.append(again, 6);
  const PagedKvCache before = cache;
  const auto refused = [&](const auto& call, std::initializer_list<std::string_view> words) {
    test::expect_error<BadInput>(call, words);
    EXPECT_EQ(cache, before);
  };
  for (const SequenceId& id : {a, SequenceId(), {-1, 1}, {3, 1}, {1, 0}, {1, 1}}) {
    refused([&] { cache.free(id); }, {"stale"});
    refused([&] { cache.append(id, 1); }, {"stale"});
    refused([&] { cache.truncate(id, 0); }, {"stale"});
    refused([&] { cache.fork(id); }, {"stale"});
    refused([&] { cache.fork(id, 0); }, {"stale"});
    refused([&] { cache.length(id); }, {"stale"});
    refused([&] { cache.pages(id); }, {"stale"});
    refused([&] { cache.place(id, 0); }, {"stale"});
  }
  for (const int64_t tokens : {int64_t{15}, int64_t{-1}, INT64_MAX}) {
    refused([&] { cache.append(again, tokens); }, {"append of", "6", "0 to 14"});
  }
  for (const int64_t tokens : {7, -1}) {
    refused([&] { cache.truncate(again, tokens); }, {"truncate to", "has 6"});
    refused([&] { cache.fork(again, tokens); }, {"fork of", "has 6"});
    refused([&] { cache.place(again, tokens); }, {"token", "has 6"});
  }
  cache.append(again, 14);
  EXPECT_EQ(cache.length(again), 20);
}

TEST_F(PagedKvCacheTest, SaysWhatIsFull) {
  const SequenceId b = cache.create();
  cache.append(a, 20);
  cache.append(b, 6);
  test::expect_error<CacheFull>([&] { cache.append(b, 7); }, {"2 more pages", "1 of 8"});
  const SequenceId c = cache.fork(b);
  test::expect_error<CacheFull>([&] { cache.append(c, 3); }, {"2 more pages", "1 of 8"});  // one for the copy
  test::expect_error<CacheFull>([&] { cache.create(); }, {"3 rows"});
  test::expect_error<CacheFull>([&] { cache.fork(a); }, {"3 rows"});
  EXPECT_EQ(cache.append(c, 2), (PageCopy{.from = 6, .to = 7, .tokens = 2})) << "did not copy to the last free page";
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

TEST(CacheSizesTest, ImpossibleSizesAreRefused) {
  for (const auto& [sizes, word] : {std::pair<CacheSizes, const char*>{{0, 16, 4, 4}, "pages=0"},
                                    {{8, 0, 4, 4}, "page_size=0"},
                                    {{8, 16, 0, 4}, "max_sequences=0"},
                                    {{8, 16, 4, -1}, "max_pages=-1"},
                                    {{max_int + 1, 16, 4, 4}, "pages=2147483648"},
                                    {{8, 16, 4, 134217728}, "max_pages=134217728"},
                                    {{8, 16, 536870912, 4}, "max_sequences=536870912"}}) {
    test::expect_error<BadInput>([&, &refused = sizes] { PagedKvCache cache(refused); }, {word});
  }
  PagedKvCache({1, 1, 1, 1});
  PagedKvCache({1, max_int, 1, 1});
}

TEST(ValidatePageTableTest, TheFirstWrongEntryIsNamed) {
  const Pages lengths = {5, 0, 8}, holders = {1, 1, 0, 2}, sound = {0, 3, -1, 77, 3, 1};  // 77: after the last token
  const auto refused = [&](std::initializer_list<std::string_view> words, const Pages& table, const Pages& of_lengths,
                           const Pages& of_holders = {}) {
    test::expect_error<BadInput>([&] { validate_page_table(table, of_lengths, 4, 4, of_holders); }, words);
  };
  validate_page_table(sound, lengths, 4, 4);
  validate_page_table(sound, lengths, 4, 4, holders);
  validate_page_table({}, {}, 4, 4);
  refused({"row 0, column 1: page -1", "0 to 3"}, {0, -1, 0, 0, 4, 1}, lengths);
  refused({"row 2, column 0: page 4", "0 to 3"}, {0, 3, 0, 0, 4, 9}, lengths);
  validate_page_table(Pages{0, 3, 0, 0, 3, 2}, lengths, 4, 4);
  refused({"row 2, column 1: page 2 is free"}, {0, 3, 0, 0, 3, 2}, lengths, holders);
  refused({"row 1: length 9"}, sound, {5, 9, 8});
  refused({"row 0: length -1"}, sound, {-1, 0, 8});
  refused({"6 entries", "4 lengths"}, sound, {5, 0, 8, 1});
  refused({"6 entries"}, sound, {});
  refused({"holders of 2 pages", "4"}, sound, lengths, {1, 1});
  test::expect_error<BadInput>([&] { validate_page_table(sound, lengths, 0, 4); }, {});
}

/// Performs the same operations on the cache, on a simple model, and on a simulated device. The model has each
/// sequence's tokens as a list. The device has the slots of the pool, and a page table to which only changes are
/// uploaded.
class Simulation {
 public:
  Simulation(const CacheSizes& sizes, uint64_t seed)
      : sizes_(sizes), random_(seed), cache_(sizes), slots_(sizes.pages * sizes.page_size), mirror_(cache_.table()) {}

  void step() {
    const int64_t kind = below(8);
    if (kind == 0) {
      add({}, [&] { return cache_.create(); });
    } else if (!sequences_.empty()) {
      Sequence& some = sequences_[below(sequences_.size())];
      const int64_t tokens = below(some.tokens.size() + 1);
      if (kind == 1) {
        add({some.tokens.begin(), some.tokens.begin() + tokens}, [&] { return cache_.fork(some.id, tokens); });
      } else if (kind == 2) {
        some.tokens.resize(tokens);
        cache_.truncate(some.id, tokens);
      } else if (kind == 3) {
        free(some);
      } else if (kind == 4) {  // as a decode step does
        std::vector<Sequence*> all;
        for (Sequence& sequence : sequences_) all.push_back(&sequence);
        append(all, 1);
      } else {
        append({&some}, below(2 * sizes_.page_size) + 1);
      }
    }
    check();
  }

  void free_all() {
    while (!sequences_.empty()) free(sequences_.back());
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

  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random_); }
  int& slot(int64_t page, int64_t index) { return slots_[page * sizes_.page_size + index]; }
  int64_t pages_of(int64_t tokens) const { return (tokens + sizes_.page_size - 1) / sizes_.page_size; }

  /// Expects that `call` throws CacheFull and changes nothing if `refused`. Returns whether it was done.
  bool done(const std::function<void()>& call, bool refused) {
    const PagedKvCache before = cache_;
    refusals_ += refused;
    if (!refused) {
      call();
    } else {
      EXPECT_THROW(call(), CacheFull);
      EXPECT_EQ(cache_, before);
    }
    return !refused;
  }

  void add(std::vector<int> tokens, const std::function<SequenceId()>& make) {
    SequenceId id;
    const bool full = sequences_.size() == static_cast<size_t>(sizes_.max_sequences);
    if (done([&] { id = make(); }, full)) sequences_.push_back({id, std::move(tokens)});
  }

  void free(Sequence& sequence) {
    cache_.free(sequence.id);
    EXPECT_THROW(cache_.free(sequence.id), BadInput);
    std::swap(sequence, sequences_.back());
    sequences_.pop_back();
  }

  /// Appends to each sequence that has room. The device makes the copies in another order than the appends.
  void append(const std::vector<Sequence*>& grown, int64_t tokens) {
    std::vector<PageCopy> copies;
    std::vector<Sequence*> written;
    for (Sequence* sequence : grown) {
      const int64_t had = sequence->tokens.size(), has = had + tokens;
      if (has > sizes_.max_pages * sizes_.page_size) continue;
      int64_t wanted = pages_of(has) - pages_of(had);
      if (had % sizes_.page_size != 0) wanted += cache_.holders()[cache_.pages(sequence->id).back()] > 1;
      const auto call = [&] {
        if (const auto copy = cache_.append(sequence->id, tokens)) copies.push_back(*copy);
      };
      if (!done(call, wanted > cache_.figures().free_pages)) continue;
      for (int64_t i = 0; i < tokens; ++i) sequence->tokens.push_back(++last_token_);
      written.push_back(sequence);
    }
    std::shuffle(copies.begin(), copies.end(), random_);
    for (const PageCopy& copy : copies) {
      for (int64_t i = 0; i < copy.tokens; ++i) slot(copy.to, i) = slot(copy.from, i);
    }
    copies_ += static_cast<int>(copies.size());
    for (const Sequence* sequence : written) {
      const int64_t length = sequence->tokens.size();
      for (int64_t i = length - tokens; i < length; ++i) {
        const TokenPlace place = cache_.place(sequence->id, i);
        slot(place.page, place.slot) = sequence->tokens[i];
      }
    }
  }

  /// Checks the device's table and slots, and the cache's figures, against the model. Clears pages without a holder.
  void check() {
    for (const TableSpan& span : cache_.take_changes()) {
      const int64_t begin = span.row * sizes_.max_pages;
      std::copy(cache_.table().begin() + begin + span.first, cache_.table().begin() + begin + span.last,
                mirror_.begin() + begin + span.first);
    }
    ASSERT_EQ(mirror_, cache_.table());
    Pages lengths(sizes_.max_sequences), table(mirror_.size(), -1), holders(sizes_.pages);
    std::vector<int64_t> filled(sizes_.pages);
    CacheFigures want{};
    int64_t neighbours = 0, gaps = 0;
    for (const Sequence& sequence : sequences_) {
      const int64_t length = sequence.tokens.size();
      const Pages pages = attn::pages_of(cache_, sequence.id);
      lengths[sequence.id.row] = static_cast<int32_t>(length);
      want.tokens += length;
      std::copy(pages.begin(), pages.end(), table.begin() + sequence.id.row * sizes_.max_pages);
      for (int64_t i = 0; i < length; ++i) {
        ASSERT_EQ(slot(pages.at(i / sizes_.page_size), i % sizes_.page_size), sequence.tokens[i]) << sequence.id.row;
      }
      for (size_t i = 0; i < pages.size(); ++i) {
        ++holders[pages[i]];
        filled[pages[i]] = std::max(
            filled[pages[i]], std::min<int64_t>(sizes_.page_size, length - static_cast<int64_t>(i) * sizes_.page_size));
        neighbours += i > 0;
        gaps += i > 0 && pages[i] != pages[i - 1] + 1;
      }
    }
    ASSERT_EQ(cache_.lengths(), lengths);
    ASSERT_EQ(mirror_, table);
    ASSERT_EQ(cache_.holders(), holders);
    validate_page_table(mirror_, lengths, sizes_.page_size, sizes_.pages, holders);
    for (int64_t page = 0; page < sizes_.pages; ++page) {
      want.used_pages += holders[page] > 0;
      want.shared_pages += holders[page] > 1;
      if (holders[page] > 0) want.wasted_slots += sizes_.page_size - filled[page];
      if (holders[page] == 0) std::fill_n(&slot(page, 0), sizes_.page_size, 0);
    }
    peak_ = std::max<int64_t>(peak_, want.used_pages);
    const CacheFigures got = cache_.figures();
    ASSERT_EQ(got.used_pages, want.used_pages);
    ASSERT_EQ(got.free_pages, sizes_.pages - want.used_pages);
    ASSERT_EQ(got.shared_pages, want.shared_pages);
    ASSERT_EQ(got.peak_pages, peak_);
    ASSERT_EQ(got.tokens, want.tokens);
    ASSERT_EQ(got.wasted_slots, want.wasted_slots);
    const double slots = static_cast<double>(want.used_pages * sizes_.page_size);
    ASSERT_DOUBLE_EQ(got.waste, slots == 0 ? 0 : static_cast<double>(want.wasted_slots) / slots);
    ASSERT_DOUBLE_EQ(got.fragmentation,
                     neighbours == 0 ? 0 : static_cast<double>(gaps) / static_cast<double>(neighbours));
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
