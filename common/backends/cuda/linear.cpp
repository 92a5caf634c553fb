#include <fmt/format.h>

#include <utility>
#include <vector>

#include "common/backends/cuda/fused_linear.h"
#include "common/backends/cuda/operations.h"
#include "common/linear/kernels/phases_layout.h"
#include "common/linear/kernels/recurrent_layout.h"
#include "common/linear/launch.h"

namespace attn {
namespace {

FusedShape fused_shape(const LinearConfig& config) {
  return {.sequences = config.sequences,
          .heads = config.heads,
          .tokens = config.tokens,
          .all_rows = config.all_rows,
          .ragged = config.ragged,
          .head_dim = config.head_dim,
          .value_dim = config.value_dim,
          .dtype = config.dtype,
          .out_dtype = config.out_dtype,
          .causal = config.causal,
          .normalised = config.normalised,
          .gate = config.gate,
          .segments = config.segments};
}

/// The memory that threadgroups of the fused kernel share.
class FusedWorkspace : public LinearWorkspace {
 public:
  FusedWorkspace(Device& device, const FusedShape& shape)
      : shape_(shape), plan_(fused_plan(shape, device.info().units)), memory_(device, plan_.workspace_bytes) {
    const std::vector<std::byte> zeros(plan_.zero_bytes);
    memory_.upload(zeros.data(), zeros.size());
  }

  void dispatch(CommandEncoder& encoder, const Kernel& kernel, const Launch& launch,
                const LinearParams& linear) const override {
    encoder.dispatch(kernel, launch.grid, launch.threads, launch.threadgroup_bytes,
                     fused_params(shape_, plan_, linear, memory_.data()));
  }
  const Buffer& memory() const override { return memory_; }

 private:
  const FusedShape shape_;
  const FusedPlan plan_;
  Buffer memory_;
};

class CudaLinear : public LinearOperation {
 public:
  std::string unable(const LinearConfig& config) const override {
    if (config.variant != "fused") return {};
    if (config.chunk != fused_chunk) {
      return fmt::format("chunk {}: the fused kernel on this device has chunks of {} tokens", config.chunk,
                         fused_chunk);
    }
    return fused_unable(fused_shape(config)).value_or("");
  }

  int64_t step(const LinearConfig& config) const override { return config.chunk; }

  int64_t scan_rows(const LinearConfig& config, const DeviceInfo& /*device*/) const override {
    return cuda_scan_rows(static_cast<int>(config.head_dim), static_cast<int>(config.value_dim));
  }
  int64_t scan_groups(const DeviceInfo& device) const override { return 8 * device.units; }

  Bound bound(const LinearConfig& /*config*/) const override { return Bound::memory; }

  int64_t chunk(const std::string& /*variant*/) const override { return fused_chunk; }

  std::vector<std::string> kernels(const LinearConfig& config) const override {
    if (config.variant == "fused" && fused_prepares(config.gate, config.head_dim)) return {"decay_chunks", "fused"};
    return {config.variant};
  }

  void complete(Launch& launch, const LinearConfig& config, const DeviceInfo& device) const override {
    const std::string& entry = launch.source.entry;
    const int dims = static_cast<int>(config.head_dim), values = static_cast<int>(config.value_dim);
    const int chunk = static_cast<int>(config.chunk), element = static_cast<int>(size_bytes(config.dtype));
    launch.threads = phases_threads;
    if (entry == "chunk_h") {
      launch.threadgroup_bytes = static_cast<size_t>(ChunkHLayout(dims, values, chunk, element, config.gate).bytes);
    } else if (entry == "chunk_o") {
      launch.threadgroup_bytes = static_cast<size_t>(ChunkOLayout(dims, values, chunk, element, config.gate).bytes);
    } else if (entry.starts_with("scan")) {
      const auto rows = static_cast<int>(launch.source.constants.at("SCAN_ROWS"));
      launch.threads = static_cast<uint32_t>(cuda_scan_threads(rows, values, config.normalised));
    } else if (entry == "recurrent") {
      const CudaRecurrentLayout layout(dims, values, config.gate);
      launch.grid.x *= static_cast<uint32_t>(layout.slices);
      launch.threads = CudaRecurrentLayout::threads;
      launch.threadgroup_bytes = static_cast<size_t>(layout.bytes);
    } else if (entry == "decay_chunks") {
      launch.source.constants = {
          {"HEAD_DIM", dims}, {"NORMALISED", config.normalised}, {"IN_TYPE", element_type(config.dtype)}};
      launch.grid = {static_cast<uint32_t>(config.chunk_numbers() * config.heads)};
      launch.threads = fused_chunk_threads;
      launch.threadgroup_bytes = static_cast<size_t>(DecayChunksLayout(dims).bytes);
    } else {
      const FusedPlan plan = fused_plan(fused_shape(config), device.units);
      launch.source.constants = plan.constants;
      launch.grid = {static_cast<uint32_t>(plan.grid)};
      launch.threads = static_cast<uint32_t>(plan.threads);
      launch.threadgroup_bytes = static_cast<size_t>(plan.threadgroup_bytes);
    }
  }

  std::unique_ptr<LinearWorkspace> workspace(Device& device, const LinearConfig& config) const override {
    if (config.variant != "fused") return nullptr;
    return std::make_unique<FusedWorkspace>(device, fused_shape(config));
  }

  bool resets_flags() const override { return true; }
};

}  // namespace

const LinearOperation& cuda_linear() {
  static const CudaLinear operation;
  return operation;
}

}  // namespace attn
