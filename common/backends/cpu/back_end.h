// Makes an object file from LLVM's intermediate representation: links modules, optimises, and generates code.
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

/// LLVM's TargetMachines for one target. A machine computes data from the target's features, which takes about 5 % of
/// the time of a kernel's compilation. One thread at a time uses a machine, and later compilations reuse the machine.
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

/// From this call on, `context` adds the error messages of LLVM's linker and of LLVM's passes to `errors`. Without this
/// call LLVM would end the process at the first error. `context` drops all other messages of the linker and of the
/// passes, for example the message that a loop cannot be vectorised as requested.
void collect_errors(llvm::LLVMContext& context, std::string& errors);

/// Links several modules into the first one, removes the others, and makes all symbols except `entry` private to the
/// module. Leaves a single module as it is. Returns false if the modules cannot be linked.
bool link_modules(std::vector<std::unique_ptr<llvm::Module>>& modules, const std::string& entry);

void optimize(llvm::Module& module, llvm::TargetMachine& machine);

/// Returns the object file of an optimised module.
std::string generate_code(llvm::Module& module, llvm::TargetMachine& machine);

}  // namespace attn
