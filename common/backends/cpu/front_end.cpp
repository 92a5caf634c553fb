#include "common/backends/cpu/front_end.h"

#include <clang/Basic/Sanitizers.h>
#include <fmt/format.h>
#include <llvm/ADT/StringExtras.h>
#include <llvm/IR/Module.h>
#include <llvm/Support/VirtualFileSystem.h>

#include <utility>

#include "common/backends/cpu/clang.h"
#include "common/backends/cpu/sanitizers.h"
#include "common/base/error.h"
#include "common/base/log.h"

namespace attn {

namespace {

// Clang's front end takes the names of single sanitizer checks, not of groups. Two checks are left out: `vptr`, because
// kernels have no run-time type information, and `function`, which checks calls through pointers.
std::vector<std::string> sanitizer_arguments() {
  clang::SanitizerSet checks;
  if (sanitizes("address")) checks.Mask |= clang::SanitizerKind::Address;
  if (sanitizes("undefined")) {
    checks.Mask |= clang::SanitizerKind::Undefined & ~(clang::SanitizerKind::Function | clang::SanitizerKind::Vptr);
  }
  if (checks.empty()) return {};
  llvm::SmallVector<llvm::StringRef> names;
  clang::serializeSanitizerSet(checks, names);
  return {"-fsanitize=" + llvm::join(names, ",")};
}

// Returns the lines that stand before a source. A constant that is read at run time is a symbol that the loader binds
// to a value.
std::string prologue(const KernelSource& source) {
  return cxx_prologue(
      source, [](const std::string& name) { return fmt::format("extern \"C\" {{ extern const int {}; }}\n", name); });
}

// Compiles a source. Prologue and source are one buffer, because clang does not report an unused constant whose
// declaration is in an included header. `warnings` gets clang's messages about a kernel that compiles.
std::unique_ptr<llvm::Module> parse_source(const KernelSource& source, const std::vector<std::string>& arguments,
                                           llvm::LLVMContext& context, std::string& warnings) {
  const std::string root = source_root();
  const std::string main_file = root + "/" + source.path;

  auto memory = llvm::makeIntrusiveRefCnt<llvm::vfs::InMemoryFileSystem>();
  memory->addFile(main_file, 0,
                  llvm::MemoryBuffer::getMemBufferCopy(prologue(source) + read_source(source, source.path)));
  for (const auto& [name, text] : source.includes) {
    memory->addFile(root + "/" + name, 0, llvm::MemoryBuffer::getMemBufferCopy(text));
  }
  auto files = llvm::makeIntrusiveRefCnt<llvm::vfs::OverlayFileSystem>(llvm::vfs::getRealFileSystem());
  files->pushOverlay(memory);

  std::vector<std::string> all = arguments;
  // -I would let #include <NAME> find the project's headers, too, but source_sha256() follows only #include "NAME".
  all.insert(all.end(), {"-iquote", root});
  // In a source with a user's text, inline assembly is a compile error. LLVM would end the process at assembly that it
  // refuses.
  if (source.guarded) all.emplace_back("-fno-gnu-inline-asm");
  std::string messages;
  std::unique_ptr<llvm::Module> module = run_clang(main_file, files, all, context, messages);
  if (!module) throw CompileError(source.key(), messages);
  warnings = std::move(messages);
  return module;
}

}  // namespace

FrontEnd::FrontEnd(const CpuTarget& target) {
  arguments_ = target.arguments();
  arguments_.insert(
      arguments_.end(),
      {"-x", "c++", "-std=c++20", "-O3",
       "-disable-llvm-passes",  // CpuCompiler::compile() calls optimize(), and times it
       "-discard-value-names", "-mrelocation-model", "pic", "-pic-level", "2", "-ffp-contract=fast", "-fno-rtti",
       "-fuse-line-directives",  // errors have the kernel's lines, not lines of prologue and kernel together
       // A kernel must use all its constants; a sweep over an unused constant would vary nothing.
       "-Wall", "-Wextra", "-Werror=unused-const-variable"});
  if (target.has("avx512f")) {
    arguments_.emplace_back("-mprefer-vector-width=512");  // clang's tuning for some cores would split vectors in two
  } else {
    // Turns off the warning that the ABI of vectors wider than registers may change: only the kernel's own functions
    // pass such vectors.
    arguments_.emplace_back("-Wno-psabi");
  }
  // On AArch64 clang's driver, not the front end, knows which instructions a processor has. Only for these instructions
  // kernels call builtins.
  for (const char* feature : {"neon", "bf16", "fp16fml"}) {
    if (!target.has(feature)) continue;
    arguments_.insert(arguments_.end(), {"-target-feature", std::string("+") + feature});
  }
  for (const std::string& feature : target.switches) {
    arguments_.emplace_back("-target-feature");
    arguments_.push_back(feature);
  }
  for (const std::string& argument : sanitizer_arguments()) arguments_.push_back(argument);
}

std::unique_ptr<llvm::Module> FrontEnd::parse(const KernelSource& source, llvm::LLVMContext& context) const {
  std::string warnings;
  std::unique_ptr<llvm::Module> module = parse_source(source, arguments_, context, warnings);
  if (const llvm::Function* entry = module->getFunction(source.entry); !entry || entry->isDeclaration()) {
    throw CompileError(source.key(), fmt::format("{} defines no extern \"C\" function {}", source.path, source.entry));
  }
  for (const std::string& name : source.run_time) {
    if (!module->getNamedGlobal(name)) throw CompileError(source.key(), "the kernel does not use " + name);
  }
  if (!warnings.empty() && insert_warnings(warnings)) {
    logger()->warn("{} compiles with warnings:\n{}", source.key(), warnings);
  }
  return module;
}

bool FrontEnd::insert_warnings(const std::string& warnings) const {
  const std::lock_guard lock(warned_mutex_);
  return warned_.insert(warnings).second;
}

}  // namespace attn
