// Reads cubins.
#pragma once

#include <string>

#include "common/device/device.h"
#include "common/source/binary.h"

namespace attn {

/// A cubin's code and constants, for the code's hash. The line tables are left out: they name the folder in which the
/// process runs.
std::string machine_code(const std::string& cubin);

/// A cubin's code without its constants: among these are the addresses of all function constants, also of those that no
/// code reads.
std::string instructions_of(const std::string& cubin);

/// Reads registers, stack and threadgroup memory of a kernel from the cubin itself. False for a text that is no cubin
/// or has no such kernel. The bytes of the stack count as the bytes of spills.
bool read_resources(const std::string& cubin, const std::string& entry, Binary& binary);

/// The bytes of a cubin's code, and how often each instruction, without its modifiers, stands in it ("HGMMA": 16). The
/// code is the code of the kernel and of the functions that it calls. Without a disassembler (nvdisasm) there are no
/// instructions.
CodeContents cuda_contents(const Binary& binary);

}  // namespace attn
