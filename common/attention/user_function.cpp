#include "common/attention/user_function.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "common/attention/function_text.h"
#include "common/base/sha256.h"
#include "common/source/kernel_source.h"

namespace attn {
namespace {

// The names that math_double.h defines as macros. math.h defines only the first of them, and not in Metal.
constexpr std::array provided = {"INFINITY", "fabsf", "fminf", "fmaxf", "sqrtf",
                                 "logf",     "exp2f", "expf",  "tanhf", "float"};

/// The namespace of a user's text. The text cannot name the namespace, because the name has the text's hash.
std::string scope_of(const UserFunction& function) {
  return users_namespace + sha256(fmt::format("{} {}", static_cast<int>(function.kind), function.text)).substr(0, 12);
}

/// Returns the name of a file as a #line can have it, in which a quote would end the name, and a backslash would begin
/// an escape.
std::string shown_name(std::string name) {
  std::replace_if(name.begin(), name.end(), [](char c) { return c == '"' || c == '\\' || c == '\n'; }, '_');
  return name;
}

// ---- a user's file

// What a text may name in addition to the functions of math.h.
constexpr const char* context_types = R"(struct ScoreContext {
  int batch, head, q_heads, q_len, kv_len;
};
#ifdef __METAL_VERSION__
#define ScoreContext thread ScoreContext
#endif
)";
constexpr const char* mask_types = R"(using MaskContext = ScoreContext;
struct KeyRange {
  int begin, end;
};
)";

// Adapters. An adapter stands after a user's text, in its namespace. Kernels call a user's function with a context as
// the last argument. If the function has no parameter for the context, an overload in the adapter takes the call.
// Otherwise the compiler ignores the overload. An adapter is one line, so that a message about it has the number of the
// last line of the user's file. {0} stands for the namespace, {1} for the type of numbers.
constexpr const char* score_adapter =
    "template <typename S, typename C> auto score(S s, int q, int k, const C&) -> decltype(score(s, q, k)) "
    "{{ return score(s, q, k); }} "
    "inline {1} {0}_score({1} s, int q, int k, const ScoreContext& c) {{ return score(s, q, k, c); }}";
constexpr const char* mask_adapter =
    "template <typename Q, typename C> auto visible(Q q, int k, const C&) -> decltype(visible(q, k)) "
    "{{ return visible(q, k); }} "
    "inline bool {0}_visible(int q, int k, const ScoreContext& c) {{ return visible(q, k, c); }} "
    "template <typename Q, typename C> auto keys(Q q, const C&) -> decltype(keys(q)) {{ return keys(q); }} "
    "template <typename C> constexpr bool {0}_has_keys() {{ return requires(const C& c) {{ keys(0, c); }}; }} "
    "template <typename C> KeyRange {0}_keys(int q, const C& c) "
    "{{ if constexpr ({0}_has_keys<C>()) return keys(q, c); else return {{0, c.kv_len}}; }}";
constexpr const char* feature_adapter = "inline {1} {0}_feature({1} x) {{ return feature(x); }}";

// The texts by which kernels call the functions.
constexpr const char* score_calls = R"(inline {1} score({1} s, int q, int k, const ScoreContext& c) {{
  return {0}::{0}_score(s, q, k, {{c.batch, c.head, c.q_heads, c.q_len, c.kv_len}});
}}
)";
constexpr const char* mask_calls = R"(inline bool visible(int q, int k, const ScoreContext& c) {{
  return {0}::{0}_visible(q, k, {{c.batch, c.head, c.q_heads, c.q_len, c.kv_len}});
}}
template <typename Context>
constexpr CONSTANT bool has_bound = {0}::{0}_has_keys<{0}::ScoreContext>();
inline KeyRange bound_of(int q, const ScoreContext& c) {{
  const auto bound = {0}::{0}_keys(q, {0}::ScoreContext{{c.batch, c.head, c.q_heads, c.q_len, c.kv_len}});
  return {{bound.begin, bound.end}};
}}
)";
constexpr const char* feature_calls = "inline {1} feature({1} x) {{ return {0}::{0}_feature(x); }}\n";

// What stands around users' texts. A kernel's loop with a call would not become vector code, so all functions are
// inlined. On the cpu the compiler contracts products and sums only within one expression of the text, so a function
// gives the same bits in every kernel. Warnings that mean faulty code become errors: among them is a variable that
// would get its value before the kernel runs, which nothing does. clang's other warnings are off. For NVRTC the errors
// are 549, a variable used before it is set, and 940, a function without a return; NVRTC has no warning of endless
// recursion. 161 is an unknown pragma, 177 an unused name.
constexpr const char* opening = R"(#ifdef __METAL_VERSION__
#include <metal_stdlib>
#endif
#ifdef __clang__
#pragma clang attribute push(__attribute__((always_inline)), apply_to = function)
#ifndef __METAL_VERSION__
#pragma clang fp contract(on)
#endif
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Weverything"
#pragma clang diagnostic error "-Wreturn-type"
#pragma clang diagnostic error "-Wuninitialized"
#pragma clang diagnostic error "-Winfinite-recursion"
#pragma clang diagnostic error "-Wglobal-constructors"
#define INLINE inline __attribute__((always_inline))
#endif
#ifdef __CUDACC_RTC__
#pragma nv_diagnostic push
#pragma nv_diag_suppress 161, 177
#pragma nv_diag_error 549, 940
#endif
)";
constexpr const char* closing = R"(#ifdef __METAL_VERSION__
#undef ScoreContext
#endif
#ifdef __clang__
#pragma clang diagnostic pop
#ifndef __METAL_VERSION__
#pragma clang fp contract(fast)
#endif
#pragma clang attribute pop
#endif
#ifdef __CUDACC_RTC__
#pragma nv_diagnostic pop
#endif
)";

