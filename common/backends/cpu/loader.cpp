#include "common/backends/cpu/loader.h"

#include <fmt/format.h>
#include <llvm/ExecutionEngine/Orc/ExecutionUtils.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>

#include <utility>
#include <vector>

#include "common/backends/cpu/objects.h"
#include "common/backends/cpu/target.h"
#include "common/base/error.h"
#include "common/base/platform.h"

namespace attn {

namespace {

// The errors that the JIT's session has reported in this thread during the current load().
thread_local std::string link_messages;

// A kernel's code: its library in the session, and the constants that the kernel reads at run time.
struct Code {
  llvm::orc::ExecutionSession& session;
  llvm::orc::JITDylib& library;
  const std::vector<int> constants;

  Code(llvm::orc::ExecutionSession& owner, llvm::orc::JITDylib& kernel, std::vector<int> values)
      : session(owner), library(kernel), constants(std::move(values)) {}
  ~Code() { llvm::logAllUnhandledErrors(session.removeJITDylib(library), llvm::errs()); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
};

}  // namespace

CpuLoader::CpuLoader() {
  initialize_llvm();
  auto jit = llvm::orc::LLJITBuilder().create();
  if (!jit) throw DeviceMissing("cpu: the LLVM JIT does not start: " + llvm::toString(jit.takeError()));
  jit_ = std::move(*jit);
  // Kernels call the mathematics library. If a program opened the project's library with RTLD_LOCAL, kernels do not
  // find the functions of the mathematics library in the process. So this constructor opens the mathematics library
  // itself.
  if (mathematics_library) {
    auto mathematics =
        llvm::orc::DynamicLibrarySearchGenerator::Load(mathematics_library, jit_->getDataLayout().getGlobalPrefix());
    if (mathematics) {
      jit_->getProcessSymbolsJITDylib()->addGenerator(std::move(*mathematics));
    } else {
      // The C library is probably not glibc: other C libraries include the mathematics library.
      llvm::consumeError(mathematics.takeError());
    }
  }
  // The session reports missing symbols separately from the error of a look-up; load() joins the two. Linking runs in
  // the thread of the look-up.
  jit_->getExecutionSession().setErrorReporter(
      [](llvm::Error error) { link_messages += ": " + llvm::toString(std::move(error)); });
}

CpuLoader::~CpuLoader() = default;

CpuLoader::Loaded CpuLoader::load(const Binary& binary, const std::string& entry, const Symbols& given,
                                  const std::vector<std::string>& wanted) {
  link_messages.clear();
  llvm::orc::LLJIT& jit = *jit_;
  const auto fail = [&](llvm::Error error) -> Loaded {
    throw CompileError(fmt::format("{} does not load: {}{}", entry, llvm::toString(std::move(error)), link_messages));
  };
  auto library = jit.createJITDylib(fmt::format("kernel{}", loaded_++));
  if (!library) return fail(library.takeError());
  std::vector<int> values;
  for (const auto& [name, value] : binary.run_time) values.push_back(static_cast<int>(value));
  const auto code = std::make_shared<const Code>(jit.getExecutionSession(), *library, std::move(values));
  llvm::orc::SymbolMap symbols;
  for (size_t i = 0; const auto& [name, value] : binary.run_time) {
    symbols[jit.mangleAndIntern(name)] = {llvm::orc::ExecutorAddr::fromPtr(&code->constants[i++]),
                                          llvm::JITSymbolFlags::Exported};
  }
  for (const auto& [name, address] : given) {
    symbols[jit.mangleAndIntern(name)] = {llvm::orc::ExecutorAddr::fromPtr(address), llvm::JITSymbolFlags::Exported};
  }
  if (auto error = library->define(llvm::orc::absoluteSymbols(std::move(symbols)))) return fail(std::move(error));
  for (const std::string& part : unpack(binary.code)) {
    if (auto error = jit.addObjectFile(*library, llvm::MemoryBuffer::getMemBufferCopy(part))) {
      return fail(std::move(error));
    }
  }
  auto address = jit.lookup(*library, entry);
  if (!address) return fail(address.takeError());
  Loaded loaded{address->toPtr<KernelFunction>(), std::static_pointer_cast<const void>(code)};
  for (const std::string& name : wanted) {
    auto found = jit.lookup(*library, name);
    if (!found) return fail(found.takeError());
    loaded.addresses.push_back(found->toPtr<const void*>());
  }
  return loaded;
}

}  // namespace attn
