#include "common/device/cpu/compiler.h"

#include <clang/Basic/DiagnosticOptions.h>
#include <clang/Basic/Sanitizers.h>
#include <clang/Basic/Version.h>
#include <clang/CodeGen/CodeGenAction.h>
#include <clang/Frontend/CompilerInstance.h>
#include <clang/Frontend/CompilerInvocation.h>
#include <clang/Frontend/TextDiagnosticPrinter.h>
#include <fmt/format.h>
#include <llvm/ADT/StringExtras.h>
#include <llvm/ADT/StringMap.h>
#include <llvm/Config/llvm-config.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/DiagnosticInfo.h>
#include <llvm/IR/DiagnosticPrinter.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/Linker/Linker.h>
#include <llvm/MC/MCAsmInfo.h>
#include <llvm/MC/MCContext.h>
#include <llvm/MC/MCDisassembler/MCDisassembler.h>
#include <llvm/MC/MCInst.h>
#include <llvm/MC/MCInstPrinter.h>
#include <llvm/MC/MCInstrInfo.h>
#include <llvm/MC/MCRegisterInfo.h>
#include <llvm/MC/MCSubtargetInfo.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Object/Archive.h>
#include <llvm/Object/ArchiveWriter.h>
#include <llvm/Object/ObjectFile.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/CommandLine.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Support/VirtualFileSystem.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/TargetParser/Host.h>
#include <llvm/Transforms/IPO/AlwaysInliner.h>
#include <llvm/Transforms/IPO/GlobalDCE.h>
#include <llvm/Transforms/IPO/Inliner.h>
#include <llvm/Transforms/IPO/Internalize.h>
#include <llvm/Transforms/InstCombine/InstCombine.h>
#include <llvm/Transforms/Instrumentation/AddressSanitizer.h>
#include <llvm/Transforms/Scalar/EarlyCSE.h>
#include <llvm/Transforms/Scalar/LICM.h>
#include <llvm/Transforms/Scalar/LoopPassManager.h>
#include <llvm/Transforms/Scalar/LoopRotation.h>
#include <llvm/Transforms/Scalar/LoopUnrollPass.h>
#include <llvm/Transforms/Scalar/SROA.h>
#include <llvm/Transforms/Scalar/SimplifyCFG.h>
#include <llvm/Transforms/Vectorize/LoopVectorize.h>
#include <spdlog/spdlog.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "common/base/error.h"
#include "common/base/stopwatch.h"
#include "common/base/sha256.h"

