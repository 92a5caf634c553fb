// Tests users' functions from files: refused texts, the messages of compilers, and the evaluation for the oracle.
#include "common/attention/user_function.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/temporary_folder.h"
#include "common/cases/user_functions.h"
#include "common/testing/cuda_compiler.h"
#include "common/testing/messages.h"
#include "common/testing/tested_device.h"

namespace attn {
namespace {

using test::device;
using test::OnDevice;
using test::pipelines;

constexpr double infinity = std::numeric_limits<double>::infinity();

UserFunction mine(FunctionKind kind, const std::string& text) {
  return {.name = "mine.cpp", .text = text, .kind = kind, .guarded = true};
}
UserFunction score_of(const std::string& text) { return mine(FunctionKind::score, text); }
UserFunction mask_of(const std::string& text) { return mine(FunctionKind::mask, text); }

template <typename Action>
std::string function_refusal(const Action& action) {
  try {
    action();
  } catch (const BadInput& error) {
    return error.what();
  }
  return "nothing was thrown";
}

class FunctionFileTest : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() / name; }
  std::string refusal_of(const std::string& text) const {
    std::ofstream(path("f.cpp"), std::ios::binary) << text;
    std::string message = function_refusal([&] { read_function(FunctionKind::score, path("f.cpp")); });
    EXPECT_EQ(message.find('\n'), message.npos) << message;
    return message;
  }

  const TemporaryFolder folder_;
};

TEST_F(FunctionFileTest, ForbiddenWordsAreReportedWithTheirLine) {
  for (const auto& [text, what] : std::vector<std::pair<std::string, std::string>>{
           {"// one\n#include <cmath>\n", "#include in line 2"},
           {"\n\n  # /* a\nb */ include \"x.h\"\n", "#include in line 4"},
           {"%: include_next <x>\n", "#include_next in line 1"},
           {"#\\\nimp\\\nort <x>\n", "#import in line 2"},
           {"int a;\n#embed \"x\"\n", "#embed in line 2"},
           {"float f() {\n  asm(\"nop\");\n}\n", "asm in line 2"},
           {"float f() { __asm__ volatile(\"\"); }", "__asm__ in line 1"},
           {"float f() { /* \" */ as\\\nm(\"\"); }", "asm in line 1"},
           {"char a = '\"';\nasm(\"x\");\n", "asm in line 2"},
           {"extern \"C\" void exit(int);", "extern in line 1"},
           {"int a = 1'000; asm(\"'\");", "asm in line 1"},
           {"int b;\nauto a = R\"x(\n)\" )x\"; asm(\"\");", "R\" in line 2"},
           {"auto a = S(1.'a); asm(\"\"); //'", "asm in line 1"},
           {"auto a = S(.5'a); asm(\"\"); //'", "asm in line 1"},
           {"int a;\n#line 7 \"x\"\n", "#line in line 2"},
           {"int a;\n# 7 \"x\"\n", "# 7 in line 2"},
           {"#pragma clang fp contract(off)\n", "#pragma in line 1"},
           {"#pragma STDC FENV_ACCESS ON\n", "#pragma in line 1"},
           {"#pragma pop_macro(\"V\")\n", "#pragma in line 1"},
           {"\n_Pragma(\"clang fp reassociate(on)\")", "_Pragma in line 2"},
           {"#define P(x) _Pragma(#x)\n", "_Pragma in line 1"},
           {"#define P(a, b) a##b\n", "## in line 1"},
           {"#define P(a, b) a %:%: b\n", "## in line 1"},
           {"// one\r#include <x>\rint a;", "#include in line 2"},
           {"// one \\ \t\ntwo\n#include <x>\n", "#include in line 3"},
           {"int a = 1R\"(\n#include <x>\n)\";", "#include in line 2"}}) {
    EXPECT_NE(refusal_of(text).find(what), std::string::npos) << text << ": " << refusal_of(text);
  }
}

