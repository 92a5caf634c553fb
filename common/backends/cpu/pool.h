// A pool of threads that runs the threadgroups of dispatches. Between the dispatches of a submission the threads spin,
// so that a dispatch costs about a microsecond. Between submissions the threads sleep, so that an idle device costs
// nothing.
//
// A program with threads of its own gives the pool a function that runs work on these threads (Caller::run). The pool
// then makes no threads, because two sets of threads that spin would take each other's cores.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "common/device/device.h"

namespace attn {

class ThreadPool {
 public:
  /// The calling thread is one of the `threads`. If `caller.run` is set, the pool makes no threads: caller.run() runs
  /// the items, in at most `threads` pieces.
  explicit ThreadPool(unsigned threads, const Caller& caller = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  unsigned threads() const { return threads_; }

  /// Between begin() and end() the workers are awake. run() may be called with more than one item only between begin()
  /// and end(). begin() returns when all workers are awake. So a dispatch's time does not include the wake-up of a
  /// thread, which may take 100 us.
  void begin();
  void end();

  /// Calls work(item, thread) once for every item in [0, count). Whenever a thread is free, it takes the lowest item
  /// that no thread has taken. Returns when all items are done. `work` must not throw. An item must not wait for a
  /// later item, because all items may run one after another.
  void run(uint64_t count, const std::function<void(uint64_t item, unsigned thread)>& work);

 private:
  void worker(unsigned thread);
  void take_items(unsigned thread);

  const unsigned threads_;
  const Caller caller_;
  std::vector<std::thread> workers_;
  const std::function<void(uint64_t, unsigned)>* work_ = nullptr;
  uint64_t count_ = 0;
  alignas(64) std::atomic<uint64_t> next_{0};
  alignas(64) std::atomic<uint64_t> wave_{0};      // number of calls of run() that needed the workers
  alignas(64) std::atomic<unsigned> finished_{0};  // workers that are done with the current run()
  alignas(64) std::atomic<uint32_t> state_{0};     // asleep, awake or stopping; sleeping workers wait on it
};

}  // namespace attn
