// Replaces common/backends/backends.cpp in the programs of some tests. Apart from the cpu, which oracles need, there is
// the device `metal`, on a fake of Apple's Metal (common/backends/metal/fake/fake.h).
#include "common/backends/backends.h"
#include "common/backends/cpu/device.h"
#include "common/backends/metal/device.h"

namespace attn {

std::span<const Backend> backends() {
  static constexpr Backend all[] = {
      {.name = "cpu", .options = "threads=N", .open = &open_cpu_device},
      {.name = "metal", .open = [](std::string_view /*spec*/) { return open_metal_gpu(); }}};
  return all;
}

}  // namespace attn
