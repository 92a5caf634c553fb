// Command lines as text.
#pragma once

#include <string>
#include <vector>

namespace attn {

/// Returns a command line that a POSIX shell splits into these arguments.
std::string shell_command(const std::vector<std::string>& arguments);

}  // namespace attn
