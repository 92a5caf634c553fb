// Which devices there are.
#include <fmt/format.h>

#include "common/base/error.h"
#include "common/device/device.h"
#ifdef ATTN_HAS_CPU
#include "common/backends/cpu/device.h"
#endif
#ifdef ATTN_HAS_CUDA
#include "common/backends/cuda/device.h"
#endif

namespace attn {

bool Device::is_built([[maybe_unused]] std::string_view backend) {
  bool built = false;
#ifdef ATTN_HAS_CPU
  built |= backend == "cpu";
#endif
#ifdef ATTN_HAS_CUDA
  built |= backend == "cuda";
#endif
  return built;
}

std::string Device::known_specs() { return "cpu, cpu:threads=N, cuda, cuda:N"; }

std::unique_ptr<Device> Device::open(std::string_view spec) {
  const std::string_view backend = spec.substr(0, spec.find(':'));
  if (backend == "cpu") {
#ifdef ATTN_HAS_CPU
    return open_cpu_device(spec);
#else
    throw DeviceMissing(
        "cpu: this build has no CPU device; it needs llvm-19-dev, libclang-19-dev, libclang-cpp19-dev and clang-19");
#endif
  }
  if (backend == "cuda") {
#ifdef ATTN_HAS_CUDA
    return open_cuda_device(spec);
#else
    throw DeviceMissing("cuda: this build has no CUDA device; it needs cuda.h and nvrtc.h of the CUDA toolkit");
#endif
  }
  throw BadInput(fmt::format("unknown device '{}'; known: {}", spec, known_specs()));
}

std::unique_ptr<Device> Device::open_for_caller(std::string_view spec, [[maybe_unused]] std::optional<void*> stream) {
#ifdef ATTN_HAS_CUDA
  if (spec.substr(0, spec.find(':')) == "cuda") return open_cuda_device_for_caller(spec, stream);
#endif
  return open(spec);  // it has no streams
}

}  // namespace attn
