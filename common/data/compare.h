// Checks that NaN cannot pass.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/data/tensor.h"

namespace attn {

struct Tolerance {
  double atol, rtol;
};
/// f32 1e-5/1e-4; f16 and bf16 5e-3/1e-2: the study this follows, docs/measuring.md.
Tolerance tolerance_for(DType dtype);

struct Check {
  bool ok = true;
  double max_abs = 0;  // largest finite |got - want|
  double max_rel = 0;  // largest finite |got - want| / |want| among want != 0
  int64_t rows_checked = 0;
  std::string worst;  // where and what, for the first element that fails; empty when ok

  /// Both at once: ok if both are, maxima of both, the first `worst`.
  void merge(const Check& other);
};

/// An element passes where |got - want| <= atol + rtol |want|, so never with a NaN; an infinity passes where both are
/// the same one. `worst` calls element i "label[i]"; rows_checked is left to the caller. Throws std::invalid_argument
/// where the sizes differ.
Check compare(std::span<const double> got, std::span<const double> want, Tolerance tolerance, const std::string& label);

}  // namespace attn
