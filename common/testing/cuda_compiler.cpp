#include "common/testing/cuda_compiler.h"

#ifdef ATTN_HAS_CUDA
#include <string>

#include "common/backends/cuda/compiler.h"
#include "common/testing/plain_devices.h"
#endif

namespace attn::test {

#ifdef ATTN_HAS_CUDA
namespace {

class HopperCompiler : public HostMemoryDevice {
 public:
  HopperCompiler() { info_ = hopper(); }
  Binary compile(const KernelSource& source, const CompileOptions& options) override {
    return compiler_.compile(source, options);
  }
  std::string compiler_identity() const override { return compiler_.identity(); }

 private:
  const CudaCompiler compiler_{hopper().arch};
};

}  // namespace

std::unique_ptr<Device> open_hopper_compiler() { return std::make_unique<HopperCompiler>(); }
#else
std::unique_ptr<Device> open_hopper_compiler() { return Device::open("cuda"); }  // throws DeviceMissing
#endif

}  // namespace attn::test
