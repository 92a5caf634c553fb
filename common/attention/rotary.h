// How Q and K of one attention problem are rotated (RoPE): by which kernel, and by which angles.
#pragma once

#include <cstdint>
#include <string>

#include "common/attention/rope.h"

namespace attn {

/// Key i stands at `position` + i. The last query stands at the position of the last key.
struct Rotary {
  /// "none": nothing is rotated. "before": a separate launch rotates Q and K. "query": a separate launch rotates K, the
  /// attention kernel rotates Q. "kernel": the attention kernel rotates both.
  std::string by = "none";
  RopeConfig config = {};
  bool table = false;     // launches read cosines and sines from a table; false: launches compute them
  bool in_place = false;  // the outputs of launches are their inputs
  int64_t position = 0;

  bool launches() const { return by == "before" || by == "query"; }
  bool in_kernel() const { return by == "query" || by == "kernel"; }
  /// Whether this and `other` rotate rows by the same angles. Only `config` and `position` count.
  bool rotates_like(const Rotary& other) const { return config == other.config && position == other.position; }
};

}  // namespace attn
