// Implements the functions of attn.h with Engine. This file reads and checks tensors and options, and turns exceptions
// into a status and a message.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <iterator>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/api/attn.h"
#include "common/api/checks.h"
#include "common/api/engine.h"
#include "common/api/shapes.h"
#include "common/backends/metal/buffers.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/device/pipeline_cache.h"

namespace attn {

/// What a call borrows from the tensors of a device whose tensors are buffers.
class Borrowed {
 public:
  explicit Borrowed(BufferDevice* device = nullptr) : device_(device) {}
  Borrowed(Borrowed&&) = default;
  Borrowed& operator=(Borrowed&&) = delete;
  ~Borrowed() {
    for (void* const buffer : buffers_) device_->give_back(buffer);
  }
  /// Returns the address for kernels.
  void* address_of(void* data) {
    if (!device_) return data;
    buffers_.reserve(buffers_.size() + 1);
    void* const address = device_->borrow(data);
    buffers_.push_back(data);
    return address;
  }

 private:
  BufferDevice* device_;
  std::vector<void*> buffers_;
};

/// The device of a call, and whether the call is only asked about.
struct Target {
  bool on_host;
  int device_type, device_id;  // DLPack's numbers
  mutable Borrowed borrowed = Borrowed();
  bool asked = false;  // tensors may have no data, and outputs may be missing
};

}  // namespace attn

struct attn_engine {
  attn::Engine engine;
  const bool on_host;
  const int device_type, device_id;
  attn::BufferDevice* const buffers;

  attn_engine(const std::string& spec, attn::EngineOptions options)
      : engine(spec, std::move(options)),
        on_host(engine.info().on_host),
        device_type(engine.info().dlpack_type),
        device_id(engine.info().dlpack_id),
        buffers(dynamic_cast<attn::BufferDevice*>(&engine.device())) {}
  /// Returns the target of one call.
  attn::Target target() const { return {on_host, device_type, device_id, attn::Borrowed(buffers)}; }
};

