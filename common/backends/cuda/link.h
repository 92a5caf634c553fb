// What NVRTC made of a kernel and its fragments to one cubin, by nvJitLink.
#pragma once

#include <string>
#include <vector>

#include "common/backends/cuda/translate.h"
#include "common/source/kernel_source.h"

namespace attn {

struct NvJitLink;

/// `log` takes what the linker says. Throws CompileError.
std::string link_cubin(const NvJitLink& linker, const KernelSource& source, const std::string& arch,
                       const std::vector<Translated>& parts, std::string& log);

}  // namespace attn
