// Two sets of measurements side by side, configuration by configuration: is B faster than A?
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "findings/kb/store.h"

namespace attn::kb {

enum class Change { faster, slower, same, unclear };
std::string_view name(Change change);  // "FASTER", ...

/// A median time with its 95 % interval, in seconds.
struct Interval {
  double median_s = 0, ci_lo_s = 0, ci_hi_s = 0;
};

/// Of two runs: B / A is beyond the floor and its interval on one side of 1 (faster, slower); its interval is within
/// the floor on both sides (same); or neither (unclear). The interval of the ratio is the widest that both intervals
/// allow, the runs having no rounds in common to pair. `reason` is a sentence with the figures.
Change judge_change(const Interval& a, const Interval& b, double floor, std::string& reason);

/// One configuration that at least one side has.
struct Compared {
  std::string experiment, config, device_a, device_b, id_a, id_b;  // an id is empty where a side has no such record
  Change change = Change::unclear;
  std::string reason;
  std::string scope;                          // device_hot, device_cold or host
  std::optional<double> ratio, ci_lo, ci_hi;  // B / A of time
  double floor = 0;
  bool regression = false;  // slower, or was right and is not any more
};

struct Comparisons {
  std::vector<Compared> configurations;
  int64_t faster = 0, slower = 0, same = 0, unclear = 0, broken = 0, only_a = 0, only_b = 0;
  bool regression() const { return slower + broken > 0; }
};

/// One side: its measurements, and its findings for their A/A floors.
struct Side {
  std::string label;
  std::vector<Record> records;
};

/// Of each configuration the latest measurement counts. Devices are matched by name where a side has more than one.
/// `min_floor` is taken where the records' A/A floor is below it, or not there. Throws BadInput where a side has no
/// measurement, or both have no configuration in common.
Comparisons compare(const Side& a, const Side& b, double min_floor);

/// The measurements and findings of the runs of one commit (its first digits), taken from all records. Runs are tied to
/// commits by their findings.
std::vector<Record> of_commit(const std::vector<Record>& records, const std::string& commit);

}  // namespace attn::kb