/// Returns the lines before a user's text, so that the lines after it can restore what its macros change. NVRTC knows
/// no #pragma push_macro. So the text may not change a macro that NVRTC has defined.
std::string before_macros(const std::vector<MacroName>& macros, const std::string& shown) {
  std::string lines, checks;
  for (const auto& [name, line] : macros) {
    lines += fmt::format("#pragma push_macro(\"{}\")\n", name);
    if (std::ranges::find(provided, name) != provided.end()) continue;
    checks += fmt::format(
        "#ifdef {0}\n#line {1} \"{2}\"\n#error {0} is a macro of the compiler, which the file may not change\n#endif\n",
        name, line, shown);
  }
  return lines + "#ifdef __CUDACC_RTC__\n" + checks + "#endif\n";
}

std::string after_macros(const std::vector<MacroName>& macros, bool in_double) {
  std::string lines;
  for (const auto& [name, line] : macros) lines += fmt::format("#undef {0}\n#pragma pop_macro(\"{0}\")\n", name);
  lines += "#ifndef __METAL_VERSION__\n";
  for (size_t i = 0; i < (in_double ? provided.size() : 1); ++i) lines += fmt::format("#undef {}\n", provided[i]);
  return lines + "#endif\n";
}

/// Returns the text of a user's file in a namespace of its own. Only the namespace is left of it.
std::string apart(const UserFunction& function, bool in_double) {
  const std::string scope = scope_of(function), shown = shown_name(function.name);
  const std::string text = with_plain_lines(function.text);
  const std::vector<MacroName> macros = macros_of(text);
  const auto last_line = 1 + std::count(text.begin(), text.end(), '\n') - text.ends_with('\n');
  const std::string at_end = fmt::format("#line {} \"{}\"\n", last_line, shown);
  const bool feature = function.kind == FunctionKind::feature, mask = function.kind == FunctionKind::mask;
  std::string all = opening;
  // NAME_is_open() says whether the text ends in the namespace in which it begins. A text that closes the namespace, or
  // opens a scope that it does not close, reaches the wrong function of this name.
  all += fmt::format("namespace {{\nconstexpr bool {0}_is_open() {{ return false; }}\nnamespace {0} {{\n", scope);
  all += fmt::format("constexpr bool {}_is_open() {{ return true; }}\n#include \"common/kernel/{}.h\"\n#undef INLINE\n",
                     scope, in_double ? "math_double" : "math");
  if (!feature) all += context_types;
  if (mask) all += mask_types;
  all += before_macros(macros, shown);
  all += fmt::format("#line 1 \"{}\"\n{}\n\n", shown, text);  // two line ends, because the text may end in a backslash
  all += after_macros(macros, in_double) + at_end;
  all +=
      fmt::format("static_assert({}_is_open(), \"the file closes a scope that it did not open\");\n", scope) + at_end;
  all += fmt::format(fmt::runtime(mask      ? mask_adapter
                                  : feature ? feature_adapter
                                            : score_adapter),
                     scope, in_double ? "double" : "float");
  all +=
      fmt::format("\n{0}}}\n{0}static_assert(!{1}_is_open(), \"the file opens a scope that it does not close\");\n}}\n",
                  at_end, scope);
  return all + closing;
}

std::string calls_of(const UserFunction& function, bool in_double) {
  const char* const calls = function.kind == FunctionKind::mask      ? mask_calls
                            : function.kind == FunctionKind::feature ? feature_calls
                                                                     : score_calls;
  return fmt::format(fmt::runtime(calls), scope_of(function), in_double ? "double" : "float");
}

}  // namespace

std::string UserFunction::header(bool in_double) const {
  if (guarded) return apart(*this, in_double);
  // Few functions use all their arguments, so the warning about unused arguments is off.
  return fmt::format(
      "#include \"common/kernel/{}.h\"\n{}#ifdef __clang__\n#pragma clang diagnostic push\n#pragma clang diagnostic "
      "ignored \"-Wunused-parameter\"\n#endif\n#line 1 \"{}\"\n{}\n#ifdef __clang__\n#pragma clang diagnostic "
      "pop\n#endif\n",
      in_double ? "math_double" : "math", work < 0 ? "" : fmt::format("#define WORK {}\n", work), shown_name(name),
      text);
}

void UserFunction::add_to(std::map<std::string, std::string>& includes, const std::string& place,
                          bool in_double) const {
  if (guarded) includes[users_text] += header(in_double);
  includes[place] = guarded ? calls_of(*this, in_double) : header(in_double);
}

std::string UserFunction::text_name() const { return "file-" + sha256(text).substr(0, 12); }

}  // namespace attn
