#include "common/backends/backends.h"

#ifdef ATTN_HAS_CPU
#include "common/backends/cpu/device.h"
#endif
#ifdef ATTN_HAS_CUDA
#include "common/backends/cuda/device.h"
#endif

namespace attn {

std::span<const Backend> backends() {
  static constexpr Backend all[] = {
#ifdef ATTN_HAS_CPU
      {"cpu", "cpu, cpu:threads=N", &open_cpu_device},
#else
      {"cpu", "cpu, cpu:threads=N", nullptr,
       "no CPU device; it needs llvm-19-dev, libclang-19-dev, libclang-cpp19-dev and clang-19"},
#endif
#ifdef ATTN_HAS_CUDA
      {"cuda", "cuda, cuda:N", &open_cuda_device, {}, &open_cuda_device_for_caller},
#else
      {"cuda", "cuda, cuda:N", nullptr, "no CUDA device; it needs cuda.h and nvrtc.h of the CUDA toolkit"},
#endif
  };
  return all;
}

}  // namespace attn
