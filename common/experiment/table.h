// The table of measurements that a run prints, and its CSV form.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "common/records/measurement.h"

namespace attn {

struct TableOptions {
  bool all_columns = false;                     // every column, however wide the table gets
  size_t width = 100;                           // characters of a line, if not all columns are asked for
  std::vector<std::string> compared_axes = {};  // cases that differ only in these axes and `baseline` are a group
  /// An axis and a value. The cases of a group are compared with the fastest case of the group that has this value;
  /// empty: with the fastest case of the group.
  std::optional<Axis> baseline = {};
  /// Words. The table has the cases in whose text (the axes and the status) each of these words occurs. A word with "="
  /// must be a whole axis with its whole value. Empty: all cases.
  std::string filter = {};
};

/// Returns whether the case has the first value of `axis`.
bool has_value(const Case& config, const Axis& axis);

/// Returns the table that --help describes. Axes with one value in all cases stand above the table. Below the table
/// there is one line for each reason why cases were skipped or failed.
std::string table(const std::vector<Measurement>& results, const Ceilings& ceilings, const TableOptions& options);

/// Returns all cases that options.filter selects, as CSV. Times are in seconds.
std::string csv(const std::vector<Measurement>& results, const TableOptions& options);

}  // namespace attn
