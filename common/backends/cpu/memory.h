#pragma once

#include <cstddef>
#include <mutex>
#include <unordered_map>

namespace attn {

/// Memory for buffers, aligned to Device::buffer_alignment.
///
/// Blocks of 2 MiB and more lie on huge pages if the system grants huge pages. For each of these blocks, allocate()
/// maps new memory. malloc() might instead reuse memory on small pages, and then two buffers of the same size would not
/// be equally fast.
class CpuMemory {
 public:
  CpuMemory() = default;
  ~CpuMemory();
  CpuMemory(const CpuMemory&) = delete;
  CpuMemory& operator=(const CpuMemory&) = delete;

  static constexpr size_t huge_page_bytes = size_t{2} << 20;

  /// Returns null if there is too little memory.
  void* allocate(size_t bytes);
  void release(void* block) noexcept;

 private:
  std::mutex mutex_;
  std::unordered_map<void*, size_t> mapped_;  // large blocks and their bytes
};

}  // namespace attn
