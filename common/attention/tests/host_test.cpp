// The tuned kernel of the cpu as other hosts compile it. Its register tile, its copies and its prefetches depend on the
// host's vectors; the compiler breaks vectors of any width down to what this host has, so all of it can be tested here.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "common/testing/tested_device.h"
#include "common/attention/problem.h"

namespace attn {
namespace {

struct Host {
  const char *name, *arch;
  uint32_t simd_width, vector_registers;
  int64_t tile_vectors, tile_rows;  // expected for tiles of many rows
  bool copies_pages;                // rows of K a multiple of 4 KiB apart
  bool asks_ahead;
};

void PrintTo(const Host& host, std::ostream* out) { *out << host.name; }

/// The device under test, described as another host.
class OtherHost : public Device {
 public:
  OtherHost(Device& device, const Host& host) : device_(device) {
    info_ = device.info();
    info_.arch = host.arch;
    info_.simd_width = host.simd_width;
    info_.vector_registers = host.vector_registers;
    info_.features.clear();
  }
  void* allocate(size_t bytes) override { return device_.allocate(bytes); }
  void release(void* pointer) noexcept override { device_.release(pointer); }
  void upload(void* target, const void* source, size_t bytes) override { device_.upload(target, source, bytes); }
  void download(void* target, const void* source, size_t bytes) override { device_.download(target, source, bytes); }
  Binary compile(const KernelSource& source, const CompileOptions& options) override {
    return device_.compile(source, options);
  }
  std::string compiler_identity() const override { return device_.compiler_identity(); }
  std::unique_ptr<Kernel> load(const Binary& binary, const std::string& entry) override {
    return device_.load(binary, entry);
  }
  std::vector<double> submit(const CommandEncoder& encoder) override { return device_.submit(encoder); }

 private:
  Device& device_;
};

class Hosts : public test::OnDevice<testing::TestWithParam<Host>> {
 protected:
  static FlashConfig config(int64_t head_dim, int64_t block_r) {
    FlashConfig result;
    result.variant = "tuned";
    result.shape = {.batch = 2, .q_heads = 6, .kv_heads = 2, .q_len = 77, .kv_len = 131, .head_dim = head_dim};
    result.block_r = block_r;
    result.block_c = 48;
    return result;
  }
  static int64_t constant(const FlashConfig& config, const std::string& name) {
    const OtherHost host(test::device(), GetParam());
    return FlashBackend::of(host.info()).kernel(config, host.info(), false).source.constants.at(name);
  }
};

INSTANTIATE_TEST_SUITE_P(All, Hosts,
                         testing::Values(Host{"sse", "x86-64-v2", 4, 16, 2, 6, true, false},
                                         Host{"avx2", "znver3", 8, 16, 2, 6, true, false},
                                         Host{"neon", "neoverse-n1", 4, 32, 4, 6, true, false},
                                         Host{"amd_512", "znver4", 16, 32, 2, 12, true, false},
                                         Host{"intel_512", "cascadelake", 16, 32, 4, 6, false, true}),
                         [](const auto& test) { return test.param.name; });

TEST_P(Hosts, HaveTheRegisterTileThatTheirRegistersHold) {
  const Host& host = GetParam();
  const FlashConfig many_rows = config(128, 256);
  EXPECT_EQ(constant(many_rows, "TILE_VECTORS"), host.tile_vectors);
  EXPECT_EQ(constant(many_rows, "TILE_ROWS"), host.tile_rows);
  EXPECT_EQ(constant(many_rows, "ASK_AHEAD"), host.asks_ahead);
  EXPECT_LE(constant(many_rows, "TILE_VECTORS") * (constant(many_rows, "TILE_ROWS") + 1), host.vector_registers);

  const FlashConfig few_rows = config(128, 16);  // no more than one vector of 16 lanes
  EXPECT_LE(constant(few_rows, "TILE_VECTORS") * host.simd_width, 16);
}

TEST_P(Hosts, CopyRowsOfKThatShareASetOfTheFirstCache) {
  FlashConfig pages = config(256, 64);
  pages.layout = Layout::bshd;
  pages.shape.q_heads = pages.shape.kv_heads = 4;  // 4 KiB from row to row
  EXPECT_EQ(constant(pages, "COPY_K"), GetParam().copies_pages);
  pages.layout = Layout::bhsd;
  EXPECT_EQ(constant(pages, "COPY_K"), 0);
  pages.dtype = DType::f16;  // to be converted
  EXPECT_EQ(constant(pages, "COPY_K"), 1);
}

TEST_P(Hosts, ComputeWhatTheOracleDoes) {
  OtherHost host(test::device(), GetParam());
  PipelineCache pipelines(host, "");
  for (const auto& [head_dim, block_r] : {std::pair{8, 16}, {64, 64}, {72, 32}, {128, 128}, {256, 48}}) {
    for (const bool causal : {false, true}) {
      for (const auto& [dtype, layout] :
           {std::pair{DType::f32, Layout::bhsd}, {DType::f32, Layout::bshd}, {DType::bf16, Layout::bshd}}) {
        FlashConfig flash = config(head_dim, block_r);
        flash.shape.causal = causal;
        if (layout == Layout::bshd) flash.shape.q_heads = flash.shape.kv_heads = 4;  // at 256 f32, 4 KiB apart
        flash.dtype = flash.out_dtype = dtype;
        flash.layout = layout;
        FlashProblem problem(host, pipelines, std::make_shared<FlashInputs>(host, flash, 7, ""), flash);
        problem.poison();
        CommandEncoder encoder;
        problem.encode(encoder);
        host.submit(encoder);
        const Check check = problem.check();
        EXPECT_TRUE(check.ok) << fmt::format("head_dim {} block_r {} causal {} {} {}: ", head_dim, block_r, causal,
                                             name(dtype), name(layout))
                              << check.worst;
      }
    }
  }
}

}  // namespace
}  // namespace attn
