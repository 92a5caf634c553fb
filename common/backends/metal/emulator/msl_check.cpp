// msl_check FILE.metal FUNCTION: runs a kernel of Metal on the emulator, in several orders of its threads, and reports
// the first fault in one line. docs/metal.md has an example.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <sstream>

#include "common/backends/metal/emulator/emulator.h"
#include "common/base/command_line.h"
#include "common/base/error.h"
#include "common/base/number.h"
#include "common/base/platform.h"
#include "common/base/run_program.h"

namespace {

using namespace attn;

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (;;) {
    const size_t end = text.find(at, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos) return parts;
    begin = end + 1;
  }
}

// Parses a count, which is a part of an option's value.
uint32_t count(const std::string& option, const std::string& text) {
  return parse_number<uint32_t>(option, text, 0, UINT32_MAX);
}

Grid grid(const std::string& option, const std::string& text) {
  const std::vector<std::string> parts = split(text, ',');
  if (parts.size() > 3) throw BadInput(fmt::format("{} {}: not allowed; give X, or X,Y, or X,Y,Z", option, text));
  uint32_t sizes[3] = {1, 1, 1};
  for (size_t i = 0; i < parts.size(); ++i) sizes[i] = count(option, parts[i]);
  return {sizes[0], sizes[1], sizes[2]};
}

// Returns the number and REST of a text such as "0=REST".
std::pair<uint32_t, std::string> numbered(const std::string& option, const std::string& text) {
  const size_t at = text.find('=');
  if (at == std::string::npos) throw BadInput(fmt::format("{} {}: it must begin with a number and '='", option, text));
  return {count(option, text.substr(0, at)), text.substr(at + 1)};
}

enum class Type { f32, f16, bf16, i32, u32, i64, u64, i16, u16, u8 };
constexpr std::pair<const char*, Type> types[] = {
    {"f32", Type::f32}, {"f16", Type::f16}, {"bf16", Type::bf16}, {"i32", Type::i32}, {"u32", Type::u32},
    {"i64", Type::i64}, {"u64", Type::u64}, {"i16", Type::i16},   {"u16", Type::u16}, {"u8", Type::u8}};

// Parses the value of an element.
double element(Type type, const std::string& text) {
  const auto of_type = [&]<typename T>(T) {
    return static_cast<double>(
        parse_number("--buffer", text, std::numeric_limits<T>::lowest(), std::numeric_limits<T>::max()));
  };
  switch (type) {
    case Type::i32:
      return of_type(int32_t());
    case Type::u32:
      return of_type(uint32_t());
    case Type::i64:
      return of_type(int64_t());
    case Type::u64:
      return of_type(uint64_t());
    case Type::i16:
      return of_type(int16_t());
    case Type::u16:
      return of_type(uint16_t());
    case Type::u8:
      return of_type(uint8_t());
    default:
      if (text == "nan") return std::nan("");
      return text == "inf" ? HUGE_VAL : text == "-inf" ? -HUGE_VAL : of_type(double());
  }
}

