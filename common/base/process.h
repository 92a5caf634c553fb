// Other programs.
#pragma once

#include <string>
#include <vector>

namespace attn {

struct ProcessResult {
  int status = 0;      // of exit; 128 and the signal's number where one ended it; 127 where there is no such program
  std::string output;  // of stdout and stderr together
};

/// Runs a program and waits for it. Throws std::runtime_error where the system starts none.
ProcessResult run_process(const std::vector<std::string>& arguments);

}  // namespace attn
