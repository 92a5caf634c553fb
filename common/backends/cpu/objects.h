// Joins several object files into one string, and disassembles their code.
#pragma once

#include <string>
#include <vector>

#include "common/device/device.h"

namespace llvm {
class TargetMachine;
}  // namespace llvm

namespace attn {

/// Joins objects into one string. One object stays as it is; several objects become an archive.
std::string pack(const std::vector<std::string>& objects);

/// Returns the objects that pack() joined. Throws CompileError for a damaged archive.
std::vector<std::string> unpack(const std::string& code);

/// Returns what a disassembler finds in `code`, a string that pack() returned. Throws CompileError if the string is
/// damaged.
CodeContents cpu_contents(const std::string& code, const llvm::TargetMachine& machine);

}  // namespace attn
