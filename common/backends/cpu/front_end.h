// Compiles kernel source to LLVM's intermediate representation, by clang in this process.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "common/backends/cpu/target.h"
#include "common/source/kernel_source.h"

namespace llvm {
class LLVMContext;
class Module;
}  // namespace llvm

namespace attn {

class FrontEnd {
 public:
  explicit FrontEnd(const CpuTarget& target);

  /// Returns the arguments that clang gets for every kernel.
  const std::vector<std::string>& arguments() const { return arguments_; }
  /// Compiles a source to unoptimised code. Throws CompileError, also if the entry is missing. Clang's warnings about a
  /// kernel that compiles are logged. Equal warnings are logged only once, because a sweep compiles one kernel with
  /// hundreds of values of its constants.
  std::unique_ptr<llvm::Module> parse(const KernelSource& source, llvm::LLVMContext& context) const;

 private:
  /// Inserts the warnings into warned_. Returns whether the warnings are new.
  bool insert_warnings(const std::string& warnings) const;

  std::vector<std::string> arguments_;
  mutable std::mutex warned_mutex_;
  mutable std::set<std::string> warned_;
};

}  // namespace attn
