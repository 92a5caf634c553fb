// Runs other programs.
#pragma once

#include <string>
#include <vector>

namespace attn {

struct ProcessResult {
  int status = 0;      // exit status; 128 + the number of the signal that ended the program; 127: no such program
  std::string output;  // the text of stdout and stderr together
};

/// Runs a program and waits for it. Throws std::runtime_error if the system cannot start a process.
ProcessResult run_process(const std::vector<std::string>& arguments);

}  // namespace attn
