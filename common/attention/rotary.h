// Rotary positions of a case: which kernel turns Q and K, and by which angles.
#pragma once

#include <cstdint>
#include <string>

#include "common/attention/rope.h"

namespace attn {

/// Key i stands at `position` + i. The last query stands at the position of the last key.
struct Rotary {
  /// "none": nothing is turned. "before": a launch of its own turns Q and K. "query": a launch of its own turns K, the
  /// attention kernel turns Q. "kernel": the attention kernel turns both.
  std::string by = "none";
  RopeConfig config = {};
  bool table = false;     // launches read cosines and sines from a table; false: launches work them out
  bool in_place = false;  // the outputs of launches are their inputs
  int64_t position = 0;

  bool launches() const { return by == "before" || by == "query"; }
  bool in_kernel() const { return by == "query" || by == "kernel"; }
  /// Whether this and `other` turn rows by the same angles. Only `config` and `position` count.
  bool turns_like(const Rotary& other) const { return config == other.config && position == other.position; }
};

}  // namespace attn
