// Kernel source to machine code and machine code to functions, by clang and LLVM in this process.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/kernel/cpu.h"
#include "common/source/binary.h"

namespace llvm {
class LLVMContext;
class Module;
class TargetMachine;
}  // namespace llvm

namespace attn {

/// A kernel's function; see common/kernel/cpu.h.
using KernelFunction = void (*)(const void* parameters, const Threadgroup* group);

class CpuCompiler {
 public:
  CpuCompiler();
  ~CpuCompiler();

  const std::string& arch() const { return arch_; }                       // "znver3"
  const std::vector<std::string>& features() const { return features_; }  // "avx2", "fma", ... as LLVM names them
  std::string toolchain() const;
  std::string identity() const;

  /// What clang warns of in a kernel that compiles is logged, the same text once: a sweep compiles one kernel with
  /// hundreds of constants.
  Binary compile(const KernelSource& source) const;

  /// What a disassembler finds in the object, or in all those of an archive.
  CodeContents contents(const std::string& object) const;

  /// Links the object, or all those of an archive, into this process, with the constants that it reads at run time. The
  /// code lives until the returned handle goes.
  struct Loaded {
    KernelFunction function = nullptr;
    std::shared_ptr<const void> code;
  };
  Loaded load(const Binary& binary, const std::string& entry);

 private:
  struct Jit;
  struct Targets;
  /// Source to unoptimised IR; throws CompileError also where its entry is missing.
  std::unique_ptr<llvm::Module> parse(const KernelSource& source, llvm::LLVMContext& context) const;
  bool is_new(const std::string& warnings) const;
  /// For this thread alone, until the pointer goes.
  std::shared_ptr<llvm::TargetMachine> target() const;

  std::unique_ptr<Jit> jit_;
  std::unique_ptr<Targets> targets_;
  std::string triple_, arch_;
  std::vector<std::string> features_;
  std::vector<std::string> switches_;   // "+avx2", "-avx512f", ...: where the host is not as LLVM knows its arch
  std::vector<std::string> arguments_;  // of the front end, the same for every kernel
  mutable std::mutex warned_mutex_;
  mutable std::set<std::string> warned_;
};

}  // namespace attn
