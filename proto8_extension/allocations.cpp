#include "proto8_extension/allocations.h"

#include <atomic>
#include <cstddef>
#include <new>

namespace {
std::atomic<int64_t> counted = 0;
}  // namespace

// AddressSanitizer has its own operator new for std::nothrow. The operators delete below call std::free(), which
// refuses the blocks of AddressSanitizer's operator, so this file replaces that operator too.
void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  counted.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new(std::size_t bytes) {
  if (void* block = operator new(bytes, std::nothrow)) return block;
  throw std::bad_alloc();
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t /*bytes*/) noexcept { std::free(block); }

namespace attn {

int64_t allocations() { return counted.load(std::memory_order_relaxed); }

}  // namespace attn
