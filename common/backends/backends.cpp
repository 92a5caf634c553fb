#include "common/backends/backends.h"

#ifdef ATTN_HAS_CPU
#include "common/backends/cpu/device.h"
#endif
#ifdef ATTN_HAS_CUDA
#include "common/backends/cuda/device.h"
#endif
#ifdef ATTN_HAS_CPU
#include "common/backends/metal/emulated_device.h"
#endif
#ifdef ATTN_HAS_METAL
#include "common/backends/metal/device.h"
#include "common/base/error.h"
#endif

namespace attn {

#ifdef ATTN_HAS_METAL
namespace {

std::unique_ptr<Device> open_metal(std::string_view spec) {
  if (spec == "metal") return open_metal_gpu();
#ifdef ATTN_HAS_CPU
  return open_metal_device(spec);
#else
  throw BadInput("device '" + std::string(spec) + "' is not allowed; this build has metal, and no emulator");
#endif
}
std::unique_ptr<Device> open_metal_for_caller(std::string_view spec, [[maybe_unused]] const Caller& caller) {
#ifdef ATTN_HAS_CPU
  if (spec != "metal") return open_metal_device_for_caller(spec, caller);
#endif
  return open_metal(spec);
}

}  // namespace
#endif

std::span<const Backend> backends() {
  static constexpr Backend all[] = {
#ifdef ATTN_HAS_CPU
      {.name = "cpu", .options = "threads=N", .open = &open_cpu_device, .open_for_caller = &open_cpu_device_for_caller},
#else
      {.name = "cpu",
       .options = "threads=N",
       .missing = "no CPU device; it needs llvm-19-dev, libclang-19-dev, libclang-cpp19-dev and clang-19"},
#endif
#ifdef ATTN_HAS_CUDA
      {.name = "cuda", .options = "N", .open = &open_cuda_device, .open_for_caller = &open_cuda_device_for_caller},
#else
      {.name = "cuda", .options = "N", .missing = "no CUDA device; it needs cuda.h and nvrtc.h of the CUDA toolkit"},
#endif
#ifdef ATTN_HAS_METAL
      {.name = "metal", .options = "emulated", .open = &open_metal, .open_for_caller = &open_metal_for_caller},
#elif defined(ATTN_HAS_CPU)
      {.name = "metal",
       .options = "emulated",
       .needs_options = true,
       .open = &open_metal_device,
       .open_for_caller = &open_metal_device_for_caller},
#else
      {.name = "metal",
       .options = "emulated",
       .needs_options = true,
       .missing =
           "no Metal device; the emulated one needs llvm-19-dev, libclang-19-dev, libclang-cpp19-dev and clang-19"},
#endif
  };
  return all;
}

}  // namespace attn
