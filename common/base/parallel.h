// Host threads for loops over independent items.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <future>
#include <thread>
#include <vector>

#include "common/base/divided_up.h"

namespace attn {

/// Cuts [0, count) into parts of at most `grain` items, and calls body(begin, end) for each part. At most `most`
/// threads, the calling thread included, work on the parts; a free thread takes the next part. Returns when all parts
/// are done. Rethrows an exception of `body`.
template <typename Body>
void parallel_for(int64_t count, int64_t grain, const Body& body, int64_t most = std::thread::hardware_concurrency()) {
  std::atomic<int64_t> next = 0;
  const auto work = [&] {
    for (int64_t begin; (begin = next.fetch_add(grain)) < count;) body(begin, std::min(begin + grain, count));
  };
  const int64_t threads = std::min(most, divided_up(count, grain));
  std::vector<std::future<void>> others;
  for (int64_t i = 1; i < threads; ++i) others.push_back(std::async(std::launch::async, work));
  work();
  for (std::future<void>& other : others) other.get();
}

}  // namespace attn
