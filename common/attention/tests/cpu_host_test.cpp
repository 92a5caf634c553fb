// Compiles attention's kernels of the cpu for several families of hosts (LLVM's names: x86-64-v3, znver4, ...), with
// the constants and the instructions of each family. One test also runs kernels, for the families that have this
// machine's architecture. For this test the kernels are compiled without the instructions that this machine lacks: the
// compiler splits vectors of any width into vectors that this machine has.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/attention/given_mask.h"
#include "common/attention/launch.h"
#include "common/attention/mask_lists.h"
#include "common/attention/modifiers.h"
#include "common/attention/rope.h"
#include "common/attention/user_function.h"
#include "common/backends/cpu/compiler.h"
#include "common/backends/cpu/sanitizers.h"
#include "common/base/error.h"
#include "common/cases/problem.h"
#include "common/cases/user_functions.h"
#include "common/testing/plain_devices.h"
#include "common/testing/some.h"
#include "common/testing/tested_device.h"

namespace attn {
namespace {

struct Host {
  const char* family;
  uint32_t simd_width, vector_registers;
  int64_t tile_vectors, tile_rows;  // the size of the register tile if the kernel's tile has many queries
  bool copies_pages;                // the tuned kernel copies K if the rows of K lie a multiple of 4 KiB apart
  bool asks_ahead;                  // the tuned kernel prefetches the next rows that it copies (ASK_AHEAD)
  bool bf16_dot;                    // the tuned kernel in bf16 multiplies bf16 (BF16_DOT)
  std::set<std::string> tuned;      // the files of the tuned kernel for all element types
};

void PrintTo(const Host& host, std::ostream* out) { *out << host.family; }

/// The device under test, described as another host. Kernels are compiled for that host, but without the instructions
/// that this machine lacks.
class CompiledForOther : public test::OtherDevice {
 public:
  CompiledForOther(Device& device, const CpuTarget& family)
      : OtherDevice(device), compiler_(family.within(CpuTarget::host())) {
    info_ = cpu_info(family);
    info_.features = compiler_.target().features;
    info_.threadgroup_memory_bytes = device.info().threadgroup_memory_bytes;
  }
  Binary compile(const KernelSource& source, const CompileOptions&) override { return compiler_.compile(source); }
  std::string compiler_identity() const override { return compiler_.identity(); }

 private:
  const CpuCompiler compiler_;
};

class Hosts : public test::OnDevice<testing::TestWithParam<Host>> {
 protected:
  static FlashConfig config(const std::string& variant, int64_t head_dim, int64_t block_r, DType dtype = DType::f32) {
    FlashConfig result;
    result.variant = variant;
    result.shape = {.batch = 2, .q_heads = 6, .kv_heads = 2, .q_len = 77, .kv_len = 131, .head_dim = head_dim};
    result.dtype = result.out_dtype = dtype;
    result.block_r = block_r;
    result.block_c = 48;
    return result;
  }
  int64_t constant(const FlashConfig& config, const std::string& name) const {
    return FlashOperation::of(info_).kernel(config, info_).source.constants.at(name);
  }

