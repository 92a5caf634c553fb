// Kernels of Metal that no experiment checks: kernels that measure a device's highest rates (ceiling.metal), and
// stage.metal, empty.metal and probe.metal. Two tests run each kernel in six orders of its threads, and check
// the results; the emulator must report no fault. The third test plants faults in some of these kernels, and the
// emulator must find each fault.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "common/api/kernels/stage.h"
#include "common/backends/metal/emulator/emulator.h"
#include "common/base/error.h"
#include "common/device/kernels/ceiling.h"
#include "common/device/kernels/probe.h"
#include "common/testing/mutated_sources.h"

namespace attn {
namespace {

constexpr uint32_t copy_threads_of_metal = 256;

struct Small {
  std::string file, function;
  std::string constants = {};
  uint32_t groups = 1, threads = 32;
  size_t threadgroup_bytes = 0;
  bool fast_math = true;
};

/// Runs the kernel in six orders: first to last, last to first, and four random orders. `fill` sets the memory before
/// each run. After the run, `check` compares the memory with the expected contents.
template <typename Params>
void run_small(const Small& kernel, const Params& params, std::vector<msl::Memory> memory,
               const std::function<void()>& fill, const std::function<void(uint32_t)>& check) {
  static const msl::Compiler compiler;
  const std::string root = source_root() + "/";
  const msl::Kernel loaded(compiler.compile({.path = root + kernel.file,
                                             .function = kernel.function,
                                             .before = kernel.constants,
                                             .folders = {root},
                                             .fast_math = kernel.fast_math}));
  memory.push_back({"the parameters", &params, sizeof params});
  for (uint32_t order = 0; order < 6; ++order) {
    fill();
    msl::Run launch{.grid = {kernel.groups}, .threads = {kernel.threads}, .memory = memory, .order = order};
    launch.buffers[0] = &params;
    if (kernel.threadgroup_bytes > 0) launch.threadgroup_bytes[0] = kernel.threadgroup_bytes;
    loaded.run(launch);
    check(order);
  }
}

constexpr const char* f32_constants =
    "constexpr constant int NON_TEMPORAL = 0, ACCUMULATORS = 3, IN_TYPE = 0;\n#define NON_TEMPORAL_VALUE 0\n"
    "#define ACCUMULATORS_VALUE 3\n#define IN_TYPE_VALUE 0\n";
constexpr const char* ceilings = "common/device/kernels/ceiling.metal";

void run_copy() {
  constexpr uint32_t groups = 3, part = 1280;
  std::vector<float> source(groups * part / 4), target(source.size());
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<float>(i);
  const CopyParams params{source.data(), target.data(), part};
  run_small(
      {ceilings, "ceiling_copy", f32_constants, groups, copy_threads_of_metal}, params,
      {{"source", source.data(), source.size() * 4}, {"target", target.data(), target.size() * 4}},
      [&] { std::ranges::fill(target, -1.0f); }, [&](uint32_t order) { EXPECT_EQ(source, target) << order; });
}

void run_read() {
  constexpr uint32_t groups = 2, part = 256 * 16 * 2;
  const std::vector<float> source(groups * part / 4, 1.0f);
  std::vector<float> result(groups * copy_threads_of_metal);
  const ReadParams params{source.data(), result.data(), part};
  run_small(
      {ceilings, "ceiling_read", f32_constants, groups, copy_threads_of_metal}, params,
      {{"source", source.data(), source.size() * 4}, {"result", result.data(), result.size() * 4}},
      [&] { std::ranges::fill(result, -1.0f); },
      [&](uint32_t order) { EXPECT_EQ(result, std::vector<float>(result.size(), 8.0f)) << order; });
}

void run_arithmetic(const std::string& function, float expected) {
  std::vector<float> result(2 * ceiling_threads);
  const ArithmeticParams params{result.data(), 2, 0.5f, 0.25f};
  run_small(
      {ceilings, function, f32_constants, 2, ceiling_threads}, params, {{"result", result.data(), result.size() * 4}},
      [&] { std::ranges::fill(result, -1.0f); },
      [&](uint32_t order) { EXPECT_EQ(result, std::vector<float>(result.size(), expected)) << order; });
}

void run_stage() {
  std::vector<unsigned> table(37);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<unsigned>(i);
  std::vector<unsigned char> block(20 + 4 * table.size());
  StageParams params = {};
  params.block = block.data();
  params.bytes = 18;
  params.tables = 1;
  for (int i = 0; i < params.bytes; ++i) params.head[i] = static_cast<unsigned char>(i + 1);
  params.table[0] = {table.data(), static_cast<int64_t>(table.size()), 20};
  run_small(
      {"common/api/kernels/stage.metal", "stage", "constexpr constant int THREADS = 64;\n", 2, 64}, params,
      {{"block", block.data(), block.size()}, {"table", table.data(), table.size() * 4}},
      [&] { std::ranges::fill(block, 0xff); },
      [&](uint32_t order) {
        EXPECT_EQ(std::memcmp(block.data(), params.head, 18), 0) << order;
        EXPECT_EQ(block[18], 0xff) << order;
        EXPECT_EQ(std::memcmp(block.data() + 20, table.data(), 4 * table.size()), 0) << order;
      });
}

void run_probe() {
  constexpr uint32_t bytes = 32768, zero = 0;
  std::vector<uint32_t> found(probed_count), expected(probed_count);
  expected[probed_width] = 32;
  expected[probed_last_word] = 12345;
  const ProbeParams params{found.data(), &zero, bytes / 4 - 1};
  run_small(
      {.file = "common/device/kernels/probe.metal",
       .function = "probe",
       .threads = probe_threads,
       .threadgroup_bytes = bytes,
       .fast_math = false},
      params, {{"found", found.data(), found.size() * 4}, {"zero", &zero, 4}}, [&] { std::ranges::fill(found, 7u); },
      [&](uint32_t order) { EXPECT_EQ(found, expected) << order; });
}

TEST(MetalSmallKernelsTest, AreRightInSixOrders) {
  run_copy();
  run_read();
  // The sum of three accumulators, which begin as 0, 1 and 2. A step replaces an accumulator x by 0.5 * x + 0.25. Two
  // steps replace x by 0.25 * x + 0.375.
  run_arithmetic("ceiling_fma", 3 * 0.375f + 0.25f * (0 + 1 + 2));
  run_stage();
  run_probe();
  const int unused = 0;
  run_small({"common/api/kernels/empty.metal", "empty", "", 3}, unused, {}, [] {}, [](uint32_t) {});
}

// In ceiling_mma, each row of the left operand has four elements f and four elements -f. All rows of the right
// operand are equal. So the product of the matrices is 0.
TEST(MetalSmallKernelsTest, ProductsOfMatricesLeaveTheAccumulatorsAsTheyWere) {
  run_arithmetic("ceiling_mma", 2 * (0 + 1 + 2));
}

TEST(MetalSmallKernelsTest, FaultsAreFound) {
  const auto fault_of = [](const std::string& file, const std::string& from, const std::string& to, void (*kernel)()) {
    const test::MutatedSources sources(file, from, to);
    try {
      kernel();
    } catch (const DeviceFault& found) {
      return std::string(found.what());
    }
    return std::string("no fault");
  };
  const auto begins = [](const std::string& text, const std::string& with, const std::string& part) {
    EXPECT_TRUE(text.starts_with(with)) << text;
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  begins(fault_of(ceilings, "i < count; i += copy_threads) target", "i <= count; i += copy_threads) target", run_copy),
         "race: ", "of target");
  begins(fault_of(ceilings, "p.result[group.x * static_cast<ulong>(copy_threads) + thread_index]",
                  "p.result[group.x * static_cast<ulong>(copy_threads)]", run_read),
         "race: ", "word 0 (byte 0) of result");
  begins(fault_of("common/api/kernels/stage.metal", "i < p.bytes;", "i <= p.bytes + 2;", run_stage),
         "race: ", "of block");
  begins(fault_of("common/api/kernels/stage.metal", "i < p.table[t].words;", "i <= p.table[t].words;", run_stage),
         "bounds: ", "word 37 (byte 148) of table");
  begins(fault_of("common/device/kernels/probe.metal", "simdgroup_barrier(mem_flags::mem_threadgroup);", "", run_probe),
         "race: ", "of threadgroup(0)");
}

}  // namespace
}  // namespace attn
