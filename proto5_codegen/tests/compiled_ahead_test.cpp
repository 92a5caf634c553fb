// Tests of the kernels in proto5_codegen/generated, which were compiled ahead of time. The tests need no GPU and no
// generator.
#include "proto5_codegen/compiled_ahead.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/sha256.h"
#include "common/testing/devices.h"

namespace attn {
namespace {

const std::vector<std::string> compiling_ahead = {"triton", "tilelang", "halide_gpu"};

std::string text_of(const std::string& path) {
  const auto text = read_file(std::filesystem::path(source_root()) / path);
  EXPECT_TRUE(text) << path;
  return text.value_or("");
}

CodegenCase case_of(const AheadKernel& kernel, const std::string& generator, int64_t tokens) {
  const std::vector<std::string> names = work_names();
  CodegenCase one;
  one.work = static_cast<CodegenWork>(std::find(names.begin(), names.end(), kernel.work) - names.begin());
  one.generator = generator;
  one.dtype = kernel.dtype == "f32" ? DType::f32 : DType::bf16;
  one.shape = {.batch = 2,
               .q_heads = 3,
               .kv_heads = 3,
               .q_len = tokens,
               .kv_len = tokens,
               .head_dim = kernel.head_dim,
               .causal = kernel.causal != 0};
  return one;
}

// If a generator's text changes, its kernels must be compiled again: proto5_codegen/tools/generate_cuda.py compile,
// tune and keep.
TEST(CompiledAheadTest, KeptKernelsWereMadeFromTheseTexts) {
  for (const std::string& generator : compiling_ahead) {
    const auto index = read_ahead_index(generator);
    ASSERT_TRUE(index) << generator;
    const std::string text = fmt::format("proto5_codegen/generators/{}_kernels.py", index->generator);
    EXPECT_EQ(index->source_sha256, sha256(text_of(text))) << text << " is not the file that the cubins were made from";
    EXPECT_FALSE(index->kernels.empty());
    for (const AheadKernel& kernel : index->kernels) {
      EXPECT_EQ(kernel.cubin_sha256, sha256(text_of("proto5_codegen/generated/" + kernel.file))) << kernel.file;
    }
  }
}

TEST(CompiledAheadTest, EveryKernelHasAPlan) {
  for (const std::string& generator : compiling_ahead) {
    const auto index = read_ahead_index(generator);
    ASSERT_TRUE(index);
    for (const AheadKernel& kernel : index->kernels) {
      const CodegenCase one = case_of(kernel, generator, kernel.most_kv_len > 0 ? kernel.most_kv_len : 256);
      const Plan plan = codegen_plan(one, test::hopper());
      ASSERT_EQ(skip_reason(plan, test::hopper()).value_or(""), "") << kernel.file;
      ASSERT_EQ(plan.launches.size(), 1u);
      EXPECT_EQ(plan.launches[0].source.path, "proto5_codegen/generated/" + kernel.file);
      EXPECT_GT(plan.launches[0].grid.count(), 0u);
      EXPECT_GT(plan.work.flops, 0);
    }
  }
}

TEST(CompiledAheadTest, ASoftmaxGetsTheSmallestKernelThatIsLongEnough) {
  const auto index = read_ahead_index("triton");
  ASSERT_TRUE(index);
  CodegenCase one;
  one.work = WORK_SOFTMAX;
  one.dtype = DType::bf16;
  one.shape.head_dim = 0;
  for (const auto& [keys, longest] : {std::pair{1, 256}, {256, 256}, {257, 512}, {8192, 8192}}) {
    one.shape.kv_len = keys;
    const AheadKernel* const found = find_ahead(*index, one);
    ASSERT_TRUE(found) << keys;
    EXPECT_EQ(found->most_kv_len, longest) << keys;
  }
  one.shape.kv_len = 8193;
  EXPECT_FALSE(find_ahead(*index, one));
}

TEST(CompiledAheadTest, SkipsSayWhy) {
  DeviceInfo ampere = test::hopper();
  ampere.arch = "sm_80";
  const auto index = read_ahead_index("triton");
  ASSERT_TRUE(index);
  CodegenCase one = case_of(index->kernels.front(), "triton", 256);
  EXPECT_NE(codegen_plan(one, ampere).unable.find("sm_90a"), std::string::npos);
  one.generator = "tilelang";
  one.dtype = DType::f32;
  EXPECT_NE(codegen_plan(one, test::hopper()).unable.find("no kernel of"), std::string::npos);
  one = case_of(index->kernels.front(), "triton", 37);
  one.work = WORK_VALUES;
  one.shape.causal = false;
  EXPECT_NE(codegen_plan(one, test::hopper()).unable.find("multiples of"), std::string::npos);
}

TEST(CompiledAheadTest, TheScarcestResourceLimitsTheThreadgroups) {
  Binary binary;
  binary.registers = 128;
  Launch launch;
  launch.threads = 256;
  const auto room = [&] { return threadgroups_at_once(binary, launch, test::hopper()); };
  EXPECT_EQ(room(), 2);  // the limit is 65536 registers
  binary.registers = 168;
  launch.threads = 384;
  EXPECT_EQ(room(), 1);
  binary.registers = 32;
  launch.threads = 128;
  EXPECT_EQ(room(), 16);  // the limit is 64 warps
  launch.threads = 32;
  EXPECT_EQ(room(), 32);  // the limit is 32 threadgroups
  launch.threadgroup_bytes = 75 << 10;
  EXPECT_EQ(room(), 3);  // 3 x (75 + 1) KiB of 228 KiB: the driver takes 1 KiB for each threadgroup
  launch.threadgroup_bytes = 76 << 10;
  EXPECT_EQ(room(), 2);
}

// The message is one line, which names the place of the mistake and the mistake.
TEST(CompiledAheadTest, BadDescriptionsAreErrors) {
  const std::string good =
      R"({"generator": "g", "version": "1", "source_sha256": "x", "kernels": [{"file": "f.cubin",
          "cubin_sha256": "y", "entry": "e",
          "problem": {"work": "scores", "dtype": "bf16", "head_dim": 64, "causal": 0},
          "most_kv_len": 0, "kv_len_multiple": 8, "grid": [{"of": ["q_len"], "per": 64}], "threads": 128,
          "threadgroup_bytes": 0, "tile": {}, "search": {}, "compile_s": 1, "source_lines": 9,
          "parameters": [{"kind": "int32", "of": ["kv_len"], "per": 32},
                         {"kind": "tensor_map", "tensor": "q", "rows": "q_len", "columns": "head_dim", "box": [64, 64],
                          "swizzle": 128}]}]})";
  ASSERT_EQ(parse_ahead_index(good, "name").kernels.size(), 1u);
  for (const auto& [from, to, says] : {std::tuple{"\"entry\"", "\"name\"", "entry"},
                                       {"\"tensor_map\"", "\"texture\"", "texture"},
                                       {"\"per\": 64", "\"per\": 0", "grid"},
                                       {"\"per\": 32", "\"per\": 0", "parameter"},
                                       {"\"threads\": 128", "\"threads\": \"many\"", "number"},
                                       {"\"box\": [64, 64]", "\"box\": [64]", "kernel 0"},
                                       {"]}]}", "]}", "the index is not as"}}) {
    std::string bad = good;
    const size_t at = bad.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    bad.replace(at, std::string(from).size(), to);
    try {
      parse_ahead_index(bad, "name.json");
      ADD_FAILURE() << to << " is accepted";
    } catch (const BadInput& error) {
      const std::string message = error.what();
      EXPECT_TRUE(message.starts_with("name.json: ")) << message;
      EXPECT_NE(message.find(says), std::string::npos) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }
}

