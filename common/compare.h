// Checks that NaN cannot pass.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/tensor.h"

namespace attn {

struct Tolerance {
  double atol, rtol;
};
/// f32 1e-5/1e-4; f16 and bf16 5e-3/1e-2: the study this follows, docs/measuring.md.
Tolerance tolerance_for(DType dtype);

struct Check {
  bool ok = true;
  double max_abs = 0;  // largest |got - want|
  double max_rel = 0;  // largest |got - want| / |want| among want != 0
  int64_t rows_checked = 0;
  std::string worst;  // where and what, for the first element that fails; empty when ok

  /// Both at once: ok if both are, maxima of both.
  void merge(const Check& other);
};

/// Passes where !(|got - want| > atol + rtol |want|) is true AND neither is NaN; equal infinities pass.
/// `label(i)` names element i in `worst`; rows_checked is left to the caller.
Check compare(std::span<const double> got, std::span<const double> want, Tolerance tolerance, const std::string& label);

}  // namespace attn
