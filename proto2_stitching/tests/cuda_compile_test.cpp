// Compiles and links kernels of every form (how the kernel reaches the score function) and grain (how many scores a
// call takes) for a Hopper GPU, without a GPU.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>

#include "common/backends/cuda/cubin.h"
#include "common/base/error.h"
#include "common/cases/user_functions.h"
#include "common/testing/captured_log.h"
#include "common/testing/cuda_compiler.h"
#include "common/testing/user_texts.h"
#include "proto2_stitching/problem.h"

namespace attn {
namespace {

using StitchCudaCompileTest = test::CudaCompilerTest;

StitchConfig config_of(const char* variant, int64_t heads, int64_t length, int64_t head_dim, int64_t rows,
                       int64_t keys) {
  StitchConfig config;
  config.flash.variant = variant;
  config.flash.shape = {.q_heads = heads, .kv_heads = heads, .q_len = length, .kv_len = length, .head_dim = head_dim};
  config.flash.dtype = config.flash.out_dtype = DType::bf16;
  config.flash.block_r = rows;
  config.flash.block_c = keys;
  return config;
}

/// Returns the kernel of a case whose score function is `alibi`.
KernelSource source_of(const StitchConfig& config) {
  const AttentionHooks hook = stitch_hook(config, test::hopper(), built_in_function("alibi", 0));
  return attention_launch(config.flash, test::hopper(), &hook).source;
}

TEST_F(StitchCudaCompileTest, EveryFormCompilesAtEveryGrain) {
  Device& device = *compiler_;
  PipelineCache pipelines(device, "");
  StitchConfig config = config_of("mma_sync", 1, 128, 64, 128, 64);
  std::map<std::string, std::string> codes;
  for (const std::string& form : score_forms()) {
    if (!form_runs_on(form, device.info())) continue;
    for (const std::string grain : {"element", "row", "tile"}) {
      if (form == "monolithic" && grain != "element") continue;
      config.form = form;
      config.grain = grain;
      const Binary& binary = pipelines.get(source_of(config)).binary;
      EXPECT_GT(binary.registers, 0) << form << " by " << grain;
      EXPECT_GE(binary.spill_bytes, 0) << form << " by " << grain;
      codes[form + " by " + grain] = binary.code_sha256;
      RecordProperty(form + "_" + grain,
                     fmt::format("{} registers, {} bytes spilled, {} bytes of code", binary.registers,
                                 binary.spill_bytes, cuda_contents(binary).bytes));
    }
  }
  // In each of these pairs one kernel calls the score function, and the other has the function inlined.
  EXPECT_NE(codes["stitched by row"], codes["stitched_nolto by row"]);
  EXPECT_NE(codes["noinline by tile"], codes["inline by tile"]);
}

// call_skip_reason() leaves out the forms for which the compiler ignores setmaxnreg. If a new compiler obeys setmaxnreg
// for such a form, the test fails: then call_skip_reason() need not leave the form out. For every other form the
// compiler must give no message, for example none that it serialises wgmma instructions.
TEST_F(StitchCudaCompileTest, FormsOfWgmmaThatTheCompilerWarnsAboutAreLeftOut) {
  for (const auto& [head_dim, rows, keys] :
       {std::tuple{64, 256, 64}, {64, 128, 128}, {64, 64, 64}, {128, 192, 80}, {256, 128, 64}}) {
    StitchConfig config = config_of("wgmma", 16, 2048, head_dim, rows, keys);
    config.grain = "element";
    std::map<std::string, std::string> codes;
    for (const std::string& form : score_forms()) {
      config.form = form;
      if (!form_runs_on(form, test::hopper())) continue;
      const std::string what = fmt::format("{} at head_dim {} by {}x{}", form, head_dim, rows, keys);
      const test::CapturedLog log;
      Binary binary;
      std::string refused;
      try {
        binary = compiler_->compile(source_of(config));
      } catch (const CompileError& error) {
        refused = error.what();
      }
      codes[form] = binary.code_sha256;
      if (call_skip_reason(config, test::hopper())) {
        EXPECT_NE((log.text() + refused).find("setmaxnreg"), std::string::npos) << what;
        EXPECT_TRUE(!refused.empty() || binary.spill_bytes >= 512) << what;
        continue;
      }
      EXPECT_EQ(refused + log.text(), "") << what;
      EXPECT_LE(binary.spill_bytes, form_is_inlined(form) ? 0 : 64) << what;
      RecordProperty(what, fmt::format("{} registers, {} bytes spilled, {} bytes of code", binary.registers,
                                       binary.spill_bytes, cuda_contents(binary).bytes));
    }
    EXPECT_EQ(codes["inline"], codes["monolithic"]) << head_dim;
    EXPECT_NE(codes["noinline"], codes["monolithic"]) << "the kernel with noinline has no call";
  }
}

// Where the optimiser sees the function, a file with the text of a built-in function costs what the built-in function
// costs.
TEST_F(StitchCudaCompileTest, AUsersFileGivesTheCodeOfABuiltInFunction) {
  const UserFunction built_in = built_in_function("alibi", 0),
                     file = read_function(FunctionKind::score, source_root() + "/" + built_in.name);
  for (const auto& [variant, form, grain] : {std::tuple{"mma_sync", "monolithic", "element"},
                                             {"mma_sync", "inline", "tile"},
                                             {"mma_sync", "switch", "row"},
                                             {"mma_sync", "stitched", "element"},
                                             {"wgmma", "monolithic", "element"},
                                             {"wgmma", "stitched", "element"}}) {
    StitchConfig config = config_of(variant, 2, 256, 64, 64, 32);
    config.form = form;
    config.grain = grain;
    const auto code = [&](const UserFunction& function) {
      const AttentionHooks hook = stitch_hook(config, test::hopper(), function);
      return instructions_of(compiler_->compile(attention_launch(config.flash, test::hopper(), &hook).source, {}).code);
    };
    EXPECT_TRUE(code(file) == code(built_in)) << variant << " " << form << " by " << grain;
  }
}

TEST_F(StitchCudaCompileTest, NamesInAUsersFileChangeNothing) {
  StitchConfig config = config_of("mma_sync", 2, 256, 64, 64, 32);
  config.form = "monolithic";
  config.grain = "element";
  const auto code = [&](const std::string& after) {
    const UserFunction function{
        .name = "mine.cpp",
        .text = "float score(float s, int q, int k) { return s - 0.25f * fabsf(q - k); }\n" + after,
        .guarded = true};
    EXPECT_NO_THROW(require_compiles(*compiler_, function)) << after;
    const AttentionHooks hook = stitch_hook(config, test::hopper(), function);
    return instructions_of(compiler_->compile(attention_launch(config.flash, test::hopper(), &hook).source, {}).code);
  };
  for (const char* variant : {"mma_sync", "wgmma"}) {
    config.flash.variant = variant;
    const test::CapturedLog log;
    const std::string plain = code("");
    for (const std::string& line : test::lines_with_kernels_names) {
      std::string named;
      ASSERT_NO_THROW(named = code(line)) << line;
      EXPECT_TRUE(named == plain) << variant << ": " << line;
    }
    EXPECT_EQ(log.text(), "") << variant;
  }
}

}  // namespace
}  // namespace attn
