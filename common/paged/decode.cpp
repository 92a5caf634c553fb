#include "common/paged/decode.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/error.h"

namespace attn {
namespace {

constexpr int64_t most_rows = 64;  // of a tile
constexpr int64_t cuda_threads = 128;

int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Rows of a tile: as few tiles as can be; on the cpu of equal size, on a GPU of 8, 16, 32 or 64 rows.
int64_t tile_rows(const DecodeConfig& config, const DeviceInfo& device) {
  if (!device.is_cuda()) return divided_up(config.rows(), divided_up(config.rows(), most_rows));
  int64_t rows = 8;
  while (rows < std::min(config.rows(), most_rows)) rows *= 2;
  return rows;
}

int64_t tiles_of(const DecodeConfig& config, const DeviceInfo& device) {
  return config.shape.batch * config.shape.kv_heads * divided_up(config.rows(), tile_rows(config, device));
}

/// What the cuda kernel takes of a multiprocessor: the most buffers of keys, up to four, that leave room for two
/// threadgroups; else that leave room for one. A block of 8-bit keys takes longer to compute than to copy: there three
/// threadgroups hide each other's latency, where registers allow it.
struct CudaShare {
  int64_t stages, bytes, threadgroups;
};
CudaShare cuda_share(const DecodeConfig& config, const DeviceInfo& device) {
  constexpr int64_t reserved = 1024, most_threadgroups = 4;  // bytes of each threadgroup; registers hold no more
  const auto memory = static_cast<int64_t>(device.threadgroup_memory_bytes) + reserved;
  const auto with = [&](int64_t stages) -> CudaShare {
    const DecodeLayout layout(static_cast<int>(config.shape.head_dim), static_cast<int>(tile_rows(config, device)),
                              static_cast<int>(config.block_c), static_cast<int>(stages),
                              static_cast<int>(size_bytes(config.dtype)),
                              static_cast<int>(size_bytes(config.cache_dtype)));
    return {stages, layout.bytes, std::clamp<int64_t>(memory / (layout.bytes + reserved), 1, most_threadgroups)};
  };
  const bool room_for_three =
      has_scales(config.cache_dtype) && tile_rows(config, device) == 8 && config.shape.head_dim <= 128;
  for (int64_t threadgroups = room_for_three ? 3 : 2; threadgroups >= 1; --threadgroups) {
    for (int64_t stages = 4; stages >= 2; --stages) {
      if (stages == 2 && threadgroups == 1) break;
      if (const CudaShare share = with(stages); memory / (share.bytes + reserved) >= threadgroups) return share;
    }
  }
  return with(2);
}

std::string why_unable_to_append(const DecodeConfig& config) {
  if (config.cache_dtype != config.dtype) {
    return fmt::format("cache_dtype {}: tokens are appended to a cache of Q's type, {}", name(config.cache_dtype),
                       name(config.dtype));
  }
  if (config.rotary_dim < 0 || config.rotary_dim % 2 != 0 || config.rotary_dim > config.shape.head_dim) {
    return fmt::format("rotary_dim {}: an even number, at most head_dim, {}", config.rotary_dim, config.shape.head_dim);
  }
  return {};
}

std::string why_unable(const DecodeConfig& config, const DeviceInfo& device) {
  if (std::string reason = decode_unable(config, device); !reason.empty() || !device.is_cuda()) return reason;
  const int64_t step = 16 * 64 / std::max<int64_t>(tile_rows(config, device), 16);
  if (config.block_c % step != 0) {
    return fmt::format("block_c {}: a multiple of {} with tiles of {} rows on a GPU", config.block_c, step,
                       tile_rows(config, device));
  }
  return {};
}

Launch launch_of(const DecodeConfig& config, const DeviceInfo& device, const AttentionHooks* hooks) {
  const AttentionShape& shape = config.shape;
  const int64_t rows = tile_rows(config, device);
  Launch launch;
  KernelSource& source = launch.source;
  source.path = fmt::format("common/paged/kernels/decode.{}", device.is_cuda() ? "cuda.cu" : "cpu.cpp");
  source.constants = {{"HEAD_DIM", shape.head_dim},
                      {"ROWS", rows},
                      {"BLOCK_C", config.block_c},
                      {"PAGE_SIZE", config.page_size},
                      {"CAUSAL", shape.causal},
                      {"IN_TYPE", element_type(config.dtype)},
                      {"CACHE_TYPE", element_type(config.cache_dtype)},
                      {"OUT_TYPE", element_type(config.out_dtype)},
                      {"JOIN_LAST", config.join_last},
                      {"APPENDS", config.appends},
                      {"ROTARY_DIM", config.rotary_dim},
                      {"INTERLEAVED", config.pairing == RopePairing::interleaved}};
  if (device.is_cuda()) {
    const CudaShare share = cuda_share(config, device);
    source.constants["STAGES"] = share.stages;
    source.constants["THREADGROUPS"] = share.threadgroups;
    launch.threads = cuda_threads;
    launch.threadgroup_bytes = static_cast<size_t>(share.bytes);
  } else {
    source.constants["VECTOR_WIDTH"] = device.simd_width;
    source.constants["VECTOR_REGISTERS"] = device.vector_registers;
    const CpuDecodeLayout layout(static_cast<int>(shape.head_dim), static_cast<int>(rows),
                                 static_cast<int>(config.block_c), config.appends ? static_cast<int>(shape.q_len) : 0);
    launch.threadgroup_bytes = static_cast<size_t>(layout.floats) * sizeof(float);
  }
  if (hooks) {
    source.includes = hooks->includes;
    if (!hooks->text.empty()) source.includes["common/attention/kernels/score.h"] = hooks->text;
    source.fragments = hooks->fragments;
    source.linking = hooks->linking;
    source.constants.merge(hooks->constants);
    source.guarded = hooks->guarded;
  }
  return launch;
}

TensorStrides kernel_strides(const Strides& strides) { return {strides.batch, strides.head, strides.row}; }

KvCacheView cache_view(const DecodeTensors& tensors) {
  return {.k = const_cast<void*>(tensors.k),
          .v = const_cast<void*>(tensors.v),
          .k_strides = kernel_strides(tensors.k_strides),
          .v_strides = kernel_strides(tensors.v_strides),
          .table = tensors.table,
          .max_pages = static_cast<int>(tensors.max_pages),
          .pages = static_cast<int>(tensors.pages),
          .k_scales = tensors.k_scales,
          .v_scales = tensors.v_scales};
}

}  // namespace

NewTokens new_tokens(const DecodeTensors& tensors) {
  return {.k = tensors.new_k,
          .v = tensors.new_v,
          .k_strides = kernel_strides(tensors.new_k_strides),
          .v_strides = kernel_strides(tensors.new_v_strides),
          .cosines = tensors.cosines,
          .sines = tensors.sines};
}

int64_t decode_workers(const DecodeConfig& config, const DeviceInfo& device) {
  const int64_t at_once = device.units * (device.is_cuda() ? cuda_share(config, device).threadgroups : 1);
  const int64_t tiles = tiles_of(config, device);
  // Where sequences are equally long, workers that share whole tiles, or the tile of each among them, leave no parts of
  // two tiles (4 to 7 % on an H200 at 16 sequences of 4096).
  const int64_t even = tiles < at_once ? at_once / tiles * tiles : divided_up(tiles, divided_up(tiles, at_once));
  return std::min(10 * even >= 9 * at_once ? even : at_once, tiles * divided_up(config.shape.kv_len, config.block_c));
}

std::string decode_unable(const DecodeConfig& config, const DeviceInfo& device) {
  if (config.appends) {
    if (std::string reason = why_unable_to_append(config); !reason.empty()) return reason;
  }
  if (!device.is_cuda()) return {};
  if (has_scales(config.cache_dtype)) {
    if (config.dtype == DType::f32) {
      return fmt::format("cache_dtype {}: on a GPU it goes with Q of f16 or bf16", name(config.cache_dtype));
    }
    if (config.shape.head_dim % 16 != 0) {
      return fmt::format("head_dim {}: a multiple of 16 with a cache of 8 bits on a GPU", config.shape.head_dim);
    }
  } else if (config.cache_dtype != config.dtype) {
    return fmt::format("cache_dtype {}: on a GPU it is that of Q, {}", name(config.cache_dtype), name(config.dtype));
  }
  return {};
}

Plan decode_plan(const DecodeConfig& config, const DeviceInfo& device, int64_t keys, const AttentionHooks* hooks) {
  const AttentionShape& shape = config.shape;
  const auto element = [](DType type) { return static_cast<double>(size_bytes(type)); };
  const auto dim = static_cast<double>(shape.head_dim);
  const auto outputs = static_cast<double>(shape.batch * shape.q_heads * shape.q_len);
  const auto cached = static_cast<double>(2 * keys * shape.kv_heads);
  const double scales = has_scales(config.cache_dtype) && config.page_size > 0
                            ? cached / static_cast<double>(config.page_size) * sizeof(float)
                            : 0;
  const auto appended = static_cast<double>(config.appends ? 2 * shape.batch * shape.kv_heads * shape.q_len : 0);
  Plan plan{.work = {.flops = 4 * dim * static_cast<double>(keys * shape.q_heads * shape.q_len),
                     .bytes = (cached + appended) * dim * element(config.cache_dtype) + scales +
                              outputs * (dim * (element(config.dtype) + element(config.out_dtype)) + sizeof(float)),
                     .bound = Bound::memory,
                     .dtype = config.dtype},
            .unable = why_unable(config, device)};
  if (!plan.unable.empty()) return plan;
  const int64_t workers = config.workers > 0 ? config.workers : decode_workers(config, device);
  Launch attend = launch_of(config, device, hooks);
  attend.phase = "attend";
  attend.source.entry = "decode";
  attend.grid = {static_cast<uint32_t>(workers)};
  plan.launches = {attend};
  if (!config.join_last) {
    Launch join = attend;
    join.phase = "join";
    join.source.entry = "decode_join";
    join.grid = {static_cast<uint32_t>(tiles_of(config, device))};
    if (device.is_cuda()) join.threadgroup_bytes = DecodeLayout::join_bytes;
    plan.launches.push_back(join);
  }
  return plan;
}

DecodeLaunch::DecodeLaunch(Device& device, PipelineCache& pipelines, const DecodeConfig& config,
                           const AttentionHooks* hooks)
    : config_(config) {
  const AttentionShape& shape = config.shape;
  const Plan plan = decode_plan(config, device.info(), shape.batch * shape.kv_len, hooks);
  if (const auto reason = skip_reason(plan, device.info())) throw BadInput(*reason);
  launches_ = plan.launches;
  for (const Launch& launch : launches_) kernels_.push_back(pipelines.get(launch.source).kernel.get());
  config_.workers = launches_.front().grid.x;
  const auto part_rows = static_cast<size_t>(2 * config_.workers * tile_rows(config, device.info()));
  part_o_ = Buffer(device, part_rows * static_cast<size_t>(shape.head_dim) * sizeof(float));
  part_stats_ = Buffer(device, part_rows * 2 * sizeof(float));
  const std::vector<unsigned> none(static_cast<size_t>(tiles_of(config, device.info())));
  arrived_ = Buffer(device, none.size() * sizeof(unsigned));
  arrived_.upload(none.data(), arrived_.bytes());
}

void DecodeLaunch::encode(CommandEncoder& encoder, const DecodeTensors& tensors) const {
  const AttentionShape& shape = config_.shape;
  const DecodeParams params{.q = tensors.q,
                            .o = tensors.o,
                            .lse = tensors.lse,
                            .q_strides = kernel_strides(tensors.q_strides),
                            .o_strides = kernel_strides(tensors.o_strides),
                            .cache = cache_view(tensors),
                            .lengths = tensors.lengths,
                            .most_keys = static_cast<int>(shape.kv_len),
                            .batch = static_cast<int>(shape.batch),
                            .q_heads = static_cast<int>(shape.q_heads),
                            .kv_heads = static_cast<int>(shape.kv_heads),
                            .q_len = static_cast<int>(shape.q_len),
                            .scale = static_cast<float>(shape.effective_scale()),
                            .score_data = tensors.hook_data,
                            .workers = static_cast<int>(config_.workers),
                            .part_o = static_cast<float*>(part_o_.data()),
                            .part_stats = static_cast<float*>(part_stats_.data()),
                            .arrived = static_cast<unsigned*>(arrived_.data())};
  const auto dispatch = [&](const auto& all) {
    for (size_t i = 0; i < launches_.size(); ++i) {
      encoder.dispatch(*kernels_[i], launches_[i].grid, launches_[i].threads, launches_[i].threadgroup_bytes, all);
    }
  };
  if (!config_.appends) return dispatch(params);
  FusedDecodeParams fused{};
  static_cast<DecodeParams&>(fused) = params;
  fused.tokens = new_tokens(tensors);
  dispatch(fused);
}

Plan append_plan(const DecodeConfig& config, const DeviceInfo& device) {
  const AttentionShape& shape = config.shape;
  const auto elements = static_cast<double>(2 * shape.batch * shape.kv_heads * shape.q_len * shape.head_dim);
  Plan plan{.work = {.bytes = 2 * elements * static_cast<double>(size_bytes(config.cache_dtype)),
                     .bound = Bound::memory,
                     .dtype = config.cache_dtype},
            .unable = why_unable_to_append(config)};
  Launch launch;
  launch.phase = "append";
  launch.source.path = fmt::format("common/paged/kernels/append.{}", device.is_cuda() ? "cuda.cu" : "cpu.cpp");
  launch.source.entry = "append";
  launch.source.constants = {
      {"HEAD_DIM", shape.head_dim}, {"CACHE_TYPE", element_type(config.cache_dtype)}, {"PAGE_SIZE", config.page_size}};
  launch.grid = {static_cast<uint32_t>(shape.q_len), static_cast<uint32_t>(shape.batch)};
  if (device.is_cuda()) launch.threads = cuda_threads;
  plan.launches = {launch};
  return plan;
}

AppendLaunch::AppendLaunch(Device& device, PipelineCache& pipelines, const DecodeConfig& config) : config_(config) {
  const Plan plan = append_plan(config, device.info());
  if (const auto reason = skip_reason(plan, device.info())) throw BadInput(*reason);
  launch_ = plan.launches.front();
  kernel_ = pipelines.get(launch_.source).kernel.get();
}

void AppendLaunch::encode(CommandEncoder& encoder, const DecodeTensors& tensors) const {
  const AppendParams params{.cache = cache_view(tensors),
                            .k = tensors.new_k,
                            .v = tensors.new_v,
                            .k_strides = kernel_strides(tensors.new_k_strides),
                            .v_strides = kernel_strides(tensors.new_v_strides),
                            .lengths = tensors.lengths,
                            .most_keys = static_cast<int>(config_.shape.kv_len),
                            .kv_heads = static_cast<int>(config_.shape.kv_heads),
                            .q_len = static_cast<int>(config_.shape.q_len)};
  encoder.dispatch(*kernel_, launch_.grid, launch_.threads, launch_.threadgroup_bytes, params);
}

bool DecodeLaunch::at_rest() const {
  std::vector<unsigned> counters(arrived_.bytes() / sizeof(unsigned));
  arrived_.download(counters.data(), arrived_.bytes());
  return std::ranges::all_of(counters, [](unsigned count) { return count == 0; }) && arrived_.guards_intact() &&
         part_o_.guards_intact() && part_stats_.guards_intact();
}

}  // namespace attn
