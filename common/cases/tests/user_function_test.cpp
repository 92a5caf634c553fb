// Tests users' functions from files: refused texts, the messages of compilers, and the evaluation for the oracle.
#include "common/attention/user_function.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/temporary_folder.h"
#include "common/cases/user_functions.h"
#include "common/testing/cuda_compiler.h"
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
  EXPECT_NE(refusal_of(std::string("float score\n\0(", 13)).find("line 2 has the byte 0x00"), std::string::npos);
  EXPECT_NE(refusal_of("float \xFF").find("0xff"), std::string::npos);
  EXPECT_NE(refusal_of("// \xC3").find("0xc3"), std::string::npos) << "a character that is cut off must be refused";
  for (const char* malformed : {"\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80", "\xF4\x90\x80\x80"}) {
    EXPECT_NE(refusal_of(malformed).find("is no text file"), std::string::npos) << malformed;
  }
  for (const char* allowed : {"// \xE0\xA0\x80", "// \xED\x9F\xBF", "// \xF0\x90\x80\x80", "// \xF4\x8F\xBF\xBF"}) {
    EXPECT_EQ(refusal_of(allowed).find("is no text file"), std::string::npos) << allowed;
  }
  EXPECT_NE(refusal_of("\x7F"
                       "ELF\x02")
                .find("no text"),
            std::string::npos);
  EXPECT_EQ(refusal_of("// caf\xC3\xA9 \xE2\x88\x9E\t\r\n"), "nothing was thrown");
  EXPECT_NE(refusal_of("").find("is empty; it must define float score("), std::string::npos);
  EXPECT_NE(refusal_of(" \n\t\n").find("is empty"), std::string::npos);
  EXPECT_NE(refusal_of(std::string((size_t{1} << 20) + 1, ' ')).find("more than"), std::string::npos);
  EXPECT_NE(function_refusal([&] { read_function(FunctionKind::mask, folder_.path()); }).find("is no regular file"),
            std::string::npos);
  EXPECT_NE(function_refusal([] { read_function(FunctionKind::mask, "/dev/zero"); }).find("is no regular file"),
            std::string::npos);
  EXPECT_NE(function_refusal([&] { read_function(FunctionKind::mask, path("none")); }).find("cannot be read"),
            std::string::npos);
}

TEST_F(FunctionFileTest, AByteOrderMarkIsNoPartOfTheText) {
  const std::string text = "float score(float s, int, int, const ScoreContext&) { return s; }\n";
  std::ofstream(path("marked.cpp"), std::ios::binary) << "\xEF\xBB\xBF" << text;
  EXPECT_EQ(read_function(FunctionKind::score, path("marked.cpp")).text, text);
  EXPECT_NE(refusal_of("\xEF\xBB\xBF").find("is empty"), std::string::npos);
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
  EXPECT_NE(
      of_case(a, "").find("mask_function=" + a + " names the text of a file; give the file with --mask-function FILE"),
      std::string::npos);
  std::ofstream(path("a.cpp")) << "// b";
  EXPECT_NE(of_case(a, path("a.cpp")).find("has changed and is now mask_function=file-"), std::string::npos);
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
  try {
    pairs("bool visible(int, int) { return true; } KeyRange keys(int q) { return {0, q == 4 ? 3 : 8}; }", all);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(),
                 "keys() of query 4 is [0, 3), but [0, 8) for an earlier query; neither end may decrease");
  }
}

TEST_F(UserFunctionTest, ACompileErrorTakesAtMostTwoLines) {
  const auto message = [](const UserFunction& function) {
    return function_refusal([&] { require_compiles(device(), function); });
  };
  const std::string undefined =
      message(score_of("float helper(float s);\nfloat score(float s, int, int) { return helper(s); }\n"));
  EXPECT_EQ(undefined, fmt::format("score function mine.cpp calls {}, which it does not define",
                                   test::on_cuda ? "helper" : "helper(float)"));
  std::string many = "float score(float s, int, int) {\n";
  for (int i = 0; i < 1000; ++i) many += fmt::format("  s += wrong{};\n", i);
  const std::string told = message(score_of(many + "  return s;\n}\n"));
  EXPECT_NE(told.find("wrong0"), told.npos) << told;
  EXPECT_LE(std::count(told.begin(), told.end(), '\n'), 1) << told;
  EXPECT_LT(told.size(), 700u) << told;
  EXPECT_NE(
      message(mask_of("bool visibly(int, int) { return true; }\n")).find("it must define bool visible(int q, int k"),
      std::string::npos);
  EXPECT_EQ(message(mask_of("bool visible(int, int) { return true; }\n")), "nothing was thrown");
  if (!test::on_cuda) {
    const std::string pasted =
        message(score_of("#define P(a, b) a##b\nfloat score(float s, int, int) { P(as, m)(\"x\"); return s; }\n"));
    EXPECT_NE(pasted.find("inline assembly is disabled"), std::string::npos) << pasted;
  }
  EXPECT_NE(
      message(score_of("float score(float s, int, int) { }\n")).find(test::on_cuda ? "mine.cpp(1):" : "mine.cpp:1:"),
      std::string::npos);
}

TEST_F(UserFunctionTest, ATextOnlyComputes) { expect_refusals(device(), test::on_cuda); }

using UserFunctionCudaTest = test::CudaCompilerTest;

TEST_F(UserFunctionCudaTest, ATextOnlyComputes) { expect_refusals(*compiler_, true); }

TEST_F(UserFunctionCudaTest, ACompileErrorTakesAtMostTwoLines) {
  Device& device = *compiler_;
  const auto message = [&](const UserFunction& function) {
    return function_refusal([&] { require_compiles(device, function); });
  };
  EXPECT_EQ(message(score_of("float helper(float s);\nfloat score(float s, int, int) { return helper(s); }\n")),
            "score function mine.cpp calls helper, which it does not define");
  const std::string told = message(score_of("float score(float s, int, int) {\n  return wrong;\n}\n"));
  EXPECT_NE(told.find("mine.cpp(2): error: identifier \"wrong\""), std::string::npos) << told;
  EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 1) << told;
  EXPECT_EQ(message(mask_of("bool visible(int q, int k) { return q > k; } KeyRange keys(int q) { return {0, q}; }")),
            "nothing was thrown");
  EXPECT_EQ(message(score_of("float score(float s, int, int) { return tanhf(s); }")), "nothing was thrown");
  for (const char* faulty :
       {"float score(float s, int, int) { }", "float score(float, int, int) { float x; return x; }"}) {
    EXPECT_NE(message(score_of(faulty)).find("mine.cpp(1): error"), std::string::npos) << faulty;
  }
}

}  // namespace
}  // namespace attn