namespace attn {

namespace {

// Raise it when optimize() or generate_code() changes: kernels in the caches are then compiled anew.
constexpr int recipe = 4;

// A build with AddressSanitizer or UndefinedBehaviorSanitizer instruments its kernels too.
constexpr bool sanitizes(std::string_view name) {
  return std::string_view(ATTN_SANITIZE).find(name) != std::string_view::npos;
}

// The front end takes single checks, no groups. Those left out need run-time type information.
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

// Linux hands out the tile registers of AMX to processes that ask for them, for all of their threads.
bool may_use_tiles() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr int request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

llvm::StringMap<bool> host_features() {
#if LLVM_VERSION_MAJOR >= 19
  llvm::StringMap<bool> features = llvm::sys::getHostCPUFeatures();
#else
  llvm::StringMap<bool> features;
  llvm::sys::getHostCPUFeatures(features);
#endif
  if (features.lookup("amx-tile") && !may_use_tiles()) {
    for (auto& feature : features) {
      if (feature.first().starts_with("amx-")) feature.second = false;
    }
  }
  return features;
}

// A constant that is read at run time is a symbol that load() binds to a value.
std::string prologue(const KernelSource& source) {
  return cxx_prologue(
      source, [](const std::string& name) { return fmt::format("extern \"C\" {{ extern const int {}; }}\n", name); });
}

// Source to unoptimised IR. The prologue stands before the source in one buffer, so that clang reports a function
// constant that the kernel does not use. `warnings` takes what clang says of a kernel that compiles.
std::unique_ptr<llvm::Module> front_end(const KernelSource& source, const std::vector<std::string>& arguments,
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

  std::vector<const char*> raw;
  for (const std::string& argument : arguments) raw.push_back(argument.c_str());
  raw.insert(raw.end(), {"-iquote", root.c_str()});  // not -I: source_sha256() follows only #include "NAME"
  raw.push_back(main_file.c_str());

  std::string messages;
  llvm::raw_string_ostream stream(messages);
  clang::CompilerInstance clang;
  clang.createDiagnostics();
  clang::CompilerInvocation::CreateFromArgs(clang.getInvocation(), raw, clang.getDiagnostics());
  // Once more, now that the options for warnings are known.
  clang.createDiagnostics(new clang::TextDiagnosticPrinter(stream, &clang.getDiagnosticOpts()));
  clang.setVerboseOutputStream(std::make_unique<llvm::raw_null_ostream>());  // "1 error generated."
  clang.createFileManager(files);

  clang::EmitLLVMOnlyAction action(&context);
  const bool ok = clang.ExecuteAction(action);
  std::unique_ptr<llvm::Module> module = ok ? action.takeModule() : nullptr;
  stream.flush();
  if (!module) throw CompileError(fmt::format("{} does not compile:\n{}", source.key(), messages));
  warnings = std::move(messages);
  return module;
}

std::unique_ptr<llvm::TargetMachine> make_target(const std::string& triple, const std::string& arch,
                                                 const std::vector<std::string>& switches) {
  std::string error;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(triple, error);
  if (!target) throw DeviceMissing("cpu: LLVM cannot compile for " + triple + ": " + error);
  return std::unique_ptr<llvm::TargetMachine>(target->createTargetMachine(triple, arch, llvm::join(switches, ","), {},
                                                                          llvm::Reloc::PIC_, llvm::CodeModel::Small,
                                                                          llvm::CodeGenOptLevel::Default));
}

// What a kernel needs of LLVM's O1, in that order, in two thirds of its time and for the same speed. Kernels say
// themselves what is to be unrolled or vectorised (#pragma clang loop); left to its own judgement LLVM unrolls every
// cold loop too.
llvm::ModulePassManager kernel_pipeline() {
  constexpr bool only_when_forced = true, with_memory_ssa = true;
  llvm::FunctionPassManager early;
  early.addPass(llvm::SROAPass(llvm::SROAOptions::ModifyCFG));
  early.addPass(llvm::EarlyCSEPass());
  early.addPass(llvm::SimplifyCFGPass());

  llvm::LoopPassManager rotate, unroll, hoist;
  rotate.addPass(llvm::LICMPass(llvm::LICMOptions()));
  rotate.addPass(llvm::LoopRotatePass());
  rotate.addPass(llvm::LICMPass(llvm::LICMOptions()));
  unroll.addPass(llvm::LoopFullUnrollPass(1, only_when_forced));
  hoist.addPass(llvm::LICMPass(llvm::LICMOptions()));

  llvm::FunctionPassManager simplify;  // callees before callers, which may then inline them
  simplify.addPass(llvm::SROAPass(llvm::SROAOptions::ModifyCFG));
  simplify.addPass(llvm::EarlyCSEPass(with_memory_ssa));
  simplify.addPass(llvm::SimplifyCFGPass());
  simplify.addPass(llvm::InstCombinePass());
  simplify.addPass(llvm::createFunctionToLoopPassAdaptor(std::move(rotate), with_memory_ssa));
  simplify.addPass(llvm::createFunctionToLoopPassAdaptor(std::move(unroll)));
  simplify.addPass(llvm::SROAPass(llvm::SROAOptions::ModifyCFG));
  simplify.addPass(llvm::EarlyCSEPass(with_memory_ssa));
  simplify.addPass(llvm::InstCombinePass());
  simplify.addPass(llvm::SimplifyCFGPass());
  llvm::ModuleInlinerWrapperPass inliner(llvm::getInlineParams(1, 0));
  inliner.getPM().addPass(llvm::createCGSCCToFunctionPassAdaptor(std::move(simplify)));

  llvm::FunctionPassManager late;
  late.addPass(llvm::LoopVectorizePass(llvm::LoopVectorizeOptions(only_when_forced, only_when_forced)));
  late.addPass(llvm::LoopUnrollPass(llvm::LoopUnrollOptions(1, only_when_forced)));
  late.addPass(llvm::EarlyCSEPass(with_memory_ssa));
  late.addPass(llvm::InstCombinePass());
  late.addPass(llvm::createFunctionToLoopPassAdaptor(std::move(hoist), with_memory_ssa));
  late.addPass(llvm::SimplifyCFGPass());

  llvm::ModulePassManager passes;
  passes.addPass(llvm::createModuleToFunctionPassAdaptor(std::move(early)));
  passes.addPass(llvm::AlwaysInlinerPass());
  passes.addPass(std::move(inliner));
  passes.addPass(llvm::GlobalDCEPass());
  passes.addPass(llvm::createModuleToFunctionPassAdaptor(std::move(late)));
  return passes;
}

void optimize(llvm::Module& module, llvm::TargetMachine& target) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager components;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder(&target);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(components);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, components, modules);
  llvm::ModulePassManager passes = kernel_pipeline();
  if constexpr (sanitizes("address")) {
    // Red zones around constants would need constructors, which nobody runs for a kernel.
    for (llvm::GlobalVariable& constant : module.globals()) {
      llvm::GlobalValue::SanitizerMetadata metadata;
      metadata.NoAddress = true;
      constant.setSanitizerMetadata(metadata);
    }
    passes.addPass(llvm::AddressSanitizerPass({}, true, true, llvm::AsanDtorKind::None, llvm::AsanCtorKind::None));
  }
  passes.run(module, modules);
}

