// The Python interpreter for the programs that generate code.
#pragma once

#include <cstdint>
#include <string>

namespace attn {

/// Returns $ATTENTION_PROTO_PYTHON if this variable is set and not empty. Else returns the Python of .venv under the
/// source root, where scripts/tools/venv puts packages. If there is none, returns python3.
std::string python();

/// Returns the version of a Python package, major * 10000 + minor * 100 + patch. Returns 0 if the package or Python is
/// missing, or if the version does not begin with three numbers. A process asks Python only once for each package.
int64_t python_package(const std::string& name);

}  // namespace attn