TEST_F(FunctionFileTest, ForbiddenWordsAreAllowedInCommentsAndLiterals) {
  for (const char* text : {"// #include <cmath>\nint a;", "/*\n#include <x>\nasm */ int a;", "auto a = \"\\\" asm\";",
                           "int asmx, _asm_, include, R;", "#define X\n#undef X", "// one \\\nasm",
                           "int a = 1'000'000; int b;", "#pragma unroll 4\n#pragma clang loop unroll(full)",
                           "#define U _Pragma(\"unroll\")", "#if 0\n#elif 1\n#error don't\n#else\n#endif\n#\n"}) {
    EXPECT_EQ(refusal_of(text), "nothing was thrown") << text;
  }
}

TEST_F(FunctionFileTest, AFileThatIsNoTextIsReportedInOneLine) {
  for (const auto& [text, words] :
       {std::pair<std::string, const char*>{std::string("float score\n\0(", 13), "line 2 has the byte 0x00"},
        {"float \xFF", "0xff"},
        {"// \xC3", "0xc3"},  // a character that is cut off
        {"\xE0\x80\x80", "no text"},
        {"\xED\xA0\x80", "no text"},
        {"\xF0\x80\x80\x80", "no text"},
        {"\xF4\x90\x80\x80", "no text"},
        {"\x7F"
         "ELF\x02",
         "no text"},
        {"", "is empty"},
        {" \n\t\n", "is empty"},
        {"\xEF\xBB\xBF", "is empty"},
        {std::string((size_t{1} << 20) + 1, ' '), "more than"}}) {
    EXPECT_TRUE(test::contains(refusal_of(text), words)) << refusal_of(text);
  }
  for (const char* allowed : {"// \xE0\xA0\x80", "// \xED\x9F\xBF", "// \xF0\x90\x80\x80", "// \xF4\x8F\xBF\xBF",
                              "// caf\xC3\xA9 \xE2\x88\x9E\t\r\n"}) {
    EXPECT_EQ(refusal_of(allowed), "nothing was thrown") << allowed;
  }
  for (const auto& [file, words] : {std::pair{folder_.path().string(), "no regular file"},
                                    {std::string("/dev/zero"), "no regular file"},
                                    {path("none"), "cannot be read"}}) {
    test::expect_error<BadInput>([&, &name = file] { read_function(FunctionKind::mask, name); }, {words});
  }
}

TEST_F(FunctionFileTest, AByteOrderMarkIsNoPartOfTheText) {
  const std::string text = "float score(float s, int, int, const ScoreContext&) { return s; }\n";
  std::ofstream(path("marked.cpp"), std::ios::binary) << "\xEF\xBB\xBF" << text;
  EXPECT_EQ(read_function(FunctionKind::score, path("marked.cpp")).text, text);
}

TEST_F(FunctionFileTest, ACaseNamesTheTextOfItsFile) {
  std::ofstream(path("a.cpp")) << "// a";
  const std::string a = read_function(FunctionKind::mask, path("a.cpp")).text_name();
  EXPECT_EQ(a, "file-dcd9ce46be08") << "the digits must be those of: printf '// a' | sha256sum";
  const auto of_case = [&](const std::string& value, const std::string& file) {
    return function_refusal(
        [&] { function_of_case(FunctionKind::mask, "mask_function", value, "--mask-function", file); });
  };
  EXPECT_EQ(of_case(a, path("a.cpp")), "nothing was thrown");
  test::expect_words(of_case(a, ""), {"mask_function=" + a, "--mask-function FILE"});
  std::ofstream(path("a.cpp")) << "// b";
  test::expect_words(of_case(a, path("a.cpp")), {"has changed"});
}

