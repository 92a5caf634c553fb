// Command lines as text.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace attn {

/// Returns a command line that a POSIX shell splits into these arguments.
std::string shell_command(const std::vector<std::string>& arguments);

/// Returns a label and the command line of these arguments: as one line, if this line has at most `width` characters.
/// Else the label stands on its own line, and the command line is broken between arguments. Each line before a break
/// ends with a backslash, so that a POSIX shell reads the lines as one command. An argument that is longer than `width`
/// is not broken.
std::string labelled_command(const std::string& label, const std::vector<std::string>& arguments, size_t width);

}  // namespace attn
