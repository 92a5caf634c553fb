// Tests of CudaCompiler, which needs NVRTC but no GPU.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/backends/cuda/compiler.h"
#include "common/backends/cuda/cubin.h"
#include "common/base/error.h"
#include "common/device/tests/support.h"
#include "common/source/binary.h"
#include "common/testing/captured_log.h"
#include "common/testing/cuda_compiler.h"

// Leaks of NVIDIA's libraries: nvJitLink keeps memory of a link that failed, even after nvJitLinkDestroy(). NVRTC keeps
// memory of a compilation that it traced.
extern "C" const char* __lsan_default_suppressions() { return "leak:libnvJitLink\nleak:libnvrtc"; }  // NOLINT: its name

namespace attn {
namespace {

using test::contains;

namespace fs = std::filesystem;

class CudaCompileTest : public test::CudaCompilerTest {
 protected:
  std::string error_of(const KernelSource& source, const CompileOptions& options = {}) {
    return test::message_of<CompileError>([&] { compiler_->compile(source, options); });
  }
};

KernelSource stores(const std::string& expression, FunctionConstants constants = {}) {
  const std::string path = "test/kernel.cuda.cu";
  return {path,
          "run",
          std::move(constants),
          {{path, "extern \"C\" __global__ void run(float* const result) {\n  *result = " + expression + ";\n}\n"}}};
}

TEST_F(CudaCompileTest, ConstantsDecideTheCode) {
  const Binary one = compiler_->compile(stores("VALUE", {{"VALUE", 1}}));
  const Binary two = compiler_->compile(stores("VALUE", {{"VALUE", 2}}));
  EXPECT_EQ(one.code.substr(0, 4),
            "\x7F"
            "ELF");
  EXPECT_NE(one.code_sha256, two.code_sha256);
  EXPECT_EQ(one.code_sha256, compiler_->compile(stores("VALUE", {{"VALUE", 1}})).code_sha256);
  EXPECT_EQ(one.source_sha256, source_sha256(stores("VALUE", {{"VALUE", 1}})));
  EXPECT_TRUE(contains(compiler_->compiler_identity(), "sm_90a")) << compiler_->compiler_identity();
}

TEST_F(CudaCompileTest, ErrorsNameTheirPlace) {
  const auto with_header = [](const std::string& include, const std::string& text, const std::string& value,
                              FunctionConstants constants = {}) {
    KernelSource source = stores(value, std::move(constants));
    source.includes[source.path] = "#include " + include + "\n" + source.includes[source.path];
    source.includes["test/header.h"] = text;
    return source;
  };
  const KernelSource misspelt = stores("MISSPELT");
  test::expect_words(error_of(misspelt), {"test/kernel.cuda.cu(2): error:", "MISSPELT", misspelt.key()});
  test::expect_words(error_of(with_header("\"test/header.h\"", "\n\nint broken(;\n", "1")),
                     {"test/header.h(3): error:"});
  // The hash of a source covers only #include "...", so #include <...> must not find a header of the tree.
  test::expect_words(error_of(with_header("<common/kernel/types.h>", "", "1")), {"common/kernel/types.h"});
  KernelSource no_entry = stores("1");
  no_entry.entry = "walk";
  test::expect_words(error_of(no_entry), {"walk", no_entry.path});
  const std::string unused = error_of(stores("USED", {{"UNUSED_ONE", 2}, {"USED", 1}}));
  EXPECT_TRUE(contains(unused, "\"UNUSED_ONE\"") && !contains(unused, "\"USED\"")) << unused;
  const std::string idle = "constexpr int spare = 1;\nstatic inline int idle() { return 2; }\n";
  compiler_->compile(with_header("\"test/header.h\"", idle, "USED", {{"USED", 1}}));  // a header may have unused names
}

TEST_F(CudaCompileTest, ConstantsMayBeReadAtRunTime) {
  KernelSource source = stores("VALUE", {{"VALUE", 1}});
  source.run_time = {"VALUE"};
  KernelSource other = source;
  other.constants["VALUE"] = 2;
  const Binary one = compiler_->compile(source), two = compiler_->compile(other);
  EXPECT_EQ(one.code_sha256, two.code_sha256);
  EXPECT_TRUE(contains(one.code, "VALUE")) << "the cubin lacks the symbol that load() sets";
  EXPECT_EQ(two.run_time, (FunctionConstants{{"VALUE", 2}}));
  KernelSource sized = stores("VALUE; int array[VALUE]; array[0] = 0", {{"VALUE", 1}});
  sized.run_time = {"VALUE"};
  EXPECT_TRUE(contains(error_of(sized), "VALUE")) << error_of(sized);
  KernelSource unused = stores("NO_VALUE /* */; // VALUE", {{"VALUE", 1}, {"NO_VALUE", 2}});
  unused.run_time = {"VALUE"};
  EXPECT_TRUE(contains(error_of(unused), "the kernel does not use VALUE")) << error_of(unused);
}

TEST_F(CudaCompileTest, PrecompiledHeadersChangeNoCode) {
  if (!CudaCompiler(test::hopper().arch).is_12_8_or_later()) GTEST_SKIP() << "NVRTC is too old";
  KernelSource source = stores("scaled(VALUE) + shared()", {{"VALUE", 3}});
  source.includes[source.path] =
      "#include \"test/reads.h\"\n#include \"test/plain.h\"\n" + source.includes[source.path];
  source.includes["test/reads.h"] = "#pragma once\nstatic inline int scaled(int x) { return x * VALUE; }\n";
  source.includes["test/plain.h"] = "#pragma once\nstatic inline int shared() { return 2; }\n";
  const Binary without = compiler_->compile(source);
  const CompileOptions precompiled{.precompile_headers = true};
  for (const int64_t value : {3, 4, 3}) {
    source.constants["VALUE"] = value;
    EXPECT_EQ(compiler_->compile(source, precompiled).code_sha256 == without.code_sha256, value == 3);
  }
  EXPECT_TRUE(contains(error_of(stores("1", {{"VALUE", 3}}), precompiled), "declared but never referenced"));
  source.constants["VALUE"] = 3;
  EXPECT_EQ(compiler_->compile(source).code_sha256, without.code_sha256);
}

TEST_F(CudaCompileTest, AMissingFileIsBadInput) {
  EXPECT_THROW(compiler_->compile({"no/such/kernel.cuda.cu", "run", {}, {}}), BadInput);
  KernelSource source = stores("1");
  source.includes[source.path] = "#include \"no/such/header.h\"\n";
  EXPECT_THROW(compiler_->compile(source), BadInput);
}

TEST_F(CudaCompileTest, TimesEachPhaseIfAsked) {
  if (!CudaCompiler(test::hopper().arch).is_12_8_or_later()) GTEST_SKIP() << "NVRTC is too old";
  const Binary plain = compiler_->compile(stores("1"));
  EXPECT_EQ(plain.times.optimizer_s, 0);
  const Binary traced = compiler_->compile(stores("1"), {.trace_phases = true});
  EXPECT_GT(traced.times.front_end_s, 0);
  EXPECT_GT(traced.times.optimizer_s, 0);
  EXPECT_GT(traced.times.code_generation_s, 0);
  EXPECT_EQ(traced.code_sha256, plain.code_sha256);
  EXPECT_EQ(traced.key, plain.key);
  const CompileOptions both{.precompile_headers = true, .trace_phases = true};
  EXPECT_GT(compiler_->compile(stores("1"), both).times.optimizer_s, 0);

  // NVRTC ends the process if it cannot write its trace, so CudaCompiler must ask for no trace here.
  const test::Variable nowhere("TMPDIR", "/nowhere");
  const Binary untraced = compiler_->compile(stores("1"), {.trace_phases = true});
  EXPECT_EQ(untraced.times.optimizer_s, 0);
  EXPECT_GT(untraced.times.code_generation_s, 0);
}

TEST_F(CudaCompileTest, TellsRegistersSpillsAndThreadgroupMemory) {
  const Binary small = compiler_->compile(stores("1"));
  EXPECT_GT(small.registers, 0);
  EXPECT_EQ(small.spill_bytes, 0);
  EXPECT_EQ(small.threadgroup_bytes, 0);
  EXPECT_GT(small.times.front_end_s, 0);
  EXPECT_GT(small.times.code_generation_s, 0);

  // With 1024 threads, a thread has 64 registers for its 120 sums. The figures must be those of `crowded`, not of `run`
  // in the same file.
  KernelSource source = stores("1");
  source.entry = "crowded";
  source.includes[source.path] += R"(
    extern "C" __global__ void __launch_bounds__(1024) crowded(float* const result) {
      __shared__ float scratch[1000];
      scratch[threadIdx.x % 1000] = threadIdx.x;
      __syncthreads();
      float sums[120];
      for (int i = 0; i < 120; ++i) sums[i] = result[i];
      for (int n = 0; n < 100; ++n) {
        for (int i = 0; i < 120; ++i) sums[i] = sums[i] * sums[(i + 7) % 120] + scratch[(n + threadIdx.x) % 1000];
      }
      for (int i = 0; i < 120; ++i) result[i] = sums[i];
    })";
  const Binary crowded = compiler_->compile(source);
  EXPECT_EQ(crowded.registers, 64);
  EXPECT_GT(crowded.spill_bytes, 0);
  EXPECT_EQ(crowded.threadgroup_bytes, 4000);
}

TEST_F(CudaCompileTest, CountsInstructions) {
  const auto [counts, classes, loop, bytes] = cuda_contents(compiler_->compile(stores("sqrtf(*result)")));
  EXPECT_GT(bytes, 0);
  EXPECT_EQ(bytes % 16, 0);
  if (counts.empty()) GTEST_SKIP() << "this machine has no disassembler (nvdisasm)";
  EXPECT_EQ(counts.at("STG"), 1);
  EXPECT_GE(counts.at("MUFU"), 1);
  EXPECT_FALSE(counts.contains("HGMMA"));
}

/// A kernel that stores part(x), which `fragment` defines.
KernelSource with_fragment(const std::string& fragment, Linking linking) {
  KernelSource source = stores("part(*result)");
  source.includes[source.path] = "extern \"C\" float part(float);\n" + source.includes[source.path];
  source.fragments = {{"test/fragment.h", "part", {}, {{"test/fragment.h", fragment}}}};
  source.linking = linking;
  return source;
}

TEST_F(CudaCompileTest, FragmentsAreLinkedBeforeTheOptimiserOrAsMachineCode) {
  const std::string part = "extern \"C\" float part(float x) { return 2 * x + 1; }";
  Binary whole, stitched, linked;
  try {
    stitched = compiler_->compile(with_fragment(part, Linking::before_optimizer));
    linked = compiler_->compile(with_fragment(part, Linking::after_code_generation));
  } catch (const DeviceMissing& error) {
    GTEST_SKIP() << error.what();
  }
  whole = compiler_->compile(stores("2 * *result + 1"));
  EXPECT_EQ(stitched.registers, whole.registers);
  EXPECT_EQ(stitched.spill_bytes, 0);
  EXPECT_GT(linked.registers, whole.registers) << "the kernel must also have registers for the function that it calls";
  EXPECT_NE(stitched.code_sha256, linked.code_sha256);
  EXPECT_LT(cuda_contents(stitched).bytes, cuda_contents(linked).bytes);
  EXPECT_EQ(stitched.code_sha256, compiler_->compile(with_fragment(part, Linking::before_optimizer)).code_sha256);
  EXPECT_TRUE(contains(compiler_->compiler_identity(), "nvJitLink")) << compiler_->compiler_identity();

  for (const Linking linking : {Linking::before_optimizer, Linking::after_code_generation}) {
    EXPECT_TRUE(contains(error_of(with_fragment("\n\nint broken(;\n", linking)), "test/fragment.h(3): error:"));
    EXPECT_TRUE(contains(error_of(with_fragment("// nothing\n", linking)), "part"));
  }
}

TEST_F(CudaCompileTest, ASourceHasAnOptionForTheAssembler) {
  const auto bytes = [&](KernelSource source, const std::string& option) {
    source.assembler = option;
    return cuda_contents(compiler_->compile(source)).bytes;
  };
  EXPECT_EQ(bytes(stores("sqrtf(*result)"), "-O3"), cuda_contents(compiler_->compile(stores("sqrtf(*result)"))).bytes);
  EXPECT_GT(bytes(stores("sqrtf(*result)"), "-O0"), bytes(stores("sqrtf(*result)"), "-O3"));
  EXPECT_THROW(bytes(stores("1"), "--nonsense"), CompileError);
  try {
    const KernelSource linked =
        with_fragment("extern \"C\" float part(float x) { return sqrtf(x); }", Linking::before_optimizer);
    EXPECT_GT(bytes(linked, "-O0"), bytes(linked, "-O3"));
  } catch (const DeviceMissing& error) {
    GTEST_SKIP() << error.what();
  }
}

struct CheckedPipeline {
  KernelSource source;
  bool without_spills;
};

/// The pipelines that a kernel's file names in lines "// Checked: entry[NAME=1,OTHER=2]", which may end with " without
/// spills".
std::vector<CheckedPipeline> checked_pipelines(const std::string& path) {
  std::vector<CheckedPipeline> checked;
  std::istringstream stream(read_source({}, path));
  for (std::string line; std::getline(stream, line);) {
    const std::string mark = "// Checked: ";
    if (!line.starts_with(mark)) continue;
    const size_t close = std::min(line.find(']'), line.size() - 1) + 1;
    std::optional<KernelSource> source = parse_key(line.substr(mark.size(), close - mark.size()));
    const std::string rest = line.substr(close);
    if (!source || (!rest.empty() && rest != " without spills")) {
      ADD_FAILURE() << path << ": neither \"// Checked: KEY\" nor \"// Checked: KEY without spills\": " << line;
      continue;
    }
    source->path = path;
    checked.push_back({std::move(*source), !rest.empty()});
  }
  return checked;
}

TEST_F(CudaCompileTest, CompilesEveryKernelOfTheTree) {
  std::vector<std::string> kernels = kernel_files();
  std::erase_if(kernels, [](const std::string& path) { return !path.ends_with(".cuda.cu"); });
  EXPECT_FALSE(kernels.empty());
  for (const std::string& kernel : kernels) {
    const auto checked = checked_pipelines(kernel);
    EXPECT_FALSE(checked.empty()) << kernel << " has no line \"// Checked: entry[NAME=1,OTHER=2]\"";
    for (const auto& [source, without_spills] : checked) {
      try {
        const test::CapturedLog log;
        const Binary binary = compiler_->compile(source);
        RecordProperty(source.key(),
                       fmt::format("{} registers, {:.0f} ms", binary.registers, 1e3 * binary.times.total_s()));
        if (without_spills) {
          EXPECT_EQ(binary.spill_bytes, 0) << source.key();
          EXPECT_EQ(log.text(), "") << "the compiler must not warn (for example, that it serializes wgmma)";
        }
      } catch (const CompileError& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace attn
