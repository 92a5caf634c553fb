// The cpu device: host threads run kernels that clang and LLVM compiled in this process.
#pragma once

#include <memory>
#include <string_view>

#include "common/device/device.h"

namespace attn {

/// "cpu" takes a thread for each core this process may run on; "cpu:threads=N" takes N. Kernels run with denormal
/// floats flushed to zero, on the calling thread too. Throws BadInput.
std::unique_ptr<Device> open_cpu_device(std::string_view spec);

}  // namespace attn
