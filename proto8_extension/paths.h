// The ways to call attention, each as a function that makes one call.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/api/attn.h"
#include "common/api/engine.h"
#include "common/api/framework.h"
#include "common/attention/launch.h"
#include "common/data/tensor.h"
#include "common/device/pipeline_cache.h"

namespace attn {

/// All cases of a run share a host: the device as a framework has it, with all work on the default stream, and the
/// engines, with kernels from one folder.
struct Host {
  Host(const std::string& spec, const std::string& cache_folder);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  std::string spec;
  std::unique_ptr<Device> device;
  PipelineCache pipelines;
  Engine engine;
  attn_engine* c = nullptr;
};

/// Q, K, V and O of a case on the host's device. A seed always gives the same values.
struct Tensors {
  Tensors(Host& host, const FlashConfig& config, uint64_t seed);

  TensorView view(Buffer& buffer) const;
  /// The result points to the buffer's memory and to `shape`.
  DLTensor described(Buffer& buffer);

  FlashConfig config;
  int64_t shape[4];
  Tensor host_q, host_k, host_v, host_o;
  Buffer q, k, v, o;
};

/// Why this build does not have the path; empty where it has.
std::string path_missing(const std::string& path);

/// One call of the plan's launch, without any interface; else like call_of().
std::function<void()> direct_call(Host& host, Tensors& tensors, const Plan& plan);

/// One call by a path other than "direct". The call returns when the kernel is enqueued (on a GPU) or done. Host and
/// tensors must outlive the function.
std::function<void()> call_of(const std::string& path, const std::string& op, Host& host, Tensors& tensors);

/// Throws std::runtime_error with the message where a call of attn.h failed.
void checked(attn_status status);

/// A call of PyTorch's operator on the tensors. The output is new memory, which the call after the next may reuse.
/// `output` is set to the last output. Only in a build with PyTorch (ATTN_TORCH).
std::function<void()> torch_call(const std::string& op, const DeviceInfo& device, Tensors& tensors,
                                 const void** output);

}  // namespace attn
