// Modifiers of attention, and what a kernel is compiled with for them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/attention/hook.h"
#include "common/attention/rotary.h"
#include "common/data/tensor.h"

namespace attn {

/// All of them compose with each other, and with causal attention; score.h, keys.h, mask.h and sink.h of
/// kernels/modifiers say what each does. Every default is off.
struct Modifiers {
  // The options that change the kernel; of a table, whether it is there.
#define ATTN_MODIFIER(type, name, off, least, most) type name = off;
#define ATTN_MODIFIER_TABLE(element, name, ...) bool name = false;
#define ATTN_DRAWN_TABLE(element, name, ...)
#define ATTN_OPTIONS_OF_FLASH
#include "common/attention/options.def"
  int64_t documents = 0;      // keys of a document, on average
  std::string bias = "none";  // the axes that the tensor has; along the others it is shared
  /// How alibi, soft_cap and bias come into the kernel: "constant": what is off is not compiled; "run_time": one kernel
  /// has all of them, and branches on values in its data; "noinline": constants, in a function that is called for each
  /// score.
  std::string score_by = "constant";
  Rotary rotary = {};
  int64_t block_sparse = 0;     // per cent of the blocks of positions that are seen; 0: all
  bool window_by_mask = false;  // the window is asked for pair by pair, and no range
  bool lists = true;            // what is asked for pair by pair has lists of key blocks

  bool changes_scores() const { return alibi || soft_cap != 0 || bias != "none"; }
  bool bias_has(char axis) const { return bias.find(axis) != std::string::npos; }
  /// A value of the kernels' BIAS (kernels/modifiers/modifiers.h).
  int bias_kind() const;
  bool window() const { return window_left >= 0 || window_right >= 0; }
  /// Whether some rule is asked for pair by pair.
  bool mask() const { return global_tokens > 0 || block_sparse > 0 || window_by_mask; }
  /// Whether the kernel is another one than without modifiers: launches that turn Q and K before it change nothing in
  /// it.
  bool change_kernel() const;
};

/// What the kernel is made of: texts and constants. `dtype` is of Q, K and V.
AttentionHooks modifier_hooks(const Modifiers& modifiers, DType dtype);

/// Slopes of ALiBi, one a head: 2^(-8 i / heads) for i from 1 where `heads` is a power of two; else those of the next
/// smaller power, then every second of the next larger one (Press et al. 2022, and the authors' code).
std::vector<double> alibi_slopes(int64_t heads);

}  // namespace attn
