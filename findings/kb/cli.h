// The command line of kb.
#pragma once

namespace attn::kb {

/// Runs the command line. Prints an error as one line on stderr. Returns the exit status. 0: done. 1: the command
/// found bad lines, problems or a regression, or the command failed. 2: bad input. 130: interrupted.
int run_kb(int argc, const char* const* argv);

}  // namespace attn::kb
