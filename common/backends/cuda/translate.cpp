#include "common/backends/cuda/translate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <sstream>
#include <string_view>

#include "common/backends/cuda/driver.h"
#include "common/backends/cuda/report.h"
#include "common/backends/cuda/scratch.h"
#include "common/base/error.h"

namespace attn {

namespace {

// An NVRTC program. The destructor destroys the program.
class Program {
 public:
  Program(const Nvrtc& nvrtc, const KernelSource& source, const std::string& text,
          const std::vector<const char*>& header_texts, const std::vector<const char*>& header_names)
      : nvrtc_(nvrtc), key_(source.key()) {
    check(nvrtc.nvrtcCreateProgram(&program_, text.c_str(), source.path.c_str(), static_cast<int>(header_names.size()),
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
    size_t bytes = 0;  // counts the terminating zero too
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
    if (result != NVRTC_SUCCESS) throw CompileError(key_, std::string("NVRTC: ") + nvrtc_.nvrtcGetErrorString(result));
  }

  const Nvrtc& nvrtc_;
  const std::string key_;
  nvrtcProgram program_ = nullptr;
};

// Returns the lines that stand before a source. A constant that is read at run time is declared `__constant__`, so that
// the compiler knows that its value does not change during a launch.
std::string prologue(const KernelSource& source) {
  return cxx_prologue(
      source, [](const std::string& name) { return fmt::format("extern \"C\" {{ __constant__ int {}; }}\n", name); });
}

// How NVRTC's log marks the warning about an unused variable (warning 177). translate() does not make NVRTC treat this
// warning as an error, because a header may declare variables that only other kernels use.
constexpr std::string_view unused_warning = "#177-D: ";

bool reports_unused(const std::string& log, const FunctionConstants& constants) {
  return std::any_of(constants.begin(), constants.end(), [&](const auto& constant) {
    return log.find(fmt::format("{}variable \"{}\" was declared but never referenced", unused_warning,
                                constant.first)) != std::string::npos;
  });
}

// Whether the code names the variable. The compiler does not warn of an unused variable that the host might set, so
// this function searches the text.
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

// Returns the #include lines of the source (the first of `files`) whose headers read no function constant, neither
// themselves nor through headers that they include. NVRTC can precompile only headers that stand before the first
// declaration. The prologue has declarations, so these #include lines must stand before the prologue.
std::string constant_free_includes(const std::vector<SourceFile>& files, const FunctionConstants& constants) {
  std::set<std::string> reading;  // headers that read a function constant
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

Translated translate(const Nvrtc& nvrtc, const KernelSource& source, const std::vector<std::string>& options,
                     NvrtcOutput output, const CompileOptions& compile_options) {
  const std::vector<SourceFile> files = reached_sources(source);
  std::vector<const char*> names, texts, raw;
  for (const SourceFile& file : files) {
    names.push_back(file.path.c_str());
    texts.push_back(file.text.c_str());
  }
  for (const std::string& option : options) raw.push_back(option.c_str());
  if (output != NvrtcOutput::cubin) raw.push_back("--relocatable-device-code=true");
  if (output == NvrtcOutput::lto_ir) raw.push_back("-dlto");
  std::string text = prologue(source) + files.front().text;
  if (compile_options.precompile_headers) {
    text = constant_free_includes(files, source.constants) + text;
    raw.push_back("--pch");
  }
  const auto folder = compile_options.trace_phases ? scratch_folder() : nullptr;
  const std::string trace = folder ? folder->path() / "trace" : "";  // NVRTC appends .json
  const std::string trace_option = "--fdevice-time-trace=" + trace;
  if (folder) raw.push_back(trace_option.c_str());
  const std::string for_assembler = "--ptxas-options=" + source.assembler;
  if (!source.assembler.empty()) raw.push_back(for_assembler.c_str());
  Program program(nvrtc, source, text, texts, names);
  const bool compiled = program.compile(raw);
  const std::string log = program.log();
  if (!compiled || reports_unused(log, source.constants)) throw CompileError(source.key(), log);
  for (const std::string& name : source.run_time) {
    if (!is_read(name, files)) throw CompileError(source.key(), "the kernel does not use " + name);
  }
  return {source.path, output == NvrtcOutput::lto_ir ? program.lto_ir() : program.cubin(), log,
          folder ? read_trace(trace + ".json") : std::nullopt};
}

}  // namespace attn
