// Modifiers of attention: what a case asks for, their hooks for the kernels, and the same in double for the oracle.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/attention/backend.h"
#include "common/attention/hook.h"
#include "common/attention/rotary.h"
#include "common/records/case.h"

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
  bool window() const { return window_left >= 0 || window_right >= 0; }
  /// Whether some rule is asked for pair by pair.
  bool mask() const { return global_tokens > 0 || block_sparse > 0 || window_by_mask; }

  /// Throws BadInput for what makes no sense on any device.
  static Modifiers from(const Case& config);
  /// Why a case is no other than one without some modifier; empty where it is. A sweep crosses such values.
  std::string pointless(const Case& config) const;
  /// Whether the kernel is another one than without modifiers: launches that turn Q and K before it change nothing in
  /// it.
  bool change_kernel() const;
};

/// The attention that the hooks modify: with a prefix its mask is the hook's alone. Throws as FlashConfig::from does.
FlashConfig modified_config(const Case& config);

/// The axes of Modifiers and of the user's functions, each with what turns it off; rotary_axes() say more of `rope`.
const std::vector<std::pair<std::string, AxisValue>>& modifier_axes();
/// What a user may say of them, but for `rope` and the user's functions.
std::vector<AxisInfo> modifier_infos();
/// The names of those that a case turns on.
std::vector<std::string> modifiers_on(const Case& config);

/// Slopes of ALiBi, one a head: 2^(-8 i / heads) for i from 1 where `heads` is a power of two; else those of the next
/// smaller power, then every second of the next larger one (Press et al. 2022, and the authors' code).
std::vector<double> alibi_slopes(int64_t heads);

/// Modifiers on one shape, with the tables that they read: drawn with a seed of their own, from the shape alone.
class ModifiedAttention {
 public:
  ModifiedAttention(Modifiers modifiers, const FlashConfig& config);

  /// What the kernel is made of: texts and constants.
  AttentionHooks texts() const;
  /// The same with the tables that it reads, and the oracle's functions.
  AttentionHooks hooks() const;
  /// First and last key, plus one, that a query sees but for unmasked(), within [0, kv_len]; none where the first is
  /// not before the last.
  std::pair<int64_t, int64_t> range(int64_t batch, int64_t q) const;
  /// Whether the rules that are no range let a query see a key: of global tokens, with their window, and of blocks.
  bool unmasked(int64_t q, int64_t k) const;
  /// Query-key pairs that no rule hides, over the whole batch.
  double visible_pairs() const;
  const AttentionShape& shape() const { return shape_; }
  /// Of the tensor that is added to the scores; 0 where there is none.
  int64_t bias_elements() const { return bias_elements_; }

 private:
  float bias_at(int64_t element) const;
  double changed(double s, int64_t batch, int64_t head, int64_t q, int64_t k) const;
  int64_t own_key(int64_t q) const { return q + shape_.kv_len - shape_.q_len; }
  std::pair<int64_t, int64_t> window(int64_t own) const;
  bool block_seen(int64_t own, int64_t block) const;
  int64_t keys_between(int64_t own, int64_t begin, int64_t end) const;  // that are seen, by the blocks
  int64_t keys_seen(int64_t batch, int64_t q) const;

  Modifiers modifiers_;
  AttentionShape shape_;
  DType dtype_;
  std::vector<float> slopes_, sinks_;
  RopeTable angles_;                      // from the first position that a query or a key has
  std::vector<int> lengths_, documents_;  // documents: begin and end for each key
  std::vector<unsigned> blocks_;          // as ModifierData has them
  int64_t bias_strides_[3] = {}, bias_elements_ = 0;
};

}  // namespace attn
