#include "common/records/case_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "common/base/text_table.h"

namespace attn {
namespace {

constexpr const char* also = "also";  // the head of the column that several axes share
constexpr size_t room_for_also = 24;  // only so many characters of `also` count for the width of the table
constexpr double almost_all = 0.75;   // step 1 of case_table() folds axes with one value in this share of the rows

/// The most common value of an axis, and the share of the rows that have it.
std::pair<std::string, double> common_value(const std::vector<CaseRow>& rows, const std::string& axis) {
  std::map<std::string, size_t> counts;
  for (const CaseRow& row : rows) ++counts[row.config.value_text(axis)];
  const auto most = std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; });
  return {most->first, static_cast<double>(most->second) / static_cast<double>(rows.size())};
}

/// Returns the text of a table whose columns are `axes` and the first `columns` of the table's heads. The axes in
/// `folded` share the last column, `also`, which has only the values that differ from their axis's most common value.
std::string text_of(const CaseTable& table, const std::vector<std::string>& axes,
                    const std::vector<std::string>& folded, size_t columns) {
  std::vector<std::vector<std::string>> rows(1, axes);
  rows[0].insert(rows[0].end(), table.heads.begin(), table.heads.begin() + static_cast<ptrdiff_t>(columns));
  if (!folded.empty()) rows[0].emplace_back(also);
  std::map<std::string, std::string> common;
  for (const std::string& axis : folded) common[axis] = common_value(table.rows, axis).first;
  for (const CaseRow& one : table.rows) {
    std::vector<std::string> row;
    for (const std::string& axis : axes) row.push_back(one.config.value_text(axis));
    row.insert(row.end(), one.cells.begin(), one.cells.begin() + static_cast<ptrdiff_t>(columns));
    if (!folded.empty()) {
      std::vector<std::string> own;
      for (const std::string& axis : folded) {
        if (one.config.value_text(axis) != common[axis]) own.push_back(one.config.key({axis}));
      }
      row.push_back(fmt::format("{}", fmt::join(own, " ")));
    }
    rows.push_back(std::move(row));
  }
  return text_table(rows, Align::right);
}

/// The index in a line at which the column `also` begins; npos if there is none.
size_t place_of_also(const std::string& text) {
  const std::string head = text.substr(0, text.find('\n'));
  return head.ends_with(also) ? head.size() - std::string_view(also).size() : head.npos;
}

size_t width_of(const std::string& text) {
  const size_t place = place_of_also(text);
  const size_t most = place == text.npos ? text.npos : place + room_for_also;
  std::istringstream lines(text);
  size_t width = 0;
  for (std::string line; std::getline(lines, line);) width = std::max(width, std::min(line.size(), most));
  return width;
}

void drop_empty_columns(CaseTable& table) {
  for (size_t column = table.heads.size(); column-- > 0;) {
    if (std::ranges::any_of(table.rows, [&](const CaseRow& row) { return !row.cells[column].empty(); })) continue;
    table.heads.erase(table.heads.begin() + static_cast<ptrdiff_t>(column));
    for (CaseRow& row : table.rows) row.cells.erase(row.cells.begin() + static_cast<ptrdiff_t>(column));
  }
}

}  // namespace

std::string case_table(CaseTable table) {
  const std::vector<CaseRow>& rows = table.rows;
  if (rows.empty()) return "";
  drop_empty_columns(table);
  std::vector<Case> cases;
  for (const CaseRow& row : rows) cases.push_back(row.config);
  const std::vector<std::string> varying = varying_axes(cases);
  std::vector<std::string> axes, said, folded;
  std::set<std::string> seen;
  for (const Case& config : cases) {
    for (const auto& [axis, value] : config.axes()) {
      if (!seen.insert(axis).second) continue;
      const auto equal = std::ranges::find_if(axes, [&](const std::string& other) {
        return std::ranges::all_of(
            rows, [&](const CaseRow& row) { return row.config.value_text(axis) == row.config.value_text(other); });
      });
      if (std::ranges::find(varying, axis) == varying.end()) {
        said.push_back(config.key({axis}));
      } else if (equal != axes.end()) {
        said.push_back(axis + "=" + *equal);
      } else {
        axes.push_back(axis);
      }
    }
  }

  size_t columns = table.heads.size();
  const auto text = [&] { return text_of(table, axes, folded, columns); };
  const auto too_wide = [&] { return !table.any_width && width_of(text()) > table.width; };
  // Folds the axis whose most common value has the largest share of the rows, unless this share is below `share`.
  const auto fold = [&](double share) {
    const auto most =
        std::ranges::max_element(axes, {}, [&](const std::string& axis) { return common_value(rows, axis).second; });
    if (most == axes.end() || common_value(rows, *most).second < share) return false;
    folded.push_back(*most);
    axes.erase(most);
    return true;
  };
  while (too_wide() && fold(almost_all)) {
  }
  while (too_wide() && columns > 1) --columns;
  while (too_wide() && fold(0)) {
  }

  std::vector<std::string> unless_said;
  for (const std::string& axis : folded) unless_said.push_back(axis + "=" + common_value(rows, axis).first);
  std::string above = said.empty() ? "" : wrapped(fmt::format("{}", fmt::join(said, " ")), table.width, 0);
  if (!unless_said.empty()) {
    above +=
        wrapped(fmt::format("where `also` does not say otherwise: {}", fmt::join(unless_said, " ")), table.width, 0);
  }
  std::string body = text();
  if (!table.any_width) {
    const size_t place = place_of_also(body), indent = place == body.npos ? 2 : std::min(place, table.width / 2);
    std::istringstream lines(std::exchange(body, {}));
    for (std::string line; std::getline(lines, line);) body += wrapped(line, table.width, indent);
  }
  if (columns < table.heads.size()) {
    const std::vector<std::string> dropped(table.heads.begin() + static_cast<ptrdiff_t>(columns), table.heads.end());
    body += wrapped(fmt::format("left out for width: {}; {}", fmt::join(dropped, ", "), table.remedy), table.width, 0);
  }
  return above + body;
}

std::string reasons_text(const std::vector<CaseReason>& reasons, const std::vector<std::string>& varying,
                         size_t width) {
  std::map<std::pair<std::string, std::string>, std::vector<const CaseReason*>> groups;
  for (const CaseReason& reason : reasons) groups[{reason.what, reason.why}].push_back(&reason);
  std::string text;
  for (const auto& [what, cases] : groups) {
    const std::string example = cases.front()->config.key(varying);
    const std::string where = !cases.front()->example || example.empty() ? ""
                              : cases.size() == 1                        ? fmt::format(" ({})", example)
                                                                         : fmt::format(" (first {})", example);
    text += wrapped(fmt::format("{} {}{}: {}", cases.size(), what.first, where, what.second), width, 2);
  }
  return text.empty() ? "" : "\n" + text;
}

}  // namespace attn
