// PyTorch's operators attn::*, implemented with attn.h.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/dlpack.h>
#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>
#include <dlfcn.h>
#include <torch/library.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <initializer_list>
#include <mutex>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/api/attn.h"
#include "common/api/limits.h"
#include "common/api/shapes.h"

namespace {

using at::Tensor;
using OptionalTensor = c10::optional<Tensor>;

// ---- engines

constexpr int most_devices = 65;  // the CPU and 64 GPUs

[[noreturn]] void fail(attn_status status, const char* what) {
  const std::string message = std::string(what) + ": " + attn_message();
  if (status == ATTN_OUT_OF_MEMORY) TORCH_CHECK_WITH(OutOfMemoryError, false, message);
  TORCH_CHECK(false, message);
  std::abort();  // not reached: the line above throws
}

#ifdef INTRA_OP_PARALLEL
/// Runs the pieces of a CPU kernel on PyTorch's threads. PyTorch's threads spin after each of PyTorch's operations, so
/// threads of our own would have to share the cores with them.
void run_pieces(void*, size_t pieces, void (*piece)(void* work, size_t number), void* work) {
  at::parallel_for(0, static_cast<int64_t>(pieces), 1, [&](int64_t begin, int64_t end) {
    for (int64_t number = begin; number < end; ++number) piece(work, static_cast<size_t>(number));
  });
}
#else  // without OpenMP at::parallel_for runs all pieces on one thread, so the engine uses threads of its own
constexpr decltype(attn_open_options::run_pieces) run_pieces = nullptr;
#endif

/// The engine of a device. It is opened at its first use and never closed, because the process may end while a GPU is
/// still at work.
attn_engine* engine_of(c10::Device device) {
  static std::array<std::atomic<attn_engine*>, most_devices> engines{};
  static std::mutex opening;
  const int index = device.is_cpu() ? 0 : device.index() + 1;
  TORCH_CHECK(index >= 0 && index < most_devices, "attn: no such device, ", device);
  attn_engine* engine = engines[index].load(std::memory_order_acquire);
  if (engine) return engine;
  const std::lock_guard<std::mutex> lock(opening);
  engine = engines[index].load(std::memory_order_acquire);
  if (engine) return engine;
  const std::string spec = device.is_cpu() ? "cpu:threads=" + std::to_string(at::get_num_threads())
                                           : "cuda:" + std::to_string(device.index());
  const attn_open_options options{sizeof options, nullptr, std::getenv("ATTENTION_PROTO_ARCHIVE"), run_pieces, nullptr};
  if (const attn_status status = attn_open(spec.c_str(), &options, &engine); status != ATTN_OK) fail(status, "attn");
  engines[index].store(engine, std::memory_order_release);
  return engine;
}

/// The current stream, from PyTorch's stable C interface. A process with tensors on a GPU has loaded libtorch_cuda.
void* stream_of(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  using CurrentStream = int32_t(int32_t device, void** stream);
  static auto* const current = [] {
    void* const library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return library ? reinterpret_cast<CurrentStream*>(dlsym(library, "aoti_torch_get_current_cuda_stream")) : nullptr;
  }();
  void* stream = nullptr;
  TORCH_CHECK(current && current(device.index(), &stream) == 0,
              "attn: tensors on a GPU need PyTorch 2.4 or later with CUDA, this is ", TORCH_VERSION);
  return stream;
}

/// Calls a function of attn.h with the engine and the stream for a tensor's device, on behalf of the operator `op`.
template <typename Function, typename... Arguments>
void call(const char* op, Function* function, const Tensor& tensor, Arguments... arguments) {
  const c10::Device device = tensor.device();
  const attn_status status = function(engine_of(device), stream_of(device), arguments...);
  if (status != ATTN_OK) fail(status, op);
}

// ---- tensors

DLDataType type_of(const char* name, at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return {kDLFloat, 32, 1};
    case at::kHalf:
      return {kDLFloat, 16, 1};
    case at::kBFloat16:
      return {kDLBfloat, 16, 1};
    case at::kInt:
      return {kDLInt, 32, 1};
    case at::kLong:
      return {kDLInt, 64, 1};
    case at::kChar:
      return {kDLInt, 8, 1};
    case at::kByte:
      return {kDLUInt, 8, 1};
    case at::kBool:
      return {6, 8, 1};
#if TORCH_VERSION_MAJOR >= 2
    case at::kFloat8_e4m3fn:
      return {10, 8, 1};
#endif
    default:
      TORCH_CHECK(false, name, " is ", type, "; Float, Half and BFloat16 are allowed, and Int and Long for tables");
  }
}