std::string generate_code(llvm::Module& module, llvm::TargetMachine& target) {
  llvm::SmallVector<char, 0> object;
  llvm::raw_svector_ostream stream(object);
  llvm::legacy::PassManager passes;
  if (target.addPassesToEmitFile(passes, stream, nullptr, llvm::CodeGenFileType::ObjectFile)) {
    throw CompileError("LLVM cannot write object files for this host");
  }
  passes.run(module);
  return std::string(object.begin(), object.end());
}

// Keeps what linker and passes say from stderr, such as that a loop cannot be vectorised as it asks; collects errors,
// at which LLVM would end the process.
void collect_errors(llvm::LLVMContext& context, std::string& errors) {
  context.setDiagnosticHandlerCallBack(
      [](const llvm::DiagnosticInfo* info, void* collected) {
        if (info->getSeverity() != llvm::DS_Error) return;
        llvm::raw_string_ostream stream(*static_cast<std::string*>(collected));
        llvm::DiagnosticPrinterRawOStream printer(stream);
        info->print(printer);
        stream << '\n';
      },
      &errors);
}

// Objects as one text, an archive where there are several.
std::string pack(const std::vector<std::string>& objects) {
  if (objects.size() == 1) return objects.front();
  std::vector<llvm::NewArchiveMember> members;
  // The member keeps a reference to its name.
  for (const std::string& object : objects) members.emplace_back(llvm::MemoryBufferRef(object, "object.o"));
  auto archive =
      llvm::writeArchiveToBuffer(members, llvm::SymtabWritingMode::NoSymtab, llvm::object::Archive::K_GNU, true, false);
  if (!archive) throw CompileError("LLVM cannot write archives: " + llvm::toString(archive.takeError()));
  return (*archive)->getBuffer().str();
}

// What pack() was given. Throws CompileError for an archive that is damaged.
std::vector<std::string> unpack(const std::string& code) {
  if (!code.starts_with(llvm::object::ArchiveMagic)) return {code};
  auto archive = llvm::object::Archive::create(llvm::MemoryBufferRef(code, "archive"));
  if (!archive) throw CompileError("the archive is damaged: " + llvm::toString(archive.takeError()));
  std::vector<std::string> objects;
  llvm::Error error = llvm::Error::success();
  for (const llvm::object::Archive::Child& child : (*archive)->children(error)) {
    auto object = child.getBuffer();
    if (!object) throw CompileError("the archive is damaged: " + llvm::toString(object.takeError()));
    objects.push_back(object->str());
  }
  if (error) throw CompileError("the archive is damaged: " + llvm::toString(std::move(error)));
  return objects;
}

}  // namespace

