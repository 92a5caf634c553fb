// One flash attention problem on a device: tensors, a pipeline for one variant and tile, the launch and its check.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/attention/backend.h"
#include "common/attention/inputs.h"
#include "common/attention/reference.h"
#include "common/data/compare.h"
#include "common/data/tensor.h"
#include "common/device/device.h"
#include "common/device/pipeline_cache.h"
#include "common/experiment/experiment.h"
#include "common/records/case.h"

namespace attn {

/// A changed score: the hook's text for the kernel, what it needs beside it, and the same function for the oracle.
struct ScoreHook {
  std::string text;                             // in place of common/attention/kernels/score.h
  std::map<std::string, std::string> includes;  // other headers that the text names
  std::vector<KernelSource> fragments;          // what the text declares and does not define
  Linking linking = Linking::before_optimizer;
  std::vector<std::byte> data;  // what ScoreContext::data points to
  ScoreFunction reference;
  std::string name;                  // hooks of the same inputs with the same name have the same reference
  FunctionConstants constants = {};  // that the text reads
  bool identity = false;             // with these constants it changes nothing
};

/// The kernel of a configuration with a hook, which may be null, in its place.
FlashKernel flash_kernel(const FlashConfig& config, const DeviceInfo& device, const ScoreHook* hook);

/// A value as a hook's data.
template <typename T>
std::vector<std::byte> bytes_of(const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  return {bytes.begin(), bytes.end()};
}

class FlashProblem : public Problem {
 public:
  /// `run_time`: as KernelSource has it.
  FlashProblem(Device& device, PipelineCache& pipelines, std::shared_ptr<FlashInputs> inputs, FlashConfig config,
               std::optional<ScoreHook> hook = {}, std::set<std::string> run_time = {});

  void encode(CommandEncoder& encoder) const override;
  void poison() override;
  Check check() override;
  Work work() const override;
  DType dtype() const override { return config_.dtype; }
  const Pipeline& pipeline() const override { return *pipeline_; }
  size_t threadgroup_bytes() const override { return kernel_.threadgroup_bytes; }
  void dump(const std::string& path) const override;

  /// What the last launch wrote.
  Tensor output() const;
  std::vector<float> lse() const;

 private:
  Device& device_;
  std::shared_ptr<FlashInputs> inputs_;
  FlashConfig config_;
  std::optional<ScoreHook> hook_;
  Buffer hook_buffer_;
  FlashKernel kernel_;
  const Pipeline* pipeline_ = nullptr;
  std::function<void(CommandEncoder&)> launch_;
};

/// Makes problems of an experiment; cases of one shape share their tensors, and the oracle's answer.
std::function<std::unique_ptr<Problem>(Experiment&, const Case&)> flash_problems();

}  // namespace attn
