// Compares two sets of measurements, A and B, configuration by configuration: is B faster than A?
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/records/case.h"
#include "findings/kb/store.h"

namespace attn::kb {

enum class Change { faster, slower, same, unclear };
std::string_view name(Change change);  // "FASTER", ...

/// A median time with its 95 % interval, in seconds.
struct Interval {
  double median_s = 0, ci_lo_s = 0, ci_hi_s = 0;
};

/// Judges the ratio B / A of two runs' times. `floor`: a ratio from 1 - floor to 1 + floor may be noise.
///   faster, slower  the ratio is farther from 1 than the floor, and its interval lies on one side of 1
///   same            the whole interval lies between 1 - floor and 1 + floor
///   unclear         all other ratios
/// The interval of the ratio spans all ratios that the two intervals allow, because the two runs did not take turns.
/// `reason` becomes a sentence with the figures.
Change judge_change(const Interval& a, const Interval& b, double floor, std::string& reason);

/// A configuration that one side or both have, and its comparison. An id is empty for a side without the configuration.
struct Compared {
  std::string experiment;
  Case config;
  std::string device_a, device_b, id_a, id_b;
  Change change = Change::unclear;
  std::string reason;
  std::string scope;                          // device_hot, device_cold or host
  std::optional<double> ratio, ci_lo, ci_hi;  // B / A of time
  double floor = 0;
  bool regression = false;  // slower; or correct in A, and neither correct nor skipped in B
};

struct Comparisons {
  std::vector<Compared> configurations;
  // Numbers of configurations. A broken configuration is correct in A, and neither correct nor skipped in B.
  int64_t faster = 0, slower = 0, same = 0, unclear = 0, broken = 0, only_a = 0, only_b = 0;
  // For each device that A and B measured on different machines of one name: a sentence with the ceilings of both.
  std::vector<std::string> notes = {};
  bool regression() const { return slower + broken > 0; }
};

/// One side of a comparison. `records` has its measurements and its findings. A finding has an A/A floor: the
/// difference that a comparison of the baseline with itself showed.
struct Side {
  std::string label;
  std::vector<Record> records;
};

/// Compares two sides. The latest measurement of each configuration counts. Devices are matched by name where a side
/// has more than one device. `min_floor` replaces an A/A floor of the records that is lower or missing. Throws BadInput
/// where a side has no measurement, or the sides have no configuration in common.
Comparisons compare(const Side& a, const Side& b, double min_floor);

/// Returns all records of the runs of one commit. `commit` has at least the first 6 digits of the commit. A run's
/// commit stands in the run's header (run/1), or in its findings if they are finding/1. Throws BadInput where no run or
/// several commits match.
std::vector<Record> of_commit(const std::vector<Record>& records, const std::string& commit);

}  // namespace attn::kb
