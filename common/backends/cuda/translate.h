// Translates kernel source to a cubin, or to code for the linker, by NVRTC.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/source/binary.h"
#include "common/source/kernel_source.h"

namespace attn {

struct Nvrtc;

/// The form of NVRTC's output. cubin: machine code that needs no linker. relocatable_cubin: machine code that nvJitLink
/// links. lto_ir: intermediate code that nvJitLink optimises and links.
enum class NvrtcOutput { cubin, relocatable_cubin, lto_ir };

/// NVRTC's output for one source.
struct Translated {
  std::string path, code, log;
  std::optional<CompileTimes> times;  // from NVRTC's trace, if there is one
};

/// Throws CompileError, and BadInput for a source that does not exist. A constant that the kernel does not use is also
/// a CompileError, because a sweep over the constant would vary nothing.
Translated translate(const Nvrtc& nvrtc, const KernelSource& source, const std::vector<std::string>& options,
                     NvrtcOutput output, const CompileOptions& compile_options);

}  // namespace attn
