#include "common/data/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace attn {

Tolerance tolerance_for(DType dtype) { return dtype == DType::f32 ? Tolerance{1e-5, 1e-4} : Tolerance{5e-3, 1e-2}; }

void Check::merge(const Check& other) {
  ok = ok && other.ok;
  max_abs = std::max(max_abs, other.max_abs);
  max_rel = std::max(max_rel, other.max_rel);
  rows_checked = std::max(rows_checked, other.rows_checked);
  if (worst.empty()) worst = other.worst;
}

Check compare(std::span<const double> got, std::span<const double> want, Tolerance tolerance,
              const std::string& label) {
  if (got.size() != want.size()) {
    throw std::invalid_argument(fmt::format("{}: got {} elements, want {}", label, got.size(), want.size()));
  }
  Check check;
  for (size_t i = 0; i < got.size(); ++i) {
    const double diff = std::abs(got[i] - want[i]);
    const double allowed = tolerance.atol + tolerance.rtol * std::abs(want[i]);
    // With an infinite `want` both sides would be infinite, and anything would pass.
    const bool pass = got[i] == want[i] || (std::isfinite(want[i]) && diff <= allowed);
    if (!pass && check.ok) {
      check.ok = false;
      check.worst =
          fmt::format("{}[{}]: got {:.9g}, want {:.9g} (tolerance {:.3g})", label, i, got[i], want[i], allowed);
    }
    if (!std::isfinite(diff)) continue;
    check.max_abs = std::max(check.max_abs, diff);
    const double relative = diff / std::abs(want[i]);
    if (std::isfinite(relative)) check.max_rel = std::max(check.max_rel, relative);
  }
  return check;
}

}  // namespace attn
