// The path through PyTorch's dispatcher. This path has a file of its own, because PyTorch's headers cause warnings
// under this project's compiler options.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

#include "proto8_extension/paths.h"

namespace attn {

static std::function<void()> call_of(const std::string& op, const DeviceInfo& device, Tensors& tensors,
                                     const void** output) {
  const auto type = tensors.config.dtype == DType::f32   ? at::kFloat
                    : tensors.config.dtype == DType::f16 ? at::kHalf
                                                         : at::kBFloat16;
  const at::Device place =
      device.on_host ? at::Device(at::kCPU) : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device.dlpack_id));
  const auto as_torch = [&](Buffer& buffer) {
    return at::from_blob(buffer.data(), {tensors.shape[0], tensors.shape[1], tensors.shape[2], tensors.shape[3]},
                         at::TensorOptions().dtype(type).device(place));
  };
  const at::Tensor q = as_torch(tensors.q), k = as_torch(tensors.k), v = as_torch(tensors.v);
  auto& dispatcher = c10::Dispatcher::singleton();
  if (op == "empty") {
    const auto handle = dispatcher.findSchemaOrThrow("attn::empty", "").typed<void(const at::Tensor&)>();
    return [=] { handle.call(q); };
  }
  const auto handle = dispatcher.findSchemaOrThrow("attn::flash", "")
                          .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
#define ATTN_OPTION(type, name, off) type,
#define ATTN_SCALE(name) c10::optional<double>,
#define ATTN_TABLE(element, name, ...) const c10::optional<at::Tensor>&,
#define ATTN_TENSOR(name) const c10::optional<at::Tensor>&,
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
                                            bool)>();
  at::Tensor kept;
  return [=]() mutable {
    kept = handle.call(q, k, v,
#define ATTN_OPTION(type, name, off) off,
#define ATTN_SCALE(name) {},
#define ATTN_TABLE(element, name, ...) {},
#define ATTN_TENSOR(name) {},
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
                       false);
    *output = kept.data_ptr();
  };
}

extern "C" void attn_torch_call(const std::string& op, const DeviceInfo& device, Tensors& tensors, const void** output,
                                std::function<void()>& call) {
  call = call_of(op, device, tensors, output);
}

}  // namespace attn
