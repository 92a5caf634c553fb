// The Python interpreter for the programs that generate code.
#pragma once

#include <cstdint>
#include <string>

namespace attn {

/// Returns $ATTENTION_PROTO_PYTHON if this variable is set and not empty. Else returns the Python of .venv under the
/// source root, where scripts/tools/venv puts packages. If there is no .venv, returns python3.
std::string python();

/// Returns the version of a Python package, major * 10000 + minor * 100 + patch; 0 if the package is missing. A process
/// asks Python only once for each package.
int64_t python_package(const std::string& name);

}  // namespace attn
