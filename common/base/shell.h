// Command lines as text.
#pragma once

#include <string>
#include <vector>

namespace attn {

/// A command line as a POSIX shell reads it back.
std::string shell_command(const std::vector<std::string>& arguments);

}  // namespace attn
