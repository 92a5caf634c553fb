// The project's version, which the file VERSION holds.
#pragma once

#include <string>

namespace attn {

/// "0.2.0", for example.
std::string version();

}  // namespace attn