/// Expects that texts that name what is the kernel's, leave their scope, or do more than compute are refused with the
/// line of the user's file or the name of the function.
void expect_refusals(Device& on, bool cuda) {
  const std::string score = "float score(float s, int, int) { return s; }\n";
  const std::string line_1 = cuda ? "mine.cpp(1): error" : "mine.cpp:1:",
                    line_2 = cuda ? "mine.cpp(2): " : "mine.cpp:2:";
  std::vector<std::pair<std::string, std::string>> texts = {
      {"float score(float s, int, int) { return s * BLOCK_C; }", line_1},
      {"float score(float s, int, int) { UNROLL return s; }", line_1},
      {"float score(float s, int, int, const ScoreContext& c) { return c.data ? s : 0; }", line_1},
      {"float score(float s, int, int) { Threadgroup group; return s; }", line_1},
      {"float base = expf(1.0f);\nfloat score(float s, int, int) { return s * base; }", line_1},
      {score + "}", line_2},
      {score + "} float exp4(float x) { return x; } namespace other {", line_2},
      {"#define CLOSE }\n" + score + "CLOSE", cuda ? "mine.cpp(3): " : "mine.cpp:3:"},
      {score + "namespace other {", line_2},
      {score + "struct Other {", line_2},
      {score + "/*", line_2},
      {score + "#if 1", line_2},
      {score + "#endif", line_2},
      {"int scores;", line_1}};
  if (cuda) {
    texts.emplace_back("float score(float s, int, int) { printf(\"x\"); return s; }", "mine.cpp calls vprintf,");
    texts.emplace_back("float score(float s, int, int) { return *new float(s); }", "mine.cpp calls malloc,");
    texts.emplace_back("\n#undef __CUDACC__\n" + score, "mine.cpp(2): ");
  } else {
    texts.emplace_back("float score(float s, int, int) { __builtin_printf(\"x\"); return s; }",
                       "mine.cpp calls printf,");
    texts.emplace_back("float score(float s, int, int) { return *new float(s); }", "mine.cpp calls operator new(");
    texts.emplace_back("float score(float s, int, int) { return __builtin_readcyclecounter(); }",
                       "mine.cpp calls llvm.");
  }
  for (const auto& [text, says] : texts) {
    const std::string told = function_refusal([&] { require_compiles(on, score_of(text)); });
    EXPECT_NE(told.find(says), told.npos) << text << ": " << told;
    EXPECT_LE(std::count(told.begin(), told.end(), '\n'), 1) << told;
  }
  for (const char* text : {"float score(float s, int, int) { return s; } // \\",
                           "/*\n#include \"mine.h\"\n*/ float score(float s, int, int) { return s; }",
                           "struct A {}; A exp(A a) { return a; } A fabs(A a) { return a; }\n"
                           "float score(float s, int, int) { return expf(-fabsf(s)); }",
                           "#ifndef INFINITY\n#define INFINITY 1\n#endif\n"
                           "float score(float s, int q, int k) { return q < k ? -INFINITY : s; }",
                           "float score(float s, int UNROLL, int BLOCK_C) { return s * (UNROLL - BLOCK_C); }"}) {
    EXPECT_EQ(function_refusal([&] { require_compiles(on, score_of(text)); }), "nothing was thrown") << text;
  }
}

class UserFunctionTest : public OnDevice<testing::Test> {
 protected:
  static constexpr AttentionShape shape_{.batch = 2, .q_heads = 3, .kv_heads = 3, .q_len = 9, .kv_len = 20};
};

TEST_F(UserFunctionTest, TheContextMayBeLeftOut) {
  const auto apply = [&](const ScoreFunction& function) {
    std::vector<double> scores(20, 1.0);
    function(scores, 1, 2, 5);
    return scores;
  };
  const auto score = [&](const std::string& text) {
    require_compiles(device(), score_of(text));
    return apply(double_precision(device(), pipelines(), score_of(text), shape_));
  };
  EXPECT_EQ(score("float score(float s, int q, int k) { return s + 0.5f * (q - k); }"),
            score("float score(float s, int q, int k, const ScoreContext&) { return s + 0.5f * (q - k); }"));
  const auto mask = [&](const std::string& text) {
    require_compiles(device(), mask_of(text));
    return apply(MaskOracle(device(), pipelines(), mask_of(text), shape_).reference());
  };
  const std::vector<double> seen =
      mask("bool visible(int q, int k, const MaskContext& c) { return k % 2 == c.batch; }");
  for (size_t k = 0; k < seen.size(); ++k) EXPECT_EQ(seen[k], k % 2 == 1 ? 1.0 : -infinity) << k;
  EXPECT_EQ(mask("bool visible(int q, int k) { return (q - k) % 2 == 0; }"), seen);
  for (const char* context : {"", ", const MaskContext&"}) {
    const std::vector<double> bound = mask(fmt::format(
        "bool visible(int, int) {{ return true; }} KeyRange keys(int q{}) {{ return {{q - 2, q + 1}}; }}", context));
    for (int k = 0; k < 20; ++k) EXPECT_EQ(bound[static_cast<size_t>(k)], k >= 3 && k <= 5 ? 1.0 : -infinity) << k;
  }
}

