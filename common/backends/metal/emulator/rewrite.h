// Rewrites a text in Metal's language so that clang reads it as C++. Line numbers stay the same.
#pragma once

#include <string>
#include <string_view>

namespace attn::msl {

/// Returns the text with these changes:
/// - A Metal attribute becomes an annotation that clang keeps: [[buffer(0)]] becomes [[clang::annotate("buffer", 0)]].
///   But function_constant(NAME) of a parameter is left out: the emulator always passes the parameter. A kernel's
///   pointer or reference without an attribute gets [[clang::annotate("buffer", -1)]], or "threadgroup": the compiler
///   chooses its location.
/// - A cast to a vector, to a small matrix or to a type parameter of a template becomes msl_cast<T>(x).
/// - A variable that a function declares in threadgroup memory becomes static, because all threads of a threadgroup
///   share the variable.
/// - A parameter `constant int a[2]` becomes `constant int* a`.
/// - A member function that is only for objects in device, constant or threadgroup memory, such as `int f() device`, is
///   left out.
/// - A variable in the constant address space with a first value becomes const, or constexpr if its first value
///   consists of numbers and of such variables. So it is a constant expression, as in Metal.
/// - coherent(device) and coherent(system) become msl_coherent, which metal_stdlib defines as volatile. The word
///   `volatile` is left out, so that no other access is volatile. `long long` becomes msl_long_long.
/// - A literal such as 1.0h becomes 1.0f16. The attribute of an instance, as in template [[host_name("k")]] kernel ...,
///   is left out.
std::string as_cxx(std::string_view text);

}  // namespace attn::msl
