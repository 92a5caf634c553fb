// Compares two sets of measurements, A and B, configuration by configuration: is B faster than A?
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/records/case.h"
#include "findings/kb/store.h"

namespace attn::kb {

/// In the order in which a table has the changes.
enum class Change { faster, slower, unclear, same };
std::string_view name(Change change);  // "FASTER", ...

/// Judges the ratio B / A of two times by the ratio's interval (pooled_ratio()). `floor`: a ratio from 1 - floor to
/// 1 + floor may be noise.
///   faster, slower  the ratio is farther from 1 than the floor, and its interval lies on one side of 1
///   same            the whole interval lies between 1 - floor and 1 + floor
///   unclear         all other ratios
/// Sets `reason` to a sentence with the figures.
Change judge_change(const Estimate& ratio, double floor, std::string& reason);

/// A configuration of A, B or both, and its comparison. If A or B lacks it, the device and the id of that side are
/// empty.
struct Compared {
  std::string experiment;
  Case config;
  std::string device_a, device_b, id_a, id_b;  // the ids of the latest measurements
  size_t runs_a = 0, runs_b = 0;               // the numbers of runs that the ratio is pooled from
  Change change = Change::unclear;
  std::string reason;
  std::string scope;              // device_hot, device_cold or host
  std::optional<Estimate> ratio;  // B / A of time
  double floor = 0;
  std::string busy_a, busy_b;  // the sign of a busy machine, if all runs of this side ran on one
  bool regression = false;     // B is slower; or A's status is ok, and B's status is neither ok nor skipped
};

struct Comparisons {
  std::vector<Compared> configurations;  // regressions first, and last what one side lacks
  // Numbers of configurations. broken: regressions without a ratio; they do not count as unclear.
  int64_t faster = 0, slower = 0, same = 0, unclear = 0, broken = 0, only_a = 0, only_b = 0;
  // Sentences about sides that measured on a busy machine, and about each device that A and B measured on different
  // machines, with the ceilings (the device's highest measured rates) that both sides have.
  std::vector<std::string> notes = {};
  bool regression() const { return slower + broken > 0; }
};

/// The measurements and findings of A or B. A finding that compares two configurations has an A/A floor: the difference
/// that a comparison of the baseline with itself showed.
struct Side {
  std::string label;
  std::vector<Record> records;
};

/// Compares the times of each configuration. A side's time is pooled from its runs with the code of its latest
/// measurement (for a time of the host: with the commit). The interval of B / A includes the spread between runs of the
/// device (spread_of()); of two devices the larger spread counts. A run on a busy machine does not count; if a side has
/// no other run, the change is unclear. If a side has several devices, each device is compared with the device of the
/// same name. Otherwise A's device is compared with B's device, unless their names differ and one device is emulated.
/// The floor of a configuration is the largest of `min_floor`, A's floor and B's floor. A side's
/// floor is the largest A/A floor of the side's findings that compare the configuration; without such a finding, the
/// median of all A/A floors of the side; without any A/A floor, 0. Throws BadInput if a side has no measurement, or if
/// the sides have no configuration in common.
Comparisons compare(const Side& a, const Side& b, double min_floor);

/// Returns a line of `kb compare --json`.
Json to_json(const Compared& one);

/// Returns a table for each experiment, with the configurations whose times are compared. Below the table are the
/// reasons why the times of the other configurations are not compared.
std::string printed(const std::vector<Compared>& configurations);

/// Returns all records of the runs of one commit. `commit` has at least the first 6 hex digits of the
/// commit's hash. A run names its commit in its header (run/1). Throws BadInput if `commit` is no such text, or if no
/// run or several commits match.
std::vector<Record> of_commit(const std::vector<Record>& records, const std::string& commit);

}  // namespace attn::kb
