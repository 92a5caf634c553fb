// The logger for warnings. A program uses spdlog's default logger. A library that other programs load sets another
// logger, because the terminal and spdlog's default logger belong to those programs.
#pragma once

#include <spdlog/logger.h>

#include <memory>
#include <string>

namespace attn {

/// Returns the logger that set_logger() has set. If there is none, returns spdlog's default logger.
std::shared_ptr<spdlog::logger> logger();
void set_logger(std::shared_ptr<spdlog::logger> other);

/// Returns a logger that appends to a file. The logger creates the file with its first message. If the logger cannot
/// create the file, messages are lost.
std::shared_ptr<spdlog::logger> file_logger(const std::string& path);

}  // namespace attn
