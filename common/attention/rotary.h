// Rotary positions of a case: who turns Q and K, and by which angles.
#pragma once

#include <cstdint>
#include <string>

#include "common/attention/rope.h"

namespace attn {

/// Key i stands at position + i, the last query at the last key.
struct Rotary {
  /// Who turns: "none"; "before": a launch of its own Q and K; "query": a launch K, and the attention kernel Q;
  /// "kernel": the attention kernel both.
  std::string by = "none";
  RopeConfig config = {};
  bool table = false;     // launches read cosines and sines, and do not work them out
  bool in_place = false;  // launches write where they read
  int64_t position = 0;

  bool launches() const { return by == "before" || by == "query"; }
  bool in_kernel() const { return by == "query" || by == "kernel"; }
  /// Whether both turn tensors in the same way, whoever does it.
  bool turns_like(const Rotary& other) const { return config == other.config && position == other.position; }
};

}  // namespace attn
