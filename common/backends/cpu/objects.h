// Object files: several files as one text, and the contents of their code.
#pragma once

#include <string>
#include <vector>

#include "common/device/device.h"

namespace llvm {
class TargetMachine;
}  // namespace llvm

namespace attn {

/// Objects as one text; several objects become an archive.
std::string pack(const std::vector<std::string>& objects);

/// The objects that pack() took. Throws CompileError for a damaged archive.
std::vector<std::string> unpack(const std::string& code);

/// The contents that a disassembler finds in the text of pack(). Throws CompileError for text that is not an object
/// file.
CodeContents cpu_contents(const std::string& code, const llvm::TargetMachine& machine);

}  // namespace attn
