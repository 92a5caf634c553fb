// Modifiers of attention, such as windows, ALiBi, a soft cap or sinks. A kernel is compiled for them with hooks: texts
// that replace headers of the kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/attention/hook.h"
#include "common/attention/kernels/modifiers/modifiers.h"
#include "common/attention/rotary.h"
#include "common/data/tensor.h"

namespace attn {

/// The modifiers compose with each other, and with causal attention. Exceptions are `ragged` and `tree`: the comments
/// in options.def say with which options they compose. score.h, keys.h, mask.h and sink.h of kernels/modifiers say what
/// each modifier does. By default every modifier is off.
struct Modifiers {
  // The options that change the kernel. A bool with the name of a table says whether the kernel reads this table.
#define ATTN_MODIFIER(type, name, off, ...) type name = off;
#define ATTN_MODIFIER_TABLE(element, name, ...) bool name = false;
#define ATTN_DRAWN_TABLE(element, name, ...)
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
  bool tree = false;      // a table says which new tokens each new token sees; for decoding
  int64_t ragged = 0;     // several sequences lie one after the other (cu_seqlens_q). 0: off; 1: not causal; 2: causal
  int64_t documents = 0;  // keys of a document, on average; 0: there are no documents
  /// The axes that the bias tensor has: some letters of "bhqk" (batch, head, query, key). All positions along an axis
  /// that the tensor lacks have the same bias. "none": no bias.
  std::string bias = "none";
  /// How the kernel is compiled for alibi, soft_cap and bias. "constant": a modifier that is off is not compiled.
  /// "run_time": one kernel has all three, and branches on values in its data. "noinline": like "constant", but in a
  /// function that is called for each score.
  std::string score_by = "constant";
  Rotary rotary = {};
  /// How many per cent of the blocks of 128 x 128 positions are seen, on average. The blocks on the diagonal are always
  /// seen, and do not count. 0: all blocks are seen.
  int64_t block_sparse = 0;
  bool window_by_mask = false;  // the mask hook decides the window pair by pair, and the keys hook has no window
  bool lists = true;            // if mask() is true, tiles walk lists of key blocks
  bool mask_bits = false;       // a caller's mask gives the lists, and a bit for each pair (given_mask.h)

  /// Returns how many modifiers change scores.
  int score_rules() const;
  /// Returns how the kernel's score hook changes scores.
  ScoreChange score_change() const;
  bool bias_has(char axis) const { return bias.find(axis) != std::string::npos; }
  /// Returns the value of the kernels' constant BIAS (kernels/modifiers/modifiers.h).
  int bias_kind() const;
  bool window() const { return window_left >= 0 || window_right >= 0; }
  /// Whether a modifier needs the mask hook. A caller's mask (mask_bits) does not count.
  bool mask() const;
  /// Whether the modifiers change the kernel. Launches that rotate Q and K before the kernel do not change it.
  bool change_kernel() const;
};

/// Returns the hooks of the modifiers, with their texts and constants, but without data and without the functions of
/// the oracle. `dtype` is the type of Q, K and V.
AttentionHooks modifier_hooks(const Modifiers& modifiers, DType dtype);

/// Returns the hooks without the mask hook: kernels over a cache do not take a mask hook.
AttentionHooks without_mask(AttentionHooks hooks);

/// Returns the slopes of ALiBi, one for each head (Press et al. 2022, and the authors' code). If `heads` is a power of
/// two, the slopes are 2^(-8 i / heads) for i from 1. Else the first slopes are the slopes of the next smaller power of
/// two. The other slopes are every second slope (the first, the third, ...) of the next larger power of two.
std::vector<double> alibi_slopes(int64_t heads);

/// The layout of the block of memory that the hooks of modifiers read: a ModifierData, then the tables.
class ModifierLayout {
 public:
  /// A table of 32-bit words.
  struct Table {
    int ModifierData::* offset;
    int64_t words;
    const void* from;    // on the host or on the device; may be null
    int64_t slack = 0;   // words of memory after the table
    int64_t before = 0;  // words of the table before the offset
  };

  ModifierLayout() = default;
  /// Sets the offsets of the tables in `data`. Throws BadInput if the block would have more than 2 GiB.
  ModifierLayout(const ModifierData& data, std::span<const Table> tables);

  const ModifierData& head() const { return head_; }
  int64_t bytes() const { return bytes_; }
  /// Returns the first bytes of the block: the ModifierData, and the tables up to the last table with an address. The
  /// addresses are on the host.
  std::vector<std::byte> filled(std::span<const Table> tables) const;

 private:
  ModifierData head_{};
  int64_t bytes_ = 0;
};

}  // namespace attn
