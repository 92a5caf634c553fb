#include "common/backends/cpu/compiler.h"

#include <clang/Basic/Version.h>
#include <fmt/format.h>
#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/Module.h>

#include <memory>
#include <utility>
#include <vector>

#include "common/backends/cpu/generator.h"
#include "common/backends/cpu/objects.h"
#include "common/base/error.h"
#include "common/base/platform.h"
#include "common/base/sha256.h"
#include "common/base/stopwatch.h"

namespace attn {

CpuCompiler::CpuCompiler(CpuTarget target) : target_(std::move(target)), front_end_(target_), machines_(target_) {
  machines_.take();  // throws at once if LLVM has no machine for the target
}

std::string CpuCompiler::identity() const {
  std::string text = fmt::format("{} recipe {}", clang::getClangFullVersion(), back_end_recipe);
  for (const std::string& argument : front_end_.arguments()) text += " " + argument;
  return text;
}

Binary CpuCompiler::compile(const KernelSource& source) const {
  Binary binary;
  on_large_stack([&] { binary = compile_here(source); });
  return binary;
}

Binary CpuCompiler::compile_here(const KernelSource& source) const {
  Binary binary;
  binary.key = source.key();
  binary.source_sha256 = source_sha256(source);
  binary.run_time = source.run_time_values();
  Stopwatch stopwatch;
  llvm::LLVMContext context;
  std::vector<std::unique_ptr<llvm::Module>> modules;
  modules.push_back(front_end_.parse(source, context));
  std::vector<std::string> objects;
  for (const KernelSource& fragment : source.fragments) {
    if (!is_program(fragment.path)) {
      modules.push_back(front_end_.parse(fragment, context));
    } else if (source.linking == Linking::after_code_generation) {
      objects.push_back(generated_object(fragment, target_));
    } else {
      throw CompileError(binary.key, fragment.path + " writes machine code; it needs Linking::after_code_generation");
    }
  }
  binary.times.front_end_s = stopwatch.lap();
  std::string errors;
  collect_errors(context, errors);
  if (source.linking == Linking::before_optimizer && !link_modules(modules, source.entry)) {
    throw CompileError(binary.key, "the fragments do not link:\n" + errors);
  }
  const std::shared_ptr<llvm::TargetMachine> machine = machines_.take();
  for (const auto& module : modules) {
    optimize(*module, *machine);
    binary.times.optimizer_s += stopwatch.lap();
    objects.push_back(generate_code(*module, *machine));
    binary.times.code_generation_s += stopwatch.lap();
  }
  if (!errors.empty()) throw CompileError(binary.key, errors);
  binary.code = pack(objects);
  binary.code_sha256 = sha256(binary.code);
  return binary;
}

CodeContents CpuCompiler::contents(const std::string& code) const { return cpu_contents(code, *machines_.take()); }

}  // namespace attn
