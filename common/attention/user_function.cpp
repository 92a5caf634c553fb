#include "common/attention/user_function.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/sha256.h"

namespace attn {
namespace {

// Adapters. An adapter stands after a user's text. Kernels call a user's function with a context as the last argument.
// If the function has no parameter for the context, an overload in the adapter takes the call. Otherwise the compiler
// ignores the overload.
constexpr const char* score_adapter = R"(
template <typename S, typename Context>
auto score(S s, int q, int k, const Context&) -> decltype(score(s, q, k)) {
  return score(s, q, k);
}
)";
constexpr const char* mask_adapter = R"(
template <typename Q, typename Context>
auto visible(Q q, int k, const Context&) -> decltype(visible(q, k)) {
  return visible(q, k);
}
template <typename Q, typename Context>
auto keys(Q q, const Context&) -> decltype(keys(q)) {
  return keys(q);
}
template <typename Context>
constexpr bool has_bound = requires(const Context& context) { keys(0, context); };
template <typename Context>
KeyRange bound_of(int q, const Context& context) {
  if constexpr (has_bound<Context>) {
    return keys(q, context);
  } else {
    return {0, context.kv_len};
  }
}
)";

}  // namespace

std::string UserFunction::header(bool in_double) const {
  // In a #line, a quote would end the name, and a backslash would begin an escape.
  std::string shown = name;
  std::replace_if(shown.begin(), shown.end(), [](char c) { return c == '"' || c == '\\' || c == '\n'; }, '_');
  // Few functions use all their arguments, so the warning about unused arguments is off.
  std::string quiet =
      "#ifdef __clang__\n#pragma clang diagnostic push\n#pragma clang diagnostic ignored "
      "\"-Wunused-parameter\"\n#endif\n";
  std::string closing = "#ifdef __clang__\n#pragma clang diagnostic pop\n#endif\n";
  if (guarded) {
    // Warnings that mean faulty code become errors. clang's other warnings are off. For NVRTC the warnings are 549, a
    // variable used before it is set, and 940, a function without a return; NVRTC has no warning of endless recursion.
    quiet +=
        "#ifdef __clang__\n#pragma clang diagnostic ignored \"-Weverything\"\n"
        "#pragma clang diagnostic error \"-Wreturn-type\"\n#pragma clang diagnostic error \"-Wuninitialized\"\n"
        "#pragma clang diagnostic error \"-Winfinite-recursion\"\n#endif\n"
        "#ifdef __CUDACC_RTC__\n#pragma nv_diagnostic push\n#pragma nv_diag_error 549, 940\n#endif\n";
    closing += "#ifdef __CUDACC_RTC__\n#pragma nv_diagnostic pop\n#endif\n";
    if (kind == FunctionKind::mask) quiet += "using MaskContext = ScoreContext;\n";
    if (kind != FunctionKind::feature) {
      closing +=
          fmt::format("#line 1 \"after {}\"{}", shown, kind == FunctionKind::mask ? mask_adapter : score_adapter);
    }
  }
  return fmt::format("#include \"common/kernel/{}.h\"\n{}{}#line 1 \"{}\"\n{}\n{}", in_double ? "math_double" : "math",
                     work < 0 ? "" : fmt::format("#define WORK {}\n", work), quiet, shown, text, closing);
}

std::string UserFunction::text_name() const { return "file-" + sha256(text).substr(0, 12); }

}  // namespace attn
