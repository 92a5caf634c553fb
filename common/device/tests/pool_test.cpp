// Tests the pool that runs the cpu device's threadgroups. Here the pool runs lambdas: a build with ThreadSanitizer
// checks lambdas, but not kernels. A wave is one call of run(), which calls a lambda once for each item. A submission
// is begin(), any number of waves, and end(); after end() the workers sleep.
#include "common/backends/cpu/pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <initializer_list>
#include <numeric>
#include <thread>
#include <vector>

#include "common/testing/some.h"

namespace attn {
namespace {

using namespace std::chrono_literals;

/// Expects that waves of these sizes run each item exactly once.
void expect_each_item_once(ThreadPool& pool, std::initializer_list<uint64_t> counts) {
  pool.begin();
  for (const uint64_t count : counts) {
    std::vector<std::atomic<int>> runs(count + 1);
    std::atomic<bool> thread_in_range{true};
    pool.run(count, [&](uint64_t item, unsigned thread) {
      runs[std::min(item, count)]++;
      if (thread >= pool.threads()) thread_in_range = false;
    });
    EXPECT_TRUE(std::all_of(runs.begin(), runs.end() - 1, [](const auto& n) { return n == 1; }));
    EXPECT_EQ(runs[count], 0) << "the pool ran an item beyond the last";
    EXPECT_TRUE(thread_in_range);
  }
  pool.end();
}

TEST(ThreadPoolTest, RunsEachItemExactlyOnce) {
  for (unsigned threads = 1; threads <= 8; ++threads) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    expect_each_item_once(pool, {0, 1, 2, 7, 8, 9, 1000});
  }
}

TEST(ThreadPoolTest, EachThreadTakesItemsInRisingOrder) {
  ThreadPool pool(4);
  std::vector<std::vector<uint64_t>> taken(pool.threads());
  pool.begin();
  pool.run(10'000, [&](uint64_t item, unsigned thread) { taken[thread].push_back(item); });
  pool.end();
  for (const auto& items : taken) EXPECT_TRUE(std::is_sorted(items.begin(), items.end()));

  ThreadPool alone(1);
  std::vector<uint64_t> order, expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  alone.begin();
  alone.run(100, [&](uint64_t item, unsigned) { order.push_back(item); });
  alone.end();
  EXPECT_EQ(order, expected);
}

// Each item waits until all other items have begun, so the test fails if a thread takes no item.
TEST(ThreadPoolTest, AllThreadsTakePart) {
  ThreadPool pool(5);
  for (int repetition = 0; repetition < 20; ++repetition) {
    std::atomic<unsigned> begun{0};
    const auto give_up = std::chrono::steady_clock::now() + 20s;
    pool.begin();
    pool.run(pool.threads(), [&](uint64_t, unsigned) {
      ++begun;
      while (begun < pool.threads() && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
    });
    pool.end();
    ASSERT_LT(std::chrono::steady_clock::now(), give_up);
  }
}

// The data are not atomic on purpose: if a wave's items could miss what the caller wrote before the wave, or the caller
// what the items wrote, ThreadSanitizer would report a race.
TEST(ThreadPoolTest, ManyWavesInQuickSuccession) {
  ThreadPool pool(4);
  std::vector<uint64_t> values(6, 0);
  uint64_t step = 0;
  pool.begin();
  const int waves = test::Some::all() ? 5000 : 500;
  for (int wave = 0; wave < waves; ++wave) {
    step = static_cast<uint64_t>(wave);
    pool.run(values.size(), [&](uint64_t item, unsigned) { values[item] += step; });
    ASSERT_EQ(std::accumulate(values.begin(), values.end(), uint64_t{0}), values.size() * step * (step + 1) / 2);
  }
  pool.end();
}

// If a worker missed its wake-up, run() would not return.
TEST(ThreadPoolTest, BeginAndEndRepeatedly) {
  ThreadPool pool(4);
  std::atomic<int> items{0};
  const int submissions = test::Some::all() ? 3000 : 300;
  for (int submission = 0; submission < submissions; ++submission) {
    pool.begin();
    for (int wave = submission % 3; wave > 0; --wave) pool.run(4, [&](uint64_t, unsigned) { ++items; });
    pool.end();
    if (submission % 200 == 0) std::this_thread::sleep_for(5ms);  // long enough that all workers fall asleep
  }
  EXPECT_EQ(items, submissions * 4);
}

// A Caller may run the pieces of a wave one after another, or each on a thread of its own.
TEST(ThreadPoolTest, RunsOnTheCallersThreads) {
  using Piece = void (*)(void* work, size_t number);
  struct Counts {
    size_t calls = 0, most = 0;
  };
  const auto one_by_one = [](void* counts, size_t pieces, Piece piece, void* work) {
    auto& seen = *static_cast<Counts*>(counts);
    ++seen.calls;
    seen.most = std::max(seen.most, pieces);
    while (pieces-- > 0) piece(work, pieces);
  };
  const auto at_once = [](void* counts, size_t pieces, Piece piece, void* work) {
    ++static_cast<Counts*>(counts)->calls;
    std::vector<std::thread> threads;
    for (size_t number = 0; number < pieces; ++number) threads.emplace_back([=] { piece(work, number); });
    for (std::thread& thread : threads) thread.join();
  };
  for (const decltype(Caller::run) run : {+one_by_one, +at_once}) {
    Counts counts;
    ThreadPool pool(3, {.run = run, .context = &counts});
    EXPECT_EQ(pool.threads(), 3u);
    expect_each_item_once(pool, {0, 1, 2, 100});
    EXPECT_EQ(counts.calls, 2u) << "the pool must ask the caller for threads only for waves of 2 and 100 items";
    EXPECT_LE(counts.most, 3u);
  }
}

TEST(ThreadPoolTest, MayBeDestroyedInAnyState) {
  for (int repetition = 0; repetition < 200; ++repetition) {
    ThreadPool pool(3);
    if (repetition % 4 > 0) pool.begin();
    if (repetition % 4 > 1) pool.run(5, [](uint64_t, unsigned) {});
    if (repetition % 4 > 2) pool.end();
  }
}

}  // namespace
}  // namespace attn
