// Object files: several of them as one text, and what stands in them.
#pragma once

#include <string>
#include <vector>

#include "common/device/device.h"

namespace llvm {
class TargetMachine;
}  // namespace llvm

namespace attn {

/// Objects as one text, an archive where there are several.
std::string pack(const std::vector<std::string>& objects);

/// What pack() was given. Throws CompileError for an archive that is damaged.
std::vector<std::string> unpack(const std::string& code);

/// What a disassembler finds in what pack() gave. Throws CompileError for an object that is none.
CodeContents cpu_contents(const std::string& code, const llvm::TargetMachine& machine);

}  // namespace attn
