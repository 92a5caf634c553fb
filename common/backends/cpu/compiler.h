// Kernel source to machine code, by clang and LLVM in this process: the front end, the optimiser and code generation.
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
  /// Throws DeviceMissing where LLVM cannot compile for the target.
  explicit CpuCompiler(CpuTarget target = CpuTarget::host());

  const CpuTarget& target() const { return target_; }
  std::string identity() const;

  /// Throws CompileError, BadInput for a source that is not there.
  Binary compile(const KernelSource& source) const;

  /// What a disassembler finds in the object, or in all those of an archive.
  CodeContents contents(const std::string& code) const;

 private:
  const CpuTarget target_;
  const FrontEnd front_end_;
  const TargetMachines machines_;
};

}  // namespace attn