namespace {
thread_local std::string link_messages;
}

struct CpuCompiler::Jit {
  std::unique_ptr<llvm::orc::LLJIT> lljit;
  std::atomic<unsigned> loaded{0};
};

// Those at rest. A target keeps what it has worked out of the host's features, a twentieth of a variant's time.
struct CpuCompiler::Targets {
  std::mutex mutex;
  std::vector<std::unique_ptr<llvm::TargetMachine>> idle;
};

CpuCompiler::CpuCompiler() : jit_(std::make_unique<Jit>()), targets_(std::make_unique<Targets>()) {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    llvm::InitializeNativeTargetDisassembler();
    // Loop strength reduction is a fifth of the time of code generation, and the only way to leave it out is global.
    // Kernels write the addresses of their inner loops as the host wants them.
    if (llvm::cl::Option* const option = llvm::cl::getRegisteredOptions().lookup("disable-lsr")) {
      static_cast<llvm::cl::opt<bool>*>(option)->setValue(true);
    }
  });
  triple_ = llvm::sys::getProcessTriple();
  const llvm::StringMap<bool> host = host_features();
  arch_ = llvm::sys::getHostCPUName().str();
  std::unique_ptr<llvm::TargetMachine> usual = make_target(triple_, arch_, {});
  if (host.lookup("amx-tile") && !usual->getMCSubtargetInfo()->checkFeatures("+amx-tile")) {
    // A virtual machine may hide its processor's model, and LLVM takes it for an older one.
    arch_ = host.lookup("prefetchi") ? "graniterapids" : "sapphirerapids";
    usual = make_target(triple_, arch_, {});
  }
  for (const auto& feature : host) {
    const std::string name = feature.first().str();
    if (name.starts_with("avx10.")) continue;  // a level of what the other names say; clang warns of it beside avx512f
    if (feature.second) features_.push_back(name);
    // A virtual machine may have less than its processor. To name all of them takes the front end 1 ms a variant.
    const std::string wanted = (feature.second ? "+" : "-") + name;
    if (!usual->getMCSubtargetInfo()->checkFeatures(wanted)) switches_.push_back(wanted);
  }
  std::sort(features_.begin(), features_.end());
  std::sort(switches_.begin(), switches_.end());

  arguments_ = {"-triple", triple_, "-target-cpu", arch_, "-x", "c++", "-std=c++20", "-O3",
                "-disable-llvm-passes",  // optimize() runs them, so that they can be timed and linked before
                "-discard-value-names", "-mrelocation-model", "pic", "-pic-level", "2", "-ffp-contract=fast",
                "-fno-rtti",
                "-fuse-line-directives",  // errors have the kernel's lines, not those of prologue and kernel together
                // A kernel does not read values that it has no use for; one that does is a sweep that varies nothing.
                "-Wall", "-Wextra", "-Werror=unused-const-variable"};
  const bool avx512 = std::binary_search(features_.begin(), features_.end(), "avx512f");
  if (avx512) arguments_.emplace_back("-mprefer-vector-width=512");  // some cores' tuning would split vectors in two
  for (const std::string& feature : switches_) {
    arguments_.emplace_back("-target-feature");
    arguments_.push_back(feature);
  }
  for (const std::string& argument : sanitizer_arguments()) arguments_.push_back(argument);

  auto lljit = llvm::orc::LLJITBuilder().create();
  if (!lljit) throw DeviceMissing("cpu: the LLVM JIT does not start: " + llvm::toString(lljit.takeError()));
  jit_->lljit = std::move(*lljit);
  // The session tells what is missing apart from the error that a look-up gives; load() puts the two together. Linking
  // goes on in the thread that looks up.
  jit_->lljit->getExecutionSession().setErrorReporter(
      [](llvm::Error error) { link_messages += ": " + llvm::toString(std::move(error)); });
}

