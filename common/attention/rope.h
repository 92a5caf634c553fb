// RoPE (rotary position embedding, Su et al. 2021): pairs of elements of the rows of Q and K are rotated by angles that
// grow with the row's position. This file has the frequencies and their scalings, the table of cosines and sines, and a
// launch that rotates Q and K.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "common/data/tensor.h"
#include "common/device/pipeline_cache.h"
#include "common/launch/plan.h"

namespace attn {

/// Which elements make pair i: i and i + rotary_dim / 2 (GPT-NeoX, Llama), or 2i and 2i + 1 (GPT-J).
enum class RopePairing { half_split, interleaved };

// Scalings, for sequences that are longer than the sequences of the training. Factors are at least 1, lengths are in
// tokens.

/// All frequencies are divided by `factor` (Chen et al. 2023).
struct RopeLinear {
  double factor;
  bool operator==(const RopeLinear&) const = default;
};
/// theta is multiplied by factor^(d / (d - 2)), where d is rotary_dim. This divides the lowest frequency by `factor`.
/// rotary_dim must be more than 2.
struct RopeNtk {
  double factor;
  bool operator==(const RopeNtk&) const = default;
};
/// Peng et al. 2023. The frequency of a pair that makes fewer than beta_slow full rotations over original_length is
/// divided by `factor`. A pair that makes more than beta_fast rotations keeps its frequency. Between these two groups
/// the multiplier of the frequency is a linear ramp over the pairs' indices, from 1 to 1 / `factor`. With `truncate`
/// the ramp begins and ends at whole indices. Cosines and sines are multiplied by attention_factor. If attention_factor
/// is 0, they are multiplied by the default of the library transformers: 0.1 ln(factor) + 1 or, if neither mscale nor
/// mscale_all_dim is 0, (0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim ln(factor) + 1).
struct RopeYarn {
  double factor, original_length, beta_fast = 32, beta_slow = 1, attention_factor = 0, mscale = 0, mscale_all_dim = 0;
  bool truncate = true;
  bool operator==(const RopeYarn&) const = default;
};
/// Like YaRN with low_freq_factor for beta_slow and high_freq_factor for beta_fast. But the multiplier is linear in the
/// number of rotations that a pair makes over original_length, and there is no attention factor (Llama 3.1).
struct RopeLlama3 {
  double factor = 8, low_freq_factor = 1, high_freq_factor = 4, original_length = 8192;
  bool operator==(const RopeLlama3&) const = default;
};
using RopeScaling = std::variant<std::monostate, RopeLinear, RopeNtk, RopeYarn, RopeLlama3>;

struct RopeConfig {
  int64_t head_dim = 128;    // a multiple of 8, at most 512
  int64_t rotary_dim = 128;  // even, at most head_dim; the rest of a row stays as it is
  RopePairing pairing = RopePairing::half_split;
  double theta = 10000;  // more than 1
  RopeScaling scaling = {};
  bool operator==(const RopeConfig&) const = default;
};

/// Throws BadInput for an invalid configuration. rope_frequencies(), rope_attention_factor() and rope_table() call this
/// function.
void rope_check_config(const RopeConfig& config);

/// Returns the angle of each of the rotary_dim / 2 pairs, in radians per position: theta^(-2i / rotary_dim), scaled.
std::vector<double> rope_frequencies(const RopeConfig& config);

/// Returns the factor on cosines and sines: YaRN's attention factor, or 1 without YaRN.
double rope_attention_factor(const RopeConfig& config);

/// Cosines and sines of `positions` positions from `first` on, multiplied by the attention factor. Both tables are
/// [positions, rotary_dim / 2].
struct RopeTable {
  std::vector<float> cosines, sines;
};
RopeTable rope_table(const RopeConfig& config, int64_t positions, int64_t first = 0);

/// Sizes of the tensors that a launch rotates. Q and K have the same number of rows.
struct RopeShape {
  int64_t batch = 1, q_heads = 1, kv_heads = 1;  // batch at most 65535; a tensor with 0 heads is left alone
  int64_t rows = 1;
  DType dtype = DType::f32;
  int64_t table_positions = 0;  // positions in the kernel's table; 0: the kernel computes cosines and sines
};

/// Q and K on the launch's device. q, q_out: [batch, q_heads, rows, head_dim]; k, k_out: [batch, kv_heads, rows,
/// head_dim]. Strides are in elements; the strides of heads and rows fit 32 bits. Addresses, and strides in bytes, must
/// be multiples of RopeTiles::alignment_bytes. On cuda this number is the largest power of two, at most 16, that
/// divides the bytes of rotary_dim / 2 elements. An output may be its input, with the same strides. If an output is not
/// its input, the two must not overlap.
struct RopeTensors {
  const void *q = nullptr, *k = nullptr;
  void *q_out = nullptr, *k_out = nullptr;
  Strides q_strides{}, k_strides{}, q_out_strides{}, k_out_strides{};
  /// [batch], on the device: positions of the first rows; null stands for zeros. All positions are less than 2^31. If
  /// the kernel reads a table, all positions must be in the table. Otherwise positions may be negative.
  const int* offsets = nullptr;
};

/// How a device divides the rows into tiles, and what its kernel requires of addresses.
struct RopeTiles {
  int64_t group = 1;            // elements that the kernel reads at once (its constant GROUP)
  int64_t rows = 1;             // rows of a tile
  int64_t alignment_bytes = 1;  // addresses of tensors, and strides in bytes, are multiples of this number
};

/// RoPE as an operation of a device.
class RopeOperation {
 public:
  virtual ~RopeOperation() = default;
  virtual RopeTiles tiles(const RopeConfig& config, const RopeShape& shape, const DeviceInfo& device) const = 0;
  /// Sets the grid, threads and threadgroup memory of `launch` as far as the device's kernel needs them. On entry the
  /// grid of `launch` is [1, tiles of rows, batch].
  virtual void share_out(Launch& launch, const RopeConfig& config, const RopeShape& shape,
                         const RopeTiles& tiles) const = 0;
};

/// Returns a plan of the launch "rope". The plan's work counts each tensor as read once and written once. Throws
/// BadInput for a shape that no launch can have.
Plan rope_plan(const RopeConfig& config, const RopeShape& shape, const DeviceInfo& device);

/// Throws BadInput for addresses and strides that RopeLaunch::encode() does not allow.
void rope_check_tensors(const RopeTensors& tensors, const RopeConfig& config, const RopeShape& shape,
                        const DeviceInfo& device);

/// A kernel that is loaded for one configuration, with its frequencies or table on the device, ready to be encoded on
/// any tensors of its shape. The device and the pipelines must outlive the RopeLaunch.
class RopeLaunch {
 public:
  /// Takes the launch with the name `phase` from `plan`, which must be a plan of `config` and `shape`. Throws
  /// CompileError and OutOfMemory. Throws BadInput if the device cannot run the plan.
  RopeLaunch(Device& device, PipelineCache& pipelines, const RopeConfig& config, const RopeShape& shape,
             const Plan& plan, std::string_view phase = "rope");

  /// Throws BadInput for addresses and strides that RopeTensors does not allow. Positions, and whether an output
  /// overlaps its input, are not checked.
  void encode(CommandEncoder& encoder, const RopeTensors& tensors) const;

 private:
  RopeShape shape_;
  Launch launch_;
  const Kernel* kernel_;
  int64_t tile_rows_, alignment_bytes_;
  float factor_ = 1;
  Buffer frequencies_, cosines_, sines_;
};

}  // namespace attn
