#include "common/backends/cuda/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/log.h"

namespace attn {

namespace {

// Returns the number before the first `unit` that follows `after` in the log, or -1 if there is no such text.
double number_before(const std::string& log, const std::string& after, const std::string& unit) {
  const size_t start = log.find(after);
  const size_t end = start == std::string::npos ? start : log.find(unit, start);
  if (end == std::string::npos) return -1;
  const size_t begin = log.find_last_not_of("0123456789.", end - 1) + 1;
  return std::strtod(log.c_str() + begin, nullptr);
}

std::string compiling(const std::string& entry) { return fmt::format("Compiling entry function '{}'", entry); }

}  // namespace

void warn_about(const std::string& log, const std::string& key) {
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    const bool is_warning = line.starts_with("ptxas") && line.find("warning") != std::string::npos;
    if (is_warning || line.find("Potential Performance Loss") != std::string::npos) logger()->warn("{}: {}", key, line);
  }
}

bool reports_entry(const std::string& log, const std::string& entry) {
  return log.find(compiling(entry)) != std::string::npos;
}

// What ptxas reports about the entry (--ptxas-options=-v):
//   Compiling entry function 'run' for 'sm_90a'
//   Function properties for run
//   .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
//   Used 10 registers, used 1 barriers, 256 bytes smem
// What the linker reports, if the entry was linked with functions that use more registers than the entry:
//   Function properties for 'run':
//   used 24 registers, used 0 barriers, 0 stack, 0 bytes smem, ...
void read_report(const std::string& log, const std::string& entry, Binary& binary) {
  const std::string start = compiling(entry);
  const std::string properties = fmt::format("Function properties for {}\n", entry);
  const std::string linked = fmt::format("Function properties for '{}'", entry);
  binary.registers =
      static_cast<int>(std::max(number_before(log, start, " registers"), number_before(log, linked, " registers")));
  binary.spill_bytes = static_cast<int64_t>(std::max(number_before(log, properties, " bytes spill stores"),
                                                     number_before(log, properties, " bytes spill loads")));
  const size_t used = log.find("Used ", std::min(log.find(start), log.size()));
  const std::string line = used == std::string::npos ? "" : log.substr(used, log.find('\n', used) - used);
  binary.threadgroup_bytes = static_cast<int64_t>(std::max(0.0, number_before(line, "", " bytes smem")));
}

double assembler_seconds(const std::string& log) {
  return std::max(0.0, number_before(log, "Compile time", " ms")) / 1e3;
}

std::optional<CompileTimes> read_trace(const std::string& path) {
  CompileTimes times;
  const Json trace = parse_json(read_file(path).value_or(""), false);
  if (!trace.is_object() || !trace.contains("traceEvents")) return std::nullopt;
  for (const Json& event : trace["traceEvents"]) {
    if (!event.is_object() || !event.contains("name") || !event.contains("dur")) continue;
    const double seconds = event["dur"].get<double>() * 1e-6;
    const Json& name = event["name"];
    if (name == "NVVM Optimizer") times.optimizer_s += seconds;
    if (name == "NVVM CodeGen" || name == "Total PTXAS Time") times.code_generation_s += seconds;
  }
  return times.optimizer_s > 0 && times.code_generation_s > 0 ? std::optional(times) : std::nullopt;
}

}  // namespace attn
