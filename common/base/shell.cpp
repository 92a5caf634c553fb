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

std::string labelled_command(const std::string& label, const std::vector<std::string>& arguments, size_t width) {
  std::string whole = label + shell_command(arguments) + "\n";
  if (whole.size() <= width + 1) return whole;
  constexpr std::string_view continued = " \\";
  std::string text = label.substr(0, label.find_last_not_of(' ') + 1) + "\n", line = " ";
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string word = ' ' + shell_command({arguments[i]});
    const size_t after = i + 1 < arguments.size() ? continued.size() : 0;
    if (line != " " && line.size() + word.size() + after > width) {
      text.append(line).append(continued).append("\n");
      line = "   ";
    }
    line += word;
  }
  return text + line + "\n";
}

}  // namespace attn
