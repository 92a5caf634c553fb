// The text of a kernel as Metal's compiler gets it.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "common/source/kernel_source.h"

namespace attn {

/// Returns the lines that declare the kernel's constants, to stand before the kernel's text. In Metal, a constant
/// outside of functions must be in the constant address space. A constant of KernelSource::run_time gets the text that
/// `declare` returns for its name.
std::string metal_constants(const KernelSource& source,
                            const std::function<std::string(const std::string& name)>& declare);

/// Returns the whole text for a compiler that opens no files. The constants in KernelSource::run_time are Metal's
/// function constants, with the numbers 0, 1, ... in the order of their names.
std::string metal_text(const KernelSource& source);

/// Whether the functions of KernelSource::fragments are called through a table.
bool has_function_table(const std::string& metal_text);

/// The name of the function that the device makes of a kernel's fragments with a stitching graph, if the fragments are
/// [[stitchable]] and linked before the optimiser. The kernel declares the function [[visible]]. Each fragment gets the
/// result of the fragment before as its first argument, and the function's other arguments as they are.
inline constexpr const char* stitched_function = "stitched_function";

/// Returns the number of parameters of the function `entry`; 0 if the text does not define it as [[stitchable]].
size_t stitchable_parameters(const std::string& metal_text, const std::string& entry);

/// Returns the version of Metal's language that the kernel is written for, as __METAL_VERSION__ names it: 310 or 320.
int metal_language(const KernelSource& source);

}  // namespace attn