namespace attn {
namespace {

enum Code : uint8_t { code_int = 0, code_unsigned = 1, code_float = 2, code_bfloat = 4, code_bool = 6, code_e4m3 = 10 };

thread_local std::string last_message;

[[noreturn]] void refuse(const std::string& message) { throw BadInput(message); }

/// Sends the messages of all engines to log.txt in the cache folder of the process's first engine. So the library
/// writes nothing to the terminal.
void log_into(const std::string& cache_folder) {
  static std::once_flag once;
  const std::string folder = cache_folder.empty() ? PipelineCache::default_folder() : cache_folder;
  std::call_once(once, [&] { set_logger(file_logger(folder.empty() ? folder : folder + "/log.txt")); });
}

/// Runs the action. Returns the status of its exception, and keeps the exception's message for attn_message().
template <typename Action>
attn_status guarded(const Action& action) noexcept {
  const auto said = [](attn_status status, const char* message) {
    try {
      last_message = message;
    } catch (...) {
      last_message.clear();
    }
    return status;
  };
  try {
    action();
    return ATTN_OK;
  } catch (const BadInput& error) {
    return said(ATTN_BAD_INPUT, error.what());
  } catch (const DeviceMissing& error) {
    return said(ATTN_NO_DEVICE, error.what());
  } catch (const CompileError& error) {
    return said(ATTN_NOT_COMPILED, error.what());
  } catch (const OutOfMemory& error) {
    return said(ATTN_OUT_OF_MEMORY, error.what());
  } catch (const DeviceLost& error) {
    return said(ATTN_DEVICE_LOST, error.what());
  } catch (const std::bad_alloc&) {
    return said(ATTN_OUT_OF_MEMORY, "the host has no memory left");
  } catch (const std::exception& error) {
    return said(ATTN_FAILED, error.what());
  }
}

// Returns the caller's options. A caller that was compiled with an older header may have a shorter struct. Options that
// the shorter struct lacks get their values from `off`.
template <typename Options>
Options read(const Options* given, Options off) {
  if (!given) return off;
  if (given->struct_bytes < sizeof(size_t) || given->struct_bytes > sizeof(Options)) {
    refuse(fmt::format("options of {} bytes are not allowed; up to {} are", given->struct_bytes, sizeof(Options)));
  }
  std::memcpy(static_cast<void*>(&off), given, given->struct_bytes);
  return off;
}

std::string type_text(const DLDataType& type) {
  const char* const names[] = {"int",  "uint",        "float",       "an opaque type", "bfloat",       "complex",
                               "bool", "float8_e3m4", "float8_e4m3", "float8_e4m3b11", "float8_e4m3fn"};
  std::string text = type.code < std::size(names) ? names[type.code] : fmt::format("DLPack's type {}", type.code);
  if (type.code < code_bool) text += fmt::format("{}", type.bits);
  return type.lanes == 1 ? text : fmt::format("{} x {}", text, type.lanes);
}

DType dtype_of(const char* name, const DLDataType& type) {
  if (type.lanes == 1) {
    if (type.code == code_float && type.bits == 32) return DType::f32;
    if (type.code == code_float && type.bits == 16) return DType::f16;
    if (type.code == code_bfloat && type.bits == 16) return DType::bf16;
    if (type.code == code_int && type.bits == 8) return DType::int8;
    if (type.code == code_e4m3 && type.bits == 8) return DType::e4m3;
  }
  refuse(fmt::format("{}: {} is not allowed; float32, float16 and bfloat16 are, and for caches int8 and float8_e4m3fn",
                     name, type_text(type)));
}

void* address(const Target& target, const DLTensor& tensor) {
  if (tensor.data) return static_cast<std::byte*>(target.borrowed.address_of(tensor.data)) + tensor.byte_offset;
  return target.asked ? no_address : nullptr;
}

void check_place(const Target& target, const char* name, const DLTensor& tensor) {
  const int type = static_cast<int>(tensor.device.device_type), id = tensor.device.device_id;
  if (type != target.device_type || (id != target.device_id && !target.on_host)) {
    refuse(fmt::format("{} is on device {}:{}; {}:{} is allowed (1: cpu, 2: CUDA, 8: Metal)", name, type, id,
                       target.device_type, target.device_id));
  }
}

/// Returns elements * size. Refuses a size that a tensor cannot have.
int64_t product(const char* name, int64_t elements, int64_t size) {
  constexpr int64_t most = int64_t{1} << 60;
  int64_t all = 0;
  if (size < 0 || size > most || __builtin_mul_overflow(elements, size, &all) || all > most) {
    refuse(fmt::format("{}: a size of {} is not allowed; sizes are from 0, and a tensor has at most 2^60 elements",
                       name, size));
  }
  return all;
}

/// Returns the engine's view of a caller's tensor. If the tensor is null, the view's there() is false. If a size is 0,
/// the strides are not checked.
TensorView view(const Target& target, const char* name, const DLTensor* tensor, attn_layout layout,
                bool in_cache = false) {
  TensorView found;
  if (!tensor) return found;
  check_place(target, name, *tensor);
  if (tensor->ndim != 4) refuse(refused_dimensions(name, tensor->shape, tensor->ndim, in_cache));
  if (layout != ATTN_BHSD && layout != ATTN_BSHD)
    refuse(fmt::format("layout {} is not allowed; allowed are ATTN_BHSD and ATTN_BSHD", static_cast<int>(layout)));
  const int heads = layout == ATTN_BHSD ? 1 : 2, tokens = 3 - heads;
  const int64_t* const shape = tensor->shape;
  int64_t dense[4] = {1, 1, 1, 1};
  for (int i = 3; i > 0; --i) dense[i - 1] = product(name, dense[i], shape[i]);
  product(name, 1, shape[0]);  // refuses a batch with which later sums would overflow
  const int64_t* const strides = tensor->strides ? tensor->strides : dense;
  if (strides[3] != 1 && shape[3] > 1 && dense[0] > 0 && shape[0] > 0) {
    refuse(fmt::format("{}: a stride of {} along the last dimension is not allowed; 1 is", name, strides[3]));
  }
  if (shape[3] == 0) refuse(fmt::format("{}: a last dimension of 0 is not allowed", name));
  found.data = address(target, *tensor);
  found.dtype = dtype_of(name, tensor->dtype);
  found.batch = shape[0];
  found.heads = shape[heads];
  found.tokens = shape[tokens];
  found.width = shape[3];
  found.strides = {strides[0], strides[heads], strides[tokens]};
  return found;
}

/// Throws BadInput unless the tensor has one of the shapes.
void check_shape(const char* name, const DLTensor& tensor, std::initializer_list<Shape> allowed) {
  const auto fits = [&](const Shape& shape) { return has_shape(tensor.shape, tensor.ndim, shape); };
  if (std::ranges::none_of(allowed, fits)) refuse(refused_shape(name, tensor.shape, tensor.ndim, allowed));
}

/// Returns the data of a dense table, or null if there is no tensor. The table must have one of the shapes. The
/// elements must be integers if `integer` is true, else floats. An element has the size of T.
template <typename T>
T* table(const Target& target, const char* name, const DLTensor* tensor, std::initializer_list<Shape> allowed,
         bool integer) {
  if (!tensor) return nullptr;
  check_place(target, name, *tensor);
  const uint8_t code = tensor->dtype.code;
  const bool type = integer ? code == code_int || code == code_unsigned : code == code_float;
  if (!type || tensor->dtype.bits != 8 * sizeof(T) || tensor->dtype.lanes != 1) {
    refuse(fmt::format("{}: {} is not allowed; {}{} is", name, type_text(tensor->dtype), integer ? "int" : "float",
                       8 * sizeof(T)));
  }
  check_shape(name, *tensor, allowed);
  int64_t elements = 1;
  bool dense = true;
  for (int i = tensor->ndim - 1; i >= 0; --i) {
    dense = dense && (!tensor->strides || tensor->strides[i] == elements || tensor->shape[i] <= 1);
    elements = product(name, elements, tensor->shape[i]);
  }
  if (elements == 0) return static_cast<T*>(no_address);  // not null, because the caller gave a table
  if (!dense) refuse(fmt::format("{} is not dense", name));
  void* const data = address(target, *tensor);
  if (!data) refuse(fmt::format("{} has no data", name));
  if (!target.on_host && reinterpret_cast<uintptr_t>(data) % sizeof(T) != 0) {
    refuse(fmt::format("{}: the address has to be a multiple of {} bytes on a GPU", name, sizeof(T)));
  }
  return static_cast<T*>(data);
}

/// Returns a caller's mask. Its axes are [batch, heads, queries, keys], whichever layout q has.
MaskView mask_view(const Target& target, const DLTensor* tensor, const Shape& allowed) {
  MaskView found;
  if (!tensor) return found;
  check_place(target, "mask", *tensor);
  check_shape("mask", *tensor, {allowed});
  const uint8_t code = tensor->dtype.code;
  if ((code != code_bool && code != code_unsigned) || tensor->dtype.bits != 8 || tensor->dtype.lanes != 1) {
    refuse(fmt::format("mask: {} is not allowed; bool and uint8 are", type_text(tensor->dtype)));
  }
  int64_t dense = 1;
  for (int i = 3; i >= 0; --i) {
    found.sizes[i] = tensor->shape[i];
    found.strides[i] = tensor->strides ? tensor->strides[i] : dense;
    dense = product("mask", dense, tensor->shape[i]);
  }
  found.data = static_cast<const unsigned char*>(dense > 0 ? address(target, *tensor) : no_address);
  if (!found.data) refuse("mask has no data");
  return found;
}

const DLTensor& there(const char* name, const DLTensor* tensor) {
  if (!tensor) refuse(fmt::format("{} is missing", name));
  return *tensor;
}

attn_engine& there(attn_engine* engine) {
  if (!engine) refuse("there is no engine");
  return *engine;
}

/// Returns the engine's view of an output. For an output that a question leaves out, returns a dense tensor with the
/// type of `queries` and the sizes of `like`.
TensorView output(const Target& target, const char* name, const DLTensor* tensor, attn_layout layout,
                  const TensorView& queries, const TensorView& like) {
  if (tensor || !target.asked) return view(target, name, &there(name, tensor), layout);
  TensorView found = like;
  found.data = no_address;
  found.dtype = queries.dtype;
  found.strides = {like.heads * like.tokens * like.width, like.tokens * like.width, like.width};
  return found;
}

/// Returns a call over a cache of `sequences` sequences. Sets only q.batch, k, and the lengths, table, scales, new
/// tokens, window and starts of `options`.
CacheCall cache_call(const Target& target, int64_t sequences, const DLTensor* k, const attn_cache_options& options) {
  CacheCall call;
  call.q.batch = sequences;
  call.k = view(target, "k", &there("k", k), options.cache_layout, true);
  call.lengths = table<const int>(target, "lengths", options.lengths, {{"batch", {sequences}}}, true);
  call.table = table<const int>(target, "table", options.table, {{"batch, max_pages", {sequences, any_size}}}, true);
  if (options.table) call.max_pages = options.table->shape[1];
  call.new_k = view(target, "new_k", options.new_k, options.layout);
  call.new_v = view(target, "new_v", options.new_v, options.layout);
  const Shape scales = {options.table ? "pages, kv_heads" : "batch, kv_heads", {call.k.batch, call.k.heads}};
  call.k_scales = table<const float>(target, "k_scales", options.k_scales, {scales}, false);
  call.v_scales = table<const float>(target, "v_scales", options.v_scales, {scales}, false);
  call.window_left = options.window_left;
  call.starts = table<const int>(target, "starts", options.starts, {{"batch", {sequences}}}, true);
  return call;
}

CacheCall cache_call(const Target& target, const DLTensor* q, const DLTensor* k, const DLTensor* v, const DLTensor* o,
                     const attn_cache_options* given) {
  const attn_cache_options options = read(given, attn_cache_options ATTN_CACHE_OPTIONS);
  const TensorView queries = view(target, "q", &there("q", q), options.layout);
  CacheCall call = cache_call(target, queries.batch, k, options);
  call.q = queries;
  call.v = view(target, "v", &there("v", v), options.cache_layout, true);
  call.o = output(target, "o", o, options.layout, queries, queries);
  call.scale = options.scale;
  if (!options.cosines != !options.sines) refuse("cosines and sines must both be given or both be missing");
  constexpr const char* angles = "positions, half of the elements that are rotated";
  call.cosines = table<const float>(target, "cosines", options.cosines, {{angles, {any_size, any_size}}}, false);
  if (options.cosines) {
    call.positions = options.cosines->shape[0];
    call.rotary_dim = 2 * options.cosines->shape[1];
  }
  call.sines =
      table<const float>(target, "sines", options.sines, {{angles, {call.positions, call.rotary_dim / 2}}}, false);
  call.pairing = options.interleaved ? RopePairing::interleaved : RopePairing::half_split;
  call.lse = table<float>(target, "lse", options.lse,
                          {{"batch, q_heads, q_len", {call.q.batch, call.q.heads, call.q.tokens}}}, false);
  const int64_t batch = call.q.batch, q_heads = call.q.heads, q_len = call.q.tokens;
#define ATTN_MODIFIER(type, name, ...) call.name = static_cast<type>(options.name);
#define ATTN_MODIFIER_TABLE(element, name, ...) \
  call.name =                                   \
      table<const element>(target, #name, options.name, {{#__VA_ARGS__, {__VA_ARGS__}}}, std::is_integral_v<element>);
#define ATTN_OPTIONS_OF_CACHE
#include "common/attention/options.def"
  return call;
}

RopeScaling scaling_of(const attn_rope_options& options) {
  switch (options.scaling) {
    case ATTN_ROPE_PLAIN:
      return {};
    case ATTN_ROPE_LINEAR:
      return RopeLinear{options.factor};
    case ATTN_ROPE_NTK:
      return RopeNtk{options.factor};
    case ATTN_ROPE_YARN:
      return RopeYarn{.factor = options.factor,
                      .original_length = options.original_length,
                      .beta_fast = options.beta_fast,
                      .beta_slow = options.beta_slow,
                      .attention_factor = options.attention_factor,
                      .mscale = options.mscale,
                      .mscale_all_dim = options.mscale_all_dim,
                      .truncate = options.truncate != 0};
    case ATTN_ROPE_LLAMA3:
      return RopeLlama3{.factor = options.factor,
                        .low_freq_factor = options.low_freq_factor,
                        .high_freq_factor = options.high_freq_factor,
                        .original_length = options.original_length};
  }
  refuse(fmt::format("scaling {} is not allowed; allowed are the values of attn_rope_scaling",
                     static_cast<int>(options.scaling)));
}

FlashCall flash_call(const Target& target, const DLTensor* q, const DLTensor* k, const DLTensor* v, const DLTensor* o,
                     const attn_flash_options* given) {
  const attn_flash_options options = read(given, attn_flash_options ATTN_FLASH_OPTIONS);
  FlashCall call;
  call.q = view(target, "q", &there("q", q), options.layout);
  call.k = view(target, "k", &there("k", k), options.layout);
  call.v = view(target, "v", &there("v", v), options.layout);
  call.o = output(target, "o", o, options.layout, call.q, call.q);
  const int64_t batch = call.q.batch, q_heads = call.q.heads, q_len = call.q.tokens, kv_len = call.k.tokens;
  const int64_t bias_sizes[] = {one_or(batch), one_or(q_heads), one_or(q_len), one_or(padded_keys(kv_len))};
  constexpr int64_t sequences = any_size - 1;  // options.def gives tables the size sequences + 1
  const auto axes = [](std::string_view name, const char* sizes) { return name == "bias" ? bias_axes : sizes; };
#define ATTN_OPTION(type, name, off) call.name = static_cast<type>(options.name);
#define ATTN_SCALE(name) call.name = options.name;
#define ATTN_TABLE(element, name, ...)                                                                        \
  call.name = table<const element>(target, #name, options.name, {{axes(#name, #__VA_ARGS__), {__VA_ARGS__}}}, \
                                   std::is_integral_v<element>);
#define ATTN_OUTPUT(name, ...) \
  call.name = table<float>(target, #name, options.name, {{#__VA_ARGS__, {__VA_ARGS__}}}, false);
#define ATTN_TENSOR(name) \
  call.name =             \
      mask_view(target, options.name, {mask_axes, {one_or(batch), one_or(q_heads), one_or(q_len), one_or(kv_len)}});
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
  if (options.bias) std::copy_n(options.bias->shape, 4, call.bias_sizes);
  if (const DLTensor* const starts = options.cu_seqlens_q) {
    call.sequences = starts->shape[0] - 1;
    table<const int>(target, "cu_seqlens_k", options.cu_seqlens_k, {{"sequences + 1", {starts->shape[0]}}}, true);
  }
  return call;
}

LinearCall linear_call(const Target& target, const DLTensor* q, const DLTensor* k, const DLTensor* v, const DLTensor* o,
                       const attn_linear_options* given) {
  const attn_linear_options options = read(given, attn_linear_options ATTN_LINEAR_OPTIONS);
  LinearCall call;
  call.q = view(target, "q", &there("q", q), options.layout);
  call.k = view(target, "k", &there("k", k), options.layout);
  call.v = view(target, "v", &there("v", v), options.layout);
  call.o = output(target, "o", o, options.layout, call.q, call.v);
  call.causal = options.causal != 0;
  call.normalised = options.normalised != 0;
  if (options.feature) call.feature = options.feature;
  call.scale = options.scale;
  const int64_t batch = call.q.batch, heads = call.q.heads, tokens = call.q.tokens, width = call.q.width;
  call.gates = table<const float>(target, "gate", options.gate,
                                  {{"heads", {heads}},
                                   {"batch, heads, tokens", {batch, heads, tokens}},
                                   {"batch, heads, tokens, width", {batch, heads, tokens, width}}},
                                  false);
  if (options.gate) {
    const int dimensions = options.gate->ndim;
    call.gate = dimensions == 1 ? GATE_HEAD : dimensions == 3 ? GATE_TOKEN : GATE_CHANNEL;
  }
  const Shape state = {"batch, heads, width, value width", {batch, heads, width, call.v.width}};
  call.initial_state = table<const float>(target, "initial_state", options.initial_state, {state}, false);
  call.final_state = table<float>(target, "final_state", options.final_state, {state}, false);
  return call;
}

RopeCall rope_call(const Target& target, const DLTensor* q, const DLTensor* k, const DLTensor* q_out,
                   const DLTensor* k_out, const attn_rope_options* given) {
  const attn_rope_options options = read(given, attn_rope_options ATTN_ROPE_OPTIONS);
  RopeCall call;
  call.q = view(target, "q", &there("q", q), options.layout);
  call.q_out = output(target, "q_out", q_out, options.layout, call.q, call.q);
  if (!k != !k_out && !(target.asked && k)) refuse("k and k_out must both be given or both be NULL");
  call.k = view(target, "k", k, options.layout);
  if (k) call.k_out = output(target, "k_out", k_out, options.layout, call.q, call.k);
  call.config = {.head_dim = call.q.width,
                 .rotary_dim = options.rotary_dim == 0 ? call.q.width : options.rotary_dim,
                 .pairing = options.interleaved ? RopePairing::interleaved : RopePairing::half_split,
                 .theta = options.theta,
                 .scaling = scaling_of(options)};
  call.offsets = table<const int>(target, "offsets", options.offsets, {{"batch", {call.q.batch}}}, true);
  return call;
}

/// Returns the device of a question: the engine's, or without an engine the device of `first`.
Target asked(attn_engine* engine, const DLTensor& first) {
  const int type = static_cast<int>(first.device.device_type);
  Target target = engine ? engine->target() : Target{type == 1, type, first.device.device_id};
  target.asked = true;
  if (engine) return target;
  const char* const backend = type == 1 ? "cpu" : type == 2 ? "cuda" : nullptr;
  if (!backend) refuse(fmt::format("device type {} is not allowed; 1 (cpu) and 2 (CUDA) are", type));
  if (!Device::is_built(backend)) refuse(fmt::format("{}: this library was built without this device", backend));
  return target;
}

}  // namespace
}  // namespace attn

extern "C" {

using namespace attn;

int attn_abi_version(void) { return ATTN_ABI_VERSION; }

int attn_has_backend(const char* backend) { return backend && Device::is_built(backend) ? 1 : 0; }

const char* attn_message(void) { return last_message.c_str(); }

attn_status attn_open(const char* device, const attn_open_options* options, attn_engine** engine) {
  return guarded([&] {
    if (!device || !engine) refuse("device and engine must not be NULL");
    const attn_open_options read_options = read(options, attn_open_options{});
    const auto text = [](const char* given) { return std::string(given ? given : ""); };
    const std::string spec = device;
    log_into(text(read_options.cache_folder));
    *engine = new attn_engine(spec, {.cache_folder = text(read_options.cache_folder),
                                     .archive = text(read_options.archive),
                                     .caller = {.run = read_options.run_pieces, .context = read_options.run_context}});
  });
}

void attn_close(attn_engine* engine) { delete engine; }

attn_status attn_save_archive(attn_engine* engine, const char* path) {
  return guarded([&] {
    if (!path) refuse("path is missing");
    there(engine).engine.save_archive(path);
  });
}

size_t attn_prepared(attn_engine* engine) {
  size_t count = 0;
  guarded([&] { count = there(engine).engine.prepared(); });
  return count;
}

uint64_t attn_launches(attn_engine* engine) {
  uint64_t count = 0;
  guarded([&] { count = there(engine).engine.launches(); });
  return count;
}

attn_status attn_empty(attn_engine* engine, void* stream) {
  return guarded([&] { there(engine).engine.empty(stream); });
}

attn_status attn_flash(attn_engine* engine, void* stream, const DLTensor* q, const DLTensor* k, const DLTensor* v,
                       const DLTensor* o, const attn_flash_options* options) {
  return guarded([&] {
    attn_engine& own = there(engine);
    const Target target = own.target();
    own.engine.flash(flash_call(target, q, k, v, o, options), stream);
  });
}

attn_status attn_decode(attn_engine* engine, void* stream, const DLTensor* q, const DLTensor* k, const DLTensor* v,
                        const DLTensor* o, const attn_cache_options* options) {
  return guarded([&] {
    attn_engine& own = there(engine);
    const Target target = own.target();
    own.engine.decode(cache_call(target, q, k, v, o, options), stream);
  });
}

attn_status attn_prefill(attn_engine* engine, void* stream, const DLTensor* q, const DLTensor* k, const DLTensor* v,
                         const DLTensor* o, const attn_cache_options* options) {
  return guarded([&] {
    attn_engine& own = there(engine);
    const Target target = own.target();
    own.engine.prefill(cache_call(target, q, k, v, o, options), stream);
  });
}

attn_status attn_check_cache(attn_engine* engine, void* stream, const DLTensor* k, const attn_cache_options* given) {
  return guarded([&] {
    attn_engine& own = there(engine);
    const attn_cache_options options = read(given, attn_cache_options ATTN_CACHE_OPTIONS);
    const DLTensor& lengths = there("lengths", options.lengths);
    const Target target = own.target();
    own.engine.check_cache(cache_call(target, lengths.ndim == 1 ? lengths.shape[0] : -1, k, options), stream);
  });
}

attn_status attn_linear(attn_engine* engine, void* stream, const DLTensor* q, const DLTensor* k, const DLTensor* v,
                        const DLTensor* o, const attn_linear_options* options) {
  return guarded([&] {
    attn_engine& own = there(engine);
    const Target target = own.target();
    own.engine.linear(linear_call(target, q, k, v, o, options), stream);
  });
}

attn_status attn_rope(attn_engine* engine, void* stream, const DLTensor* q, const DLTensor* k, const DLTensor* q_out,
                      const DLTensor* k_out, const attn_rope_options* options) {
  return guarded([&] {
    attn_engine& own = there(engine);
    const Target target = own.target();
    own.engine.rope(rope_call(target, q, k, q_out, k_out, options), stream);
  });
}

const char* attn_why_not(attn_engine* engine, attn_operation operation, const DLTensor* q, const DLTensor* k,
                         const DLTensor* v, const DLTensor* o, const void* options) {
  const attn_status status = guarded([&] {
    const Target target = asked(engine, there("q", q));
    const DeviceInfo* const device = engine ? &engine->engine.info() : nullptr;
    const bool gpu = !target.on_host;
    switch (operation) {
      case ATTN_FLASH:
        return ask_flash(flash_call(target, q, k, v, o, static_cast<const attn_flash_options*>(options)), gpu, device);
      case ATTN_DECODE:
        return ask_decode(cache_call(target, q, k, v, o, static_cast<const attn_cache_options*>(options)), gpu, device);
      case ATTN_PREFILL:
        return ask_prefill(cache_call(target, q, k, v, o, static_cast<const attn_cache_options*>(options)), gpu,
                           device);
      case ATTN_LINEAR:
        return ask_linear(linear_call(target, q, k, v, o, static_cast<const attn_linear_options*>(options)), gpu,
                          device);
      case ATTN_ROPE:
        return ask_rope(rope_call(target, q, k, v, o, static_cast<const attn_rope_options*>(options)), gpu, device);
    }
    refuse(fmt::format("operation {} is not allowed; allowed are the values of attn_operation",
                       static_cast<int>(operation)));
  });
  return status == ATTN_OK ? nullptr : attn_message();
}

}  // extern "C"
