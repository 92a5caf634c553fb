#include "common/paged/decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "common/backends/cuda/operations.h"
#include "common/backends/cuda/tensor_map.h"
#include "common/paged/kernels/decode_wgmma.h"

namespace attn {
namespace {

/// How threadgroups share a multiprocessor. `stages` is the number of a threadgroup's buffers for keys: the largest
/// number, up to four, that leaves room for two threadgroups, or else for one. `bytes` is the memory of a threadgroup.
/// `threadgroups` is how many threadgroups run on a multiprocessor at the same time. With 8-bit keys the arithmetic for
/// a block of keys takes longer than the copy of the block, and threadgroups can hide each other's latency. So with
/// 8-bit keys three threadgroups share a multiprocessor, if registers and memory allow three.
struct Share {
  int64_t stages, bytes, threadgroups;
};

// Whether the kernel `decode_wgmma` computes the launch "attend": on Hopper, rows of 16 bits over a cache of their type
// or of 8 bits, on pages that tensor copies can read. For few rows `decode` is as fast or faster (log.md).
bool by_wgmma(const DecodeConfig& config, const DeviceInfo& device) {
  const bool bytes = has_scales(config.cache_dtype);
  const int64_t dim = config.shape.head_dim;
  const int64_t least_rows = dim > 128 ? 1 : dim > 64 ? 17 : bytes ? 33 : 65;
  const int64_t page = config.page_size, block = config.block_c;
  const bool boxes = page == 0 || (page >= 8 && std::has_single_bit(static_cast<uint64_t>(page)) &&
                                   std::max(page, block) % std::min(page, block) == 0);
  return device.has("wgmma") && config.rows() >= least_rows && size_bytes(config.dtype) == 2 &&
         (config.cache_dtype == config.dtype || (bytes && !config.appends && dim % 16 == 0)) && config.join_last &&
         boxes && block % 16 == 0 && block <= 128;
}

class CudaDecode : public DecodeOperation {
 public:
  std::string unable(const DecodeConfig& config) const override {
    if (has_scales(config.cache_dtype)) {
      if (config.dtype == DType::f32) {
        return fmt::format("cache_dtype {}: on a GPU it needs Q of f16 or bf16", name(config.cache_dtype));
      }
      if (config.shape.head_dim % 16 != 0) {
        return fmt::format("head_dim {}: on a GPU it must be a multiple of 16 if the cache has 8 bits",
                           config.shape.head_dim);
      }
    } else if (config.cache_dtype != config.dtype) {
      return fmt::format("cache_dtype {}: on a GPU it must be the type of Q, {}", name(config.cache_dtype),
                         name(config.dtype));
    }
    return {};
  }

  std::string unable_block(const DecodeConfig& config, const DeviceInfo& device) const override {
    if (by_wgmma(config, device)) return {};
    const int64_t step = 16 * 64 / std::max<int64_t>(tile_rows(config, device), 16);
    if (config.block_c % step == 0) return {};
    return fmt::format("block_c {}: on a GPU it must be a multiple of {} for tiles of {} rows", config.block_c, step,
                       tile_rows(config, device));
  }

  /// Tiles have 8, 16, 32 or 64 rows; with wgmma 64 or 128, but 64 with long rows of 8 bits, for which the products of
  /// two consumers and the conversion have too few registers.
  int64_t tile_rows(const DecodeConfig& config, const DeviceInfo& device) const override {
    if (by_wgmma(config, device)) {
      return config.rows() <= 64 || (has_scales(config.cache_dtype) && config.shape.head_dim > 128) ? 64 : 128;
    }
    int64_t rows = 8;
    while (rows < std::min(config.rows(), most_rows)) rows *= 2;
    return rows;
  }

  int64_t workers_at_once(const DecodeConfig& config, const DeviceInfo& device) const override {
    return device.units * (by_wgmma(config, device) ? 1 : share(config, device).threadgroups);
  }

  size_t threadgroup_bytes(const DecodeConfig& config, const DeviceInfo& device) const override {
    if (by_wgmma(config, device)) return static_cast<size_t>(wgmma_layout(config, device).bytes);
    return static_cast<size_t>(share(config, device).bytes);
  }

  void complete(Launch& attend, const DecodeConfig& config, const DeviceInfo& device) const override {
    if (by_wgmma(config, device)) {
      const DecodeWgmmaLayout layout = wgmma_layout(config, device);
      attend.source.path = "common/paged/kernels/decode_wgmma.cuda.cu";
      attend.source.assembler = "-O1";
      attend.source.constants["SLOTS"] = layout.slots;
      attend.source.constants["TURNS"] = turns(config, device);
      const int64_t converters = has_scales(config.cache_dtype) ? 1 : 0;
      const int64_t consumers = tile_rows(config, device) / 64 * turns(config, device);
      attend.threads = static_cast<uint32_t>((1 + consumers + converters) * 128);
      return;
    }
    const Share taken = share(config, device);
    attend.source.constants["STAGES"] = taken.stages;
    attend.source.constants["THREADGROUPS"] = taken.threadgroups;
    attend.threads = threads;
  }

