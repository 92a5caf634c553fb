// Compiles kernels for a Hopper GPU, on a machine that needs no GPU.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "common/attention/flash.h"
#include "common/cases/axes.h"
#include "common/cases/configurations.h"
#include "common/testing/captured_log.h"
#include "common/testing/cuda_compiler.h"
#include "proto1_flash/sweep.h"

namespace attn {
namespace {

using test::hopper;

class FlashCudaCompileTest : public test::CudaCompilerTest {
 protected:
  Binary compile(const FlashConfig& config) {
    return compiler_->compile(FlashOperation::of(hopper()).kernel(config, hopper()).source);
  }
};

TEST_F(FlashCudaCompileTest, KernelsOfTheSweepNeitherSpillNorSerialise) {
  std::set<std::string> seen;
  for (const Case& config :
       expand(flash_sweep("quick", hopper()), flash_axes(), [](Case& c) { complete_flash(c, hopper()); })) {
    if (skip_reason(flash_plan(config, {hopper()}), hopper())) continue;
    const FlashConfig flash = flash_config_of(config);
    const KernelSource source = FlashOperation::of(hopper()).kernel(flash, hopper()).source;
    if (!seen.insert(source.path + source.key()).second) continue;
    const test::CapturedLog log;
    const Binary binary = compiler_->compile(source);
    EXPECT_EQ(log.text(), "");
    EXPECT_EQ(binary.spill_bytes, 0) << source.path << " " << source.key();
    EXPECT_GT(binary.registers, 0);
  }
  EXPECT_GT(seen.size(), 40u);
}

// The kernel of the widest tile that skip_reason() allows spills no registers. A tile that is 32 keys wider spills.
TEST_F(FlashCudaCompileTest, RegisterRuleIsTight) {
  FlashConfig config;
  config.variant = "wgmma";
  config.dtype = config.out_dtype = DType::bf16;
  config.shape = {.batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 1024, .kv_len = 1024, .head_dim = 64};
  const FlashOperation& operation = FlashOperation::of(hopper());
  constexpr std::pair<int, int> rows_and_dims[] = {{256, 64}, {192, 64}, {192, 128}, {128, 128}, {128, 256}, {64, 256}};
  for (const auto& [rows, dim] : rows_and_dims) {
    config.block_r = rows;
    config.shape.head_dim = dim;
    int64_t widest = 0;
    for (config.block_c = 16; config.block_c <= 256; config.block_c += 16) {
      if (!operation.skip_reason(config, hopper())) widest = config.block_c;
    }
    ASSERT_GT(widest, 0) << rows << " rows, head_dim " << dim;
    config.block_c = widest;
    const test::CapturedLog log;
    EXPECT_EQ(compile(config).spill_bytes, 0) << rows << " rows, head_dim " << dim << ", " << widest << " keys";
    EXPECT_EQ(log.text(), "");
    config.block_c = widest + 32;
    if (config.block_c <= 256) {
      EXPECT_GT(compile(config).spill_bytes, 0)
          << rows << " rows, head_dim " << dim << ": more than " << widest << " keys fit";
    }
  }
}

}  // namespace
}  // namespace attn
