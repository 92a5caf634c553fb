// Checks that NaN passes only where NaN is wanted.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace attn {

struct Check {
  bool ok = true;
  double max_abs = 0;  // largest finite |got - want|
  double max_rel = 0;  // largest finite |got - want| / |want| among want != 0
  int64_t rows_checked = 0;
  std::string worst = {};  // where and what, for the element that fails by most; empty when ok
  double max_used = 0;     // largest finite share of its tolerance that an element takes: at most 1 when ok

  /// Not ok, for `why`; a reason that is there already stays.
  void fail(const std::string& why);
  /// Both at once: ok if both are, maxima of both, the first `worst`.
  void merge(const Check& other);
};

/// Element i passes where |got - want| <= allowed, or where both are the same infinity, or both are NaN. A NaN never
/// passes for a number, nor a number for a NaN.
/// `worst` calls element i what `where` does; rows_checked is left to the caller. Throws std::invalid_argument where
/// the sizes differ.
Check compare(std::span<const double> got, std::span<const double> want, std::span<const double> allowed,
              const std::function<std::string(size_t)>& where);

}  // namespace attn
