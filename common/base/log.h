// Where warnings go. A program has spdlog's own logger; a library that other programs load names another, since the
// terminal and spdlog's logger are theirs.
#pragma once

#include <spdlog/logger.h>

#include <memory>
#include <string>

namespace attn {

/// What set_logger() named, else spdlog's default logger.
std::shared_ptr<spdlog::logger> logger();
void set_logger(std::shared_ptr<spdlog::logger> other);

/// A logger that appends to a file, which it makes with its first message; where it cannot, messages are lost.
std::shared_ptr<spdlog::logger> file_logger(const std::string& path);

}  // namespace attn
