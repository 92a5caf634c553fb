#include "common/backends/metal/operations.h"

#include "common/attention/kernels/mask_blocks_metal.h"

namespace attn {

const Operations& metal_operations() {
  static const Operations operations = {.kernel_ending = "metal",
                                        .flash = &metal_flash(),
                                        .rope = &metal_rope(),
                                        .decode = &metal_decode(),
                                        .linear = &metal_linear(),
                                        .ceilings = &metal_ceilings(),
                                        .mask_list_threads = mask_blocks_threads,
                                        .append_threads = 128,
                                        .expand = ElementKernel{.threads = 256, .elements = 32},
                                        .stage = ElementKernel{.threads = 256, .elements = 1024}};
  return operations;
}

}  // namespace attn