TEST_F(UserFunctionTest, VisiblePairsCountsNoPairThatAnotherRuleHides) {
  const auto pairs = [&](const std::string& text, const MaskOracle::Range& range) {
    return MaskOracle(device(), pipelines(), mask_of(text), shape_).visible_pairs(range);
  };
  const auto all = [](int64_t, int64_t) { return std::pair<int64_t, int64_t>(0, 20); };
  const auto three = [](int64_t batch, int64_t q) { return std::pair<int64_t, int64_t>(q, batch == 0 ? q + 3 : q); };
  EXPECT_EQ(pairs("bool visible(int, int k) { return k % 4 == 0; }", all), 2 * 3 * 9 * 5);
  EXPECT_EQ(pairs("bool visible(int, int k) { return true; }", three), 3 * 9 * 3);
  EXPECT_EQ(pairs("bool visible(int, int k) { return true; } KeyRange keys(int q) { return {q + 1, q + 2}; }", three),
            3 * 9 * 1);
  test::expect_error<std::runtime_error>(
      [&] {
        pairs("bool visible(int, int) { return true; } KeyRange keys(int q) { return {0, q == 4 ? 3 : 8}; }", all);
      },
      {"query 4", "[0, 3)", "[0, 8)"});
}

void expect_short_compile_errors(Device& on, bool cuda) {
  const auto expect = [&](const UserFunction& function, std::initializer_list<std::string_view> words) {
    const std::string told = function_refusal([&] { require_compiles(on, function); });
    test::expect_words(told, words);
    EXPECT_LE(std::count(told.begin(), told.end(), '\n'), 1) << told;
    EXPECT_LT(told.size(), 700u) << told;
  };
  const char* const line_1 = cuda ? "mine.cpp(1):" : "mine.cpp:1:";
  expect(score_of("float helper(float s);\nfloat score(float s, int, int) { return helper(s); }\n"),
         {"mine.cpp calls helper", "does not define"});
  std::string many = "float score(float s, int, int) {\n";
  for (int i = 0; i < 1000; ++i) many += fmt::format("  s += wrong{};\n", i);
  expect(score_of(many + "  return s;\n}\n"), {"wrong0", cuda ? "mine.cpp(2):" : "mine.cpp:2:"});
  expect(mask_of("bool visibly(int, int) { return true; }\n"), {"bool visible(int q, int k"});
  expect(score_of("float score(float s, int, int) { }\n"), {line_1});
  if (cuda) {
    expect(score_of("float score(float, int, int) { float x; return x; }"), {line_1});
  } else {
    expect(score_of("#define P(a, b) a##b\nfloat score(float s, int, int) { P(as, m)(\"x\"); return s; }\n"),
           {"inline assembly is disabled"});
  }
  require_compiles(on, mask_of("bool visible(int q, int k) { return q > k; } KeyRange keys(int q) { return {0, q}; }"));
  require_compiles(on, score_of("float score(float s, int, int) { return tanhf(s); }"));
}

TEST_F(UserFunctionTest, ACompileErrorTakesAtMostTwoLines) { expect_short_compile_errors(device(), test::on_cuda); }
TEST_F(UserFunctionTest, ATextOnlyComputes) { expect_refusals(device(), test::on_cuda); }

using UserFunctionCudaTest = test::CudaCompilerTest;

TEST_F(UserFunctionCudaTest, ACompileErrorTakesAtMostTwoLines) { expect_short_compile_errors(*compiler_, true); }
TEST_F(UserFunctionCudaTest, ATextOnlyComputes) { expect_refusals(*compiler_, true); }

}  // namespace
}  // namespace attn
