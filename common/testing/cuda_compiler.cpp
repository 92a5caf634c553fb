#include "common/testing/cuda_compiler.h"

#ifdef ATTN_HAS_CUDA
#include <cstdlib>
#include <string>
#include <vector>

#include "common/backends/cuda/compiler.h"
#endif

namespace attn::test {

#ifdef ATTN_HAS_CUDA
namespace {

class HopperCompiler : public Device {
 public:
  HopperCompiler() { info_ = hopper(); }
  void* allocate(size_t bytes) override { return std::malloc(bytes); }
  void release(void* pointer) noexcept override { std::free(pointer); }
  void upload(void*, const void*, size_t) override {}
  void download(void*, const void*, size_t) override {}
  Binary compile(const KernelSource& source, const CompileOptions& options) override {
    return compiler_.compile(source, options);
  }
  std::string compiler_identity() const override { return compiler_.identity(); }
  std::unique_ptr<Kernel> load(const Binary&, const std::string&) override { return std::make_unique<Kernel>(); }
  std::vector<double> submit(const CommandEncoder&) override { return {}; }

 private:
  const CudaCompiler compiler_{hopper().arch};
};

}  // namespace

std::unique_ptr<Device> open_hopper_compiler() { return std::make_unique<HopperCompiler>(); }
#else
std::unique_ptr<Device> open_hopper_compiler() { return Device::open("cuda"); }  // throws DeviceMissing
#endif

}  // namespace attn::test
