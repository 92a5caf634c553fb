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

/// Raise this number when optimize() or generate_code() changes: then kernels in the caches are compiled anew.
inline constexpr int back_end_recipe = 4;

/// The target machines of a target, which threads take in turns. A machine keeps data that it computed from the
/// target's features, which takes a twentieth of a variant's time.
class TargetMachines {
 public:
  explicit TargetMachines(CpuTarget target);
  ~TargetMachines();

  /// A machine for this thread only, as long as the pointer lives. Throws DeviceMissing if LLVM cannot compile for the
  /// target.
  std::shared_ptr<llvm::TargetMachine> take() const;

 private:
  const CpuTarget target_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<llvm::TargetMachine>> idle_;
};

/// Collects the errors of linker and passes, at which LLVM would otherwise end the process. Their other messages, such
/// as that a loop cannot be vectorised as requested, do not reach stderr.
void collect_errors(llvm::LLVMContext& context, std::string& errors);

/// Links all modules into the first one, and removes the others. False if they cannot be linked.
bool link_modules(std::vector<std::unique_ptr<llvm::Module>>& modules, const std::string& entry);

void optimize(llvm::Module& module, llvm::TargetMachine& machine);

/// The object file of an optimised module.
std::string generate_code(llvm::Module& module, llvm::TargetMachine& machine);

}  // namespace attn
