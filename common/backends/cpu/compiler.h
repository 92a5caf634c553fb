// Compiles kernel source to machine code, by clang and LLVM in this process: front end, optimiser and code generation.
#pragma once

#include <string>

#include "common/backends/cpu/back_end.h"
#include "common/backends/cpu/front_end.h"
#include "common/backends/cpu/target.h"
#include "common/device/device.h"
#include "common/source/binary.h"

namespace attn {

/// Safe to use from several threads.
class CpuCompiler {
 public:
  /// Throws DeviceMissing if LLVM cannot compile for the target.
  explicit CpuCompiler(CpuTarget target = CpuTarget::host());

  const CpuTarget& target() const { return target_; }
  std::string identity() const;

  /// Throws CompileError, and BadInput for a missing source.
  Binary compile(const KernelSource& source) const;

  /// Returns the contents that a disassembler finds in `code`, an object file or an archive of object files.
  CodeContents contents(const std::string& code) const;

 private:
  Binary compile_here(const KernelSource& source) const;

  const CpuTarget target_;
  const FrontEnd front_end_;
  const TargetMachines machines_;
};

}  // namespace attn
