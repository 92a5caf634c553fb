#include "proto8_extension/allocations.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> counted = 0;
}  // namespace

void* operator new(std::size_t bytes) {
  counted.fetch_add(1, std::memory_order_relaxed);
  if (void* block = std::malloc(bytes == 0 ? 1 : bytes)) return block;
  throw std::bad_alloc();
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t /*bytes*/) noexcept { std::free(block); }

namespace attn {

int64_t allocations() { return counted.load(std::memory_order_relaxed); }

}  // namespace attn
