// Runs programs that write machine code. The source of a kernel's fragment (KernelSource::fragments) may be such a
// program in place of C++.
#pragma once

#include <string>

#include "common/backends/cpu/target.h"
#include "common/source/kernel_source.h"

namespace attn {

/// Runs the program of a source, `python NAME.py OUT ENTRY ARCH FEATURES NAME=VALUE...`, and returns the object file
/// that it wrote to OUT. The program runs in a separate process, so that this process does not load the compiler that
/// the program uses. Throws CompileError, with the program's output, if the program fails or writes no file.
std::string generated_object(const KernelSource& source, const CpuTarget& target);

}  // namespace attn
