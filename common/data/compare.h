// Comparison with tolerances. NaN passes only where NaN is wanted.
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
  /// Name and values of the failed element with the largest |got - want| / allowed, or the argument of fail().
  std::string worst = {};
  double max_used = 0;  // largest finite |got - want| / allowed: at most 1 when ok

  /// Makes the check fail with the reason `why`. An earlier reason stays.
  void fail(const std::string& why);
  /// The result is ok if both checks are ok, and has the larger of each number. An earlier `worst` stays.
  void merge(const Check& other);
};

/// Compares each element of `got` with its element of `want`. Element i passes if got == want, if both are NaN, or if
/// `want` is finite and |got - want| <= allowed. where(i) is the name of element i in `worst`. The caller sets
/// rows_checked. Throws std::invalid_argument if the sizes differ.
Check compare(std::span<const double> got, std::span<const double> want, std::span<const double> allowed,
              const std::function<std::string(size_t)>& where);

}  // namespace attn
