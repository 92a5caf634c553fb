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
/// The runs ran one after the other, so there is no ratio for each turn. The interval of the ratio reaches from B's
/// lower end over A's upper end to B's upper end over A's lower end. `reason` becomes a sentence with the figures.
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
  bool regression = false;  // both sides have it; B is slower, or A is ok and B is neither ok nor skipped
};

struct Comparisons {
  std::vector<Compared> configurations;
  // Numbers of configurations. broken: both sides have the configuration, and A's status is ok, and B's status is
  // neither ok nor skipped. Broken configurations do not count as unclear.
  int64_t faster = 0, slower = 0, same = 0, unclear = 0, broken = 0, only_a = 0, only_b = 0;
  // A sentence for each name of a device that the sides measured on different machines, with the highest rates of both
  // sides' machines, as far as the records have them.
  std::vector<std::string> notes = {};
  bool regression() const { return slower + broken > 0; }
};

/// One side of a comparison. `records` has its measurements and its findings. A finding that
/// compares two configurations has an A/A floor: the difference that a comparison of the baseline with itself showed.
struct Side {
  std::string label;
  std::vector<Record> records;
};

/// Compares two sides. The latest measurement of each configuration counts. If a side has more than one device, only
/// configurations of devices with the same name are compared. Otherwise A's device is compared with B's device. The
/// floor of a configuration is the largest of `min_floor`, A's floor and B's floor. A side's floor is the
/// configuration's A/A floor, else the median of the side's A/A floors, else 0. Throws BadInput where a side has no
/// measurement, or the sides have no configuration in common.
Comparisons compare(const Side& a, const Side& b, double min_floor);

/// Returns all records except notes of the runs of one commit. `commit` is at least the first 6 digits of the commit.
/// The commit stands in a run's header (a record of the schema run/1); findings of the older schema finding/1 have it
/// themselves. Throws BadInput where `commit` is shorter or has another character, and where no run or several commits
/// match.
std::vector<Record> of_commit(const std::vector<Record>& records, const std::string& commit);

}  // namespace attn::kb