CpuCompiler::~CpuCompiler() = default;

std::shared_ptr<llvm::TargetMachine> CpuCompiler::target() const {
  std::unique_ptr<llvm::TargetMachine> target;
  {
    const std::lock_guard lock(targets_->mutex);
    if (!targets_->idle.empty()) {
      target = std::move(targets_->idle.back());
      targets_->idle.pop_back();
    }
  }
  if (!target) target = make_target(triple_, arch_, switches_);
  return {target.release(), [this](llvm::TargetMachine* used) {
            const std::lock_guard lock(targets_->mutex);
            targets_->idle.emplace_back(used);
          }};
}

std::string CpuCompiler::toolchain() const { return "clang " CLANG_VERSION_STRING; }

std::string CpuCompiler::identity() const {
  std::string text = fmt::format("{} recipe {}", clang::getClangFullVersion(), recipe);
  for (const std::string& argument : arguments_) text += " " + argument;
  return text;
}

Binary CpuCompiler::compile(const KernelSource& source) const {
  Binary binary;
  binary.key = source.key();
  binary.source_sha256 = source_sha256(source);
  binary.run_time = source.run_time_values();
  Stopwatch stopwatch;
  llvm::LLVMContext context;
  std::vector<std::unique_ptr<llvm::Module>> modules;
  modules.push_back(parse(source, context));
  for (const KernelSource& fragment : source.fragments) modules.push_back(parse(fragment, context));
  binary.times.front_end_s = stopwatch.lap();
  std::string errors;
  collect_errors(context, errors);
  if (source.linking == Linking::before_optimizer) {
    for (size_t i = 1; i < modules.size(); ++i) {
      if (llvm::Linker::linkModules(*modules.front(), std::move(modules[i]))) {
        throw CompileError(fmt::format("{} does not link:\n{}", binary.key, errors));
      }
    }
    if (modules.size() > 1) {  // a function that only this kernel can call need not be kept beside its inlined copies
      llvm::internalizeModule(*modules.front(),
                              [&](const llvm::GlobalValue& value) { return value.getName() == source.entry; });
    }
    modules.resize(1);
  }
  const std::shared_ptr<llvm::TargetMachine> target = this->target();
  std::vector<std::string> objects;
  for (const auto& module : modules) {
    module->setDataLayout(target->createDataLayout());
    optimize(*module, *target);
    binary.times.optimizer_s += stopwatch.lap();
    objects.push_back(generate_code(*module, *target));
    binary.times.code_generation_s += stopwatch.lap();
  }
  if (!errors.empty()) throw CompileError(fmt::format("{} does not compile:\n{}", binary.key, errors));
  binary.code = pack(objects);
  binary.code_sha256 = sha256(binary.code);
  return binary;
}

std::unique_ptr<llvm::Module> CpuCompiler::parse(const KernelSource& source, llvm::LLVMContext& context) const {
  std::string warnings;
  std::unique_ptr<llvm::Module> module = front_end(source, arguments_, context, warnings);
  if (const llvm::Function* entry = module->getFunction(source.entry); !entry || entry->isDeclaration()) {
    throw CompileError(fmt::format("{} defines no extern \"C\" function {}", source.path, source.entry));
  }
  for (const std::string& name : source.run_time) {
    if (!module->getNamedGlobal(name)) {
      throw CompileError(fmt::format("{} does not compile:\nthe kernel does not use {}", source.key(), name));
    }
  }
  if (!warnings.empty() && is_new(warnings)) {
    spdlog::warn("{} compiles with warnings:\n{}", source.key(), warnings);
  }
  return module;
}

