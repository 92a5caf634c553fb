#include "proto8_extension/paths.h"

#include <dlfcn.h>

#include <stdexcept>
#include <tuple>

#include "common/backends/metal/buffers.h"
#include "common/base/error.h"

namespace attn {
namespace {

/// A minimal framework, in place of a framework such as PyTorch. The framework's tensors are buffers of one shape.
class BufferFramework {
 public:
  using Tensor = Buffer*;

  BufferFramework(Tensors& tensors, Buffer& output) : tensors_(&tensors), output_(&output) {}
  TensorView view(Tensor& tensor) const { return tensors_->view(*tensor); }
  Tensor empty_like(const Tensor& /*tensor*/) const { return output_; }  // a pool of one buffer
  void* stream() const { return nullptr; }

 private:
  Tensors* tensors_;
  Buffer* output_;
};
static_assert(Framework<BufferFramework> && !AttentionFramework<BufferFramework>);
static_assert(AttentionFramework<WithAttention<BufferFramework>>);

std::function<void()> direct_attention(Host& host, Tensors& tensors, const Plan& plan) {
  auto launch = std::make_shared<AttentionLaunch>(*host.device, host.pipelines, tensors.config, plan);
  return [&host, &tensors, launch = std::move(launch), encoder = CommandEncoder()]() mutable {
    const Device::Scope scope(*host.device);
    const Strides strides = tensors.host_q.strides();
    encoder.clear();
    launch->encode(encoder, {.q = tensors.q.data(),
                             .k = tensors.k.data(),
                             .v = tensors.v.data(),
                             .o = tensors.o.data(),
                             .q_strides = strides,
                             .k_strides = strides,
                             .v_strides = strides,
                             .o_strides = strides});
    host.device->enqueue(encoder, nullptr);
  };
}

std::function<void()> direct_empty(Host& host, const Launch& launch) {
  const Kernel& kernel = *host.pipelines.get(launch.source).kernel;
  return [&host, &kernel, launch, encoder = CommandEncoder()]() mutable {
    encoder.clear();
    encoder.dispatch(kernel, launch.grid, launch.threads, launch.threadgroup_bytes, 0);
    host.device->enqueue(encoder, nullptr);
  };
}

/// A tensor as libraries export it by DLPack: a DLTensor with a deleter.
struct Managed {
  DLTensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

Managed* exported(Tensors& tensors, Buffer& buffer) {
  return new Managed{tensors.described(buffer), nullptr, [](Managed* self) { delete self; }};
}

}  // namespace

Host::Host(const std::string& device_spec, const std::string& cache_folder)
    : spec(device_spec),
      device(Device::open_for_caller(spec, {.stream = nullptr})),
      pipelines(*device, cache_folder),
      engine(spec, {.cache_folder = cache_folder}) {
  const attn_open_options options{sizeof options, cache_folder.c_str(), nullptr, nullptr, nullptr};
  checked(attn_open(spec.c_str(), &options, &c));
}
Host::~Host() { attn_close(c); }

Tensors::Tensors(Host& host, const FlashConfig& flash, uint64_t seed) : config(flash) {
  const AttentionShape& s = config.shape;
  const int64_t sizes[] = {s.batch, s.q_heads, s.q_len, s.head_dim};
  std::copy_n(sizes, 4, shape);
  const auto drawn = [&](uint64_t stream) {
    return random_tensor(s.batch, s.q_heads, s.q_len, s.head_dim, config.dtype, Layout::bhsd, seed, stream);
  };
  host_q = drawn(0);
  host_k = drawn(1);
  host_v = drawn(2);
  host_o = host_q;
  q = uploaded(*host.device, host_q.data);
  k = uploaded(*host.device, host_k.data);
  v = uploaded(*host.device, host_v.data);
  o = Buffer(*host.device, host_o.bytes());
}

TensorView Tensors::view(Buffer& buffer) const {
  return {.data = buffer.data(),
          .dtype = config.dtype,
          .batch = shape[0],
          .heads = shape[1],
          .tokens = shape[2],
          .width = shape[3],
          .strides = host_q.strides()};
}

DLTensor Tensors::described(Buffer& buffer) {
  DLTensor tensor{};
  tensor.data = buffer.data();
  tensor.ndim = 4;
  tensor.dtype = {static_cast<uint8_t>(config.dtype == DType::bf16 ? 4 : 2),
                  static_cast<uint8_t>(8 * size_bytes(config.dtype)), 1};
  tensor.shape = shape;
  return tensor;
}

void checked(attn_status status) {
  if (status != ATTN_OK) throw std::runtime_error(attn_message());
}

std::string path_missing(const std::string& path) {
#ifndef ATTN_HAS_TORCH
  if (path == "torch") return "path torch: this build has no PyTorch; configure it with -DATTN_TORCH=FOLDER";
#endif
  (void)path;
  return {};
}

#ifdef ATTN_HAS_TORCH
std::function<void()> torch_call(const std::string& op, const DeviceInfo& device, Tensors& tensors,
                                 const void** output) {
  void* const library = dlopen(ATTN_HAS_TORCH, RTLD_NOW);
  if (!library) throw std::runtime_error(dlerror());
  std::function<void()> call;
  reinterpret_cast<decltype(&attn_torch_call)>(dlsym(library, "attn_torch_call"))(op, device, tensors, output, call);
  return call;
}
#endif

std::function<void()> direct_call(Host& host, Tensors& tensors, const Plan& plan) {
  const Launch& launch = plan.launches.front();
  return launch.phase == "empty" ? direct_empty(host, launch) : direct_attention(host, tensors, plan);
}

std::function<void()> call_of(const std::string& path, const std::string& op, Host& host, Tensors& tensors) {
  const DLDevice place{host.device->info().dlpack_type, host.device->info().dlpack_id};
  const auto on_device = [place, buffers = dynamic_cast<BufferDevice*>(host.device.get())](DLTensor tensor) {
    tensor.device = place;
    if (buffers) std::tie(tensor.data, tensor.byte_offset) = buffers->buffer_of(tensor.data);
    return tensor;
  };
  if (op == "empty") {
    if (path == "engine") return [&host] { host.engine.empty(); };
    return [&host] { checked(attn_empty(host.c, nullptr)); };
  }
  if (path == "engine") {
    return [&host, &tensors] {
      FlashCall call;
      call.q = tensors.view(tensors.q);
      call.k = tensors.view(tensors.k);
      call.v = tensors.view(tensors.v);
      call.o = tensors.view(tensors.o);
      host.engine.flash(call);
    };
  }
  if (path == "concept") {
    auto framework = std::make_shared<WithAttention<BufferFramework>>(host.engine, tensors, tensors.o);
    return [&tensors, framework = std::move(framework)] {
      Buffer *q = &tensors.q, *k = &tensors.k, *v = &tensors.v;
      framework->attention(q, k, v);
    };
  }
  if (path == "dlpack") {
    return [&host, &tensors, on_device] {
      Managed* all[] = {exported(tensors, tensors.q), exported(tensors, tensors.k), exported(tensors, tensors.v),
                        exported(tensors, tensors.o)};
      for (Managed* each : all) each->tensor = on_device(each->tensor);
      const attn_status status =
          attn_flash(host.c, nullptr, &all[0]->tensor, &all[1]->tensor, &all[2]->tensor, &all[3]->tensor, nullptr);
      for (Managed* each : all) each->deleter(each);
      checked(status);
    };
  }
  const DLTensor q = on_device(tensors.described(tensors.q)), k = on_device(tensors.described(tensors.k)),
                 v = on_device(tensors.described(tensors.v)), o = on_device(tensors.described(tensors.o));
  if (path == "copies") {
    return [&host, &tensors, q, k, v, o] {
      tensors.q.upload(tensors.host_q.data.data(), tensors.q.bytes());
      tensors.k.upload(tensors.host_k.data.data(), tensors.k.bytes());
      tensors.v.upload(tensors.host_v.data.data(), tensors.v.bytes());
      checked(attn_flash(host.c, nullptr, &q, &k, &v, &o, nullptr));
      tensors.o.download(tensors.host_o.data.data(), tensors.o.bytes());
    };
  }
  return [&host, q, k, v, o] { checked(attn_flash(host.c, nullptr, &q, &k, &v, &o, nullptr)); };
}

}  // namespace attn
