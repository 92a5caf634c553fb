#include "common/backends/cpu/pool.h"

#include <algorithm>

namespace attn {

namespace {

enum State : uint32_t { asleep, awake, stopping };

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// After this many iterations a spinning thread yields its core in each iteration. On a machine with fewer free cores
// than threads, the spinning thread could otherwise occupy the core that the awaited thread needs.
constexpr int spins_before_yield = 2000;

template <typename Condition>
void spin_until(const Condition& condition) {
  for (int spins = 0; !condition();) {
    if (spins < spins_before_yield) {
      ++spins;
      pause();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace

ThreadPool::ThreadPool(unsigned threads, const Caller& caller) : threads_(threads), caller_(caller) {
  if (caller_.run) return;
  for (unsigned thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { worker(thread); });
}

ThreadPool::~ThreadPool() {
  state_.store(stopping);
  state_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::begin() {
  if (workers_.empty()) return;
  // This store is sequentially consistent, because notify_all() wakes only the threads that it finds waiting. With a
  // weaker store notify_all() could find no waiting thread while a thread falls asleep on the old value.
  state_.store(awake);
  state_.notify_all();
  // run() returns only after every worker has taken part in it, so all workers are awake then.
  run(2, [](uint64_t, unsigned) {});
}

void ThreadPool::end() { state_.store(asleep, std::memory_order_release); }

void ThreadPool::take_items(unsigned thread) {
  for (uint64_t item; (item = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) (*work_)(item, thread);
}

void ThreadPool::run(uint64_t count, const std::function<void(uint64_t, unsigned)>& work) {
  if (count <= 1) {  // the workers are not needed
    if (count == 1) work(0, 0);
    return;
  }
  work_ = &work;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  if (caller_.run) {
    const auto take = [](void* pool, size_t piece) {
      static_cast<ThreadPool*>(pool)->take_items(static_cast<unsigned>(piece));
    };
    return caller_.run(caller_.context, std::min<uint64_t>(count, threads_), take, this);
  }
  finished_.store(0, std::memory_order_relaxed);
  wave_.fetch_add(1, std::memory_order_release);
  take_items(0);
  // Every worker takes part, even if no item is left for the worker. work_ and next_ may change only after all workers
  // are done.
  const auto all = static_cast<unsigned>(workers_.size());
  spin_until([&] { return finished_.load(std::memory_order_acquire) == all; });
}

void ThreadPool::worker(unsigned thread) {
  for (uint64_t seen = 0;;) {
    uint32_t state = asleep;
    const auto woken = [&] {
      state = state_.load(std::memory_order_acquire);
      return wave_.load(std::memory_order_acquire) != seen || state != awake;
    };
    spin_until(woken);
    if (wave_.load(std::memory_order_acquire) != seen) {
      ++seen;
      take_items(thread);
      finished_.fetch_add(1, std::memory_order_acq_rel);
    } else if (state == stopping) {
      return;
    } else {
      state_.wait(asleep, std::memory_order_acquire);
    }
  }
}

}  // namespace attn
