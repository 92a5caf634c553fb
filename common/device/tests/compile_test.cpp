// Tests of the compilation of kernels for the cpu, and of the key and the hash of a source.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/device/tests/support.h"

namespace attn {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::kernel_text;
using test::message_of;
using test::sanitizes;
using test::Variable;
using test::write_text;

constexpr Linking linkings[] = {Linking::before_optimizer, Linking::after_code_generation};

/// A fragment is a source that the compiler compiles separately and links into the kernel.
KernelSource fragment_text(const std::string& body, FunctionConstants constants = {},
                           const std::string& entry = "part") {
  return {"test/fragment.cpp", entry, std::move(constants), {{"test/fragment.cpp", body}}};
}

KernelSource with_fragment(KernelSource fragment, Linking linking) {
  KernelSource source = kernel_text(
      "extern \"C\" long long part(long long);\n"
      "extern \"C\" void run(long long* const* result, const Threadgroup*) { **result = part(VALUE); }",
      {{"VALUE", 20}});
  source.fragments.push_back(std::move(fragment));
  source.linking = linking;
  return source;
}

/// Most kernels of these tests store one long long at the address that their parameter holds.
class CompileTest : public test::CpuTest {
 protected:
  long long value_of(const KernelSource& source) {
    long long value = -1;
    dispatch(source, &value);
    return value;
  }
  std::string error_of(const KernelSource& source) {
    return message_of<CompileError>([&] { device_->load(device_->compile(source), source.entry); });
  }
};

KernelSource returns(const std::string& expression, FunctionConstants constants = {}) {
  return kernel_text(
      "extern \"C\" void run(long long* const* result, const Threadgroup*) { **result = " + expression + "; }",
      std::move(constants));
}

TEST(KernelSourceTest, HasAReadableKey) {
  KernelSource source{"a/b.cpu.cpp", "flash_forward", {}, {}};
  EXPECT_EQ(source.key(), "flash_forward[]");
  source.constants = {{"CAUSAL", 1}, {"BLOCK_R", 64}, {"ALPHA", -3}};
  EXPECT_EQ(source.key(), "flash_forward[ALPHA=-3,BLOCK_R=64,CAUSAL=1]");
  source.includes = {{"score.h", "abc"}};
  EXPECT_EQ(source.key(), "flash_forward[ALPHA=-3,BLOCK_R=64,CAUSAL=1,score.h:ba7816bf]");
  source.fragments = {{"a/f.cpp", "score", {{"CAP", 20}}, {}}};
  EXPECT_EQ(source.key(), "flash_forward[ALPHA=-3,BLOCK_R=64,CAUSAL=1,score.h:ba7816bf]+score[CAP=20]");
  source.linking = Linking::after_code_generation;
  EXPECT_EQ(source.key(), "flash_forward[ALPHA=-3,BLOCK_R=64,CAUSAL=1,score.h:ba7816bf]|score[CAP=20]");
}

TEST(KernelSourceTest, AKeyAndItsHooksTellTheSourceWithoutItsPaths) {
  KernelSource source{.path = "a/b.cpu.cpp",
                      .entry = "flash_forward",
                      .constants = {{"CAUSAL", 1}, {"BLOCK_R", 64}, {"ALPHA", -3}},
                      .includes = {{"a/score.h", "abc"}},
                      .fragments = {{.path = "a/f.cpp", .entry = "cap", .includes = {{"a/keys.h", "def"}}}},
                      .run_time = {"BLOCK_R"},
                      .assembler = "-O1"};
  const std::vector<SourceFile> hooks = hooks_of(source);
  ASSERT_EQ(hooks.size(), 2u);
  for (const Linking linking : {Linking::before_optimizer, Linking::after_code_generation}) {
    source.linking = linking;
    KernelSource expected = source;
    expected.path = expected.fragments[0].path = "";
    expected.constants["BLOCK_R"] = 0;
    EXPECT_EQ(parse_key(source.key(), hooks), expected) << source.key();
    EXPECT_EQ(parse_key(source.key(), {hooks[0]}), std::nullopt) << "the fragment's hook is not known";
    EXPECT_EQ(parse_key(source.key(), {{"a/score.h", "other"}, hooks[1]}), std::nullopt);
  }
}

// A user's text reaches the compiler first, and is part of the kernel's identity.
TEST_F(CompileTest, UsersTextsStandBeforeTheConstants) {
  KernelSource source = returns("user_text_of_test::twice(VALUE)", {{"VALUE", 21}});
  const auto with = [&](const std::string& body) {
    source.includes[users_text] =
        "#ifdef VALUE_VALUE\n#error the constants come first\n#endif\nnamespace "
        "user_text_of_test { static inline long long twice(int x) { return " +
        body + "; } }\n";
    return source;
  };
  EXPECT_EQ(value_of(with("x + x")), 42);
  EXPECT_NE(source_sha256(with("x + x")), source_sha256(with("2 * x")));
  EXPECT_EQ(reached_sources(source).back().path, users_text);
}

// KernelSourceHash leaves out the names of headers and constants.
TEST(KernelSourceTest, EqualityTellsEveryDifferenceAndTheHashTellsMost) {
  const KernelSource source{"path", "entry", {{"A", 1}, {"B", 2}}, {{"h", "text"}}};
  KernelSource same{"path", "entry", {{"B", 2}}, {{"h", "text"}}};
  same.constants["A"] = 1;
  EXPECT_TRUE(source == same) << "the order in which constants are set must not matter";
  EXPECT_EQ(KernelSourceHash()(source), KernelSourceHash()(same));
  struct Change {
    bool hashed;
    void (*make)(KernelSource&);
  };
  const Change changes[] = {{true, [](KernelSource& other) { other.path = "other"; }},
                            {true, [](KernelSource& other) { other.entry = "other"; }},
                            {true, [](KernelSource& other) { other.constants["A"] = 3; }},
                            {true, [](KernelSource& other) { other.constants.erase("B"); }},
                            {true, [](KernelSource& other) { other.includes["h"] = "longer"; }},
                            {true, [](KernelSource& other) { other.fragments = {{"path", "entry", {}, {}}}; }},
                            {false, [](KernelSource& other) { other.includes = {{"i", "text"}}; }},
                            {false, [](KernelSource& other) { other.constants = {{"A", 1}, {"C", 2}}; }}};
  for (const auto& [hashed, make] : changes) {
    KernelSource other = source;
    make(other);
    EXPECT_FALSE(other == source) << other.path << " " << other.key();
    EXPECT_TRUE(!hashed || KernelSourceHash()(other) != KernelSourceHash()(source)) << other.path << " " << other.key();
  }
}

struct Broken {
  KernelSource source;
  std::vector<std::string> words;  // of the error
};

TEST_F(CompileTest, ErrorsNameTheirPlace) {
  const std::string head = "extern \"C\" void run(long long* const* result, const Threadgroup*) {\n";
  KernelSource no_entry = returns("1"), header = kernel_text("#include \"test/header.h\"\n");
  no_entry.entry = "walk";
  header.includes["test/header.h"] = "\n\nint broken(;\n";
  KernelSource no_fragment = with_fragment(fragment_text(""), Linking::after_code_generation);
  no_fragment.fragments.clear();
  KernelSource sized = returns("VALUE", {{"VALUE", 5}});
  sized.includes.begin()->second += "\nint array[VALUE];\n";
  KernelSource unused = returns("1", {{"VALUE", 5}});
  sized.run_time = unused.run_time = {"VALUE"};  // a constant that is read at run time is no constant expression
  const KernelSource misspelt = kernel_text(head + "  **result = BLOK_R;\n  **result = ALSO;\n}\n", {{"BLOCK_R", 64}});
  std::vector<Broken> all = {
      {misspelt, {"test/kernel.cpu.cpp:3:14: error:", "BLOK_R", "test/kernel.cpu.cpp:4:14: error:", misspelt.key()}},
      {returns("USED", {{"USED", 1}, {"UNUSED_ONE", 2}}), {"UNUSED_ONE"}},
      {sized, {"VALUE"}},
      {unused, {"does not use VALUE"}},
      {header, {"test/header.h:3:"}},
      {no_entry, {"walk", no_entry.path}},
      // A function that the source only declares and calls is no kernel.
      {kernel_text("extern \"C\" void run(); extern \"C\" void other() { run(); }"), {"run"}},
      {kernel_text("extern \"C\" int no_such_function();\n" + head + "no_such_function(); }"), {"no_such_function"}},
      // The hash of a source covers only #include "...", so #include <...> must not find a header of the tree.
      {kernel_text("#include <common/kernel/types.h>\n"), {"common/kernel/types.h"}},
      {no_fragment, {"part"}}};
  for (const Linking linking : linkings) {
    all.push_back({with_fragment(fragment_text("\n\nint broken(;\n"), linking), {"test/fragment.cpp:3:"}});
    all.push_back({with_fragment(fragment_text("int other;"), linking), {"part"}});
    all.push_back({with_fragment(fragment_text("", {{"UNUSED_ONE", 1}}), linking), {"UNUSED_ONE"}});
    all.push_back({with_fragment(fragment_text("extern \"C\" long long part(long long x) { return x; }\n"
                                               "extern \"C\" void run() {}"),
                                 linking),
                   {"run"}});
  }
  for (const Broken& broken : all) {
    const std::string message = error_of(broken.source);
    for (const std::string& word : broken.words) EXPECT_TRUE(contains(message, word)) << word << ": " << message;
    EXPECT_FALSE(contains(message, "'USED'")) << message;
  }
  EXPECT_EQ(value_of(returns("3")), 3) << "the device must still work";
}

TEST_F(CompileTest, MissingFilesAndDamagedCodeAreErrors) {
  test::expect_error<BadInput>([&] { device_->compile({"no/such/kernel.cpu.cpp", "run", {}, {}}); },
                               {"no/such/kernel.cpu.cpp", "ATTENTION_PROTO_SOURCE"});
  EXPECT_THROW(device_->compile(kernel_text("#include \"no/such/header.h\"\n")), BadInput);
  const KernelSource part = fragment_text("extern \"C\" long long part(long long x) { return x; }");
  Binary binary = device_->compile(with_fragment(part, Linking::after_code_generation));
  binary.code.resize(binary.code.size() / 2);
  EXPECT_THROW(device_->load(binary, "run"), CompileError);
  binary.code = "not an object file";
  EXPECT_THROW(device_->load(binary, "run"), CompileError);
  EXPECT_THROW(device_->load(Binary(), "run"), CompileError);
}

TEST_F(CompileTest, ConstantsReachTheKernel) {
  for (const int64_t value : {int64_t{0}, int64_t{1}, int64_t{-7}, int64_t{1} << 40,
                              std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
    EXPECT_EQ(value_of(returns("VALUE", {{"VALUE", value}})), value);
  }
  KernelSource source = kernel_text(
      "#include \"test/header.h\"\n"
      "extern \"C\" void run(long long* const* result, const Threadgroup*) { **result = twice() + ONES; }",
      {{"ONES", 2}, {"ONLY_A_HEADER_USES_IT", 20}});
  source.includes["test/header.h"] = "inline long long twice() { return 2 * ONLY_A_HEADER_USES_IT; }";
  EXPECT_EQ(value_of(source), 42);
}

TEST_F(CompileTest, WarningsOfAKernelThatCompilesAreLoggedOnce) {
  const auto source = [](int64_t value) {
    return kernel_text(
        "extern \"C\" void run(long long* const* result, const Threadgroup*) {\n"
        "  int forgotten;\n"
        "  **result = VALUE;\n"
        "}\n",
        {{"VALUE", value}});
  };
  const test::CapturedLog log;
  EXPECT_EQ(value_of(source(3)), 3);
  EXPECT_TRUE(contains(log.text(), source(3).key())) << log.text();
  EXPECT_TRUE(contains(log.text(), "test/kernel.cpu.cpp:3:7: warning: unused variable 'forgotten'")) << log.text();
  const int lines = log.lines();
  EXPECT_EQ(value_of(source(4)), 4);
  EXPECT_EQ(log.lines(), lines) << "the log repeats the warning for another pipeline: " << log.text();
}

TEST_F(CompileTest, SeveralFragmentsMayCallEachOther) {
  for (const Linking linking : linkings) {
    KernelSource source = with_fragment(fragment_text("extern \"C\" long long other(long long);\nextern \"C\" long "
                                                      "long part(long long x) { return other(x) + 1; }"),
                                        linking);
    source.fragments.push_back(
        fragment_text("static long long twice(long long x) { return 2 * x; }\n"
                      "extern \"C\" long long other(long long x) { return twice(x); }",
                      {}, "other"));
    source.fragments.back().path = "test/other.cpp";
    source.fragments.back().includes = {{"test/other.cpp", source.fragments.back().includes.begin()->second}};
    EXPECT_EQ(value_of(source), 41);
  }
}

TEST_F(CompileTest, ContentsCountTheInstructionsOfAllObjects) {
  if (sanitizes("address") || sanitizes("thread")) GTEST_SKIP() << "sanitizers add calls of their own";
  const KernelSource part = fragment_text("extern \"C\" long long part(long long x) { return x + 1; }");
  struct Count {
    int64_t bytes = 0;
    int instructions = 0, calls = 0;
  };
  const auto count = [&](const KernelSource& source) {
    const CodeContents code = device_->contents(device_->compile(source));
    Count sum{.bytes = code.bytes};
    for (const auto& [name, times] : code.instructions) {
      EXPECT_EQ(name.find_first_of(" \t"), std::string::npos) << name;
      sum.instructions += times;
      // The kernel's last action is the store, so the compiler cannot turn the call into a jump.
      if (name.starts_with("call") || name == "bl") sum.calls += times;
    }
    return sum;
  };
  const Count stitched = count(with_fragment(part, Linking::before_optimizer));
  const Count linked = count(with_fragment(part, Linking::after_code_generation));
  EXPECT_GT(stitched.instructions, 1);
  EXPECT_GT(linked.instructions, stitched.instructions);
  EXPECT_GT(linked.bytes, stitched.bytes);
  EXPECT_EQ(stitched.calls, 0) << "only linking before the optimizer inlines a fragment";
  EXPECT_EQ(linked.calls, 1);
}

// A fragment's file may be a program that writes an object file.
TEST_F(CompileTest, AFragmentMayBeAProgram) {
  const std::string object =
      device_->compile(fragment_text("extern \"C\" long long part(long long x) { return x + 1; }")).code;
  std::string hex;
  for (const char byte : object) hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  const auto program = [&](const std::string& text) {
    KernelSource fragment{.path = "test/part.py", .entry = "part", .constants = {{"N", 7}}};
    fragment.includes = {{fragment.path, text}};
    return with_fragment(fragment, Linking::after_code_generation);
  };
  const std::string writes =
      "import sys  # // no comment of C++\n"
      "assert sys.argv[2] == 'part' and sys.argv[5:] == ['N=7'], sys.argv\n"
      "open(sys.argv[1], 'wb').write(bytes.fromhex('" +
      hex + "'))\n";
  const KernelSource source = program(writes);
  EXPECT_EQ(value_of(source),
            value_of(with_fragment(fragment_text("extern \"C\" long long part(long long x) { return x + 1; }"),
                                   Linking::after_code_generation)));
  EXPECT_NE(source_sha256(source), source_sha256(program(writes + "#")));
  KernelSource other = source;
  other.fragments.front().constants["N"] = 8;
  EXPECT_NE(source_sha256(source), source_sha256(other));

  EXPECT_TRUE(contains(error_of(other), "['N=7']")) << "the error must have the program's message";
  EXPECT_TRUE(contains(error_of(program("import sys; sys.exit('no such work')")), "no such work"));
  EXPECT_TRUE(contains(error_of(program("pass")), "part.py")) << "the error must name a program that writes no file";
  KernelSource early = source;
  early.linking = Linking::before_optimizer;
  EXPECT_TRUE(contains(error_of(early), "Linking::after_code_generation"));
}

TEST_F(CompileTest, ContentsTellTheBusiestLoop) {
  if (sanitizes("address") || sanitizes("thread")) GTEST_SKIP() << "sanitizers add instructions of their own";
  if (!device_->info().has("avx2") && !device_->info().has("neon")) GTEST_SKIP() << "no fused multiply-adds";
  KernelSource source = kernel_text(
      "extern \"C\" void run(float* const* data, const Threadgroup*) {\n"
      "  float* x = *data; float sum = 0;\n"
      "  for (int i = 0; i < 1000; ++i) sum += x[i] * x[i + 1];\n"
      "  for (int i = 0; i < 1000; ++i) x[i] = sum;\n"
      "}");
  const CodeContents contents = device_->contents(device_->compile(source));
  EXPECT_EQ(contents.loop.at("multiply_add"), contents.classes.at("multiply_add"));
  EXPECT_EQ(contents.loop.at("branch"), 1);
  EXPECT_GE(contents.loop.at("instructions"), 4);
  EXPECT_FALSE(contents.loop.contains("store_4")) << "contents.loop must be the first loop, which stores nothing";
}

TEST_F(CompileTest, CompilesTheSameSourceToTheSameCode) {
  const KernelSource source = returns("VALUE", {{"VALUE", 5}});
  const Binary first = device_->compile(source), second = device_->compile(source);
  EXPECT_EQ(first.code, second.code);
  EXPECT_EQ(first.code_sha256, second.code_sha256);
  EXPECT_EQ(first.source_sha256, source_sha256(source));
  EXPECT_EQ(first.key, "run[VALUE=5,kernel.cpu.cpp:" + source.key().substr(source.key().find("cpp:") + 4));
  EXPECT_GT(first.times.front_end_s, 0);
  EXPECT_GT(first.times.optimizer_s, 0);
  EXPECT_GT(first.times.code_generation_s, 0);
  EXPECT_NE(device_->compile(returns("VALUE", {{"VALUE", 6}})).code_sha256, first.code_sha256);
}

TEST_F(CompileTest, CompilesAndLoadsInSeveralThreads) {
  std::array<long long, 6> values = {};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < values.size(); ++i) {
    threads.emplace_back([&, i] { values[i] = value_of(returns("VALUE", {{"VALUE", static_cast<int64_t>(i)}})); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(values, (std::array<long long, 6>{0, 1, 2, 3, 4, 5}));
}

/// Makes a source tree. The kernel includes lab/outer.h, which includes lab/inner.h.
class SourceTreeTest : public CompileTest {
 protected:
  SourceTreeTest() {
    edit("common/kernel/cpu.h", test::read_text(fs::path(source_root()) / "common/kernel/cpu.h"));
    edit("common/kernel/types.h", test::read_text(fs::path(source_root()) / "common/kernel/types.h"));
    edit("lab/outer.h", "#pragma once\n#include \"lab/inner.h\"\n");
    edit("lab/inner.h", "#pragma once\n#include \"lab/outer.h\"\nconstexpr int inner = 1;\n");  // a cycle of headers
    edit_kernel("inner");
    use_tree();
  }
  void edit(const std::string& path, const std::string& text) { write_text(folder_.path() / path, text); }
  void edit_kernel(const std::string& expression) {
    edit("lab/kernel.cpu.cpp",
         "#include \"common/kernel/cpu.h\"\n#include \"lab/outer.h\"\n"
         "extern \"C\" void run(long long* const* result, const Threadgroup*) { **result = " +
             expression + "; }");
  }
  void use_tree() { variable_.emplace("ATTENTION_PROTO_SOURCE", folder_.path().string()); }

  const KernelSource source_{"lab/kernel.cpu.cpp", "run", {}, {}};
  test::TemporaryFolder folder_;
  std::optional<Variable> variable_;
};

TEST_F(SourceTreeTest, TheHashCoversSourceHeadersConstantsAndEntry) {
  std::set<std::string> hashes = {source_sha256(source_)};
  const std::string inner = test::read_text(folder_.path() / "lab/inner.h");
  edit("lab/outer.h", "// A comment.\n\n#pragma once\n#include \"moved/inner.h\"  // and one more\n\n");
  edit("moved/inner.h", inner);
  edit("moved/kernel.cpp", test::read_text(folder_.path() / "lab/kernel.cpu.cpp"));
  KernelSource other = source_;
  other.path = "moved/kernel.cpp";
  EXPECT_TRUE(hashes.contains(source_sha256(other))) << "the hash must cover neither paths nor comments";
  for (const char* kernel : {"inner + 0", "inner * '/' + \"//\"[1]", "inner * '/' + \"/*\"[1]"}) {
    edit_kernel(kernel);
    EXPECT_TRUE(hashes.insert(source_sha256(source_)).second) << kernel;
  }
  edit("moved/inner.h", inner + "constexpr int more = 3;\n");
  EXPECT_TRUE(hashes.insert(source_sha256(source_)).second);
  other = source_;
  for (const int value : {1, 2}) {
    other.constants = {{"A", value}};
    EXPECT_TRUE(hashes.insert(source_sha256(other)).second);
  }
  other.entry = "walk";
  EXPECT_TRUE(hashes.insert(source_sha256(other)).second);
}

TEST_F(SourceTreeTest, TheHashCoversTokensAndNotBlanks) {
  const auto hash_of = [&](const std::string& text) {
    edit(source_.path, text);
    return source_sha256(source_);
  };
  using Pair = std::pair<const char*, const char*>;
  for (const auto& [one, other] : {Pair{"int f(int a) { return a + 1; }", "int f(int a)\n{\n\treturn a+1 ;\r\n}\n"},
                                   {"#define F(x) x\nint a;", "\n#  define F(x)  x\nint\na;"},
                                   {"#define F(x) x\nint a;", "#define F(x) \\\n  x\nint a;"}}) {
    EXPECT_EQ(hash_of(one), hash_of(other)) << one;
  }
  for (const auto& [one, other] : {Pair{"a + +b", "a ++b"},
                                   {"long a", "longa"},
                                   {"\"a b\"", "\"a  b\""},
                                   {"\"a\\\"  b\"", "\"a\\\" b\""},
                                   {"R\"x(\" b)x\"", "R\"x(\"  b)x\""},
                                   {"#define F (x)", "#define F(x)"},
                                   {"#define F\nint a;", "#define F int a;"},
                                   {"#define F\\\n(x) 1", "#define F (x) 1"},
                                   {"i+\\\n++j", "i+ ++j"},
                                   {"// to be continued \\\nint a;", "// the end\nint a;"},
                                   {"#define A 1 \\\n\nint a;", "#define A 1 \\\nint a;"},
                                   {"1e-5f", "1e - 5f"}}) {
    EXPECT_NE(hash_of(one), hash_of(other)) << one;
  }
}

// Metal's words (for example GLOBAL) and lines under #ifdef __METAL_VERSION__ change the hash only of Metal kernels.
TEST_F(SourceTreeTest, OnlyMetalsHashCoversWhatOnlyMetalReads) {
  edit("lab/inner.h",
       "#pragma once\nstruct Row {\n  const float* of;\n  long long count;\n};\nconstexpr int inner = 1;\n");
  const std::string hash = source_sha256(source_);
  KernelSource metal{"lab/kernel.metal", "run", {}, {}};
  edit(metal.path, "#include \"lab/outer.h\"\nkernel void run() {}\n");
  const std::string of_metal = source_sha256(metal);
  edit("common/kernel/spaces.h", test::read_text(fs::path(source_root()) / "common/kernel/spaces.h"));
  edit(
      "lab/inner.h",
      "#pragma once\n#include \"common/kernel/spaces.h\"\nstruct Row {\n  const GLOBAL float* of;\n  INT64 count;\n};\n"
      "#ifdef __METAL_VERSION__\n#if 1\n#endif\nconstexpr constant int inner = 1;\n#else\n"
      "constexpr CONSTANT int inner = 1;\n#endif\n");
  EXPECT_EQ(source_sha256(source_), hash);
  EXPECT_NE(source_sha256(metal), of_metal);
  const std::string words = source_sha256(metal);
  edit("lab/inner.h",
       "#pragma once\nstruct Row {\n  const GLOBAL_TOKENS float* of;\n  long long count;\n};\nconstexpr int inner = "
       "1;\n");
  EXPECT_NE(source_sha256(source_), hash) << "the hash must cover GLOBAL_TOKENS, which is not the word GLOBAL";
  edit("lab/inner.h",
       "#pragma once\n#include \"common/kernel/spaces.h\"\nstruct Row {\n  const LOCAL float* of;\n  INT64 count;\n};\n"
       "#ifdef __METAL_VERSION__\n#if 1\n#endif\nconstexpr constant int inner = 1;\n#else\n"
       "constexpr CONSTANT int inner = 1;\n#endif\n");
  EXPECT_NE(source_sha256(metal), words);
  EXPECT_EQ(source_sha256(source_), hash);
}

TEST_F(SourceTreeTest, AnEditedKernelRunsWithoutRebuilding) {
  test::TemporaryFolder cache;
  const auto value_in_a_new_run = [&] {
    PipelineCache pipelines(*device_, cache.path());
    long long value = -1;
    CommandEncoder encoder;
    encoder.dispatch(*pipelines.get(source_).kernel, {}, 1, 0, &value);
    device_->submit(encoder);
    return value;
  };
  EXPECT_EQ(value_in_a_new_run(), 1);
  edit_kernel("inner + 10");
  EXPECT_EQ(value_in_a_new_run(), 11);
  edit("lab/inner.h", "#pragma once\nconstexpr int inner = 2;\n");
  EXPECT_EQ(value_in_a_new_run(), 12);
  edit("lab/inner.h", "#pragma once\n#include \"lab/outer.h\"\nconstexpr int inner = 1;\n");
  EXPECT_EQ(value_in_a_new_run(), 11);
  EXPECT_EQ(cache.files().size(), 3u) << "the fourth text equals the second, and must need no new entry";
}

TEST_F(SourceTreeTest, TheTreeMayBeNamedInAnyWay) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_.path().parent_path());
  const std::string name = folder_.path().filename();
  for (const std::string& root : {name, "./" + name, name + "/", name + "/lab/..", folder_.path().string() + "//"}) {
    variable_.emplace("ATTENTION_PROTO_SOURCE", root);
    EXPECT_EQ(value_of(source_), 1) << root;
  }
  fs::current_path(before);
  variable_.emplace("ATTENTION_PROTO_SOURCE", "");
  EXPECT_TRUE(fs::exists(fs::path(source_root()) / "common/kernel/cpu.h"))
      << "an empty variable must mean the program's own tree";
}

struct Elements {
  const float* elements;
  long long index;
  float* sum;
};

using SanitizedKernelTest = CompileTest;

TEST_F(SanitizedKernelTest, AccessesOutOfBoundsAreReported) {
  if (!sanitizes("address")) GTEST_SKIP() << "needs a build with AddressSanitizer";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const KernelSource read = kernel_text(R"(
    struct Elements { const float* elements; long long index; float* sum; };
    constexpr float table[] = {0, 0, 0};  // a table of constants must work too
    extern "C" void run(const Elements* p, const Threadgroup*) {
      *p->sum += p->elements[p->index] + table[p->index & 1];
    })");
  const KernelSource local = kernel_text(R"(
    struct Elements { const float* elements; long long index; float* sum; };
    NOINLINE void clear(float* array, long long last) { for (long long i = 0; i <= last; ++i) array[i] = i; }
    extern "C" void run(const Elements* p, const Threadgroup*) {
      float array[10];
      clear(array, p->index);
      *p->sum = array[3];
    })");
  Buffer buffer(*device_, 10 * sizeof(float));
  float sum = 0;
  const auto at = [&](const KernelSource& source, long long index) {
    dispatch(source, Elements{static_cast<const float*>(buffer.data()), index, &sum});
  };
  at(read, 0);
  at(read, 9);
  EXPECT_DEATH(at(read, 10), "AddressSanitizer");
  EXPECT_DEATH(at(read, -1), "AddressSanitizer");
  EXPECT_DEATH(at(read, 10 + 1023), "AddressSanitizer") << "a read of the guard band's last float";
  at(local, 9);
  EXPECT_EQ(sum, 3);
  EXPECT_DEATH(at(local, 10), "AddressSanitizer: stack-buffer-overflow");
  EXPECT_TRUE(buffer.guards_intact());
}

TEST_F(SanitizedKernelTest, UndefinedBehaviourIsReportedWithItsLine) {
  if (!sanitizes("undefined")) GTEST_SKIP() << "needs a build with UndefinedBehaviorSanitizer";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const KernelSource shift = returns("1ll << **result");
  const auto shift_by = [&](long long bits) {
    dispatch(shift, &bits);
    return bits;
  };
  EXPECT_EQ(shift_by(3), 8);
  EXPECT_DEATH(shift_by(64), "test/kernel.cpu.cpp:2:[0-9]+: runtime error: shift exponent 64 is too large");
  long long most = std::numeric_limits<long long>::max();
  EXPECT_DEATH(dispatch(returns("**result + 1"), &most), "runtime error: signed integer overflow");
}

}  // namespace
}  // namespace attn