template <typename T>
void append(std::vector<std::byte>& bytes, T value) {
  const auto* const from = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), from, from + sizeof value);
}
uint16_t bf16_bits(double value) {
  const auto rounded = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  return static_cast<uint16_t>((std::isnan(rounded) ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
void append(std::vector<std::byte>& bytes, Type type, double value) {
  switch (type) {
    case Type::f32:
      return append(bytes, static_cast<float>(value));
    case Type::f16:
      return append(bytes, static_cast<_Float16>(value));
    case Type::bf16:
      return append(bytes, bf16_bits(value));
    case Type::i32:
      return append(bytes, static_cast<int32_t>(value));
    case Type::u32:
      return append(bytes, static_cast<uint32_t>(value));
    case Type::i64:
      return append(bytes, static_cast<int64_t>(value));
    case Type::u64:
      return append(bytes, static_cast<uint64_t>(value));
    case Type::i16:
      return append(bytes, static_cast<int16_t>(value));
    case Type::u16:
      return append(bytes, static_cast<uint16_t>(value));
    case Type::u8:
      return append(bytes, static_cast<uint8_t>(value));
  }
}

// Returns the contents of a buffer. `text` is TYPE:random:COUNT, TYPE:zero:COUNT, TYPE:nan:COUNT, TYPE:index:COUNT or
// TYPE:VALUE,VALUE,...; '+' joins several such parts.
std::vector<std::byte> contents(const std::string& text, uint32_t seed) {
  std::vector<std::byte> bytes;
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  for (const std::string& part : split(text, '+')) {
    const std::vector<std::string> words = split(part, ':');
    const auto* const type =
        std::find_if(std::begin(types), std::end(types), [&](const auto& known) { return words[0] == known.first; });
    if (type == std::end(types) || words.size() < 2 || words.size() > 3) {
      throw BadInput(
          fmt::format("'{}' is no buffer; allowed is TYPE:random|zero|nan|index:COUNT or TYPE:VALUE,VALUE,... "
                      "with the types f32, f16, bf16, i32, u32, i64, u64, i16, u16, u8",
                      part));
    }
    if (words.size() == 2) {
      for (const std::string& value : split(words[1], ',')) append(bytes, type->second, element(type->second, value));
      continue;
    }
    for (uint64_t i = 0, n = count("--buffer", words[2]); i < n; ++i) {
      double value = 0;
      if (words[1] == "random") {
        value = normal(random);
      } else if (words[1] == "nan") {
        value = std::nan("");
      } else if (words[1] == "index") {
        value = static_cast<double>(i);
      } else if (words[1] != "zero") {
        throw BadInput(fmt::format("'{}' is not allowed; allowed are random, zero, nan, index", words[1]));
      }
      append(bytes, type->second, value);
    }
  }
  return bytes;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

struct Options {
  std::string file, function, grid = "1", threads = "32", math = "fast", language = "3.2", gpu = "m1", print;
  std::vector<std::string> buffers, threadgroup, constants, declared, folders;
  uint32_t orders = 6, seed = 1, seconds = 60;
  bool messages = false;
};

void print(const std::string& what, const std::map<uint32_t, std::vector<std::byte>>& buffers) {
  const auto [index, type] = numbered("--print", what);
  const auto found = buffers.find(index);
  if (found == buffers.end()) throw BadInput(fmt::format("--print {}: there is no --buffer {}", what, index));
  const std::vector<std::byte>& bytes = found->second;
  const auto each = [&]<typename T>(T value) {
    for (size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
      std::memcpy(&value, bytes.data() + at, sizeof(T));
      fmt::print("{}\n", static_cast<std::conditional_t<std::is_integral_v<T>, int64_t, float>>(value));
    }
  };
  if (type == "f32") return each(float());
  if (type == "f16") return each(_Float16());
  if (type == "u32") return each(uint32_t());
  if (type == "i32") return each(int32_t());
  throw BadInput(fmt::format("'{}' is not allowed; allowed are N=f32, N=f16, N=i32, N=u32", what));
}

/// Returns the first error of a compiler's message, and the number of further errors.
std::string first_error(const CompileError& error, const Options& options) {
  const std::string name = options.function.substr(0, options.function.find('<'));
  std::istringstream lines{std::string(error.log())};
  std::string first;
  int errors = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("error: ") == line.npos) continue;
    if (errors++ == 0) first = line;
    // The line after the file's text names the kernel. If the first error is there, the text has no fault, and the
    // kernel is missing.
    const bool ours = line.find("metal_stdlib:") != line.npos;
    if (errors == 1 && ours && line.ends_with(fmt::format("no member named '{}' in the global namespace", name))) {
      return fmt::format("{} has no kernel {}", options.file, name);
    }
  }
  if (first.empty()) first = first_line(std::string(error.log()));
  const std::string more = errors > 1 ? fmt::format(" (and {} more; --messages prints all)", errors - 1) : "";
  return fmt::format("{} does not compile: {}{}", options.file, first, more);
}

int check(const Options& options) {
  std::error_code error;
  const auto status = std::filesystem::status(options.file, error);
  if (exists(status) && !is_regular_file(status)) {  // a device or a pipe may have no end
    throw BadInput(fmt::format("{} is no regular file", options.file));
  }
  msl::Source source{.path = options.file, .function = options.function, .folders = options.folders};
  if (options.math != "fast" && options.math != "safe") {
    throw BadInput(fmt::format("--math {}: not allowed; allowed are fast, safe", options.math));
  }
  source.fast_math = options.math == "fast";
  constexpr std::pair<const char*, int> languages[] = {{"3.0", 300}, {"3.1", 310}, {"3.2", msl::newest_language}};
  const auto* const language =
      std::ranges::find_if(languages, [&](const auto& known) { return options.language == known.first; });
  if (language == std::end(languages)) {
    throw BadInput(fmt::format("--language {}: not allowed; allowed are 3.0, 3.1, 3.2", options.language));
  }
  source.language = language->second;
  for (const std::string& constant : options.constants) {
    const size_t at = constant.find('=');
    if (at == std::string::npos) throw BadInput(fmt::format("--constant {}: it must be NAME=VALUE", constant));
    source.constants[constant.substr(0, at)] =
        parse_number("--constant", constant.substr(at + 1), std::numeric_limits<double>::lowest(),
                     std::numeric_limits<double>::max());
  }
  for (const std::string& declared : options.declared) {
    const size_t at = declared.find('=');
    if (at == std::string::npos) throw BadInput(fmt::format("--declare {}: it must be NAME=VALUE", declared));
    const int value = parse_number<int>("--declare", declared.substr(at + 1), INT32_MIN, INT32_MAX);
    source.before +=
        fmt::format("constexpr constant int {0} = {1};\n#define {0}_VALUE ({1})\n", declared.substr(0, at), value);
  }
  msl::Run run{.grid = grid("--grid", options.grid), .threads = grid("--threads", options.threads)};
  const auto* const gpu =
      std::ranges::find_if(msl::generations, [&](const char* known) { return options.gpu == known; });
  if (gpu == std::end(msl::generations)) {
    throw BadInput(
        fmt::format("--gpu {}: not allowed; allowed are {}", options.gpu, fmt::join(msl::generations, ", ")));
  }
  run.generation = static_cast<msl::Generation>(gpu - std::begin(msl::generations));
  std::map<uint32_t, std::vector<std::byte>> given, first;
  for (const std::string& text : options.buffers) {
    const auto [index, rest] = numbered("--buffer", text);
    if (given.contains(index)) throw BadInput(fmt::format("--buffer {} is given twice", index));
    given[index] = contents(rest, options.seed + index);
  }
  for (const std::string& text : options.threadgroup) {
    const auto [index, bytes] = numbered("--threadgroup", text);
    run.threadgroup_bytes[index] = count("--threadgroup", bytes);
  }
  const msl::Kernel kernel(msl::Compiler().compile(source));

  // A gap between buffers, so that an access beyond the end of a buffer does not hit the next buffer.
  constexpr size_t gap = 65536;
  size_t all = gap;
  for (const auto& [index, bytes] : given) all += (bytes.size() + 255) / 256 * 256 + gap;
  std::vector<std::byte> memory(all + 256);
  for (uint32_t order = 0; order < options.orders; ++order) {
    run.order = order;
    run.buffers.clear();
    run.memory.clear();
    auto* at = memory.data() + gap;
    at += (256 - reinterpret_cast<uintptr_t>(at) % 256) % 256;
    for (const auto& [index, bytes] : given) {
      std::copy(bytes.begin(), bytes.end(), at);
      run.buffers[index] = at;
      run.memory.push_back({fmt::format("buffer {}", index), at, bytes.size()});
      at += (bytes.size() + 255) / 256 * 256 + gap;
    }
    kernel.run(run);
    for (const auto& [index, bytes] : given) {
      const auto* const begin = static_cast<const std::byte*>(run.buffers[index]);
      const std::vector<std::byte> result(begin, begin + bytes.size());
      if (order == 0) {
        first[index] = result;
      } else if (result != first[index]) {
        fmt::print(stderr, "{}: buffer {} has other bits in order {} than in order 0\n", options.file, index, order);
        return 1;
      }
    }
  }
  if (!options.print.empty()) print(options.print, first);
  fmt::print(stderr, "{}: {} has no fault, and the same results in {} orders\n", options.file, options.function,
             options.orders);
  if (std::fflush(stdout) != 0) throw std::runtime_error("stdout cannot be written");
  return 0;
}

int checked(const Options& options) {
  try {
    return check(options);
  } catch (const DeviceFault& fault) {
    fmt::print(stderr, "{}: {}\n", options.file, fault.what());
    return 1;
  } catch (const CompileError& error) {
    fmt::print(stderr, "msl_check: {}\n", options.messages ? std::string(error.what()) : first_error(error, options));
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "msl_check: {}\n", error.what());
    return 2;
  }
}

/// Checks the kernel in a process of its own, because a loop or a recursion of the kernel may have no end.
int check_in_process(const Options& options) {
  const pid_t parent = getpid(), child = fork();
  if (child < 0) {
    fmt::print(stderr, "msl_check: no process can be started: {}\n", strerror(errno));
    return 2;
  }
  if (child == 0) {
    end_with_parent();
    if (getppid() != parent) _exit(2);
    const rlimit no_core{0, 0}, most{options.seconds, options.seconds + 1};
    setrlimit(RLIMIT_CORE, &no_core);
    setrlimit(RLIMIT_CPU, &most);
    std::exit(checked(options));
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  const int signal = WTERMSIG(status);
  if (signal == SIGXCPU) {
    fmt::print(stderr, "{}: limits: {} takes more than {} s; --seconds allows more\n", options.file, options.function,
               options.seconds);
  } else {
    fmt::print(stderr, "{}: {} was ended by signal {} ({}){}\n", options.file, options.function, signal,
               strsignal(signal), signal == SIGSEGV ? "; a recursion without end has this effect" : "");
  }
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Runs a kernel of Metal on the host and checks each access to memory.", "msl_check");
  add_help_and_version(app);
  app.add_option("FILE", options.file, "the kernel's file")->required();
  app.add_option("FUNCTION", options.function, "the kernel, or an instance of a template: 'attention<float, 64>'")
      ->required();
  app.add_option("--grid", options.grid, "threadgroups: X, X,Y or X,Y,Z")->capture_default_str();
  app.add_option("--threads", options.threads, "threads of a threadgroup")->capture_default_str();
  app.add_option(
      "--buffer", options.buffers,
      "[[buffer(N)]]: N=TYPE:random|zero|nan|index:COUNT, or N=TYPE:VALUE,VALUE,...; '+' joins several parts");
  app.add_option("--threadgroup", options.threadgroup, "N=BYTES, for a parameter [[threadgroup(N)]]");
  app.add_option("--constant", options.constants, "NAME=VALUE, for a variable with [[function_constant(n)]]");
  app.add_option("--declare", options.declared, "NAME=VALUE, an int that the text uses and does not declare");
  app.add_option("--include", options.folders, "a folder in which #include looks");
  app.add_option("--math", options.math, "fast, or safe: infinity and NaN are allowed")->capture_default_str();
  app.add_option("--language", options.language, "the version of Metal's language: 3.0, 3.1 or 3.2; default 3.2");
  app.add_option(
         "--gpu", options.gpu,
         "m1: the M1 to the M4; other_fragments: another order of matrix elements in the lanes; tf32: products of "
         "float matrices round to TF32")
      ->capture_default_str();
  number_option<uint32_t, uint32_t>(app, "--orders", options.orders, 1, 1'000'000, "N",
                                    "in how many orders of its threads the kernel runs; default 6");
  number_option<uint32_t, uint32_t>(app, "--seed", options.seed, 0, UINT32_MAX, "N",
                                    "the seed of random numbers; default 1");
  app.add_option("--print", options.print, "N=f32|f16|i32|u32: prints a buffer after the first order");
  number_option<uint32_t, uint32_t>(app, "--seconds", options.seconds, 1, 1'000'000, "SECONDS",
                                    "the most processor time; default 60");
  app.add_flag("--messages", options.messages, "prints all that the compiler says, not only the first error");
  app.footer(
      "Exit status: 0 no fault; 1 a fault, a kernel without an end, or results that depend on the order; 2 bad "
      "arguments, or a kernel that does not compile.");
  return run_program("msl_check", [&] { return parse_command_line(app, argc, argv) ? check_in_process(options) : 0; });
}
