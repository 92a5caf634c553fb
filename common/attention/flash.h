// Attention as an operation of a device: its kernels, how they are launched, and the tile that suits them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/attention/hook.h"
#include "common/attention/kernels/attention.h"
#include "common/attention/kernels/mask_lists.h"
#include "common/attention/shape.h"
#include "common/base/divided_up.h"
#include "common/data/tensor.h"
#include "common/device/device.h"
#include "common/launch/plan.h"

namespace attn {

/// What one launch of attention does.
struct FlashConfig {
  std::string variant;
  AttentionShape shape;
  DType dtype = DType::f32;      // of Q, K, V
  DType out_dtype = DType::f32;  // of O
  Layout layout = Layout::bhsd;
  int64_t block_r = 0, block_c = 0;
  /// The register tile of `tuned` on a cpu, vectors of queries by rows of keys or columns; 0: as suits the host.
  int64_t tile_vectors = 0, tile_rows = 0;
  /// For a pages hook: K and V are [pool_pages, kv_heads, page_size, head_dim], and the hook gives places in that; 0:
  /// they are as `shape` says.
  int64_t page_size = 0, pool_pages = 0;

  /// Tiles of a head.
  int64_t row_tiles() const { return divided_up(shape.q_len, block_r); }
  /// Whether both read and write tensors of the same shapes, types and layout.
  bool same_tensors(const FlashConfig& other) const {
    return shape == other.shape && dtype == other.dtype && out_dtype == other.out_dtype && layout == other.layout;
  }
};

/// What decides which tile is the fastest, beside the shape.
struct TileHints {
  ScoreChange change = ScoreChange::none;  // that of the score hook
  bool reads = false;                      // the score hook reads a number for each score, which takes registers
  int64_t window = 0;                      // keys that a query sees at most; 0: all that the shape has
};

/// Strides as kernels take them, in elements.
inline TensorStrides kernel_strides(const Strides& strides) { return {strides.batch, strides.head, strides.row}; }

class FlashOperation {
 public:
  /// The device's. Throws std::logic_error where it has none.
  static const FlashOperation& of(const DeviceInfo& device);

  virtual ~FlashOperation() = default;
  /// From textbook to tuned.
  virtual std::vector<std::string> variants() const = 0;
  /// The kernel as `hooks` need it, without their texts; null where there are none.
  virtual Launch kernel(const FlashConfig& config, const DeviceInfo& device,
                        const AttentionHooks* hooks = nullptr) const = 0;
  /// Why the kernel does not take this configuration, threadgroup memory apart.
  virtual std::optional<std::string> skip_reason(const FlashConfig& /*config*/, const DeviceInfo& /*device*/,
                                                 const AttentionHooks* /*hooks*/ = nullptr) const {
    return std::nullopt;
  }
  /// Fills the tile where it is 0: the one expected to be fastest for the shape.
  virtual void choose_tile(FlashConfig& /*config*/, const DeviceInfo& /*device*/,
                           const TileHints& /*hints*/ = {}) const {}
  /// Where the first tile of a head begins: at query 0, or before it where rows are cut into tiles from the last on.
  virtual int64_t first_query(const FlashConfig& /*config*/, const DeviceInfo& /*device*/) const { return 0; }
  /// Lists of key blocks for a launch with these parameters (mask_lists.h).
  using Lists = std::function<MaskLists(const AttentionParams&)>;
  /// What encodes a launch on the tensors that the parameters point to. It keeps what a launch takes beside them (a
  /// list of tiles, counters) on the device, so that two launches of one EncodeFunction must not run at the same time.
  /// `lists`: of a kernel that was compiled with MASK_LISTS=1, else empty.
  using EncodeFunction = std::function<void(CommandEncoder&, const AttentionParams&)>;
  virtual EncodeFunction encode_function(Device& /*device*/, const FlashConfig& /*config*/, const Launch& launch,
                                         const Kernel& kernel, Lists lists = {}) const {
    return plain_encode_function(launch, kernel, std::move(lists));
  }

 protected:
  /// Encodes a kernel whose parameters are those of attention, or those with lists behind.
  static EncodeFunction plain_encode_function(const Launch& launch, const Kernel& kernel, Lists lists);
};

/// In one line why the device has no such variant; empty where it has.
std::string variant_unable(const std::string& variant, const DeviceInfo& device);

/// FlashOperation::choose_tile() of the device; a device without attention leaves the tile as it is.
void choose_tile(FlashConfig& config, const DeviceInfo& device, const TileHints& hints = {});

}  // namespace attn
