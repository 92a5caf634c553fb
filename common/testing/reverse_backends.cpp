// Replaces common/backends/backends.cpp in the programs of some tests. Apart from the cpu, which oracles need, there
// are the reverse device and a bare device without any kernel.
#include <cstdlib>

#include "common/backends/backends.h"
#include "common/backends/cpu/device.h"
#include "common/testing/reverse/device.h"

namespace attn {
namespace {

class BareDevice : public Device {
 public:
  BareDevice() { info_.spec = info_.backend = info_.name = "bare"; }
  void* allocate(size_t bytes) override { return std::malloc(bytes); }
  void release(void* pointer) noexcept override { std::free(pointer); }
  void upload(void*, const void*, size_t) override {}
  void download(void*, const void*, size_t) override {}
  Binary compile(const KernelSource&, const CompileOptions&) override { return {}; }
  std::string compiler_identity() const override { return {}; }
  std::unique_ptr<Kernel> load(const Binary&, const std::string&) override { return std::make_unique<Kernel>(); }
  std::vector<double> submit(const CommandEncoder&) override { return {}; }
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
