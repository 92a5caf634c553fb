// The memory that this process can still get.
#pragma once

#include <filesystem>

namespace attn {

/// Returns the bytes of memory that this process can use in addition to the memory that it has, without swapping and
/// within the limits of its control groups (version 1 or 2) and of `ulimit -v`. Returns infinity if the system does not
/// report the memory. Most memory that holds cached files counts as free. `root` is the folder with /proc and /sys.
double available_host_bytes(const std::filesystem::path& root = "/");

}  // namespace attn
