// The device under test, described as another host. The tuned kernel of the cpu gets the constants of the described
// host, so tests on one host cover the kernels of several hosts. The kernels run on this host: the compiler splits wide
// vectors into vectors that this host has, and emulated.h replaces instructions that this host lacks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/attention/tests/emulated.h"
#include "common/device/device.h"

namespace attn::test {

class OtherHost : public Device {
 public:
  OtherHost(Device& device, const std::string& arch, uint32_t simd_width, uint32_t vector_registers,
            const std::vector<std::string>& features = {})
      : device_(device) {
    info_ = device.info();
    info_.arch = arch;
    info_.simd_width = simd_width;
    info_.vector_registers = vector_registers;
    info_.features = features;
    const auto lacks = [&](const std::string& feature) { return !device.info().has(feature); };
    emulates_ = std::any_of(features.begin(), features.end(), lacks);
  }

  void* allocate(size_t bytes) override { return device_.allocate(bytes); }
  void release(void* pointer) noexcept override { device_.release(pointer); }
  void upload(void* target, const void* source, size_t bytes) override { device_.upload(target, source, bytes); }
  void download(void* target, const void* source, size_t bytes) override { device_.download(target, source, bytes); }
  Binary compile(const KernelSource& source, const CompileOptions& options) override {
    KernelSource emulated = source;
    if (emulates_) emulated.includes.merge(emulated_instructions());
    return device_.compile(emulated, options);
  }
  std::string compiler_identity() const override { return device_.compiler_identity(); }
  std::unique_ptr<Kernel> load(const Binary& binary, const std::string& entry) override {
    return device_.load(binary, entry);
  }
  std::vector<double> submit(const CommandEncoder& encoder) override { return device_.submit(encoder); }

 private:
  Device& device_;
  bool emulates_ = false;
};

}  // namespace attn::test