TEST(CompiledAheadTest, ArgumentsFollowTheDescription) {
  AheadKernel kernel;
  kernel.parameters = {{.kind = AheadParameter::pointer, .tensor = "q"},
                       {.kind = AheadParameter::int32, .of = {"all_heads"}},
                       {.kind = AheadParameter::int32, .of = {"kv_len"}, .per = 64},
                       {.kind = AheadParameter::int64, .of = {"q_len", "head_dim"}},
                       {.kind = AheadParameter::number, .of = {"cap"}},
                       {.kind = AheadParameter::null}};
  CodegenCase one = case_of({.work = "attention", .dtype = "bf16", .head_dim = 64}, "triton", 100);
  CodegenParams pointers{};
  const int element = 0;
  pointers.q = &element;
  const Arguments wanted(pointers.q, int32_t{6}, int32_t{2}, int64_t{6400}, static_cast<float>(soft_cap),
                         static_cast<const void*>(nullptr));
  EXPECT_EQ(ahead_arguments(kernel, one, pointers), wanted);
  kernel.parameters = {{.kind = AheadParameter::int32, .of = {"rows"}}};
  EXPECT_THROW(ahead_arguments(kernel, one, pointers), BadInput);
  kernel.parameters = {{.kind = AheadParameter::pointer, .tensor = "w"}};
  EXPECT_THROW(ahead_arguments(kernel, one, pointers), BadInput);
}

}  // namespace
}  // namespace attn
