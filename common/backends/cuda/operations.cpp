#include "common/backends/cuda/operations.h"

namespace attn {

const Operations& cuda_operations() {
  static const Operations operations = {.kernel_ending = "cuda.cu",
                                        .flash = &cuda_flash(),
                                        .rope = &cuda_rope(),
                                        .decode = &cuda_decode(),
                                        .linear = &cuda_linear(),
                                        .ceilings = &cuda_ceilings(),
                                        .mask_list_threads = 1024,
                                        .mask_bits = ElementKernel{.threads = 256, .elements = 1},
                                        .append_threads = 128,
                                        .expand = ElementKernel{.threads = 256, .elements = 64},
                                        .stage = ElementKernel{.threads = 256, .elements = 1024},
                                        .user_function = ElementKernel{.threads = 128, .elements = 128},
                                        .most_threadgroups = {INT32_MAX, 65535, 65535},
                                        .ahead_of_time = "cubin"};
  return operations;
}

}  // namespace attn
