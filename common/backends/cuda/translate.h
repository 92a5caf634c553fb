// Kernel source to a cubin or to code for the linker, by NVRTC.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/source/binary.h"
#include "common/source/kernel_source.h"

namespace attn {

struct Nvrtc;

/// What NVRTC makes: machine code, or what nvJitLink optimises.
enum class NvrtcOutput { cubin, relocatable_cubin, lto_ir };

/// What NVRTC made of one source.
struct Translated {
  std::string path, code, log;
  std::optional<CompileTimes> times;  // as far as NVRTC told
};

/// Throws CompileError, BadInput for a source that is not there. A constant that the kernel does not use is an error: a
/// sweep over it would vary nothing.
Translated translate(const Nvrtc& nvrtc, const KernelSource& source, const std::vector<std::string>& options,
                     NvrtcOutput output, const CompileOptions& compile_options);

}  // namespace attn
