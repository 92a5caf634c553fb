// Every form at every grain, compiled and linked for a Hopper GPU without one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include "common/base/error.h"
#include "common/testing/cuda_compiler.h"
#include "proto2_stitching/problem.h"

namespace attn {
namespace {

using StitchCudaCompileTest = test::CudaCompilerTest;

TEST_F(StitchCudaCompileTest, EveryFormCompilesAtEveryGrain) {
  test::CompilingDevice device(*compiler_);
  PipelineCache pipelines(device, "");
  StitchConfig config;
  config.flash.variant = "mma_sync";
  config.flash.shape = {.batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 128, .kv_len = 128, .head_dim = 64};
  config.flash.dtype = config.flash.out_dtype = DType::bf16;
  config.flash.block_r = 128;
  config.flash.block_c = 64;
  std::map<std::string, std::string> codes;
  for (const std::string& form : score_forms()) {
    if (!form_runs_on(form, device.info())) continue;
    for (const std::string grain : {"element", "row", "tile"}) {
      if (form == "monolithic" && grain != "element") continue;
      config.form = form;
      config.grain = grain;
      const ScoreHook hook = stitch_hook(config, device.info(), built_in_function("alibi", 0));
      const Binary& binary = pipelines.get(attention_launch(config.flash, device.info(), &hook).source).binary;
      EXPECT_GT(binary.registers, 0) << form << " by " << grain;
      EXPECT_GE(binary.spill_bytes, 0) << form << " by " << grain;
      codes[form + " by " + grain] = binary.code_sha256;
      RecordProperty(form + "_" + grain,
                     fmt::format("{} registers, {} bytes spilled, {} bytes of code", binary.registers,
                                 binary.spill_bytes, cuda_contents(binary).bytes));
    }
  }
  // What is linked as machine code has a call that what is linked before the optimiser has not.
  EXPECT_NE(codes["stitched by row"], codes["stitched_nolto by row"]);
  EXPECT_NE(codes["noinline by tile"], codes["inline by tile"]);
}

TEST_F(StitchCudaCompileTest, AFunctionThatDoesNotCompileIsBadInputWithItsOwnLines) {
  test::CompilingDevice device(*compiler_);
  try {
    require_compiles(device,
                     {"mine.cpp", "float score(float s, int, int, const ScoreContext&) {\n\n  return slop;\n}\n"});
    ADD_FAILURE() << "it compiles";
  } catch (const BadInput& error) {
    EXPECT_NE(std::string(error.what()).find("mine.cpp(3): error"), std::string::npos) << error.what();
  }
  EXPECT_NO_THROW(require_compiles(device, built_in_function("soft_cap", 0)));
}

}  // namespace
}  // namespace attn