  size_t join_bytes(size_t /*attend_bytes*/) const override { return 0; }

  void complete_merge(Launch& merge, const DecodeConfig& config, const DeviceInfo& /*device*/) const override {
    merge.threads = static_cast<uint32_t>(config.shape.head_dim / 4);
  }

  void encode(CommandEncoder& encoder, const Kernel& kernel, const Launch& attend, const FusedDecodeParams& params,
              const DecodeConfig& config) const override {
    if (!attend.source.path.ends_with("decode_wgmma.cuda.cu")) {
      return encode_plainly(encoder, kernel, attend, params, config);
    }
    const auto map = [&](const void* base, const TensorStrides& strides) {
      const int64_t dim = config.shape.head_dim, heads = config.shape.kv_heads, page = config.page_size;
      const int64_t rows = page == 0 ? config.block_c : std::min(page, config.block_c);
      const int64_t panels = rows < config.block_c ? 1 : (dim + 63) / 64;
      const auto map_of = [&](const void* tensor, int64_t batch, int64_t its_heads, int64_t keys,
                              const TensorStrides& its_strides) {
        return has_scales(config.cache_dtype)
                   ? byte_map(tensor, dim, batch, its_heads, keys, its_strides, rows)
                   : panel_map(tensor, config.dtype, dim, batch, its_heads, keys, its_strides, rows, panels);
      };
      if (page == 0) return map_of(base, config.shape.batch, heads, config.shape.kv_len, strides);
      // A map has at least one page. No page of a cache without pages is read.
      return params.cache.pages == 0 ? map_of(params.q, 1, 1, 1, {})
                                     : map_of(base, params.cache.pages, heads, page, strides);
    };
    const DecodeWgmmaParams all{.k = map(params.cache.k, params.cache.k_strides),
                                .v = map(params.cache.v, params.cache.v_strides),
                                .decode = params};
    encoder.dispatch(kernel, attend.grid, attend.threads, attend.threadgroup_bytes, all);
  }

 private:
  static constexpr uint32_t threads = 128;

  // The number of consumers that take the blocks of the same rows in turn: two for tiles of 64 rows, if registers and
  // buffers suffice for both.
  int64_t turns(const DecodeConfig& config, const DeviceInfo& device) const {
    const int64_t most_dim = has_scales(config.cache_dtype) ? 192 : 128;
    return tile_rows(config, device) == 64 && config.block_c <= 64 && config.shape.head_dim <= most_dim ? 2 : 1;
  }

  // As many buffers as fit, at most 32, or 24 for a cache of 8 bits, which needs more barriers.
  DecodeWgmmaLayout wgmma_layout(const DecodeConfig& config, const DeviceInfo& device) const {
    constexpr int static_bytes = 1024;
    const bool bytes = has_scales(config.cache_dtype);
    const int its_turns = static_cast<int>(turns(config, device));
    const auto layout_with = [&](int slots) {
      return DecodeWgmmaLayout(static_cast<int>(config.shape.head_dim), static_cast<int>(tile_rows(config, device)),
                               static_cast<int>(config.block_c), slots,
                               static_cast<int>(size_bytes(config.cache_dtype)), its_turns);
    };
    const int64_t room = static_cast<int64_t>(device.threadgroup_memory_bytes) - static_bytes;
    const int step = bytes ? 1 : its_turns;
    int slots = bytes ? 24 : 32;
    while (slots > 3 * step && layout_with(slots).bytes > room) slots -= step;
    return layout_with(slots);
  }

  Share share(const DecodeConfig& config, const DeviceInfo& device) const {
    // The driver reserves `reserved` bytes for a threadgroup. Registers allow at most `most_threadgroups` threadgroups.
    constexpr int64_t reserved = 1024, most_threadgroups = 4;
    const auto memory = static_cast<int64_t>(device.threadgroup_memory_bytes) + reserved;
    const int64_t rows = tile_rows(config, device);
    const auto share_with = [&](int64_t stages) -> Share {
      const DecodeLayout layout(static_cast<int>(config.shape.head_dim), static_cast<int>(rows),
                                static_cast<int>(config.block_c), static_cast<int>(stages),
                                static_cast<int>(size_bytes(config.dtype)),
                                static_cast<int>(size_bytes(config.cache_dtype)));
      return {stages, layout.bytes, std::clamp<int64_t>(memory / (layout.bytes + reserved), 1, most_threadgroups)};
    };
    const bool room_for_three = has_scales(config.cache_dtype) && rows == 8 && config.shape.head_dim <= 128;
    for (int64_t threadgroups = room_for_three ? 3 : 2; threadgroups >= 1; --threadgroups) {
      for (int64_t stages = 4; stages >= 2; --stages) {
        if (stages == 2 && threadgroups == 1) break;
        if (const Share found = share_with(stages); memory / (found.bytes + reserved) >= threadgroups) return found;
      }
    }
    return share_with(2);
  }
};

}  // namespace

const DecodeOperation& cuda_decode() {
  static const CudaDecode operation;
  return operation;
}

}  // namespace attn
