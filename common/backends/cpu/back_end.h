// Makes an object file from LLVM's intermediate representation: links fragments, optimises, and generates code.
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

/// Raise this number when optimize() or generate_code() changes, so that the kernels in the caches are compiled anew.
inline constexpr int back_end_recipe = 4;

/// LLVM's machines for one target. A thread takes a machine for itself and gives it back. A machine keeps data that it
/// computed from the target's features. To compute these data takes a twentieth of the time in which a variant is
/// compiled.
class TargetMachines {
 public:
  explicit TargetMachines(CpuTarget target);
  ~TargetMachines();

  /// Returns a machine that only this thread uses while the pointer lives. Throws DeviceMissing if LLVM cannot compile
  /// for the target.
  std::shared_ptr<llvm::TargetMachine> take() const;

 private:
  const CpuTarget target_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<llvm::TargetMachine>> idle_;
};

/// Appends the errors of LLVM's linker and passes to `errors`; otherwise LLVM would end the process at an error. Drops
/// other messages of linker and passes, for example that a loop cannot be vectorised as requested.
void collect_errors(llvm::LLVMContext& context, std::string& errors);

/// Links all modules into the first one, and removes the others. Returns false if they cannot be linked.
bool link_modules(std::vector<std::unique_ptr<llvm::Module>>& modules, const std::string& entry);

void optimize(llvm::Module& module, llvm::TargetMachine& machine);

/// Returns the object file of an optimised module.
std::string generate_code(llvm::Module& module, llvm::TargetMachine& machine);

}  // namespace attn
