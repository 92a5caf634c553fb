#pragma once

#include <cstddef>
#include <mutex>
#include <unordered_map>

namespace attn {

/// Memory for buffers, aligned to Device::buffer_alignment.
///
/// Blocks of 2 MB and more lie on huge pages where the system gives them. They are mapped afresh: malloc() hands out
/// again what small pages already back, and two equal buffers need not be equally fast then.
class CpuMemory {
 public:
  CpuMemory() = default;
  ~CpuMemory();
  CpuMemory(const CpuMemory&) = delete;
  CpuMemory& operator=(const CpuMemory&) = delete;

  static constexpr size_t huge_page_bytes = size_t{2} << 20;

  /// Null where there is no room.
  void* allocate(size_t bytes);
  void release(void* block) noexcept;

 private:
  std::mutex mutex_;
  std::unordered_map<void*, size_t> mapped_;  // large blocks, and their bytes
};

}  // namespace attn
