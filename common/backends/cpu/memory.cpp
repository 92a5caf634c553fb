#include "common/backends/cpu/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "common/base/asan.h"
#include "common/base/platform.h"
#include "common/device/device.h"

namespace attn {
namespace {

/// Maps `bytes` bytes of memory at a multiple of huge_page_bytes. `bytes` must be a multiple of huge_page_bytes too.
/// Returns null if there is too little memory.
void* map(size_t bytes) {
  constexpr size_t huge = CpuMemory::huge_page_bytes;
  void* const all = mmap(nullptr, bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  auto* const first = static_cast<std::byte*>(all);
  const size_t skipped = (huge - reinterpret_cast<uintptr_t>(all) % huge) % huge;
  if (skipped > 0) munmap(first, skipped);
  if (skipped < huge) munmap(first + skipped + bytes, huge - skipped);
  prefer_huge_pages(first + skipped, bytes);
  return first + skipped;
}

void unmap(void* block, size_t bytes) {
  ASAN_UNPOISON_MEMORY_REGION(block, bytes);  // so that the next mapping at this address may be written
  munmap(block, bytes);
}

}  // namespace

CpuMemory::~CpuMemory() {
  for (const auto& [block, bytes] : mapped_) unmap(block, bytes);
}

void* CpuMemory::allocate(size_t bytes) {
  if (bytes < huge_page_bytes) {
    void* block = nullptr;
    const int status = posix_memalign(&block, Device::buffer_alignment, std::max<size_t>(bytes, 1));
    return status == 0 ? block : nullptr;
  }
  if (bytes > SIZE_MAX - 2 * huge_page_bytes) return nullptr;
  const size_t whole = (bytes + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes;
  void* const block = map(whole);
  const std::lock_guard lock(mutex_);
  if (block) mapped_[block] = whole;
  return block;
}

void CpuMemory::release(void* block) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = mapped_.find(block);
  if (found == mapped_.end()) return std::free(block);
  unmap(block, found->second);
  mapped_.erase(found);
}

}  // namespace attn