  const CpuTarget target_ = CpuTarget::named(GetParam().family);
  const DeviceInfo info_ = cpu_info(target_);
};

INSTANTIATE_TEST_SUITE_P(
    All, Hosts,
    testing::Values(Host{"x86-64-v2", 4, 16, 2, 6, true, false, false, {"tuned"}},
                    Host{"x86-64-v3", 8, 16, 2, 6, true, false, false, {"tuned"}},
                    Host{"x86-64-v4", 16, 32, 4, 6, false, true, false, {"tuned"}},
                    Host{"cascadelake", 16, 32, 4, 6, false, true, false, {"tuned"}},
                    Host{"znver4", 16, 32, 2, 12, true, false, true, {"tuned"}},
                    Host{"graniterapids", 16, 32, 4, 6, false, true, false, {"tuned", "amx"}},
                    Host{"cortex-a72", 4, 32, 4, 5, true, false, false, {"neon"}},
                    Host{"neoverse-n1", 4, 32, 4, 5, true, false, false, {"neon"}},
                    Host{"neoverse-v1", 4, 32, 4, 5, true, false, true, {"neon", "neon_f16", "neon_bf16"}}),
    [](const auto& test) {
      std::string name = test.param.family;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

TEST_P(Hosts, HaveTheRegisterTileThatTheirRegistersHold) {
  const Host& host = GetParam();
  EXPECT_EQ(info_.simd_width, host.simd_width);
  EXPECT_EQ(info_.vector_registers, host.vector_registers);
  const FlashConfig many_rows = config("tuned", 128, 256);
  EXPECT_EQ(constant(many_rows, "TILE_VECTORS"), host.tile_vectors);
  EXPECT_EQ(constant(many_rows, "TILE_ROWS"), host.tile_rows);
  EXPECT_EQ(constant(many_rows, "ASK_AHEAD"), host.asks_ahead);
  EXPECT_LE(constant(many_rows, "TILE_VECTORS") * (constant(many_rows, "TILE_ROWS") + 1), host.vector_registers);

  const FlashConfig few_rows = config("tuned", 128, 16);  // 16 queries: TILE_VECTORS vectors have at most 16 lanes
  EXPECT_LE(constant(few_rows, "TILE_VECTORS") * host.simd_width, 16);
}

TEST_P(Hosts, CopyRowsOfKThatMayEvictEachOtherFromTheL1Cache) {
  FlashConfig pages = config("tuned", 256, 64);
  pages.layout = Layout::bshd;
  pages.shape.q_heads = pages.shape.kv_heads = 4;  // 4 KiB from row to row
  EXPECT_EQ(constant(pages, "COPY_K"), GetParam().copies_pages);
  if (!GetParam().copies_pages) {  // such a host copies K only if a register tile has more rows than a set has ways
    FlashConfig few_rows = pages;
    few_rows.block_r = 32;  // register tiles of 12 rows
    DeviceInfo device = info_;
    for (const auto& [ways, copies] : {std::pair{8u, 1}, {12u, 0}}) {
      device.l1_ways = ways;
      EXPECT_EQ(FlashOperation::of(device).kernel(few_rows, device).source.constants.at("COPY_K"), copies) << ways;
    }
  }
  pages.layout = Layout::bhsd;
  EXPECT_EQ(constant(pages, "COPY_K"), 0);
  pages.dtype = DType::f16;  // a kernel that converts K copies K
  EXPECT_EQ(constant(pages, "COPY_K"), !GetParam().tuned.contains("neon_f16"));
}

TEST_P(Hosts, CompileEveryKernel) {
  const std::unique_ptr<CpuCompiler> compiler = [&]() -> std::unique_ptr<CpuCompiler> {
    try {
      return std::make_unique<CpuCompiler>(target_);
    } catch (const DeviceMissing&) {
      return nullptr;
    }
  }();
  if (!compiler) GTEST_SKIP() << "this LLVM was built without " << target_.triple;
  std::set<std::string> kernels;
  const auto compiles = [&](const KernelSource& source) {
    kernels.insert(source.path);
    EXPECT_NO_THROW(EXPECT_FALSE(compiler->compile(source).code.empty())) << source.key();
  };
  const FlashOperation& operation = FlashOperation::of(info_);
  for (const std::string& variant : operation.variants()) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const AttentionHooks any;
      for (const bool hooked : {false, true}) {
        FlashConfig flash = config(variant, hooked ? 72 : 128, 64, dtype);
        flash.shape.causal = hooked;
        const KernelSource source = operation.kernel(flash, info_, hooked ? &any : nullptr).source;
        compiles(source);
        if (variant == "tuned" && dtype == DType::bf16 && !hooked) {
          const auto& constants = source.constants;
          EXPECT_EQ(constants.contains("BF16_DOT") && constants.at("BF16_DOT"), GetParam().bf16_dot);
        }
      }
    }
  }
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const RopePairing pairing : {RopePairing::half_split, RopePairing::interleaved}) {
      compiles(rope_plan({.pairing = pairing}, {.dtype = dtype}, info_).launches.front().source);
    }
  }
  const FlashConfig listed = config("tuned", 128, 64);
  compiles(mask_launch(listed, info_, operation.kernel(listed, info_), ListScope::all).source);
  const AttentionHooks masked = modifier_hooks({.mask_bits = true}, DType::f32);
  compiles(mask_bits_launch(attention_launch(listed, info_, &masked), info_).source);
  const UserFunction functions[] = {
      {.name = "score.cpp", .text = "float score(float s, int q, int k) { return q > k ? s : 0; }", .guarded = true},
      {.name = "mask.cpp",
       .text = "bool visible(int q, int k) { return q > k; }",
       .kind = FunctionKind::mask,
       .guarded = true},
      {.name = "feature.cpp",
       .text = "float feature(float x) { return x > 0 ? x : 0; }",
       .kind = FunctionKind::feature,
       .guarded = true}};
  for (const UserFunction& function : functions) {
    compiles(function_oracle(info_, function, function.kind != FunctionKind::mask));
  }
  std::set<std::string> expected;
  for (const std::string& path : kernel_files()) {
    const std::string folder = "common/attention/kernels/", ending = ".cpu.cpp";
    if (!path.starts_with(folder) || !path.ends_with(ending)) continue;
    const std::string kernel = path.substr(folder.size(), path.size() - folder.size() - ending.size());
    const bool of_tuned = kernel == "tuned" || kernel == "amx" || kernel.starts_with("neon");
    if (!of_tuned || GetParam().tuned.contains(kernel)) expected.insert(path);
  }
  EXPECT_EQ(kernels, expected);
}