CodeContents CpuCompiler::contents(const std::string& code) const {
  const std::shared_ptr<llvm::TargetMachine> target = this->target();
  const llvm::MCInstrInfo& names = *target->getMCInstrInfo();
  const llvm::Triple triple(triple_);
  llvm::MCContext context(triple, target->getMCAsmInfo(), target->getMCRegisterInfo(), target->getMCSubtargetInfo());
  const std::unique_ptr<llvm::MCDisassembler> disassembler(
      target->getTarget().createMCDisassembler(*target->getMCSubtargetInfo(), context));
  const std::unique_ptr<llvm::MCInstPrinter> printer(
      target->getTarget().createMCInstPrinter(triple, target->getMCAsmInfo()->getAssemblerDialect(),
                                              *target->getMCAsmInfo(), names, *target->getMCRegisterInfo()));
  CodeContents found;
  if (!disassembler || !printer) return found;
  found.bytes = 0;
  for (const std::string& object : unpack(code)) {
    auto file = llvm::object::ObjectFile::createObjectFile(llvm::MemoryBufferRef(object, "object"));
    if (!file) throw CompileError("no object file: " + llvm::toString(file.takeError()));
    for (const llvm::object::SectionRef& section : (*file)->sections()) {
      if (!section.isText()) continue;
      auto text = section.getContents();
      if (!text) throw CompileError("no object file: " + llvm::toString(text.takeError()));
      const llvm::ArrayRef<uint8_t> bytes(reinterpret_cast<const uint8_t*>(text->data()), text->size());
      found.bytes += static_cast<int64_t>(bytes.size());
      for (uint64_t at = 0, size = 0; at < bytes.size(); at += std::max<uint64_t>(size, 1)) {
        llvm::MCInst instruction;
        if (disassembler->getInstruction(instruction, size, bytes.slice(at), at, llvm::nulls()) !=
            llvm::MCDisassembler::Success) {
          continue;
        }
#if LLVM_VERSION_MAJOR >= 20
        const char* const name = printer->getMnemonic(instruction).first;
#else
        const char* const name = printer->getMnemonic(&instruction).first;
#endif
        // Behind a tabulator comes what belongs to the operands: "callq\t*".
        if (name) ++found.instructions[llvm::StringRef(name).split('\t').first.str()];
      }
    }
  }
  return found;
}

bool CpuCompiler::is_new(const std::string& warnings) const {
  const std::lock_guard lock(warned_mutex_);
  return warned_.insert(warnings).second;
}

namespace {

// What a kernel's code lives in: its library of the session, and the constants that it reads at run time.
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

CpuCompiler::Loaded CpuCompiler::load(const Binary& binary, const std::string& entry) {
  link_messages.clear();
  llvm::orc::LLJIT& lljit = *jit_->lljit;
  const auto fail = [&](llvm::Error error) -> Loaded {
    throw CompileError(fmt::format("{} does not load: {}{}", entry, llvm::toString(std::move(error)), link_messages));
  };
  auto library = lljit.createJITDylib(fmt::format("kernel{}", jit_->loaded++));
  if (!library) return fail(library.takeError());
  std::vector<int> values;
  for (const auto& [name, value] : binary.run_time) values.push_back(static_cast<int>(value));
  const auto code = std::make_shared<const Code>(lljit.getExecutionSession(), *library, std::move(values));
  llvm::orc::SymbolMap symbols;
  for (size_t i = 0; const auto& [name, value] : binary.run_time) {
    symbols[lljit.mangleAndIntern(name)] = {llvm::orc::ExecutorAddr::fromPtr(&code->constants[i++]),
                                            llvm::JITSymbolFlags::Exported};
  }
  if (auto error = library->define(llvm::orc::absoluteSymbols(std::move(symbols)))) return fail(std::move(error));
  for (const std::string& part : unpack(binary.code)) {
    if (auto error = lljit.addObjectFile(*library, llvm::MemoryBuffer::getMemBufferCopy(part))) {
      return fail(std::move(error));
    }
  }
  auto address = lljit.lookup(*library, entry);
  if (!address) return fail(address.takeError());
  return {address->toPtr<KernelFunction>(), std::static_pointer_cast<const void>(code)};
}

}  // namespace attn
