#include "common/cuda/compiler.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>

#include "common/cuda/driver.h"
#include "common/elf.h"
#include "common/error.h"
#include "common/sha256.h"

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
  std::string cubin() const {
    size_t bytes = 0;
    check(nvrtc_.nvrtcGetCUBINSize(program_, &bytes));
    std::string code(bytes, '\0');
    check(nvrtc_.nvrtcGetCUBIN(program_, code.data()));
    return code;
  }

 private:
  void check(nvrtcResult result) const {
    if (result != NVRTC_SUCCESS) throw CompileError(std::string("NVRTC: ") + nvrtc_.nvrtcGetErrorString(result));
  }

  const Nvrtc& nvrtc_;
  nvrtcProgram program_ = nullptr;
};

// A kernel does not read values that it has no use for; one that does is a sweep that varies nothing. As an error, the
// warning would also hit what headers declare for others.
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
void read_report(const std::string& log, const std::string& entry, Binary& binary) {
  const std::string compiling = fmt::format("Compiling entry function '{}'", entry);
  const std::string properties = fmt::format("Function properties for {}\n", entry);
  binary.registers = static_cast<int>(number_before(log, compiling, " registers"));
  binary.spill_bytes = static_cast<int64_t>(std::max(number_before(log, properties, " bytes spill stores"),
                                                     number_before(log, properties, " bytes spill loads")));
  const size_t used = log.find("Used ", std::min(log.find(compiling), log.size()));
  const std::string line = used == std::string::npos ? "" : log.substr(used, log.find('\n', used) - used);
  binary.threadgroup_bytes = static_cast<int64_t>(std::max(0.0, number_before(line, "", " bytes smem")));
}

// A cubin's code and constants. Its line tables name the folder that the process runs in; the code's hash must not.
std::string machine_code(const std::string& cubin) {
  std::string code;
  for_each_section(cubin, [&](std::string_view name, uint64_t, std::string_view bytes) {
    if (!name.starts_with(".text") && !name.starts_with(".nv.constant")) return;
    code.append(name).append(1, '\n').append(bytes);
  });
  return code;
}

// Whether the code names the variable. The compiler does not warn of one that the host might set.
bool is_read(const std::string& name, const std::vector<SourceFile>& files) {
  const auto part_of_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (const SourceFile& file : files) {
    std::istringstream lines(file.text);
    for (std::string line; std::getline(lines, line);) {
      line = " " + line.substr(0, line.find("//")) + " ";
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
  has_precompiled_headers_ = major > 12 || (major == 12 && minor >= 8);
  // Its own cache, which keeps code without the assembler's report.
  if (major > 12 || (major == 12 && minor >= 9)) options_.emplace_back("--no-cache");
}

std::string CudaCompiler::identity() const {
  std::string text = toolchain_;
  for (const std::string& option : options_) text += " " + option;
  return text;
}

Binary CudaCompiler::compile(const KernelSource& source) const {
  Binary binary;
  binary.key = source.key();
  binary.source_sha256 = source_sha256(source);
  binary.run_time = source.run_time_values();
  const auto start = std::chrono::steady_clock::now();
  const std::vector<SourceFile> files = reached_sources(source);
  std::vector<const char*> names, texts, options;
  for (const SourceFile& file : files) {
    names.push_back(file.path.c_str());
    texts.push_back(file.text.c_str());
  }
  for (const std::string& option : options_) options.push_back(option.c_str());
  std::string text = source.prologue() + files.front().text;
  if (precompile_headers_) {
    text = constant_free_includes(files, source.constants) + text;
    options.push_back("--pch");
  }
  Program program(*nvrtc_, text, source.path, texts, names);
  const bool compiled = program.compile(options);
  const std::string log = program.log();
  if (!compiled || reports_unused(log, source.constants))
    throw CompileError(fmt::format("{} does not compile:\n{}", source.key(), log));
  if (log.find(fmt::format("entry function '{}'", source.entry)) == std::string::npos) {
    throw CompileError(fmt::format("{} defines no extern \"C\" __global__ function {}", source.path, source.entry));
  }
  warn(log, binary.key);
  binary.code = program.cubin();
  for (const std::string& name : source.run_time) {
    if (!is_read(name, files)) {
      throw CompileError(fmt::format("{} does not compile:\nthe kernel does not use {}", source.key(), name));
    }
  }
  binary.code_sha256 = sha256(machine_code(binary.code));
  read_report(log, source.entry, binary);
  // NVRTC tells the assembler's time; front end and optimiser are the rest.
  const double total_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  binary.times.code_generation_s = std::max(0.0, number_before(log, "Compile time", " ms")) / 1e3;
  binary.times.front_end_s = std::max(0.0, total_s - binary.times.code_generation_s);
  return binary;
}

namespace {

// A file that goes with its scope.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content) : path_(std::filesystem::temp_directory_path() / "attn-XXXXXX") {
    const int descriptor = mkstemp(path_.data());
    if (descriptor >= 0) close(descriptor);
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~TemporaryFile() { unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

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

std::map<std::string, int> count_instructions(const Binary& binary) {
  const TemporaryFile file(binary.code);
  const std::string listing = output_of("PATH=\"$PATH:/usr/local/cuda/bin\" nvdisasm " + file.path());
  const std::string section = fmt::format(".text.{}:", binary.key.substr(0, binary.key.find('[')));
  std::map<std::string, int> counts;
  std::istringstream lines(listing);
  bool inside = false;  // the entry's section
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(".text.")) inside = line == section;
    //         /*0090*/              @!P0 LDG.E.64 R4, desc[UR4][R2.64] ;
    const size_t comment = line.find_first_not_of(" \t");
    if (!inside || comment == std::string::npos || line.compare(comment, 2, "/*") != 0) continue;
    std::istringstream words(line.substr(std::min(line.find("*/", comment), line.size() - 2) + 2));
    std::string word;
    words >> word;
    if (word.starts_with('@')) words >> word;
    if (word = word.substr(0, word.find_first_of(".;")); !word.empty()) ++counts[word];
  }
  return counts;
}

}  // namespace attn
