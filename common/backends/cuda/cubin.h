// What stands in a cubin.
#pragma once

#include <string>

#include "common/device/device.h"
#include "common/source/binary.h"

namespace attn {

/// A cubin's code and constants. Its line tables name the folder that the process runs in; the code's hash must not.
std::string machine_code(const std::string& cubin);

/// Its code alone: among the constants are the addresses of function constants, also of those that no code reads.
std::string instructions_of(const std::string& cubin);

/// Registers, stack and threadgroup memory of a kernel, of which the cubin itself tells. False for a text that is no
/// cubin, or has no such kernel. The stack's bytes stand for those of spills.
bool read_resources(const std::string& cubin, const std::string& entry, Binary& binary);

/// Bytes of a cubin's code, and how often each instruction stands in it ("HGMMA": 16), without its modifiers: of the
/// kernel and of the functions that it calls. No instructions where no disassembler (nvdisasm) is installed.
CodeContents cuda_contents(const Binary& binary);

}  // namespace attn
