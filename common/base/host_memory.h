// The memory that this process can still get.
#pragma once

#include <filesystem>

namespace attn {

/// Returns how many more bytes of memory this process can use without swapping. The limits of its control groups
/// (version 1 or 2) and of `ulimit -v` count, too. Returns infinity if the system reports neither memory nor limits.
/// Most memory that holds cached files counts as free. `root` is the folder that has the folders proc and sys.
double available_host_bytes(const std::filesystem::path& root = "/");

}  // namespace attn
