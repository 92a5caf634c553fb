#include "common/base/process.h"

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <stdexcept>

#include "common/base/shell.h"

namespace attn {

ProcessResult run_process(const std::vector<std::string>& arguments) {
  FILE* const pipe = popen((shell_command(arguments) + " 2>&1").c_str(), "r");
  if (!pipe) throw std::runtime_error("no process can be started for " + arguments.front());
  ProcessResult result;
  std::array<char, 4096> part{};
  while (const size_t read = fread(part.data(), 1, part.size(), pipe)) result.output.append(part.data(), read);
  const int status = pclose(pipe);
  constexpr int signalled = 128;  // added to a signal's number, as in shells
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : signalled + WTERMSIG(status);
  return result;
}

}  // namespace attn
