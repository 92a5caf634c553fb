// The command line of kb.
#pragma once

namespace attn::kb {

/// Does what the command line says; errors become one line on stderr and an exit status: 0 done; 1 bad lines, problems
/// or a regression were found, or something failed; 2 bad input; 130 interrupted.
int run_kb(int argc, const char* const* argv);

}  // namespace attn::kb
