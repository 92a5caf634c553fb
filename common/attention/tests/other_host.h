// The device under test, described as another host. The tuned kernel of the cpu gets the constants of the described
// host, so tests on one host cover the kernels of several hosts. The kernels run on this host: the compiler splits wide
// vectors into vectors that this host has, and emulated.h replaces instructions that this host lacks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "common/attention/tests/emulated.h"
#include "common/testing/plain_devices.h"

namespace attn::test {

class OtherHost : public OtherDevice {
 public:
  OtherHost(Device& device, const std::string& arch, uint32_t simd_width, uint32_t vector_registers,
            const std::vector<std::string>& features = {})
      : OtherDevice(device) {
    info_.arch = arch;
    info_.simd_width = simd_width;
    info_.vector_registers = vector_registers;
    info_.features = features;
    const auto lacks = [&](const std::string& feature) { return !device.info().has(feature); };
    emulates_ = std::any_of(features.begin(), features.end(), lacks);
  }

  Binary compile(const KernelSource& source, const CompileOptions& options) override {
    KernelSource emulated = source;
    if (emulates_) emulated.includes.merge(emulated_instructions());
    return OtherDevice::compile(emulated, options);
  }

 private:
  bool emulates_ = false;
};

}  // namespace attn::test
