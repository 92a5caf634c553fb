// What the main() functions of programs share: the standard streams, and the exit status for each kind of error.
#pragma once

#include <functional>
#include <string>

namespace attn {

/// Runs the body of a program, and returns the program's exit status: what `body` returns; 2 after BadInput; 3 after
/// DeviceMissing; 1 after another exception, or if a text for stdout was lost. An error is one line on stderr, which
/// begins with the program's name.
int run_program(const std::string& name, const std::function<int()>& body);

}  // namespace attn
