// Loads object files as functions of this process, by LLVM's JIT linker.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/kernel/cpu.h"
#include "common/source/binary.h"

namespace llvm::orc {
class LLJIT;
}  // namespace llvm::orc

namespace attn {

/// A kernel's function; see common/kernel/cpu.h.
using KernelFunction = void (*)(const void* parameters, const Threadgroup* group);

class CpuLoader {
 public:
  /// Throws DeviceMissing if the JIT does not start.
  CpuLoader();
  ~CpuLoader();

  struct Loaded {
    KernelFunction function = nullptr;
    std::shared_ptr<const void> code;
    std::vector<const void*> addresses = {};  // addresses of the symbols `wanted`, in their order
  };
  using Symbols = std::vector<std::pair<std::string, const void*>>;
  /// Links the object, or all objects of an archive, into this process, and sets the constants that the code reads at
  /// run time. The code stays loaded as long as Loaded::code exists. `given` are names and addresses of symbols that
  /// the code may use. `wanted` are names of the code's own symbols whose addresses the caller needs. Throws
  /// CompileError if the code does not load, for example because it lacks a symbol.
  Loaded load(const Binary& binary, const std::string& entry, const Symbols& given = {},
              const std::vector<std::string>& wanted = {});

 private:
  std::unique_ptr<llvm::orc::LLJIT> jit_;
  std::atomic<unsigned> loaded_{0};
};

}  // namespace attn
