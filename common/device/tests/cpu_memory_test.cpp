// CpuMemory, from which the cpu device allocates.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "common/backends/cpu/memory.h"
#include "common/base/asan.h"
#include "common/device/device.h"

namespace attn {
namespace {

TEST(CpuMemoryTest, BlocksAreAlignedAndDoNotOverlap) {
  CpuMemory memory;
  const std::vector<size_t> sizes = {0,
                                     1,
                                     4096,
                                     CpuMemory::huge_page_bytes - 1,
                                     CpuMemory::huge_page_bytes,
                                     CpuMemory::huge_page_bytes + 1,
                                     3 * CpuMemory::huge_page_bytes};
  std::vector<void*> blocks;
  for (const size_t bytes : sizes) {
    void* const block = memory.allocate(bytes);
    ASSERT_NE(block, nullptr) << bytes;
    const size_t alignment = bytes < CpuMemory::huge_page_bytes ? Device::buffer_alignment : CpuMemory::huge_page_bytes;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % alignment, 0u) << bytes;
    std::memset(block, static_cast<int>(blocks.size()), bytes);
    blocks.push_back(block);
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto* const bytes = static_cast<const unsigned char*>(blocks[i]);
    for (size_t at = 0; at < sizes[i]; at += 1000) ASSERT_EQ(bytes[at], i);
    if (sizes[i] > 0) {
      EXPECT_EQ(bytes[sizes[i] - 1], i);
    }
  }
  for (size_t i = 0; i + 1 < blocks.size(); ++i) memory.release(blocks[i]);  // ~CpuMemory() releases the last block
}

TEST(CpuMemoryTest, LargeBlocksAreZero) {
  CpuMemory memory;
  for (int i = 0; i < 10; ++i) {
    auto* const block = static_cast<unsigned char*>(memory.allocate(5 * CpuMemory::huge_page_bytes));
    ASSERT_NE(block, nullptr);
    for (size_t at = 0; at < 5 * CpuMemory::huge_page_bytes; at += 4096)
      ASSERT_EQ(block[at], 0) << "the block has data of an earlier block";
    std::memset(block, 1, 5 * CpuMemory::huge_page_bytes);
    ASAN_POISON_MEMORY_REGION(block, 4096);  // a Buffer does this to its guard bands
    memory.release(block);
  }
}

TEST(CpuMemoryTest, ABlockThatDoesNotFitIsNull) {
  CpuMemory memory;
  EXPECT_EQ(memory.allocate(SIZE_MAX), nullptr);
  EXPECT_EQ(memory.allocate(SIZE_MAX / 2), nullptr);
  memory.release(nullptr);
}

}  // namespace
}  // namespace attn
