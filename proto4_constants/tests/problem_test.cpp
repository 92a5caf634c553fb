// Problems about variants (kernels with one set of constants compiled in), on the device under test.
#include "proto4_constants/problem.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "common/base/error.h"
#include "common/base/temporary_folder.h"
#include "common/cases/problem.h"
#include "common/experiment/options.h"
#include "common/testing/some.h"
#include "common/testing/tested_device.h"
#include "proto4_constants/sweep.h"

namespace attn {
namespace {

using test::on_cuda;
using test::test_device;
const std::string test_dtype = on_cuda ? "bf16" : "f32";

/// Has an experiment whose cache is in a temporary folder.
class ProblemTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      device_ = Device::open(test_device);
    } catch (const DeviceMissing& error) {
      GTEST_SKIP() << error.what();
    }
    setenv("ATTENTION_PROTO_CACHE", (folder_.path() / "cache").c_str(), 1);
    Options options;
    options.arguments = {"proto4_constants"};
    options.device = test_device;
    lab_ = std::make_unique<Experiment>(constants_experiment(), options);
  }

  std::unique_ptr<HostProblem> make(const std::string& task, int64_t variants, int64_t workers = 1,
                                    const std::string& kernel = "tuned") {
    Case config;
    config.set("task", task);
    config.set("kernel", kernel);
    config.set("dtype", test_dtype);
    config.set("variants", variants);
    config.set("workers", workers);
    complete_constants(config, device_->info());
    return constants_experiment().make_host(*lab_, config, constants_plan(config, {device_->info()}));
  }

  static void expect_ok(const Check& check) {
    EXPECT_TRUE(check.ok) << check.worst;
    EXPECT_GT(check.rows_checked, 0);
  }

  TemporaryFolder folder_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Experiment> lab_;
};

TEST_F(ProblemTest, EachWayToGetVariants) {
  for (const char* task : {"compile", "compile_one", "memory", "disk", "archive", "archive_create", "archive_load"}) {
    SCOPED_TRACE(task);
    const auto problem = make(task, 3);
    EXPECT_GT(problem->sample(), 0);
    expect_ok(problem->check());
    EXPECT_GT(problem->sample(), 0);
    expect_ok(problem->check());
    const Json values = problem->values();
    EXPECT_EQ(values["variants"], std::string(task) == "compile_one" ? 1 : 3);
    if (std::string(task).starts_with("archive")) {
      EXPECT_GT(values["archive_bytes"], 3 * 1000);
    }
    if (std::string(task).starts_with("compile")) {
      EXPECT_GT(values["front_end_s"], 0);
      EXPECT_GT(values["code_generation_s"], 0);
      // NVRTC reports the time of its phases only in versions that also precompile headers.
      if (!on_cuda || device_->info().has("pch")) {
        EXPECT_GT(values["optimizer_s"], 0);
      }
      EXPECT_GT(values["load_s"], 0);
      EXPECT_GT(values["binary_bytes"], values["variants"].get<int>() * 500);
      if (values.contains("peak_bytes")) {
        EXPECT_GT(values["peak_bytes"], 1 << 20);
      }
    }
  }
}

TEST_F(ProblemTest, WorkersShareTheVariants) {
  const auto problem = make("compile", 5, 3);
  problem->sample();
  expect_ok(problem->check());
}

TEST_F(ProblemTest, ANewProcessReportsItsResult) {
  for (const char* task : {"start_compile", "start_disk", "start_archive"}) {
    SCOPED_TRACE(task);
    const auto problem = make(task, 2);
    const double seconds = problem->sample();
    expect_ok(problem->check());
    const Json values = problem->values();
    const double parts =
        values["open_s"].get<double>() + values["pipeline_s"].get<double>() + values["launch_s"].get<double>();
    EXPECT_GT(parts, 0);
    EXPECT_LE(parts, seconds);
    EXPECT_GT(values["peak_bytes"], 1 << 20);
  }
}

TEST_F(ProblemTest, FirstResultRefusesMissingArgumentsAndAMissingArchive) {
  EXPECT_THROW(first_result({}), BadInput);
  EXPECT_THROW(first_result({test_device, "tuned", "f32", "1", "", (folder_.path() / "missing").string()}), BadInput);
}

// A kernel that reads a constant at run time has the same text as the kernel with the constant compiled in. The lengths
// leave the last tile partly filled.
TEST_F(ProblemTest, ConstantsReadAtRunTimeGiveRightResults) {
  const std::vector<std::string> kernels =
      on_cuda ? std::vector<std::string>{"naive", "mma_sync", "wgmma"}
              : std::vector<std::string>{"naive", "tiled_scalar", "tiled_vector", "tuned"};
  // On a host with AMX, `tuned` without ALiBi has a file for bf16 (amx.cpu.cpp) and another file for f32.
  const std::vector<DType> dtypes =
      on_cuda ? std::vector{parse_dtype(test_dtype)} : std::vector{DType::f32, DType::bf16};
  PipelineCache cache(*device_, "");
  const auto expect_right = [&](const Variant& variant, const std::string& kernel, const std::string& value) {
    const auto inputs = std::make_shared<FlashInputs>(*device_, variant.config, 5, "");
    const AttentionHooks hook = variant.hook();
    const Plan plan =
        attention_plan(variant.config, device_->info(), &hook, run_time_constants(value, kernel, device_->info()));
    FlashProblem problem(*device_, cache, inputs, variant.config, plan, hook);
    const Check check = test::launched(problem, *device_);
    EXPECT_TRUE(check.ok) << kernel << " with " << value << ": " << check.worst;
  };
  test::Some some(7);
  for (const std::string& kernel : kernels) {
    std::vector<std::string> values = run_time_axes(kernel, device_->info());
    values.emplace_back("all");
    for (const DType dtype : dtypes) {
      const std::vector<Variant> grid = variant_grid(kernel, dtype, device_->info());
      for (size_t i = 0; i < 3; ++i) {
        for (const bool alibi : {false, true}) {
          Variant variant = grid[i];
          variant.alibi = alibi;
          for (const std::string& value : values) {
            if (!some.skips()) expect_right(variant, kernel, value);
          }
        }
      }
    }
  }
}

// A kernel compiles with a constant as a run-time parameter if and only if run_time_axes() names this constant.
TEST_F(ProblemTest, WhatCannotBeReadAtRunTimeDoesNotCompile) {
  if (on_cuda) GTEST_SKIP() << "cuda_compile_test.cpp has this test for CUDA";
  for (const char* kernel : {"naive", "tiled_scalar", "tiled_vector", "tuned"}) {
    const std::vector<std::string> said = run_time_axes(kernel, device_->info());
    KernelSource source = variant_grid(kernel, DType::f32, device_->info()).front().source(device_->info());
    for (const char* axis : {"head_dim", "block_r", "block_c", "causal", "alibi"}) {
      source.run_time = run_time_constants(axis, kernel, device_->info());
      if (!source.constants.contains(*source.run_time.begin())) continue;  // the kernel `naive` has no tile
      if (std::find(said.begin(), said.end(), axis) != said.end()) {
        EXPECT_NO_THROW(device_->compile(source)) << source.key();
      } else {
        EXPECT_THROW(device_->compile(source), CompileError) << source.key();
      }
    }
  }
}

}  // namespace
}  // namespace attn
