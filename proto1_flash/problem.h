// One flash attention problem on a device: tensors, a pipeline for one variant and tile, the launch and its check.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "common/compare.h"
#include "common/device.h"
#include "common/experiment.h"
#include "common/reference.h"
#include "common/sweep.h"
#include "common/tensor.h"
#include "proto1_flash/backend.h"

namespace attn {

/// A changed score: the hook's text for the kernel, its data, and the same function for the oracle.
struct ScoreHook {
  std::string text;
  std::vector<float> data;
  ScoreFunction reference;
  FunctionConstants constants = {};  // that the text reads
  bool identity = false;             // with these constants it changes nothing

  /// Whether the kernel, and so the reference, computes the same.
  bool same_as(const ScoreHook& other) const {
    return text == other.text && data == other.data && constants == other.constants;
  }
};

/// The kernel of a configuration with a hook, which may be null, in its place.
FlashKernel flash_kernel(const FlashConfig& config, const DeviceInfo& device, const ScoreHook* hook);

/// Q, K, V of a shape with the oracle's rows: what the cases of one comparison share.
class FlashInputs {
 public:
  /// Seeded random tensors, or those of a safetensors file with q, k, v if `input` is not empty.
  FlashInputs(Device& device, FlashConfig config, uint64_t seed, const std::string& input);
  ~FlashInputs();

  const FlashConfig& config() const { return config_; }
  const Tensor& q() const { return q_; }
  const Tensor& k() const { return k_; }
  const Tensor& v() const { return v_; }
  const ReferenceRows& reference(const ScoreHook* hook);

 private:
  friend class FlashProblem;
  FlashConfig config_;
  uint64_t seed_;
  Tensor q_, k_, v_;
  Buffer q_buffer_, k_buffer_, v_buffer_, o_buffer_, lse_buffer_;
  std::optional<ReferenceRows> reference_;
  std::optional<ScoreHook> reference_hook_;  // what reference_ was made with
};

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
