#include <clang/Basic/Version.h>
#include <clang/Lex/Pragma.h>
#include <clang/Lex/Preprocessor.h>
#include <fmt/format.h>
#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/Module.h>
#include <llvm/Linker/Linker.h>
#include <llvm/Target/TargetMachine.h>

#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "common/backends/cpu/back_end.h"
#include "common/backends/cpu/clang.h"
#include "common/backends/cpu/loader.h"
#include "common/backends/cpu/objects.h"
#include "common/backends/cpu/target.h"
#include "common/backends/metal/emulator/emulator.h"
#include "common/backends/metal/emulator/instrument.h"
#include "common/backends/metal/emulator/machine.h"
#include "common/backends/metal/emulator/rewrite.h"
#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/platform.h"
#include "common/base/sha256.h"
#include "common/base/stopwatch.h"
#include "common/source/kernel_source.h"

namespace attn::msl {

namespace {

namespace fs = std::filesystem;

// Raise this number when the checks of instrument() or the rewriting by as_cxx() change, so that the kernels in the
// caches are compiled anew.
constexpr int recipe = 7;

fs::path library_folder() { return fs::path(source_root()) / "common/backends/metal/emulator/stdlib"; }
std::string library_file() { return (library_folder() / "metal_stdlib").string(); }

std::string whole_file(const std::string& path) {
  std::optional<std::string> text = read_file(path);
  if (!text) throw BadInput(path + " cannot be read");
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";  // some editors begin a file with this mark
  if (text->starts_with(byte_order_mark)) text->erase(0, byte_order_mark.size());
  return std::move(*text);
}

// Between two such pragmas a member function may name its object, as in C++23: `f(this device S& object)`. In no other
// way does clang allow a member function for objects in device memory. Metal's own texts are C++14.
class ExplicitObjects : public clang::PragmaHandler {
 public:
  ExplicitObjects() : PragmaHandler("msl_explicit_objects") {}
  void HandlePragma(clang::Preprocessor& preprocessor, clang::PragmaIntroducer, clang::Token&) override {
    auto& options = const_cast<clang::LangOptions&>(preprocessor.getLangOpts());
    options.CPlusPlus23 = !options.CPlusPlus23;
  }
};
const clang::PragmaHandlerRegistry::Add<ExplicitObjects> explicit_objects("msl_explicit_objects", "");

// Metal has these headers for parts of its library. Here each of them includes the one file that has the whole library.
constexpr const char* parts_of_library[] = {"metal_atomic",        "metal_common",           "metal_compute",
                                            "metal_config",        "metal_geometric",        "metal_integer",
                                            "metal_limits",        "metal_logging",          "metal_math",
                                            "metal_matrix",        "metal_numeric",          "metal_pack",
                                            "metal_packed_vector", "metal_quadgroup",        "metal_relational",
                                            "metal_simdgroup",     "metal_simdgroup_matrix", "metal_type_traits",
                                            "metal_types",         "metal_uniform"};

// Gives clang the text of each file that it opens, rewritten as C++ (as_cxx). Only the emulator's own library stays as
// it is.
class MetalFiles : public llvm::vfs::ProxyFileSystem {
 public:
  MetalFiles(llvm::IntrusiveRefCntPtr<llvm::vfs::FileSystem> files, std::string library)
      : ProxyFileSystem(std::move(files)), library_(std::move(library)) {}

  llvm::ErrorOr<llvm::vfs::Status> status(const llvm::Twine& path) override {
    llvm::ErrorOr<llvm::vfs::Status> found = ProxyFileSystem::status(path);
    if (!found || !found->isRegularFile() || path.str() == library_) return found;
    auto file = openFileForRead(path);
    return file ? (*file)->status() : file.getError();
  }
  llvm::ErrorOr<std::unique_ptr<llvm::vfs::File>> openFileForRead(const llvm::Twine& path) override {
    auto file = ProxyFileSystem::openFileForRead(path);
    if (!file || path.str() == library_) return file;
    const auto text = (*file)->getBuffer(path);
    if (!text) return text.getError();
    const auto status = (*file)->status();
    if (!status) return status.getError();
    std::string changed = as_cxx((*text)->getBuffer().str());
    auto changed_status = llvm::vfs::Status::copyWithNewSize(*status, changed.size());
    return std::make_unique<Text>(std::move(changed), std::move(changed_status));
  }

 private:
  class Text : public llvm::vfs::File {
   public:
    Text(std::string text, llvm::vfs::Status status) : text_(std::move(text)), status_(std::move(status)) {}
    llvm::ErrorOr<llvm::vfs::Status> status() override { return status_; }
    llvm::ErrorOr<std::unique_ptr<llvm::MemoryBuffer>> getBuffer(const llvm::Twine& name, int64_t, bool,
                                                                 bool) override {
      return llvm::MemoryBuffer::getMemBufferCopy(text_, name);
    }
    std::error_code close() override { return {}; }