// The busiest loop of a kernel of AArch64 is mostly multiply-adds, and stores no register.
TEST(ArmKernels, MultiplyInRegisters) {
  if (sanitizes("address") || sanitizes("undefined")) GTEST_SKIP() << "sanitizers add instructions of their own";
  for (const char* family : {"cortex-a72", "neoverse-n1", "neoverse-v1", "apple-m1"}) {
    const CpuTarget target = CpuTarget::named(family);
    const DeviceInfo info = cpu_info(target);
    std::unique_ptr<CpuCompiler> compiler;
    try {
      compiler = std::make_unique<CpuCompiler>(target);
    } catch (const DeviceMissing& error) {
      GTEST_SKIP() << error.what();
    }
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (const int64_t head_dim : {64, 128}) {
        FlashConfig config;
        config.variant = "tuned";
        config.dtype = config.out_dtype = dtype;
        config.shape = {.batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 512, .kv_len = 512, .head_dim = head_dim};
        config.block_r = config.block_c = 128;
        const KernelSource source = FlashOperation::of(info).kernel(config, info).source;
        std::map<std::string, int> loop = compiler->contents(compiler->compile(source).code).loop;
        EXPECT_GE(loop["multiply_add"], 0.65 * loop["instructions"]) << family << " " << source.key();
        for (const auto& [name, count] : loop) EXPECT_FALSE(name.starts_with("store")) << family << " " << source.key();
      }
    }
  }
}

TEST_P(Hosts, ComputeWhatTheOracleDoes) {
  std::unique_ptr<CompiledForOther> host;
  try {
    host = std::make_unique<CompiledForOther>(test::device(), target_);
  } catch (const BadInput& error) {
    GTEST_SKIP() << error.what();  // the host has another architecture
  }
  PipelineCache pipelines(*host, "");
  bool causal = false;
  const auto expect_right = [&](FlashConfig flash, Layout layout) {
    flash.shape.causal = causal = !causal;  // every second case is causal
    if (layout == Layout::bshd)
      flash.shape.q_heads = flash.shape.kv_heads = 4;  // at head_dim 256 in f32, rows are 4 KiB apart
    flash.layout = layout;
    FlashProblem problem(*host, pipelines, std::make_shared<FlashInputs>(*host, flash, 7, ""), flash,
                         attention_plan(flash, host->info()));
    const Check check = test::launched(problem, *host);
    EXPECT_TRUE(check.ok) << fmt::format("{} {} {}: ", flash.variant, name(flash.dtype), name(layout)) << check.worst;
  };
  test::Some some(3);
  for (const auto& [dtype, layout] : {std::pair{DType::f32, Layout::bhsd},
                                      {DType::f32, Layout::bshd},
                                      {DType::f16, Layout::bhsd},
                                      {DType::bf16, Layout::bshd}}) {
    for (const auto& [head_dim, block_r] : {std::pair{8, 16}, {64, 64}, {72, 32}, {128, 128}, {256, 48}}) {
      if (some.skips()) continue;
      expect_right(config("tuned", head_dim, block_r, dtype), layout);
    }
  }
  for (const char* variant : {"naive", "tiled_scalar", "tiled_vector"}) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      expect_right(config(variant, 72, 32, dtype), Layout::bhsd);
    }
  }
}

}  // namespace
}  // namespace attn
