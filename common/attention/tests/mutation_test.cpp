// The check of the results must notice kernels that are broken on purpose (mutations), on the device under test. The
// kernels of Mutations run on small shapes. The kernels of BlockMutations run on 16384 keys, and most of them are wrong
// in one block of keys only.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/attention/tests/flash_run.h"
#include "common/attention/tests/mutations.h"
#include "common/attention/tests/path_device.h"
#include "common/testing/mutated_sources.h"
#include "common/testing/tested_device.h"

namespace attn {
namespace {

using test::BlockMutation;
using test::device;
using test::KernelPath;
using test::MutatedSources;
using test::Mutation;
using test::on_cuda;
using test::OnDevice;
using test::random_inputs;
using test::run;
using test::skip_reason;

class Mutations : public OnDevice<testing::TestWithParam<Mutation>> {};

INSTANTIATE_TEST_SUITE_P(All, Mutations, testing::ValuesIn(test::mutations(on_cuda)),
                         [](const auto& test) { return std::string(test.param.variant) + "_" + test.param.what; });

TEST_P(Mutations, AreCaught) {
  const Mutation& mutation = GetParam();
  const FlashConfig config = test::mutation_config(mutation, on_cuda);
  if (const auto reason = skip_reason(config)) GTEST_SKIP() << *reason;
  const auto passes = [&](Device& here) {
    const std::unique_ptr<Device> host = test::host_of(mutation.file, here);
    Device& on = host ? *host : here;
    PipelineCache pipelines(on, ATTN_TEST_KERNELS);  // a new cache each time: a cache reads each kernel's text once
    return run(config, random_inputs(config, on), {}, on, pipelines).ok;
  };
  ASSERT_TRUE(passes(device()));
  const MutatedSources sources(mutation.file, mutation.from, mutation.to);
  test::expect_caught(device(), passes, mutation.what);
}

// ---- a wrong block of keys among many

struct BlockCase {
  KernelPath path;
  BlockMutation mutation;
};

void PrintTo(const BlockCase& test, std::ostream* out) { *out << test.path.name << " " << test.mutation.what; }

std::vector<BlockCase> block_cases() {
  std::vector<BlockCase> cases;
  for (const KernelPath& path : test::kernel_paths(on_cuda)) {
    for (const BlockMutation& mutation : test::block_mutations()) {
      if (mutation.is_of(path)) cases.push_back({path, mutation});
    }
  }
  return cases;
}

class BlockMutations : public test::OnPath<BlockCase> {
 protected:
  const KernelPath& path() const override { return GetParam().path; }

  /// Tests with the same dtype and the same kind of inputs share tensors and the oracle's results.
  static std::shared_ptr<FlashInputs> inputs(const FlashConfig& config, InputKind kind) {
    static std::map<std::pair<DType, InputKind>, std::shared_ptr<FlashInputs>> all;
    auto& shared = all[{config.dtype, kind}];
    if (!shared) shared = std::make_shared<FlashInputs>(device(), config, 7, "", kind);
    return shared;
  }

  Check run_on(PipelineCache& cache) {
    const FlashConfig config = test::block_mutation_config(path());
    return run(config, inputs(config, GetParam().mutation.inputs), {}, on(), cache);
  }
};

INSTANTIATE_TEST_SUITE_P(All, BlockMutations, testing::ValuesIn(block_cases()), [](const auto& test) {
  return std::string(test.param.path.name) + "_" + test.param.mutation.what;
});

TEST_P(BlockMutations, AreCaught) {
  const BlockMutation& mutation = GetParam().mutation;
  const Check unbroken = run_on(pipelines());
  ASSERT_TRUE(unbroken.ok) << unbroken.worst;
  const MutatedSources sources(mutation.file, mutation.from, mutation.to);
  PipelineCache fresh(on(), "");
  const Check broken = run_on(fresh);
  EXPECT_FALSE(broken.ok) << "the broken kernel uses " << broken.max_used << " of the tolerance, the unbroken kernel "
                          << unbroken.max_used;
  RecordProperty("unbroken_uses", std::to_string(unbroken.max_used));
  RecordProperty("broken_uses", std::to_string(broken.max_used));
}

TEST(MutationsTest, TextsAreInTheSources) {
  for (const bool of_cuda : {false, true}) {
    expect_texts_in_sources(test::mutations(of_cuda), [](const Mutation& mutation) { return mutation.file; });
  }
  expect_texts_in_sources(test::block_mutations(), [](const BlockMutation& mutation) { return mutation.file; });
}

}  // namespace
}  // namespace attn
