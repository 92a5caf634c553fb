// The ways ("paths") to call attention. For each path there is a function that makes one call.
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

/// The device is opened as for a framework: the caller owns the stream, which is the default stream. The device and the
/// engines take their compiled kernels from one folder. All cases of a run share one Host.
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

/// Q, K, V and O of a case, on the host and on the device of `Host`. Equal seeds give equal values of Q, K and V.
struct Tensors {
  Tensors(Host& host, const FlashConfig& config, uint64_t seed);

  TensorView view(Buffer& buffer) const;
  /// Returns the buffer as a DLTensor, which points to the buffer's memory and to `shape`. DLTensor::device is not set.
  DLTensor described(Buffer& buffer);

  FlashConfig config;
  int64_t shape[4];
  Tensor host_q, host_k, host_v, host_o;
  Buffer q, k, v, o;
};

/// Returns the reason why this build does not have the path, or an empty text.
std::string path_missing(const std::string& path);

/// Returns a function that launches the plan's kernel once, without Engine and attn.h. The function returns when the
/// kernel is enqueued (on a GPU) or done (on a cpu). `host` and `tensors` must outlive the function.
std::function<void()> direct_call(Host& host, Tensors& tensors, const Plan& plan);

/// Returns a function that makes one call by a path other than "direct" and "torch". The function returns when the
/// kernel is enqueued (on a GPU) or done (on a cpu), or with the path "copies" when O is on the host. `host` and
/// `tensors` must outlive the function.
std::function<void()> call_of(const std::string& path, const std::string& op, Host& host, Tensors& tensors);

/// Throws std::runtime_error with attn.h's message if `status` is an error.
void checked(attn_status status);

/// Returns a function that calls PyTorch's operator `op` on the tensors. With "flash" each call allocates its output,
/// frees the output of the previous call, and sets `*output` to the new output's address. "empty" has no output. Only a
/// build with PyTorch (ATTN_TORCH) has torch_call().
std::function<void()> torch_call(const std::string& op, const DeviceInfo& device, Tensors& tensors,
                                 const void** output);
/// Sets `call` to what torch_call() returns. A function of the library that torch_call() opens (torch/call.cpp).
extern "C" void attn_torch_call(const std::string& op, const DeviceInfo& device, Tensors& tensors, const void** output,
                                std::function<void()>& call);

}  // namespace attn
