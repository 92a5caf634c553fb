// Reads the assembler's (ptxas) log and NVRTC's trace of a compilation.
#pragma once

#include <optional>
#include <string>

#include "common/source/binary.h"

namespace attn {

/// Logs the assembler's warnings, and the messages in which the assembler says that matrix products do not overlap
/// other work.
void warn_about(const std::string& log, const std::string& key);

/// Whether the log says that the assembler compiled the entry.
bool reports_entry(const std::string& log, const std::string& entry);

/// Reads registers, spills and threadgroup memory of the entry into `binary`.
void read_report(const std::string& log, const std::string& entry, Binary& binary);

/// Returns the assembler's time; 0 if the log does not have it.
double assembler_seconds(const std::string& log);

/// Returns the times of the optimizer and of code generation from the trace in the file `path`, or nothing if the trace
/// does not have them. NVRTC writes the trace (--fdevice-time-trace). Its events have the format of Chromium's trace
/// viewer, in microseconds. CudaCompiler counts the rest of the compilation's time, NVRTC's own work included, as the
/// front end's time.
std::optional<CompileTimes> read_trace(const std::string& path);

}  // namespace attn