   private:
    const std::string text_;
    const llvm::vfs::Status status_;
  };
  const std::string library_;
};

std::vector<std::string> arguments_for(const CpuTarget& target) {
  std::vector<std::string> arguments = target.arguments();
  arguments.insert(arguments.end(), {"-x",
                                     "c++",
                                     "-std=c++14",  // Apple's compiler too takes newer features as extensions only
                                     "-Wno-c++17-extensions",
                                     "-Wno-c++20-extensions",
                                     "-O1",
                                     "-disable-llvm-passes",
                                     "-mrelocation-model",
                                     "pic",
                                     "-pic-level",
                                     "2",
                                     "-ffp-contract=off",
                                     "-ffloat16-excess-precision=none",
                                     "-fbfloat16-excess-precision=none",
                                     "-fno-rtti",
                                     "-nostdsysteminc",
                                     "-fuse-line-directives",
                                     "-debug-info-kind=line-tables-only",
                                     "-dwarf-version=5",
                                     "-fno-threadsafe-statics",
                                     "-ftrivial-auto-var-init=pattern",
                                     "-Wall",
                                     "-Wextra",
                                     "-Wno-psabi",
                                     "-Wno-unused-function",
                                     "-Wno-unused-const-variable",
                                     "-Wno-unused-parameter",
                                     "-Wno-pass-failed",
                                     "-Wno-unknown-attributes",
                                     "-Wno-ignored-attributes",
                                     "-Wno-unknown-pragmas"});
  std::vector<std::string> switches = target.switches;
  // The instructions that convert to bfloat flush subnormal numbers to zero, and only some processors have these
  // instructions. So the compiler must not use them.
  if (target.has("sse2")) switches.insert(switches.end(), {"-avx512bf16", "-avxneconvert"});
  if (target.has("neon")) switches.emplace_back("-bf16");
  for (const std::string& feature : switches) {
    arguments.emplace_back("-target-feature");
    arguments.push_back(feature);
  }
  return arguments;
}

nlohmann::json json_of(const Facts& facts, const std::string& function) {
  nlohmann::json parameters = nlohmann::json::array(), arrays = nlohmann::json::array();
  for (const Facts::Parameter& parameter : facts.parameters)
    parameters.push_back({parameter.attribute, parameter.index});
  for (const Facts::Array& array : facts.arrays) arrays.push_back({array.name, array.offset, array.bytes});
  return {{"function", function},
          {"parameters", parameters},
          {"arrays", arrays},
          {"places", facts.places},
          {"constants", facts.constants}};
}

}  // namespace

struct Compiler::Parts {
  CpuTarget target = CpuTarget::host();
  TargetMachines machines{target};
  std::vector<std::string> arguments = arguments_for(target);
};

Compiler::Compiler() : parts_(std::make_unique<const Parts>()) { parts_->machines.take(); }
Compiler::~Compiler() = default;

std::string Compiler::identity() const {
  std::string text = fmt::format("{} recipe {}.{} {}", clang::getClangFullVersion(), back_end_recipe, recipe,
                                 sha256(whole_file(library_file())));
  for (const std::string& argument : parts_->arguments) text += " " + argument;
  return text;
}

Binary Compiler::compile(const Source& source) const {
  Binary binary;
  on_large_stack([&] { binary = compile_here(source); });
  return binary;
}

Binary Compiler::compile_here(const Source& source) const {
  Binary binary;
  binary.key = source.key.empty() ? source.function : source.key;
  Stopwatch stopwatch;
  const std::string path = fs::absolute(source.path).lexically_normal().string();
  const auto replaced = source.texts.find(source.path);
  const std::string text = replaced != source.texts.end() ? replaced->second : whole_file(path);

  auto memory = llvm::makeIntrusiveRefCnt<llvm::vfs::InMemoryFileSystem>();
  const auto add = [&](const std::string& name, const std::string& content) {
    memory->addFile(name, 0, llvm::MemoryBuffer::getMemBufferCopy(content));
  };
  // The call of the kernel follows the kernel's text. The second #line counts the call's lines as lines of the library,
  // because they are not the user's lines.
  add(path,
      fmt::format("#include <metal_stdlib>\n{}\n#line 1 \"{}\"\n{}\n#line 1 \"{}\"\n"
                  "extern \"C\" void msl_entry(void* const* arguments);\n"
                  "extern \"C\" void msl_entry(void* const* arguments) {{ metal::msl_call(::{}, arguments); }}\n"
                  "extern \"C\" {{ extern const unsigned msl_parameters = metal::msl_count(::{}); }}\n"
                  "extern \"C\" {{ auto* msl_kernel = +::{}; }}\n",
                  source.before, source.path, text, library_file(), source.function, source.function, source.function));
  for (const auto& [name, content] : source.texts) {
    if (name != source.path) add(fs::absolute(name).lexically_normal().string(), content);
  }
  for (const char* const part : parts_of_library) {
    add((library_folder() / part).string(), "#pragma once\n#include <metal_stdlib>\n");
  }
  auto files = llvm::makeIntrusiveRefCnt<llvm::vfs::OverlayFileSystem>(llvm::vfs::getRealFileSystem());
  files->pushOverlay(memory);

  std::vector<std::string> arguments = parts_->arguments;
  arguments.insert(arguments.end(),
                   {"-isystem", library_folder().string(), "-D", fmt::format("__METAL_VERSION__={}", source.language)});
  for (const std::string& folder : source.folders) arguments.insert(arguments.end(), {"-I", folder});
  std::string messages;
  llvm::LLVMContext context;
  const auto compiled = [&](const std::string& file) {
    std::unique_ptr<llvm::Module> made =
        run_clang(file, llvm::makeIntrusiveRefCnt<MetalFiles>(files, library_file()), arguments, context, messages);
    if (!made) throw CompileError(binary.key, messages);
    return made;
  };
  const std::unique_ptr<llvm::Module> module = compiled(path);
  std::string errors;
  collect_errors(context, errors);
  std::string error;
  for (size_t i = 0; i < source.linked.size(); ++i) {
    const std::string file = fs::absolute(fmt::format("linked_{}.metal", i)).lexically_normal().string();
    const auto& [name, linked] = source.linked[i];
    add(file,
        fmt::format(
            "#include <metal_stdlib>\n#line 1\n{}\n#line 1 \"{}\"\nextern \"C\" {{ extern const void* const {}{} = "
            "reinterpret_cast<const void*>(&{}); }}\n",
            linked, library_file(), visible_prefix, i, name));
    if (llvm::Linker::linkModules(*module, compiled(file))) {
      throw CompileError(binary.key, "a function is defined twice");
    }
  }
  const Facts facts = instrument(*module, source.constants, source.fast_math, library_file(), error);
  if (!error.empty()) throw CompileError(binary.key, error);
  binary.times.front_end_s = stopwatch.lap();
  const auto machine = parts_->machines.take();
  optimize(*module, *machine);
  binary.times.optimizer_s = stopwatch.lap();
  const std::string object = generate_code(*module, *machine);
  binary.times.code_generation_s = stopwatch.lap();
  if (!errors.empty()) throw CompileError(binary.key, errors);
  // The first line of the code holds the facts; the object follows.
  nlohmann::json json = json_of(facts, source.function);
  json["functions"] = source.linked.size();
  binary.code = json.dump() + "\n" + object;
  binary.code_sha256 = sha256(binary.code);
  for (const Facts::Array& array : facts.arrays) binary.threadgroup_bytes += static_cast<int64_t>(array.bytes);
  return binary;
}

struct Kernel::Parts {
  CpuLoader loader;
  CpuLoader::Loaded loaded;
  Code code;
  std::vector<const void*> functions;
};

Kernel::Kernel(const Binary& binary) {
  auto parts = std::make_unique<Parts>();
  const size_t end = binary.code.find('\n');
  const Json facts = parse_json(binary.code.substr(0, end), false);
  if (end == std::string::npos || facts.is_discarded()) throw CompileError("the binary is no kernel of the emulator");
  Binary object = binary;
  object.code = binary.code.substr(end + 1);
  std::vector<std::string> wanted = {"msl_constants"};
  for (size_t i = 0; i < facts.at("functions").get<size_t>(); ++i) {
    wanted.push_back(visible_prefix + std::to_string(i));
  }
  parts->loaded = parts->loader.load(object, "msl_entry", machine_symbols(), wanted);
  for (size_t i = 1; i < wanted.size(); ++i) {
    parts->functions.push_back(*static_cast<const void* const*>(parts->loaded.addresses.at(i)));
  }
  Code& code = parts->code;
  code.function = facts.at("function");
  code.entry = reinterpret_cast<Code::Entry>(reinterpret_cast<void*>(parts->loaded.function));
  for (const auto& parameter : facts.at("parameters")) code.parameters.push_back({parameter[0], parameter[1]});
  for (const auto& array : facts.at("arrays")) code.arrays.push_back({array[0], array[1], array[2]});
  code.places = facts.at("places").get<std::vector<std::string>>();
  const auto* const table = static_cast<const uint64_t*>(parts->loaded.addresses.at(0));
  for (uint64_t i = 0; i < facts.at("constants").get<uint64_t>(); ++i) {
    code.constants.push_back({"a constant of the kernel", reinterpret_cast<const void*>(table[2 * i]),
                              static_cast<size_t>(table[2 * i + 1])});
  }
  parts_ = std::move(parts);
}
Kernel::~Kernel() = default;

void Kernel::run(const Run& run) const { run_on_machine(parts_->code, run); }

size_t Kernel::threadgroup_bytes() const {
  size_t bytes = 0;
  for (const Code::Array& array : parts_->code.arrays) bytes += array.bytes;
  return bytes;
}

const std::vector<const void*>& Kernel::functions() const { return parts_->functions; }

std::vector<uint32_t> Kernel::indices(const std::string& attribute) const {
  std::vector<uint32_t> found;
  for (const Code::Parameter& parameter : parts_->code.parameters) {
    if (parameter.attribute == attribute) found.push_back(parameter.index);
  }
  return found;
}

}  // namespace attn::msl
