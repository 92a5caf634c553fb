#include "common/device/cuda/compiler.h"

#include <elf.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>

#include "common/device/cuda/driver.h"
#include "common/base/error.h"
#include "common/base/sha256.h"
#include "common/base/temporary_folder.h"

namespace attn {

namespace {

// An NVRTC program that goes with its scope.
class Program {
 public:
  Program(const Nvrtc& nvrtc, const std::string& text, const std::string& name,
          const std::vector<const char*>& header_texts, const std::vector<const char*>& header_names)
      : nvrtc_(nvrtc) {
    check(nvrtc.nvrtcCreateProgram(&program_, text.c_str(), name.c_str(), static_cast<int>(header_names.size()),
                                   header_texts.data(), header_names.data()));
  }
  ~Program() { nvrtc_.nvrtcDestroyProgram(&program_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  bool compile(const std::vector<const char*>& options) {
    const nvrtcResult result = nvrtc_.nvrtcCompileProgram(program_, static_cast<int>(options.size()), options.data());
    if (result != NVRTC_ERROR_COMPILATION) check(result);
    return result == NVRTC_SUCCESS;
  }
  std::string log() const {
    size_t bytes = 0;  // with the terminating zero
    check(nvrtc_.nvrtcGetProgramLogSize(program_, &bytes));
    std::string text(bytes, '\0');
    check(nvrtc_.nvrtcGetProgramLog(program_, text.data()));
    text.resize(std::min(text.find('\0'), text.size()));
    return text;
  }
  std::string cubin() const { return result(nvrtc_.nvrtcGetCUBINSize, nvrtc_.nvrtcGetCUBIN); }
  std::string lto_ir() const { return result(nvrtc_.nvrtcGetLTOIRSize, nvrtc_.nvrtcGetLTOIR); }

 private:
  template <typename Size, typename Get>
  std::string result(const Size& get_size, const Get& get) const {
    size_t bytes = 0;
    check(get_size(program_, &bytes));
    std::string code(bytes, '\0');
    check(get(program_, code.data()));
    return code;
  }
  void check(nvrtcResult result) const {
    if (result != NVRTC_SUCCESS) throw CompileError(std::string("NVRTC: ") + nvrtc_.nvrtcGetErrorString(result));
  }

  const Nvrtc& nvrtc_;
  nvrtcProgram program_ = nullptr;
};

// A kernel does not read values that it has no use for; one that does is a sweep that varies nothing. As an error, the
// warning would also hit what headers declare for others.
// A constant that is read at run time is constant memory: the compiler knows that no launch changes it.
std::string prologue(const KernelSource& source) {
  return cxx_prologue(source, [](const std::string& name) {
    return fmt::format("extern \"C\" {{ __constant__ int {}; }}\n", name);
  });
}

constexpr std::string_view unused_warning = "#177-D: ";

bool reports_unused(const std::string& log, const FunctionConstants& constants) {
  return std::any_of(constants.begin(), constants.end(), [&](const auto& constant) {
    return log.find(fmt::format("{}variable \"{}\" was declared but never referenced", unused_warning,
                                constant.first)) != std::string::npos;
  });
}

// The number before `unit` in the first line after `after` that has one; -1 where there is none.
double number_before(const std::string& log, const std::string& after, const std::string& unit) {
  const size_t start = log.find(after);
  const size_t end = start == std::string::npos ? start : log.find(unit, start);
  if (end == std::string::npos) return -1;
  const size_t begin = log.find_last_not_of("0123456789.", end - 1) + 1;
  return std::strtod(log.c_str() + begin, nullptr);
}

// Says what the assembler warns of, and where it gave up overlapping matrix products with anything.
void warn(const std::string& log, const std::string& key) {
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    const bool told = line.starts_with("ptxas") && line.find("warning") != std::string::npos;
    if (told || line.find("Potential Performance Loss") != std::string::npos) spdlog::warn("{}: {}", key, line);
  }
}

// What ptxas says of the entry (--ptxas-options=-v):
//   Compiling entry function 'run' for 'sm_90a'
//   Function properties for run
//   .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
//   Used 10 registers, used 1 barriers, 256 bytes smem
// and, where the entry was linked with functions that use more, the linker:
//   Function properties for 'run':
//   used 24 registers, used 0 barriers, 0 stack, 0 bytes smem, ...
void read_report(const std::string& log, const std::string& entry, Binary& binary) {
  const std::string compiling = fmt::format("Compiling entry function '{}'", entry);
  const std::string properties = fmt::format("Function properties for {}\n", entry);
  const std::string linked = fmt::format("Function properties for '{}'", entry);
  binary.registers =
      static_cast<int>(std::max(number_before(log, compiling, " registers"), number_before(log, linked, " registers")));
  binary.spill_bytes = static_cast<int64_t>(std::max(number_before(log, properties, " bytes spill stores"),
                                                     number_before(log, properties, " bytes spill loads")));
  const size_t used = log.find("Used ", std::min(log.find(compiling), log.size()));
  const std::string line = used == std::string::npos ? "" : log.substr(used, log.find('\n', used) - used);
  binary.threadgroup_bytes = static_cast<int64_t>(std::max(0.0, number_before(line, "", " bytes smem")));
}

// A folder for a few files; null where none can be made or the disk is nearly full, since NVRTC ends the process when
// it cannot write its trace.
std::unique_ptr<TemporaryFolder> scratch_folder() {
  constexpr uintmax_t room_bytes = 64 << 20;
  try {
    auto folder = std::make_unique<TemporaryFolder>();
    return std::filesystem::space(folder->path()).available >= room_bytes ? std::move(folder) : nullptr;
  } catch (const std::filesystem::filesystem_error&) {
    return nullptr;
  }
}

// The phases that a trace tells (--fdevice-time-trace; events as of Chromium's trace viewer, in microseconds). What is
// not among them, NVRTC's own work, is left to the front end by compile(). Nothing where it does not tell them.
std::optional<CompileTimes> read_trace(const std::string& path) {
  CompileTimes times;
  const nlohmann::json trace = nlohmann::json::parse(std::ifstream(path), nullptr, false);
  if (!trace.is_object() || !trace.contains("traceEvents")) return std::nullopt;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (!event.is_object() || !event.contains("name") || !event.contains("dur")) continue;
    const double seconds = event["dur"].get<double>() * 1e-6;
    const nlohmann::json& name = event["name"];
    if (name == "NVVM Optimizer") times.optimizer_s += seconds;
    if (name == "NVVM CodeGen" || name == "Total PTXAS Time") times.code_generation_s += seconds;
  }
  return times.optimizer_s > 0 && times.code_generation_s > 0 ? std::optional(times) : std::nullopt;
}

struct Section {
  std::string name, content;
};

std::vector<Section> sections_of(const std::string& cubin) {
  const auto at = [&]<typename T>(size_t offset, T) {
    T value{};
    if (offset <= cubin.size() && sizeof value <= cubin.size() - offset) {
      std::memcpy(&value, cubin.data() + offset, sizeof value);
    }
    return value;
  };
  const auto header = at(0, Elf64_Ehdr{});
  const auto section = [&](size_t i) { return at(header.e_shoff + i * header.e_shentsize, Elf64_Shdr{}); };
  const Elf64_Shdr names = section(header.e_shstrndx);
  std::vector<Section> sections;
  for (size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr found = section(i);
    sections.push_back({cubin.c_str() + std::min(names.sh_offset + found.sh_name, cubin.size()),
                        cubin.substr(std::min(found.sh_offset, cubin.size()), found.sh_size)});
  }
  return sections;
}

// A cubin's code and constants. Its line tables name the folder that the process runs in; the code's hash must not.
std::string machine_code(const std::string& cubin) {
  std::string code;
  for (const auto& [name, content] : sections_of(cubin)) {
    if (name.starts_with(".text") || name.starts_with(".nv.constant")) code += name + '\n' + content;
  }
  return code;
}

// Whether the code names the variable. The compiler does not warn of one that the host might set.
bool is_read(const std::string& name, const std::vector<SourceFile>& files) {
  const auto part_of_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (const SourceFile& file : files) {
    std::istringstream lines(file.text);
    for (std::string line; std::getline(lines, line);) {
      line = fmt::format(" {} ", line.substr(0, line.find("//")));
      for (size_t at = line.find(name); at != std::string::npos; at = line.find(name, at + 1)) {
        if (!part_of_name(line[at - 1]) && !part_of_name(line[at + name.size()])) return true;
      }
    }
  }
  return false;
}

std::string include_line(const std::string& path) { return fmt::format("#include \"{}\"\n", path); }

// The #include lines of the source, the first of `files`, whose headers read no function constant, nor do those that
// they include. What stands before the first declaration, so before the prologue, is what NVRTC can precompile.
std::string constant_free_includes(const std::vector<SourceFile>& files, const FunctionConstants& constants) {
  std::set<std::string> reading;  // headers that do
  const auto reads = [&](const SourceFile& file) {
    return std::any_of(constants.begin(), constants.end(),
                       [&](const auto& constant) { return file.text.find(constant.first) != std::string::npos; }) ||
           std::any_of(reading.begin(), reading.end(), [&](const std::string& other) {
             return file.text.find(include_line(other)) != std::string::npos;
           });
  };
  for (size_t before = 1; before != reading.size();) {
    before = reading.size();
    for (const SourceFile& file : files) {
      if (reads(file)) reading.insert(file.path);
    }
  }
  std::string lines;
  for (const SourceFile& file : files) {
    const std::string line = include_line(file.path);
    if (!reading.contains(file.path) && files.front().text.find(line) != std::string::npos) lines += line;
  }
  return lines;
}

}  // namespace

CudaCompiler::CudaCompiler(std::string arch) : nvrtc_(std::make_shared<const Nvrtc>()), arch_(std::move(arch)) {
  int major = 0, minor = 0;
  nvrtc_->nvrtcVersion(&major, &minor);
  toolchain_ = fmt::format("NVRTC {}.{}", major, minor);
  options_ = {"--gpu-architecture=" + arch_,
              "--std=c++20",
              "--generate-line-info",
              "--ftz=true",                           // as every device of this project
              "--device-as-default-execution-space",  // what both dialects share has no __device__
              "--no-source-include",                  // source_sha256() follows only what is handed over
              "--ptxas-options=-v"};
  has_precompiled_headers_ = has_phase_trace_ = major > 12 || (major == 12 && minor >= 8);
  // Its own cache, which keeps code without the assembler's report.
  if (major > 12 || (major == 12 && minor >= 9)) options_.emplace_back("--no-cache");
  try {
    linker_ = std::make_shared<const NvJitLink>();
  } catch (const DeviceMissing&) {
    // Only sources with fragments need it.
  }
}

std::string CudaCompiler::identity() const {
  std::string text = toolchain_;
  if (unsigned major = 0, minor = 0; linker_ && linker_->version(&major, &minor) == NvJitLink::success) {
    text += fmt::format(" nvJitLink {}.{}", major, minor);
  }
  for (const std::string& option : options_) text += " " + option;
  return text;
}

/// What NVRTC made of one source.
struct CudaCompiler::Translated {
  std::string path, code, log;
  std::optional<CompileTimes> times;  // as far as NVRTC told
};

CudaCompiler::Translated CudaCompiler::translate(const KernelSource& source,
                                                 const std::vector<std::string>& more_options) const {
  const std::vector<SourceFile> files = reached_sources(source);
  std::vector<const char*> names, texts, options;
  for (const SourceFile& file : files) {
    names.push_back(file.path.c_str());
    texts.push_back(file.text.c_str());
  }
  for (const std::string& option : options_) options.push_back(option.c_str());
  for (const std::string& option : more_options) options.push_back(option.c_str());
  std::string text = prologue(source) + files.front().text;
  if (precompile_headers_) {
    text = constant_free_includes(files, source.constants) + text;
    options.push_back("--pch");
  }
  const auto folder = trace_phases_ ? scratch_folder() : nullptr;
  const std::string trace = folder ? folder->path() / "trace" : "";  // NVRTC appends .json
  const std::string trace_option = "--fdevice-time-trace=" + trace;
  if (folder) options.push_back(trace_option.c_str());
  const std::string for_assembler = "--ptxas-options=" + source.assembler;
  if (!source.assembler.empty()) options.push_back(for_assembler.c_str());
  Program program(*nvrtc_, text, source.path, texts, names);
  const bool compiled = program.compile(options);
  const std::string log = program.log();
  if (!compiled || reports_unused(log, source.constants))
    throw CompileError(fmt::format("{} does not compile:\n{}", source.key(), log));
  for (const std::string& name : source.run_time) {
    if (!is_read(name, files)) {
      throw CompileError(fmt::format("{} does not compile:\nthe kernel does not use {}", source.key(), name));
    }
  }
  const bool for_linker = std::find(more_options.begin(), more_options.end(), "-dlto") != more_options.end();
  return {source.path, for_linker ? program.lto_ir() : program.cubin(), log,
          folder ? read_trace(trace + ".json") : std::nullopt};
}

std::string CudaCompiler::link(const KernelSource& source, const std::vector<Translated>& parts,
                               std::string& log) const {
  if (!linker_) throw DeviceMissing("no nvJitLink on this machine (libnvJitLink.so, a part of the CUDA toolkit)");
  const bool optimized = source.linking == Linking::before_optimizer;
  const std::string arch = "-arch=" + arch_;
  // Its cache keeps code without the assembler's report, and would hide what linking costs.
  std::vector<const char*> options = {arch.c_str(), "-Xptxas=-v", "-verbose", "-no-cache"};
  if (optimized) options.insert(options.end(), {"-lto", "-ftz=1", "-lineinfo"});
  const std::string assembler = "-Xptxas=" + source.assembler;
  if (!source.assembler.empty()) options.push_back(assembler.c_str());
  NvJitLink::Handle handle = nullptr;
  if (linker_->create(&handle, static_cast<uint32_t>(options.size()), options.data()) != NvJitLink::success) {
    throw CompileError(fmt::format("{} does not link: nvJitLink does not start", source.key()));
  }
  const auto close = [this](void* open) { linker_->destroy(&open); };
  const std::unique_ptr<void, decltype(close)> closing(handle, close);
  const auto text = [&](const auto& get_size, const auto& get) {
    size_t bytes = 0;
    std::string result;
    if (get_size(handle, &bytes) == NvJitLink::success) result.resize(bytes);
    if (!result.empty() && get(handle, result.data()) != NvJitLink::success) result.clear();
    return result;
  };
  bool linked = true;
  for (const Translated& part : parts) {
    linked = linked && linker_->add(handle, optimized ? NvJitLink::lto_ir : NvJitLink::cubin, part.code.data(),
                                    part.code.size(), part.path.c_str()) == NvJitLink::success;
  }
  linked = linked && linker_->complete(handle) == NvJitLink::success;
  log = text(linker_->info_bytes, linker_->get_info);
  std::string cubin = linked ? text(linker_->cubin_bytes, linker_->get_cubin) : std::string();
  if (cubin.empty()) {
    throw CompileError(
        fmt::format("{} does not link:\n{}", source.key(), text(linker_->error_bytes, linker_->get_errors).c_str()));
  }
  return cubin;
}

Binary CudaCompiler::compile(const KernelSource& source) const {
  Binary binary;
  binary.key = source.key();
  binary.source_sha256 = source_sha256(source);
  binary.run_time = source.run_time_values();
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::string> more_options;
  if (!source.fragments.empty()) {
    more_options.emplace_back("--relocatable-device-code=true");
    if (source.linking == Linking::before_optimizer) more_options.emplace_back("-dlto");
  }
  std::vector<Translated> parts = {translate(source, more_options)};
  for (const KernelSource& fragment : source.fragments) parts.push_back(translate(fragment, more_options));
  std::string log = parts.front().log;
  if (source.fragments.empty()) {
    binary.code = parts.front().code;
  } else {
    std::string said;
    binary.code = link(source, parts, said);
    log += said;
  }
  if (log.find(fmt::format("entry function '{}'", source.entry)) == std::string::npos) {
    throw CompileError(fmt::format("{} defines no extern \"C\" __global__ function {}", source.path, source.entry));
  }
  warn(log, binary.key);
  binary.code_sha256 = sha256(machine_code(binary.code));
  read_report(log, source.entry, binary);
  // Without a trace, and of what is linked, only the assembler's time is known. The front end is the rest.
  const double total_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  binary.times.code_generation_s = std::max(0.0, number_before(log, "Compile time", " ms")) / 1e3;
  if (parts.size() == 1) binary.times = parts.front().times.value_or(binary.times);
  binary.times.front_end_s = std::max(0.0, total_s - binary.times.optimizer_s - binary.times.code_generation_s);
  return binary;
}

namespace {

// What a program prints; nothing where it is not there.
std::string output_of(const std::string& command) {
  std::string text;
  FILE* const pipe = popen((command + " 2> /dev/null").c_str(), "r");
  if (!pipe) return text;
  char buffer[1 << 16];
  for (size_t bytes = 0; (bytes = fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, bytes);
  return pclose(pipe) == 0 ? text : std::string();
}

}  // namespace

CodeContents cuda_contents(const Binary& binary) {
  CodeContents found;
  found.bytes = 0;
  for (const auto& [name, content] : sections_of(binary.code)) {
    if (name.starts_with(".text")) found.bytes += static_cast<int64_t>(content.size());
  }
  const auto folder = scratch_folder();
  if (!folder) return found;
  const std::string cubin = folder->path() / "cubin";
  std::ofstream(cubin, std::ios::binary) << binary.code;
  std::istringstream lines(output_of("PATH=\"$PATH:/usr/local/cuda/bin\" nvdisasm " + cubin));
  for (std::string line; std::getline(lines, line);) {
    //         /*0090*/              @!P0 LDG.E.64 R4, desc[UR4][R2.64] ;
    const size_t comment = line.find_first_not_of(" \t");
    if (comment == std::string::npos || line.compare(comment, 2, "/*") != 0) continue;
    std::istringstream words(line.substr(std::min(line.find("*/", comment), line.size() - 2) + 2));
    std::string word;
    words >> word;
    if (word.starts_with('@')) words >> word;
    if (word = word.substr(0, word.find_first_of(".;")); !word.empty()) ++found.instructions[word];
  }
  return found;
}

}  // namespace attn
