// Attention as an operation of a device: its kernels, their launches, and the choice of a tile.
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

/// The configuration of one launch of attention.
struct FlashConfig {
  std::string variant;
  AttentionShape shape;
  DType dtype = DType::f32;      // of Q, K, V
  DType out_dtype = DType::f32;  // of O
  Layout layout = Layout::bhsd;
  int64_t block_r = 0, block_c = 0;  // query rows and keys of a tile; 0: choose_tile() sets the size
  /// The register tile of `tuned` on a cpu: tile_rows rows of tile_vectors vectors. Each lane of a vector is a query.
  /// Each row belongs to a key in the product Q K^T, and to a column of V in the product P V. 0: the tile that suits
  /// the host.
  int64_t tile_vectors = 0, tile_rows = 0;
  /// If page_size is 0, K and V have the sizes that `shape` gives. Else K and V are [pool_pages, kv_heads, page_size,
  /// head_dim], and a hook that replaces kernels/pages.h says where in these tensors a key lies.
  int64_t page_size = 0, pool_pages = 0;

  /// Returns the number of tiles of a head.
  int64_t row_tiles() const { return divided_up(shape.q_len, block_r); }
  /// Whether both configurations have the same AttentionShape, and tensors of the same types and layout. Pages are not
  /// compared.
  bool same_tensors(const FlashConfig& other) const {
    return shape == other.shape && dtype == other.dtype && out_dtype == other.out_dtype && layout == other.layout;
  }
};

/// Facts that decide, in addition to the shape, which tile is the fastest.
struct TileHints {
  ScoreChange change = ScoreChange::none;  // AttentionHooks::change
  bool reads = false;                      // a hook reads numbers for each score or row; this takes registers
  int64_t window = 0;                      // the most keys that a query sees in its window; 0: there is no window
};

/// Strides as kernels take them, in elements.
inline TensorStrides kernel_strides(const Strides& strides) { return {strides.batch, strides.head, strides.row}; }

class FlashOperation {
 public:
  /// Returns the operation of the device. Throws std::logic_error if the device has no kernel for attention.
  static const FlashOperation& of(const DeviceInfo& device);

  virtual ~FlashOperation() = default;
  /// Returns the names of the device's variants, from `naive` to the fastest.
  virtual std::vector<std::string> variants() const = 0;
  /// Returns the launch of the kernel for this configuration and these hooks. The launch's source does not have the
  /// texts of the hooks yet; add_hooks() adds these texts. `hooks` is null if there are no hooks.
  virtual Launch kernel(const FlashConfig& config, const DeviceInfo& device,
                        const AttentionHooks* hooks = nullptr) const = 0;
  /// Returns why the kernel does not take this configuration, or nullopt if the kernel takes it. This function does not
  /// check whether a tile fits the threadgroup memory.
  virtual std::optional<std::string> skip_reason(const FlashConfig& /*config*/, const DeviceInfo& /*device*/,
                                                 const AttentionHooks* /*hooks*/ = nullptr) const {
    return std::nullopt;
  }
  /// Replaces each tile size that is 0 by the size that is expected to be the fastest for the shape.
  virtual void choose_tile(FlashConfig& /*config*/, const DeviceInfo& /*device*/,
                           const TileHints& /*hints*/ = {}) const {}
  /// Returns the query at which the first tile of a head begins. A kernel that cuts rows into tiles from the last row
  /// backwards may begin its first tile before query 0; the result is then negative. Otherwise the result is 0.
  virtual int64_t first_query(const FlashConfig& /*config*/, const DeviceInfo& /*device*/) const { return 0; }
  /// Takes the parameters of a launch, and gives the launch's lists of key blocks (mask_lists.h).
  using Lists = std::function<MaskLists(const AttentionParams&)>;
  /// A function that encodes a launch on the tensors that the parameters point to. The function keeps the other data of
  /// a launch (a list of tiles, counters) on the device. Two launches of one EncodeFunction must therefore not run at
  /// the same time. The parameter `lists` of encode_function() gives the lists to a kernel that was compiled with
  /// MASK_LISTS=1. For other kernels `lists` is empty.
  using EncodeFunction = std::function<void(CommandEncoder&, const AttentionParams&)>;
  virtual EncodeFunction encode_function(Device& /*device*/, const FlashConfig& /*config*/, const Launch& launch,
                                         const Kernel& kernel, Lists lists = {}) const {
    return plain_encode_function(launch, kernel, std::move(lists));
  }

 protected:
  /// Returns the EncodeFunction of a kernel. The kernel's parameters are WithLists<AttentionParams> if there are
  /// `lists`, else AttentionParams.
  static EncodeFunction plain_encode_function(const Launch& launch, const Kernel& kernel, Lists lists);
};

/// Returns in one line why the device does not have this variant. Returns an empty text if the device has the variant.
std::string variant_unable(const std::string& variant, const DeviceInfo& device);

/// Calls FlashOperation::choose_tile() of the device. If the device has no kernel for attention, the tile stays as it
/// is.
void choose_tile(FlashConfig& config, const DeviceInfo& device, const TileHints& hints = {});

}  // namespace attn