/// Refuses a tensor with elements beyond the end of its storage: somebody has resized the storage. The message gets
/// numbers as text: in a process with PyTorch for CUDA, writing a number to an output stream crashes, because parts of
/// the stream come from another libstdc++.
void check_storage(const char* name, const Tensor& tensor) {
  if (tensor.numel() == 0) return;
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  int64_t last = tensor.storage_offset();
  for (size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
  const size_t needed = static_cast<size_t>(last + 1) * tensor.dtype().itemsize(), there = tensor.storage().nbytes();
  TORCH_CHECK(needed <= there, name, ": a storage of ", std::to_string(there),
              " bytes is not allowed; its elements need ", std::to_string(needed));
}

/// A DLTensor that points to a tensor's own sizes and strides, and so must not outlive the tensor. With `of_meta` the
/// tensor belongs to a question: its storage is not checked, and a tensor on the device meta stands for one on
/// `of_meta`.
struct Described : DLTensor {
  Described(const char* name, const Tensor& tensor, const c10::Device* of_meta = nullptr) : DLTensor{} {
    const c10::Device where = of_meta && tensor.is_meta() ? *of_meta : tensor.device();
    TORCH_CHECK(where.is_cpu() || where.is_cuda(), name, " is on ", where.str(), "; cpu and cuda are allowed");
    if (!of_meta) check_storage(name, tensor);
    data = tensor.is_meta() ? nullptr : const_cast<void*>(static_cast<const void*>(tensor.data_ptr()));
    device = {where.is_cpu() ? kDLCPU : kDLCUDA, where.is_cpu() ? 0 : where.index()};
    ndim = static_cast<int32_t>(tensor.dim());
    dtype = type_of(name, tensor.scalar_type());
    shape = const_cast<int64_t*>(tensor.sizes().data());
    strides = const_cast<int64_t*>(tensor.strides().data());
  }
};

struct Optional {
  Optional(const char* name, const OptionalTensor& tensor, const c10::Device* of_meta = nullptr) {
    if (tensor && tensor->defined()) described.emplace(name, *tensor, of_meta);
  }
  operator const DLTensor*() const { return described ? &*described : nullptr; }

  c10::optional<Described> described;
};

/// The scale as attn.h takes it: 0 stands for the usual scale.
double scale_of(const c10::optional<double>& scale) {
  TORCH_CHECK(scale.value_or(1) != 0, "scale: 0 is not allowed; None is the usual one");
  return scale.value_or(0);
}

/// The text of an option in an operator's schema, with the value that turns it off as the default.
template <typename T>
std::string in_schema(const char* name, T off) {
  const char* const type = std::is_same_v<T, bool> ? "bool " : std::is_same_v<T, double> ? "float " : "int ";
  const std::string value = !std::is_same_v<T, bool> ? std::to_string(off) : off ? "True" : "False";
  return std::string(type) + name + "=" + value;
}

attn_layout layout_of(bool bshd) { return bshd ? ATTN_BSHD : ATTN_BHSD; }

/// Checks the number of dimensions of a tensor from whose sizes an output is made; attn.h checks the rest.
void check_rank(const char* op, const char* name, const Tensor& tensor) {
  if (tensor.dim() == 4) return;
#if TORCH_VERSION_MAJOR >= 2
  const bool known = !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
#else
  constexpr bool known = true;
#endif
  std::vector<int64_t> sizes(static_cast<size_t>(tensor.dim()), attn::unknown_size);
  if (known) sizes = tensor.sizes().vec();
  TORCH_CHECK(false, op, ": ", attn::refused_dimensions(name, sizes.data(), tensor.dim()));
}

/// Whether a is certainly larger than b. In a trace sizes may be unknown; a comparison that depends on unknown sizes is
/// false.
template <typename Size>
bool larger(const Size& a, const Size& b) {
#ifdef TORCH_GUARD_OR_FALSE
  return TORCH_GUARD_OR_FALSE(c10::sym_gt(a, b));
#else
  return a > b;
#endif
}

/// Returns dense strides. The dimensions keep the order that they have in memory, except the last dimension, which
/// becomes the innermost one. Dimensions with stride 0 become the outermost ones.
template <typename Size>
std::array<Size, 4> strides_like(c10::ArrayRef<Size> sizes, c10::ArrayRef<Size> strides) {
  std::array<size_t, 4> order{0, 1, 2, 3};  // the outermost first
  const auto outside = [&](size_t a, size_t b) {
    return larger<Size>(strides[b], 0) && (!larger<Size>(strides[a], 0) || larger<Size>(strides[a], strides[b]));
  };
  for (size_t i = 1; i < 3; ++i) {
    for (size_t j = i; j > 0 && outside(order[j], order[j - 1]); --j) std::swap(order[j], order[j - 1]);
  }
  std::array<Size, 4> dense{1, 1, 1, 1};
  for (size_t i = 3; i > 0; --i) dense[order[i - 1]] = dense[order[i]] * sizes[order[i]];
  return dense;
}

/// Returns an output with the sizes of a tensor, for an operator or its meta function.
Tensor output_like(const char* op, const char* name, const Tensor& tensor) {
  check_rank(op, name, tensor);
#if TORCH_VERSION_MAJOR >= 2
  if (tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
    const auto sizes = tensor.sym_sizes();
    return at::empty_strided_symint(sizes, strides_like(sizes, tensor.sym_strides()), tensor.options());
  }
#endif
  return at::empty_strided(tensor.sizes(), strides_like(tensor.sizes(), tensor.strides()), tensor.options());
}

Tensor empty_lse(const Tensor& query, bool bshd) {
#if TORCH_VERSION_MAJOR >= 2
  return at::empty_symint({query.sym_size(0), query.sym_size(bshd ? 2 : 1), query.sym_size(bshd ? 1 : 2)},
                          query.options().dtype(at::kFloat));
#else
  return at::empty({query.size(0), query.size(bshd ? 2 : 1), query.size(bshd ? 1 : 2)},
                   query.options().dtype(at::kFloat));
#endif
}

// ---- operators

/// The options of attention in attn.h, with PyTorch's types; common/attention/options.def is the list.
struct FlashOptions {
#define ATTN_OPTION(type, name, off) type name;
#define ATTN_SCALE(name) c10::optional<double> name;
#define ATTN_TABLE(element, name, ...) const OptionalTensor& name;
#define ATTN_TENSOR(name) const OptionalTensor& name;
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
  bool bshd;
};

/// Calls use() with query, key and value, and with the options as attn.h takes them. `of_meta`: see Described.
template <typename Use>
auto with_flash(const Tensor& query, const Tensor& key, const Tensor& value, const FlashOptions& given,
                const c10::Device* of_meta, const Use& use) {
  const Described q("query", query, of_meta), k("key", key, of_meta), v("value", value, of_meta);
  attn_flash_options options = ATTN_FLASH_OPTIONS;
  options.layout = layout_of(given.bshd);
#define ATTN_OPTION(type, name, off) options.name = given.name;
#define ATTN_SCALE(name) options.name = scale_of(given.name);
#define ATTN_TENSOR(name)                          \
  const Optional name(#name, given.name, of_meta); \
  options.name = name;
#define ATTN_TABLE(element, name, ...) ATTN_TENSOR(name)
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
  options.alibi |= options.alibi_slopes != nullptr;
  return use(q, k, v, options);
}

void run_flash(const Tensor& query, const Tensor& key, const Tensor& value, const FlashOptions& given, const Tensor& o,
               const Tensor* lse) {
  with_flash(query, key, value, given, nullptr, [&](const auto& q, const auto& k, const auto& v, auto& options) {
    const Described out("output", o);
    c10::optional<Described> written;
    if (lse) {
      written.emplace("lse", *lse);
      options.lse = &*written;
    }
    call("attn::flash", attn_flash, query, &q, &k, &v, &out, &options);
  });
}

/// The operators, whose signatures end with the types of FlashOptions.
template <typename... Options>
struct Flash {
  static Tensor flash(const Tensor& query, const Tensor& key, const Tensor& value, Options... options) {
    Tensor o = output_like("attn::flash", "query", query);
    run_flash(query, key, value, {options...}, o, nullptr);
    return o;
  }
  static std::tuple<Tensor, Tensor> flash_with_lse(const Tensor& query, const Tensor& key, const Tensor& value,
                                                   Options... options) {
    const FlashOptions given{options...};
    Tensor o = output_like("attn::flash_with_lse", "query", query), lse = empty_lse(query, given.bshd);
    run_flash(query, key, value, given, o, &lse);
    return {o, lse};
  }
  static Tensor flash_meta(const Tensor& query, const Tensor&, const Tensor&, Options...) {
    return output_like("attn::flash", "query", query);
  }
  static std::tuple<Tensor, Tensor> flash_with_lse_meta(const Tensor& query, const Tensor&, const Tensor&,
                                                        Options... options) {
    return {output_like("attn::flash_with_lse", "query", query), empty_lse(query, FlashOptions{options...}.bshd)};
  }
  /// Returns why flash() does not serve a call (attn_why_not), or nothing if it does. Tensors on the device meta stand
  /// for tensors on `device`, which is query's device if it is not given. Opens no device.
  static c10::optional<std::string> why_not(const Tensor& query, const Tensor& key, const Tensor& value,
                                            Options... options, c10::optional<c10::Device> device) {
    const c10::Device of_meta = device.value_or(query.device());
    try {
      return with_flash(query, key, value, {options...}, &of_meta,
                        [&](const auto& q, const auto& k, const auto& v, auto& given) -> c10::optional<std::string> {
                          const char* const why = attn_why_not(nullptr, ATTN_FLASH, &q, &k, &v, nullptr, &given);
                          return why ? c10::optional<std::string>(why) : c10::nullopt;
                        });
    } catch (const c10::Error& error) {
      return std::string(error.what_without_backtrace());
    }
  }
};
using FlashOperators = Flash<
#define ATTN_OPTION(type, name, off) type,
#define ATTN_SCALE(name) c10::optional<double>,
#define ATTN_TABLE(element, name, ...) const OptionalTensor&,
#define ATTN_TENSOR(name) const OptionalTensor&,
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
    bool>;
constexpr auto flash = FlashOperators::flash, flash_meta = FlashOperators::flash_meta;
constexpr auto why_not = FlashOperators::why_not;
constexpr auto flash_with_lse = FlashOperators::flash_with_lse,
               flash_with_lse_meta = FlashOperators::flash_with_lse_meta;

/// The modifiers of attention over a cache, with PyTorch's types; common/attention/options.def is the list.
struct CacheOptions {
#define ATTN_MODIFIER(type, name, off, ...) type name;
#define ATTN_MODIFIER_TABLE(element, name, ...) const OptionalTensor& name;
#define ATTN_OPTIONS_OF_CACHE
#include "common/attention/options.def"
  bool bshd, cache_bshd;
};

using CacheFunction = attn_status(attn_engine*, void*, const DLTensor*, const DLTensor*, const DLTensor*,
                                  const DLTensor*, const attn_cache_options*);

Tensor over_cache(const char* op, CacheFunction* function, const Tensor& query, const Tensor& key_cache,
                  const Tensor& value_cache, const Tensor& lengths, const OptionalTensor& table,
                  attn_cache_options& options, c10::optional<double> scale, const CacheOptions& given) {
  Tensor o = output_like(op, "query", query);
  const Described q("query", query), k("key_cache", key_cache), v("value_cache", value_cache), out("output", o),
      length("lengths", lengths);
  const Optional pages("table", table);
  options.layout = layout_of(given.bshd);
  options.cache_layout = layout_of(given.cache_bshd);
  options.scale = scale_of(scale);
  options.lengths = &length;
  options.table = pages;
#define ATTN_MODIFIER(type, name, off, ...) options.name = given.name;
#define ATTN_MODIFIER_TABLE(element, name, ...) \
  const Optional name(#name, given.name);       \
  options.name = name;
#define ATTN_OPTIONS_OF_CACHE
#include "common/attention/options.def"
  options.alibi |= options.alibi_slopes != nullptr;
  call(op, function, query, &q, &k, &v, &out, &options);
  return o;
}

#define CACHE_ARGUMENTS                                                                           \
  const Tensor &query, const Tensor &key_cache, const Tensor &value_cache, const Tensor &lengths, \
      const OptionalTensor &table, c10::optional<double> scale
#define FUSED_ARGUMENTS                                                                                             \
  const Tensor &query, const Tensor &new_key, const Tensor &new_value, const Tensor &key_cache,                     \
      const Tensor &value_cache, const Tensor &lengths, const OptionalTensor &table, const OptionalTensor &cosines, \
      const OptionalTensor &sines, c10::optional<double> scale, const OptionalTensor &key_scales,                   \
      const OptionalTensor &value_scales, bool interleaved

template <CacheFunction* function>
constexpr const char* paged_name = function == attn_decode ? "attn::paged_decode" : "attn::paged_prefill";
template <CacheFunction* function>
constexpr const char* fused_name = function == attn_decode ? "attn::decode_fused" : "attn::prefill_fused";

/// The operators, whose signatures end with the types of CacheOptions.
template <typename... Options>
struct OverCache {
  template <CacheFunction* function>
  static Tensor paged(CACHE_ARGUMENTS, const OptionalTensor& key_scales, const OptionalTensor& value_scales,
                      Options... given) {
    const Optional k_scales("key_scales", key_scales), v_scales("value_scales", value_scales);
    attn_cache_options options = ATTN_CACHE_OPTIONS;
    options.k_scales = k_scales;
    options.v_scales = v_scales;
    return over_cache(paged_name<function>, function, query, key_cache, value_cache, lengths, table, options, scale,
                      {given...});
  }
  template <CacheFunction* function>
  static Tensor fused(FUSED_ARGUMENTS, Options... given) {
    const Described k("new_key", new_key), v("new_value", new_value);
    const Optional cosine("cosines", cosines), sine("sines", sines);
    const Optional k_scales("key_scales", key_scales), v_scales("value_scales", value_scales);
    attn_cache_options options = ATTN_CACHE_OPTIONS;
    options.new_k = &k;
    options.new_v = &v;
    options.cosines = cosine;
    options.sines = sine;
    options.k_scales = k_scales;
    options.v_scales = v_scales;
    options.interleaved = interleaved;
    Tensor o = over_cache(fused_name<function>, function, query, key_cache, value_cache, lengths, table, options, scale,
                          {given...});
    // Raises the versions of the caches, so that a backward pass that has kept the old values gets an error.
    for (const Tensor* const cache : {&key_cache, &value_cache}) {
      if (!cache->is_inference()) cache->unsafeGetTensorImpl()->bump_version();
    }
    return o;
  }
  template <CacheFunction* function>
  static Tensor paged_meta(CACHE_ARGUMENTS, const OptionalTensor&, const OptionalTensor&, Options...) {
    return output_like(paged_name<function>, "query", query);
  }
  template <CacheFunction* function>
  static Tensor fused_meta(FUSED_ARGUMENTS, Options...) {
    return output_like(fused_name<function>, "query", query);
  }
};
using CacheOperators = OverCache<
#define ATTN_MODIFIER(type, name, off, ...) type,
#define ATTN_MODIFIER_TABLE(element, name, ...) const OptionalTensor&,
#define ATTN_OPTIONS_OF_CACHE
#include "common/attention/options.def"
    bool, bool>;
constexpr auto paged_decode = CacheOperators::paged<attn_decode>,
               paged_decode_meta = CacheOperators::paged_meta<attn_decode>;
constexpr auto paged_prefill = CacheOperators::paged<attn_prefill>,
               paged_prefill_meta = CacheOperators::paged_meta<attn_prefill>;
constexpr auto decode_fused = CacheOperators::fused<attn_decode>,
               decode_fused_meta = CacheOperators::fused_meta<attn_decode>;
constexpr auto prefill_fused = CacheOperators::fused<attn_prefill>,
               prefill_fused_meta = CacheOperators::fused_meta<attn_prefill>;

void check_cache(const Tensor& key_cache, const Tensor& lengths, const OptionalTensor& table,
                 const OptionalTensor& new_key, const OptionalTensor& key_scales, const OptionalTensor& value_scales,
                 bool bshd, bool cache_bshd, int64_t window_left, const OptionalTensor& starts) {
  const Described k("key_cache", key_cache), length("lengths", lengths);
  const Optional pages("table", table), new_k("new_key", new_key), first_keys("starts", starts);
  const Optional k_scales("key_scales", key_scales), v_scales("value_scales", value_scales);
  attn_cache_options options = ATTN_CACHE_OPTIONS;
  options.layout = layout_of(bshd);
  options.cache_layout = layout_of(cache_bshd);
  options.new_k = new_k;
  options.k_scales = k_scales;
  options.v_scales = v_scales;
  options.lengths = &length;
  options.table = pages;
  options.window_left = window_left;
  options.starts = first_keys;
  call("attn::check_cache", attn_check_cache, key_cache, &k, &options);
}

#define LINEAR_ARGUMENTS                                                                           \
  const Tensor &query, const Tensor &key, const Tensor &value, const OptionalTensor &gate,         \
      const OptionalTensor &initial_state, bool causal, bool normalised, c10::string_view feature, \
      c10::optional<double> scale, bool bshd

std::tuple<Tensor, Tensor> linear_meta(LINEAR_ARGUMENTS) {
  check_rank("attn::linear", "query", query);
  Tensor o = output_like("attn::linear", "value", value);
#if TORCH_VERSION_MAJOR >= 2
  Tensor state =
      at::empty_symint({query.sym_size(0), query.sym_size(bshd ? 2 : 1), query.sym_size(3), value.sym_size(3)},
                       query.options().dtype(at::kFloat));
#else
  Tensor state = at::empty({query.size(0), query.size(bshd ? 2 : 1), query.size(3), value.size(3)},
                           query.options().dtype(at::kFloat));
#endif
  return {o, state};
}

std::tuple<Tensor, Tensor> linear(LINEAR_ARGUMENTS) {
  auto result = linear_meta(query, key, value, gate, initial_state, causal, normalised, feature, scale, bshd);
  const Described q("query", query), k("key", key), v("value", value), o("output", std::get<0>(result)),
      last("final_state", std::get<1>(result));
  const Optional gates("gate", gate), first("initial_state", initial_state);
  const std::string feature_name(feature);
  attn_linear_options options = ATTN_LINEAR_OPTIONS;
  options.layout = layout_of(bshd);
  options.causal = causal;
  options.normalised = normalised;
  options.feature = feature_name.c_str();
  options.scale = scale_of(scale);
  options.gate = gates;
  options.initial_state = first;
  options.final_state = &last;
  call("attn::linear", attn_linear, query, &q, &k, &v, &o, &options);
  return result;
}

/// The options of RoPE in attn.h, except offsets.
struct RopeOptions {
#define ATTN_OPTION(type, name, off) type name;
#define ATTN_CHOICE(type, name, off) c10::string_view name;
#define ATTN_OPTIONS_OF_ROPE
#include "common/attention/options.def"
  bool bshd;
};

attn_rope_scaling scaling_of(c10::string_view name) {
  constexpr const char* names[] = {"none", "linear", "ntk", "yarn", "llama3"};
  int found = 0;
  while (found < 5 && name != names[found]) ++found;
  TORCH_CHECK(found < 5, "attn::rope: scaling '", std::string(name),
              "' is not allowed; allowed are 'none', 'linear', 'ntk', 'yarn', 'llama3'");
  return static_cast<attn_rope_scaling>(found);
}

template <typename... Options>
struct Rope {
  static std::tuple<Tensor, Tensor> rope_meta(const Tensor& query, const Tensor& key, const OptionalTensor&,
                                              Options...) {
    return {output_like("attn::rope", "query", query), output_like("attn::rope", "key", key)};
  }
  static std::tuple<Tensor, Tensor> rope(const Tensor& query, const Tensor& key, const OptionalTensor& offsets,
                                         Options... given_options) {
    const RopeOptions given{given_options...};
    auto [turned_query, turned_key] = rope_meta(query, key, offsets, given_options...);
    const Described q("query", query), k("key", key), q_out("query", turned_query), k_out("key", turned_key);
    const Optional offset("offsets", offsets);
    attn_rope_options options = ATTN_ROPE_OPTIONS;
    options.layout = layout_of(given.bshd);
    options.offsets = offset;
#define ATTN_OPTION(type, name, off) options.name = given.name;
#define ATTN_CHOICE(type, name, off) options.name = name##_of(given.name);
#define ATTN_OPTIONS_OF_ROPE
#include "common/attention/options.def"
    call("attn::rope", attn_rope, query, &q, &k, &q_out, &k_out, &options);
    return {turned_query, turned_key};
  }
};
using RopeOperators = Rope<
#define ATTN_OPTION(type, name, off) type,
#define ATTN_CHOICE(type, name, off) c10::string_view,
#define ATTN_OPTIONS_OF_ROPE
#include "common/attention/options.def"
    bool>;
constexpr auto rope = RopeOperators::rope, rope_meta = RopeOperators::rope_meta;

void empty(const Tensor& like) { call("attn::empty", attn_empty, like); }
void empty_meta(const Tensor&) {}

void save_archive(const Tensor& like, std::string path) {
  const attn_status status = attn_save_archive(engine_of(like.device()), path.c_str());
  if (status != ATTN_OK) fail(status, "attn::save_archive");
}

int64_t prepared(const Tensor& like) { return static_cast<int64_t>(attn_prepared(engine_of(like.device()))); }
int64_t launches(const Tensor& like) { return static_cast<int64_t>(attn_launches(engine_of(like.device()))); }

/// A text as an argument of a template.
template <size_t SIZE>
struct Text {
  constexpr Text(const char (&given)[SIZE]) { std::copy_n(given, SIZE, text); }
  char text[SIZE];
};

// ---- derivatives

enum Derivative { none = 0, backward, forward };

Derivative derivative_of(const Tensor& tensor) {
  if (!tensor.defined()) return none;
  if (tensor.requires_grad() && at::GradMode::is_enabled()) return backward;
  return tensor._fw_grad(0).defined() && c10::AutogradState::get_tls_state().get_fw_grad_mode() ? forward : none;
}
Derivative derivative_of(const OptionalTensor& tensor) { return tensor ? derivative_of(*tensor) : none; }
template <typename Option>
Derivative derivative_of(const Option&) {
  return none;
}

/// Whether the keys are those of a tensor whose elements lie at its addresses, outside of a trace.
bool in_memory(c10::DispatchKeySet keys) {
  const c10::DispatchKey next = (keys & c10::after_ADInplaceOrView_keyset).highestPriorityTypeId();
  return next == c10::DispatchKey::CPU || next == c10::DispatchKey::CUDA;
}

/// At the Autograd keys: refuses tensors with backward or forward derivatives. In a trace or under torch.func, only an
/// operator at these keys can see whether derivatives are wanted.
template <auto* OPERATOR, Text NAME, typename Signature = std::remove_pointer_t<decltype(OPERATOR)>>
struct Inference;
template <auto* OPERATOR, Text NAME, typename Result, typename... Arguments>
struct Inference<OPERATOR, NAME, Result(Arguments...)> {
  static Result call(c10::DispatchKeySet keys, Arguments... arguments) {
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow(NAME.text, "").template typed<Result(Arguments...)>();
    if ((derivative_of(arguments) || ...)) refuse(op.schema(), {derivative_of(arguments)...});
    if (in_memory(keys)) return OPERATOR(std::forward<Arguments>(arguments)...);  // saves the dispatcher's time
    const at::AutoDispatchBelowADInplaceOrView below;
    return op.redispatch(keys & c10::after_ADInplaceOrView_keyset, std::forward<Arguments>(arguments)...);
  }

 private:
  static void refuse(const c10::FunctionSchema& schema, std::initializer_list<Derivative> derivatives) {
    const Derivative* const first =
        std::find_if(derivatives.begin(), derivatives.end(), [](Derivative d) { return d; });
    const std::string& name = schema.arguments()[static_cast<size_t>(first - derivatives.begin())].name();
    TORCH_CHECK(*first != backward, name,
                " requires a gradient; attn's operators are for inference: call them under torch.no_grad()");
    TORCH_CHECK(*first != forward, name, " has a forward derivative; attn's operators are for inference");
  }
};

// ---- traces

bool has_values(const Tensor& tensor) { return tensor.defined() && !tensor.is_meta(); }
bool has_values(const OptionalTensor& tensor) { return tensor && has_values(*tensor); }
template <typename Option>
bool has_values(const Option&) {
  return false;
}

/// At the Meta key: calls the meta function. PyTorch also chooses this key if only some of the tensors are on the
/// device meta. Such a call is refused, because nobody would write the result's memory.
template <auto* OPERATOR, Text NAME, typename Signature = std::remove_pointer_t<decltype(OPERATOR)>>
struct Traced;
template <auto* OPERATOR, Text NAME, typename Result, typename... Arguments>
struct Traced<OPERATOR, NAME, Result(Arguments...)> {
  static Result call(Arguments... arguments) {
    if ((has_values(arguments) || ...)) refuse({has_values(arguments)...});
    return OPERATOR(std::forward<Arguments>(arguments)...);
  }

 private:
  static void refuse(std::initializer_list<bool> others) {
    const auto first = std::find(others.begin(), others.end(), true) - others.begin();
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(NAME.text, "");
    TORCH_CHECK(false, NAME.text, ": ", op.schema().arguments()[static_cast<size_t>(first)].name(),
                " has elements, but another tensor is on the device meta; all tensors or none must be on meta");
  }
};

// ---- autocast

at::ScalarType autocast_type(c10::DeviceType device) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
  return at::autocast::get_autocast_dtype(device);
#else
  return device == c10::kCUDA ? at::autocast::get_autocast_gpu_dtype() : at::autocast::get_autocast_cpu_dtype();
#endif
}

/// Whether queries, keys and values may have the type.
bool is_for_tokens(at::ScalarType type) { return type == at::kFloat || type == at::kHalf || type == at::kBFloat16; }

constexpr size_t no_cache = SIZE_MAX;

/// The autocast keys run the operator with its first `TOKENS` arguments cast to autocast's type, as in PyTorch's own
/// attention. If argument number `CACHE` (from 0) is a cache of f32, f16 or bf16, the first `TOKENS` arguments are cast
/// to the cache's type instead, so that the cache is not copied. The other arguments keep their types. Tensors of
/// float64 keep their type too, and the operator refuses them.
template <c10::DeviceType DEVICE, auto* OPERATOR, Text NAME, size_t TOKENS, size_t CACHE = no_cache,
          typename Signature = std::remove_pointer_t<decltype(OPERATOR)>>
struct Autocast;
template <c10::DeviceType DEVICE, auto* OPERATOR, Text NAME, size_t TOKENS, size_t CACHE, typename Result,
          typename... Arguments>
struct Autocast<DEVICE, OPERATOR, NAME, TOKENS, CACHE, Result(Arguments...)> {
  static Result call(Arguments... arguments) {
    const c10::impl::ExcludeDispatchKeyGuard without(DEVICE == c10::kCUDA ? c10::DispatchKey::AutocastCUDA
                                                                          : c10::DispatchKey::AutocastCPU);
    return with_casts(std::index_sequence_for<Arguments...>(),
                      std::tuple<Arguments...>(std::forward<Arguments>(arguments)...));
  }

 private:
  template <size_t... I>
  static Result with_casts(std::index_sequence<I...>, const std::tuple<Arguments...>& arguments) {
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow(NAME.text, "").template typed<Result(Arguments...)>();
    at::ScalarType type = autocast_type(DEVICE);
    if constexpr (CACHE != no_cache) {
      if (const auto cached = std::get<CACHE>(arguments).scalar_type(); is_for_tokens(cached)) type = cached;
    }
    return op.call(cast<I>(op.schema(), type, std::get<I>(arguments))...);
  }
  template <size_t I, typename Argument>
  static decltype(auto) cast([[maybe_unused]] const c10::FunctionSchema& schema, [[maybe_unused]] at::ScalarType type,
                             const Argument& argument) {
    if constexpr (I < TOKENS) {
      if (in_memory(argument.key_set())) check_storage(schema.arguments()[I].name().c_str(), argument);
      // at::autocast::cached_cast() would keep the copy of a parameter for later calls, and not see that it changes.
      const bool casts =
          argument.is_floating_point() && argument.scalar_type() != at::kDouble && argument.device().type() == DEVICE;
      return casts ? argument.to(type) : argument;
    } else {
      return (argument);
    }
  }
};

// ---- the list of operators

// The arguments of operators in their schemas, without the closing bracket.
std::string flash_arguments() {
  return "(Tensor query, Tensor key, Tensor value, *, "
#define ATTN_OPTION(type, name, off) +in_schema<type>(#name, off) + ", "
#define ATTN_SCALE(name) "float? " #name "=None, "
#define ATTN_TABLE(element, name, ...) "Tensor? " #name "=None, "
#define ATTN_TENSOR(name) "Tensor? " #name "=None, "
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
         "bool bshd=False";
}
std::string why_not_arguments() { return flash_arguments() + ", Device? device=None"; }
std::string cache_options() {
  return std::string()
#define ATTN_MODIFIER(type, name, off, ...) +in_schema<type>(#name, off) + ", "
#define ATTN_MODIFIER_TABLE(element, name, ...) +"Tensor? " #name "=None, "
#define ATTN_OPTIONS_OF_CACHE
#include "common/attention/options.def"
         + "bool bshd=False, bool cache_bshd=False";
}
std::string paged_arguments() {
  return "(Tensor query, Tensor key_cache, Tensor value_cache, Tensor lengths, Tensor? table=None, *, "
         "float? scale=None, Tensor? key_scales=None, Tensor? value_scales=None, " +
         cache_options();
}
std::string fused_arguments() {
  return "(Tensor query, Tensor new_key, Tensor new_value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
         "Tensor lengths, Tensor? table=None, Tensor? cosines=None, Tensor? sines=None, *, float? scale=None, "
         "Tensor? key_scales=None, Tensor? value_scales=None, bool interleaved=False, " +
         cache_options();
}
std::string check_cache_arguments() {
  return "(Tensor key_cache, Tensor lengths, Tensor? table=None, *, Tensor? new_key=None, Tensor? key_scales=None, "
         "Tensor? value_scales=None, bool bshd=False, bool cache_bshd=False, int window_left=-1, Tensor? starts=None";
}
std::string linear_arguments() {
  return "(Tensor query, Tensor key, Tensor value, Tensor? gate=None, Tensor? initial_state=None, *, bool causal=True, "
         "bool normalised=False, str feature=\"identity\", float? scale=None, bool bshd=False";
}
std::string rope_arguments() {
  return "(Tensor query, Tensor key, Tensor? offsets=None, *, "
#define ATTN_OPTION(type, name, off) +in_schema<type>(#name, off) + ", "
#define ATTN_CHOICE(type, name, off) "str " #name "=\"none\", "
#define ATTN_OPTIONS_OF_ROPE
#include "common/attention/options.def"
         "bool bshd=False";
}
std::string like_arguments() { return "(Tensor like"; }
std::string save_archive_arguments() { return "(Tensor like, str path"; }

template <typename Result>
constexpr const char* in_schema_as = nullptr;
template <>
constexpr const char* in_schema_as<void> = "()";
template <>
constexpr const char* in_schema_as<int64_t> = "int";
template <>
constexpr const char* in_schema_as<Tensor> = "Tensor";
template <>
constexpr const char* in_schema_as<std::tuple<Tensor, Tensor>> = "(Tensor, Tensor)";
template <>
constexpr const char* in_schema_as<c10::optional<std::string>> = "str?";

/// An operator: its name, its arguments in the schema, its function on the cpu and on a GPU, and its function in a
/// trace or null. TOKENS and CACHE are for Autocast; with TOKENS 0 autocast leaves the tensors as they are.
template <Text NAME, std::string (*ARGUMENTS)(), auto* OPERATOR, auto META, size_t TOKENS = 0, size_t CACHE = no_cache>
struct Operator {
  using Result = typename c10::guts::infer_function_traits_t<std::remove_pointer_t<decltype(OPERATOR)>>::return_type;
  static constexpr bool traced = !std::is_null_pointer_v<decltype(META)>;
  static constexpr bool gives_tensors =
      std::is_same_v<Result, Tensor> || std::is_same_v<Result, std::tuple<Tensor, Tensor>>;

  static void define(torch::Library& m) {
    const std::string schema = NAME.text + ARGUMENTS() + ") -> " + in_schema_as<Result>;
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 2)
    m.def(schema.c_str(), {at::Tag::pt2_compliant_tag});
#else
    m.def(schema.c_str());
#endif
  }
  static void implement(torch::Library& m) { m.impl(NAME.text, TORCH_FN(OPERATOR)); }
  static void derive(torch::Library& m) {
    if constexpr (gives_tensors)
      m.impl(NAME.text, TORCH_FN((Inference<OPERATOR, NAME>::call)));
    else
      m.impl(NAME.text, torch::CppFunction::makeFallthrough());
  }
  static void trace(torch::Library& m) {
    if constexpr (traced && gives_tensors) m.impl(NAME.text, TORCH_FN((Traced<META, NAME>::call)));
    if constexpr (traced && !gives_tensors) m.impl(NAME.text, TORCH_FN(META));
  }
  template <c10::DeviceType DEVICE>
  static void cast(torch::Library& m) {
    if constexpr (TOKENS > 0) m.impl(NAME.text, TORCH_FN((Autocast<DEVICE, OPERATOR, NAME, TOKENS, CACHE>::call)));
  }
};

template <typename... Row>
struct List {
  static void define(torch::Library& m) { (Row::define(m), ...); }
  static void implement(torch::Library& m) { (Row::implement(m), ...); }
  static void derive(torch::Library& m) { (Row::derive(m), ...); }
  static void trace(torch::Library& m) { (Row::trace(m), ...); }
  template <c10::DeviceType DEVICE>
  static void cast(torch::Library& m) {
    (Row::template cast<DEVICE>(m), ...);
  }
};

// rope is not cast: models of PyTorch compute RoPE by operators whose types autocast does not change. check_cache has
// no function in a trace. With one, a trace would drop calls of check_cache, because these calls have no results.
// Without one, a trace breaks at such a call, and the call runs.
using Operators = List<Operator<"attn::flash", flash_arguments, flash, flash_meta, 3>,
                       Operator<"attn::flash_with_lse", flash_arguments, flash_with_lse, flash_with_lse_meta, 3>,
                       Operator<"attn::why_not", why_not_arguments, why_not, why_not>,
                       Operator<"attn::paged_decode", paged_arguments, paged_decode, paged_decode_meta, 1, 1>,
                       Operator<"attn::paged_prefill", paged_arguments, paged_prefill, paged_prefill_meta, 1, 1>,
                       Operator<"attn::decode_fused", fused_arguments, decode_fused, decode_fused_meta, 3, 3>,
                       Operator<"attn::prefill_fused", fused_arguments, prefill_fused, prefill_fused_meta, 3, 3>,
                       Operator<"attn::check_cache", check_cache_arguments, check_cache, nullptr>,
                       Operator<"attn::linear", linear_arguments, linear, linear_meta, 3>,
                       Operator<"attn::rope", rope_arguments, rope, rope_meta>,
                       Operator<"attn::empty", like_arguments, empty, empty_meta>,
                       Operator<"attn::save_archive", save_archive_arguments, save_archive, nullptr>,
                       Operator<"attn::prepared", like_arguments, prepared, nullptr>,
                       Operator<"attn::launches", like_arguments, launches, nullptr>>;

}  // namespace

TORCH_LIBRARY(attn, m) {
  Operators::define(m);
  m.def("has_backend", [](std::string backend) { return attn_has_backend(backend.c_str()) != 0; });
  m.def("limits", [] {
    return std::tuple(attn::few_rows.queries, attn::few_rows.rows, attn::alignment_bytes, attn::least_scale,
                      attn::most_scale);
  });
}
TORCH_LIBRARY_IMPL(attn, Autograd, m) { Operators::derive(m); }
TORCH_LIBRARY_IMPL(attn, AutocastCPU, m) { Operators::cast<c10::kCPU>(m); }
TORCH_LIBRARY_IMPL(attn, AutocastCUDA, m) { Operators::cast<c10::kCUDA>(m); }
TORCH_LIBRARY_IMPL(attn, CPU, m) { Operators::implement(m); }
TORCH_LIBRARY_IMPL(attn, CUDA, m) { Operators::implement(m); }
TORCH_LIBRARY_IMPL(attn, Meta, m) { Operators::trace(m); }
