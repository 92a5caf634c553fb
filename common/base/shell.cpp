#include "common/base/shell.h"

#include <string_view>

namespace attn {

std::string shell_command(const std::vector<std::string>& arguments) {
  constexpr std::string_view plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%";
  std::string command;
  for (const std::string& argument : arguments) {
    if (!command.empty()) command += ' ';
    if (!argument.empty() && argument.find_first_not_of(plain) == std::string::npos) {
      command += argument;
      continue;
    }
    command += '\'';
    for (const char c : argument) command += c == '\'' ? "'\\''" : std::string(1, c);
    command += '\'';
  }
  return command;
}

}  // namespace attn
