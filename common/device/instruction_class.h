// The classes of an instruction of machine code, from its text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace attn {

/// `text` is an x86 instruction as LLVM prints it in AT&T's syntax, "\tvfmadd231ps\t(%rax){1to16}, %zmm1, %zmm2". The
/// classes are "multiply_add", "matrix", "call", "branch", and "load_N" or "store_N", where N is the bytes of the
/// operand in memory. A multiply-add that reads memory has two classes; most instructions have no class.
std::vector<std::string> x86_classes(std::string_view text);

/// `text` is an AArch64 instruction as LLVM prints it, "\tfmla\tv0.4s, v1.4s, v2.s[0]". The classes are x86's. A
/// product of matrices is a multiply-add, too, because it takes vector registers. A pair of loads, or a load of several
/// registers, counts as one load of all its bytes.
std::vector<std::string> aarch64_classes(std::string_view text);

/// Returns at most one class of an instruction of SASS (machine code of an NVIDIA GPU). `name` has the modifiers but no
/// operands: "LDG.E.128". SASS has three classes that x86 lacks: "exponential" (MUFU.EX2), and "load_tile" and
/// "store_tile" (copies by tensor maps).
std::vector<std::string> sass_classes(std::string_view name);

}  // namespace attn
