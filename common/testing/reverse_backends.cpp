// Replaces common/backends/backends.cpp in the programs of some tests. Apart from the cpu, which oracles need, there
// are the reverse device and a bare device without any kernel.
#include "common/backends/backends.h"
#include "common/backends/cpu/device.h"
#include "common/testing/plain_devices.h"
#include "common/testing/reverse/device.h"

namespace attn {
namespace {

class BareDevice : public test::HostMemoryDevice {
 public:
  BareDevice() { info_.spec = info_.backend = info_.name = "bare"; }
};

std::unique_ptr<Device> open_bare_device(std::string_view /*spec*/) { return std::make_unique<BareDevice>(); }

}  // namespace

std::span<const Backend> backends() {
  static constexpr Backend all[] = {{.name = "cpu", .options = "threads=N", .open = &open_cpu_device},
                                    {.name = "reverse", .open = &open_reverse_device},
                                    {.name = "bare", .open = &open_bare_device}};
  return all;
}

}  // namespace attn
