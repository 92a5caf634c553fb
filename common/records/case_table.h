// A table of cases that fits the terminal.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/records/case.h"

namespace attn {

/// A row of a table: a case, and the texts of the other columns.
struct CaseRow {
  Case config;
  std::vector<std::string> cells;
};

struct CaseTable {
  std::vector<std::string> heads;  // of `cells`; the first columns are kept longest if the table is too wide
  std::vector<CaseRow> rows;
  size_t width = 100;      // characters of a line
  bool any_width = false;  // all columns, however wide the table gets
  std::string remedy;      // how to see columns that are left out: "--columns all shows them"
};

/// Returns the table. Axes with one value in all cases stand above the table. If the table would be wider than a line,
/// the usual values of axes with one value in nearly all cases stand there too, and the column `also` has their other
/// values. If this is not enough, the last columns of `heads` are left out. Columns without any text do not appear.
std::string case_table(CaseTable table);

/// Why cases are not in the table, or failed. Equal reasons with an equal `what` share a line.
struct CaseReason {
  std::string what, why;  // "wrong", "the output is all zero"
  Case config;
  bool example = true;  // whether the line names the first case
};

/// Returns lines of at most `width` characters, after an empty line: "2 wrong (first n=64): the output is all zero".
/// `varying` are the axes that an example names. Empty if there is no reason.
std::string reasons_text(const std::vector<CaseReason>& reasons, const std::vector<std::string>& varying, size_t width);

}  // namespace attn
