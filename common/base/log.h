// The logger for warnings. A program uses spdlog's default logger. A library that other programs load sets another
// logger, because the terminal and spdlog's default logger belong to those programs.
#pragma once

#include <spdlog/logger.h>

#include <memory>
#include <string>

namespace attn {

/// The logger of set_logger(), else spdlog's default logger.
std::shared_ptr<spdlog::logger> logger();
void set_logger(std::shared_ptr<spdlog::logger> other);

/// A logger that appends to a file. The logger creates the file with its first message; if it cannot create the file,
/// messages are lost.
std::shared_ptr<spdlog::logger> file_logger(const std::string& path);

}  // namespace attn
