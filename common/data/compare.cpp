#include "common/data/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace attn {

void Check::fail(const std::string& why) {
  if (ok) worst = why;
  ok = false;
}

void Check::merge(const Check& other) {
  ok = ok && other.ok;
  max_abs = std::max(max_abs, other.max_abs);
  max_rel = std::max(max_rel, other.max_rel);
  rows_checked = std::max(rows_checked, other.rows_checked);
  max_used = std::max(max_used, other.max_used);
  if (worst.empty()) worst = other.worst;
}

Check compare(std::span<const double> got, std::span<const double> want, std::span<const double> allowed,
              const std::function<std::string(size_t)>& where) {
  if (got.size() != want.size() || got.size() != allowed.size()) {
    throw std::invalid_argument(
        fmt::format("{} elements, {} wanted elements and {} tolerances; the numbers must be equal", got.size(),
                    want.size(), allowed.size()));
  }
  Check check;
  size_t worst = 0;
  double most = -1;
  for (size_t i = 0; i < got.size(); ++i) {
    const double diff = std::abs(got[i] - want[i]);
    // If `want` is infinite, `diff` and `allowed` may both be infinite.
    const bool both_nan = std::isnan(got[i]) && std::isnan(want[i]);
    const bool pass = got[i] == want[i] || both_nan || (std::isfinite(want[i]) && diff <= allowed[i]);
    const double used = pass && diff == 0 ? 0 : diff / allowed[i];
    if (!pass) {
      check.ok = false;
      const double by = std::isfinite(used) ? used : std::numeric_limits<double>::infinity();
      if (by > most) {
        most = by;
        worst = i;
      }
    }
    if (std::isfinite(used)) check.max_used = std::max(check.max_used, used);
    if (!std::isfinite(diff)) continue;
    check.max_abs = std::max(check.max_abs, diff);
    const double relative = diff / std::abs(want[i]);
    if (std::isfinite(relative)) check.max_rel = std::max(check.max_rel, relative);
  }
  if (!check.ok) {
    check.worst = fmt::format("{}: got {:.9g}, want {:.9g} (tolerance {:.3g})", where(worst), got[worst], want[worst],
                              allowed[worst]);
  }
  return check;
}

}  // namespace attn
