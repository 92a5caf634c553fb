#include "common/device/operations.h"

#include <fmt/format.h>

namespace attn {

const Operations& no_operations() {
  static const Operations none;
  return none;
}

std::string Operations::kernel_file(std::string_view path) const { return fmt::format("{}.{}", path, kernel_ending); }

std::string no_kernel_for(std::string_view what) { return fmt::format("this device has no kernel for {}", what); }

}  // namespace attn
