// Links a kernel and its fragments, which NVRTC has translated, into one cubin, by nvJitLink.
#pragma once

#include <string>
#include <vector>

#include "common/backends/cuda/translate.h"
#include "common/source/kernel_source.h"

namespace attn {

struct NvJitLink;

/// `log` gets the linker's messages. Throws CompileError.
std::string link_cubin(const NvJitLink& linker, const KernelSource& source, const std::string& arch,
                       const std::vector<Translated>& parts, std::string& log);

}  // namespace attn
