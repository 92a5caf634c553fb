// What the assembler (ptxas) and NVRTC's trace tell of a compilation.
#pragma once

#include <optional>
#include <string>

#include "common/source/binary.h"

namespace attn {

/// Logs what the assembler warns of, and where it gave up overlapping matrix products with anything.
void warn_of(const std::string& log, const std::string& key);

/// Whether the assembler has seen the entry.
bool reports_entry(const std::string& log, const std::string& entry);

/// Registers, spills and threadgroup memory of the entry.
void read_report(const std::string& log, const std::string& entry, Binary& binary);

/// The assembler's time; 0 where the log does not tell it.
double assembler_seconds(const std::string& log);

/// The phases that a trace tells (--fdevice-time-trace; events as of Chromium's trace viewer, in microseconds). What is
/// not among them, NVRTC's own work, is left to the front end by CudaCompiler. Nothing where it does not tell them.
std::optional<CompileTimes> read_trace(const std::string& path);

}  // namespace attn
