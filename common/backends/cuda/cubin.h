// Reads cubins.
#pragma once

#include <string>

#include "common/device/device.h"
#include "common/source/binary.h"

namespace attn {

/// Returns a cubin's code and constants, for the code's hash. The returned text does not include the line tables, which
/// name the folder in which the process runs.
std::string machine_code(const std::string& cubin);

/// Returns a cubin's code without its constants. The constants hold the addresses of all function constants, even of
/// function constants that no code reads.
std::string instructions_of(const std::string& cubin);

/// Reads registers, stack and threadgroup memory of a kernel from the cubin itself. Returns false if `cubin` is no
/// cubin or has no kernel `entry`. The bytes of the stack count as the bytes of spills.
bool read_resources(const std::string& cubin, const std::string& entry, Binary& binary);

/// Returns the name of a function that a cubin calls and does not have, which the driver would provide (vprintf,
/// malloc); an empty text if there is none.
std::string undefined_function(const std::string& cubin);

/// Returns the number of bytes of a cubin's code, and the count of each instruction without its modifiers ("HGMMA":
/// 16). The code includes the functions that the kernel calls. Without a disassembler (nvdisasm) there are no counts.
CodeContents cuda_contents(const Binary& binary);

}  // namespace attn
