#include "common/backends/cuda/scratch.h"

#include <cstdint>
#include <filesystem>

namespace attn {

std::unique_ptr<TemporaryFolder> scratch_folder() {
  constexpr uintmax_t room_bytes = 64 << 20;
  try {
    auto folder = std::make_unique<TemporaryFolder>();
    return std::filesystem::space(folder->path()).available >= room_bytes ? std::move(folder) : nullptr;
  } catch (const std::filesystem::filesystem_error&) {
    return nullptr;
  }
}

}  // namespace attn
