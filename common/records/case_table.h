// A table of cases that fits the terminal.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/records/case.h"

namespace attn {

struct CaseRow {
  Case config;
  std::vector<std::string> cells;  // the columns that are no axes
};

struct CaseTable {
  std::vector<std::string> heads;  // of `cells`
  std::vector<CaseRow> rows;
  size_t width = 100;      // characters of a line
  bool any_width = false;  // true: the table may be wider than `width`
  std::string remedy;      // how to see columns that are left out: "--columns all shows them"
};

/// Returns the table. Above the table stand axes with one value in all rows ("batch=1"), and axes that equal another
/// axis in each row ("kv_len=q_len"). Columns of `heads` without any text do not appear. If the table is wider than
/// `width`:
///   1. Axes with one value in at least 3/4 of the rows lose their columns, one after another, until the table fits.
///      This value stands above the table. The last column, `also`, has "axis=value" in rows with another value.
///   2. Columns of `heads` are left out, from the last on, but never the first.
///   3. The other axes lose their columns as in step 1, whatever the share of their most common value is. Lines that
///      are still too long are wrapped.
std::string case_table(CaseTable table);

/// Why a case was skipped or failed. reasons_text() writes one line for all cases with equal `what` and `why`.
struct CaseReason {
  std::string what, why;  // "wrong", "the output is all zero"
  Case config;
  bool example = true;  // whether the line names this case if it is the first of the line's cases
};

/// Returns lines of at most `width` characters, after an empty line: "2 wrong (first n=64): the output is all zero".
/// `varying` are the axes that an example names. Empty if there is no reason.
std::string reasons_text(const std::vector<CaseReason>& reasons, const std::vector<std::string>& varying, size_t width);

}  // namespace attn
