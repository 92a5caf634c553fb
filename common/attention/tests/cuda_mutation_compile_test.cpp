// Compiles mutations (kernels for a GPU that are broken on purpose) without a GPU. The machine code of a mutation must
// differ from the machine code of the unbroken kernel.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "common/attention/flash.h"
#include "common/attention/tests/mutations.h"
#include "common/attention/tests/rope_mutations.h"
#include "common/testing/cuda_compiler.h"
#include "common/testing/mutated_sources.h"

namespace attn {
namespace {

using test::hopper;

class CudaMutationsTest : public test::CudaCompilerTest {
 protected:
  std::string code_of(const FlashConfig& config) {
    return compiler_->compile(FlashOperation::of(hopper()).kernel(config, hopper()).source).code_sha256;
  }
  std::string code_of(const test::KernelPath& path) { return code_of(test::block_mutation_config(path)); }
};

TEST_F(CudaMutationsTest, OfSmallShapesCompileToOtherCode) {
  std::map<std::string, std::string> unbroken;
  for (const test::Mutation& mutation : test::mutations(true)) {
    const FlashConfig config = test::mutation_config(mutation, true);
    const KernelSource source = FlashOperation::of(hopper()).kernel(config, hopper()).source;
    std::string& code = unbroken[source.key()];
    if (code.empty()) code = code_of(config);
    const test::MutatedSources sources(mutation.file, mutation.from, mutation.to);
    EXPECT_NE(code_of(config), code) << mutation.variant << " " << mutation.what;
  }
}

TEST_F(CudaMutationsTest, OfBlocksCompileToOtherCode) {
  for (const test::KernelPath& path : test::kernel_paths(true)) {
    // The code for f16 equals the code for bf16, except for the names of two instructions.
    if (path.dtype == DType::f16) continue;
    const std::string unbroken = code_of(path);
    for (const test::BlockMutation& mutation : test::block_mutations()) {
      if (!mutation.is_of(path)) continue;
      const test::MutatedSources sources(mutation.file, mutation.from, mutation.to);
      EXPECT_NE(code_of(path), unbroken) << path.name << " " << mutation.what;
    }
  }
}

TEST_F(CudaMutationsTest, OfRopeCompileToOtherCode) {
  for (const test::RopeMutation& mutation : test::rope_mutations(true)) {
    const auto code = [&] {
      const RopeConfig config = test::rope_mutation_config(mutation);
      return compiler_->compile(rope_plan(config, test::rope_mutation_shape(), hopper()).launches.front().source)
          .code_sha256;
    };
    const std::string unbroken = code();
    const test::MutatedSources sources(test::rope_file(true), mutation.from, mutation.to);
    EXPECT_NE(code(), unbroken) << mutation.what;
  }
}

}  // namespace
}  // namespace attn
