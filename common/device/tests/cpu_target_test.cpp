// The target of a cpu kernel's code: the host's processor, or a family of processors such as x86-64-v3 or znver4.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "common/backends/cpu/compiler.h"
#include "common/backends/cpu/target.h"
#include "common/device/tests/support.h"

namespace attn {
namespace {

using test::kernel_text;

/// y = a x + y over 64 floats, 16 in each iteration.
KernelSource multiply_add() {
  return kernel_text(R"(
    struct Params { float* y; const float* x; float a; };
    extern "C" void run(const Params* p, const Threadgroup*) {
      typedef float Floats __attribute__((vector_size(64)));
      for (int i = 0; i < 64; i += 16) {
        store(p->y + i, load<Floats>(p->x + i) * p->a + load<Floats>(p->y + i));
      }
    })");
}

// The architecture (e_machine) in the object file's ELF header: 16 bits, little-endian.
int machine_of(const Binary& binary) {
  return static_cast<unsigned char>(binary.code.at(18)) + 256 * static_cast<unsigned char>(binary.code.at(19));
}

TEST(CpuTargetTest, TheTargetOfTheHostIsTheTargetOfTheDevice) {
  const CpuTarget host = CpuTarget::host();
  const DeviceInfo here = Device::open("cpu:threads=1")->info(), info = cpu_info(host);
  EXPECT_EQ(info.backend, here.backend);
  EXPECT_EQ(info.arch, here.arch);
  EXPECT_EQ(info.toolchain, here.toolchain);
  EXPECT_EQ(info.features, here.features);
  EXPECT_EQ(info.simd_width, here.simd_width);
  EXPECT_EQ(info.vector_registers, here.vector_registers);
  EXPECT_EQ(host.within(host).switches, host.switches);
  EXPECT_EQ(host.within(host).features, host.features);
}

TEST(CpuTargetTest, FamiliesHaveTheirVectorWidthAndRegisters) {
  const auto info = [](const char* family) { return cpu_info(CpuTarget::named(family)); };
  struct Family {
    const char* name;
    uint32_t width, registers;
    const char *has, *lacks;
  };
  for (const Family& family : {Family{"x86-64-v2", 4, 16, "sse4.2", "avx"},
                               {"x86-64-v3", 8, 16, "fma", "avx512f"},
                               {"x86-64-v4", 16, 32, "avx512f", "avx512bf16"},
                               {"cascadelake", 16, 32, "avx512f", "avx512bf16"},
                               {"znver4", 16, 32, "avx512bf16", "amx-bf16"},
                               {"graniterapids", 16, 32, "amx-bf16", "neon"},
                               {"neoverse-n1", 4, 32, "neon", "avx"}}) {
    EXPECT_EQ(info(family.name).simd_width, family.width) << family.name;
    EXPECT_EQ(info(family.name).vector_registers, family.registers) << family.name;
    EXPECT_TRUE(info(family.name).has(family.has)) << family.name;
    EXPECT_FALSE(info(family.name).has(family.lacks)) << family.name;
  }
  EXPECT_EQ(info("neoverse-n1").arch, "neoverse-n1");

  test::expect_error<BadInput>([] { CpuTarget::named("z80"); }, {"'z80'"});
}

TEST(CpuTargetTest, KernelsHaveTheInstructionsOfTheirTarget) {
  if (test::sanitizes("address")) GTEST_SKIP() << "sanitizers add instructions of their own";
  const auto multiply_adds = [](const CpuTarget& target) {
    const CpuCompiler compiler(target);
    int count = 0;
    for (const auto& [name, times] : compiler.contents(compiler.compile(multiply_add()).code).instructions) {
      if (name.starts_with("vfma") || name == "fmla") count += times;
    }
    return count;
  };
  EXPECT_EQ(multiply_adds(CpuTarget::named("x86-64-v2")), 0) << "code for x86-64-v2 must have no multiply-add";
  EXPECT_EQ(multiply_adds(CpuTarget::named("neoverse-n1")), 4)
      << "an iteration of 16 floats must take four vectors of 4";
  EXPECT_EQ(multiply_adds(CpuTarget::named("x86-64-v3")), 2) << "an iteration of 16 floats must take two vectors of 8";
  EXPECT_EQ(multiply_adds(CpuTarget::named("cascadelake")), 1) << "an iteration of 16 floats must take one vector";
  // a.within(b) is `a` without the features that `b` lacks.
  EXPECT_EQ(multiply_adds(CpuTarget::named("cascadelake").within(CpuTarget::named("x86-64-v3"))), 2);
  EXPECT_EQ(multiply_adds(CpuTarget::named("x86-64-v3").within(CpuTarget::named("cascadelake"))), 2);
}

TEST(CpuTargetTest, CompilesForAnotherArchitecture) {
  constexpr int x86_64 = 62, aarch64 = 183;
  EXPECT_EQ(machine_of(CpuCompiler(CpuTarget::named("x86-64-v3")).compile(multiply_add())), x86_64);
  EXPECT_EQ(machine_of(CpuCompiler(CpuTarget::named("neoverse-n1")).compile(multiply_add())), aarch64);
  EXPECT_NE(CpuCompiler(CpuTarget::named("x86-64-v3")).identity(), CpuCompiler(CpuTarget::named("znver4")).identity());
  EXPECT_THROW(CpuTarget::named("neoverse-n1").within(CpuTarget::named("x86-64-v3")), BadInput);
}

// target.within(host) has only those features of the family that this host has.
TEST(CpuTargetTest, RunsCodeForTheFeaturesThatAFamilyAndThisHostShare) {
  const auto device = Device::open("cpu:threads=1");
  for (const char* family : {"x86-64-v2", "x86-64-v4", "znver4", "graniterapids", "neoverse-n1", "neoverse-v2"}) {
    CpuTarget target = CpuTarget::named(family);
    try {
      target = target.within(CpuTarget::host());
    } catch (const BadInput&) {
      continue;  // the family has another architecture
    }
    std::vector<float> x(64), y(64), expected(64);
    for (int i = 0; i < 64; ++i) {
      x[i] = static_cast<float>(i);
      y[i] = 1;
      expected[i] = 2.0f * x[i] + 1;
    }
    struct Params {
      float* y;
      const float* x;
      float a;
    };
    const auto kernel = device->load(CpuCompiler(target).compile(multiply_add()), "run");
    CommandEncoder encoder;
    encoder.dispatch(*kernel, {}, 1, 0, Params{y.data(), x.data(), 2});
    device->submit(encoder);
    EXPECT_EQ(y, expected) << family;
  }
}

}  // namespace
}  // namespace attn
