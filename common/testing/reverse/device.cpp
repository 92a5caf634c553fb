#include "common/testing/reverse/device.h"

#include <cstdlib>
#include <cstring>

#include "common/attention/flash.h"
#include "common/backends/cpu/compiler.h"
#include "common/backends/cpu/loader.h"
#include "common/backends/cpu/operations.h"
#include "common/backends/cpu/threadgroups.h"
#include "common/base/error.h"
#include "common/testing/plain_devices.h"

namespace attn {

namespace {

/// The cpu's attention with only the variant `naive`.
class ReverseFlash : public FlashOperation {
 public:
  std::vector<std::string> variants() const override { return {"naive"}; }
  Launch kernel(const FlashConfig& config, const DeviceInfo& device, const AttentionHooks* hooks) const override {
    return cpu_flash().kernel(config, device, hooks);
  }
};

const Operations& reverse_operations() {
  static const ReverseFlash flash;
  static const Operations operations = {.flash = &flash, .ceilings = &cpu_ceilings()};
  return operations;
}

struct ReverseKernel : Kernel {
  explicit ReverseKernel(CpuLoader::Loaded from) : loaded(std::move(from)) {}
  CpuLoader::Loaded loaded;
};

class ReverseDevice : public test::HostMemoryDevice {
 public:
  ReverseDevice() {
    info_ = cpu_info(compiler_.target());  // the reverse device uses the cpu's compiler
    info_.spec = info_.backend = "reverse";
    info_.name = "one host thread, threadgroups last to first";
    info_.operations = &reverse_operations();
  }

  Binary compile(const KernelSource& source, const CompileOptions&) override { return compiler_.compile(source); }
  std::string compiler_identity() const override { return compiler_.identity(); }
  std::unique_ptr<Kernel> load(const Binary& binary, const std::string& entry) override {
    return std::make_unique<ReverseKernel>(loader_.load(binary, entry));
  }

  std::vector<double> submit(const CommandEncoder& encoder) override {
    return run_in_order(encoder, [this](const auto& command) { run(command); });
  }

 private:
  void run(const CommandEncoder::Dispatch& dispatch) {
    if (dispatch.threadgroup_bytes > info_.threadgroup_memory_bytes) throw BadInput("too much threadgroup memory");
    const std::unique_ptr<unsigned char, decltype(&std::free)> memory(
        static_cast<unsigned char*>(allocate(dispatch.threadgroup_bytes)), &std::free);
    for (uint64_t number = dispatch.grid.count(); number-- > 0;) {
      const Threadgroup group = threadgroup_at(dispatch.grid, number, memory.get(), dispatch.threadgroup_bytes);
      static_cast<const ReverseKernel*>(dispatch.kernel)->loaded.function(dispatch.parameters.data(), &group);
    }
  }
  void run(const CommandEncoder::Fill& fill) { std::memset(fill.target, fill.value, fill.bytes); }

  CpuCompiler compiler_;
  CpuLoader loader_;
};

}  // namespace

std::unique_ptr<Device> open_reverse_device(std::string_view /*spec*/) { return std::make_unique<ReverseDevice>(); }

}  // namespace attn
