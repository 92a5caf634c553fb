#include "common/backends/cpu/operations.h"

namespace attn {

const Operations& cpu_operations() {
  static const Operations operations = {.kernel_ending = "cpu.cpp",
                                        .flash = &cpu_flash(),
                                        .rope = &cpu_rope(),
                                        .decode = &cpu_decode(),
                                        .linear = &cpu_linear(),
                                        .ceilings = &cpu_ceilings(),
                                        .mask_list_threads = 1,
                                        .mask_bits = ElementKernel{.threads = 1},
                                        .append_threads = 1,
                                        .expand = ElementKernel{.threads = 1, .elements = 256},
                                        .stage = ElementKernel{.threads = 1, .elements = 65536},
                                        .user_function = ElementKernel{.threads = 1},
                                        .ahead_of_time = "object"};
  return operations;
}

}  // namespace attn
