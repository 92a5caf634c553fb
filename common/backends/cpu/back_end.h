// LLVM's intermediate representation to an object file: linking of fragments, optimisation, code generation.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/backends/cpu/target.h"

namespace llvm {
class LLVMContext;
class Module;
class TargetMachine;
}  // namespace llvm

namespace attn {

/// Raise it when optimize() or generate_code() changes: kernels in the caches are then compiled anew.
inline constexpr int back_end_recipe = 4;

/// The target machines of a target, which threads take in turns. A machine keeps what it has worked out of the target's
/// features, a twentieth of a variant's time.
class TargetMachines {
 public:
  explicit TargetMachines(CpuTarget target);
  ~TargetMachines();

  /// For this thread alone, until the pointer goes. Throws DeviceMissing where LLVM cannot compile for the target.
  std::shared_ptr<llvm::TargetMachine> take() const;

 private:
  const CpuTarget target_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<llvm::TargetMachine>> idle_;
};

/// Keeps what linker and passes say from stderr, such as that a loop cannot be vectorised as it asks; collects errors,
/// at which LLVM would end the process.
void collect_errors(llvm::LLVMContext& context, std::string& errors);

/// Leaves one module, all of them linked into the first. False where they cannot be.
bool link_modules(std::vector<std::unique_ptr<llvm::Module>>& modules, const std::string& entry);

void optimize(llvm::Module& module, llvm::TargetMachine& machine);

/// Of an optimised module: an object file.
std::string generate_code(llvm::Module& module, llvm::TargetMachine& machine);

}  // namespace attn
