// The Python interpreter for the programs that generate code.
#pragma once

#include <cstdint>
#include <string>

namespace attn {

/// Returns $ATTENTION_PROTO_PYTHON if this variable is set and not empty, else the Python of .venv under the source
/// root, where scripts/tools/venv puts packages, or python3 if there is no .venv.
std::string python();

/// Returns the version of a Python package, major * 10000 + minor * 100 + patch; 0 if the package or Python is missing,
/// or if the version does not begin with three numbers. A process asks Python once for each package.
int64_t python_package(const std::string& name);

}  // namespace attn
