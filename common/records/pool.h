// Pools the estimates that several processes made of one figure, and says where the next run's estimate is expected.
//
// Two runs of the same code differ by more than the samples of either run show: memory lies at other addresses, and the
// machine is in another state. The model: a run of K processes (a session) estimates log(figure) with the variance
// B sigma^2 + sigma^2 / K. Here sigma^2 is the variance between the processes of a session, and B sigma^2 the variance
// between sessions (B is Spread::between). The sigma^2 of a claim is unknown; its prior is a scaled inverse chi-squared
// distribution (`Spread`), which `kb fit` computes from recorded runs. docs/measuring.md has the formulas, also for a
// figure that is pooled without logarithms.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "common/records/timing.h"

namespace attn {

/// One process's estimate of a figure.
struct Part {
  int process = 1;   // counts from 1
  double value = 0;  // the figure
  double error = 0;  // standard error from the process's own rounds, in the unit of the figure
  int rounds = 0;    // the fewest rounds of any series that the figure uses
};

/// The parts of one run's processes; at least one.
using Session = std::vector<Part>;

/// The prior: what is known about sigma before a run. The default of `freedom` holds for all fitted spreads (spread.h).
struct Spread {
  double scale = 0.05;  // the typical size of sigma, as a fraction of the figure
  double freedom = 3;   // the weight of `scale`, in degrees of freedom
  double between = 2;   // the variance between sessions / the variance between the processes of a session
};

/// The figure that all sessions together give.
struct Pooled {
  double value = 0;
  double ci_lo = 0, ci_hi = 0;      // 95 % interval of the mean
  double next_lo = 0, next_hi = 0;  // the next run's estimate lies here with a probability of 95 %
  /// Standard deviation between the processes of a session, without the processes' own errors: a fraction of the figure
  /// if `relative`, else in the figure's unit. 0 if no session has two processes.
  double tau = 0;
  int processes = 0, sessions = 0;
  int machines = 1;    // the caller of pool() sets it
  double freedom = 0;  // degrees of freedom of the two intervals
};

/// Pools sessions. If `relative`, the figure is positive, its errors are proportional to the figure, and the pooling is
/// done in logarithms. Otherwise the pooling is done in the figure's own unit, and Spread::scale counts as a fraction
/// of `unit`. The next run is assumed to have as many processes as the last session. Throws std::invalid_argument
/// without parts, and for a value that is not above 0 if `relative`.
Pooled pool(std::span<const Session> sessions, const Spread& prior, bool relative, double unit = 1);

/// Returns the ratio of two positive figures, B / A, with its 95 % interval. Each of the two groups of sessions
/// measured one of the figures. Without a difference between the figures, the interval contains 1 in 95 % of all pairs
/// of groups. Throws as pool() does.
Estimate pooled_ratio(std::span<const Session> a, std::span<const Session> b, const Spread& prior);

/// The probability that the estimate of a new run lies on the same side of `threshold` as `pooled.value`.
double same_side(const Pooled& pooled, double threshold, bool relative);

}  // namespace attn
