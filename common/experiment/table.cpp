#include "common/experiment/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "common/base/text_table.h"

namespace attn {
namespace {

using Rows = std::vector<std::vector<std::string>>;

/// A column of figures. `cell` gives the text of a result, or an empty text.
struct Column {
  std::string head;
  std::function<std::string(const Measurement&)> cell;
  bool by_default = true;
};

constexpr const char* also = "also";  // the head of the column that several axes share
constexpr size_t room_for_also = 24;  // a longer cell of this column takes several lines
constexpr double almost_all = 0.75;   // an axis with one value in this share of the rows needs no column

std::string percent_of(double part, double whole) { return whole > 0 ? fmt::format("{:.1f}", 100 * part / whole) : ""; }

bool throttled(const Measurement& result) {
  return result.clocks.is_object() && !result.clocks.value("throttle_reasons", Json::array()).empty();
}

std::string time_text(const Timing* timing) { return timing ? format_seconds(timing->median_s) : ""; }

bool launched(const Measurement& result) {
  return result.main_timing() && result.main_timing()->scope == Scope::device_hot;
}

/// The cases that have the words of `options.filter`.
Results selected(const std::vector<Measurement>& results, const TableOptions& options) {
  std::istringstream text(options.filter);
  std::vector<std::string> words;
  for (std::string word; text >> word;) words.push_back(word);
  Results found;
  for (const Measurement& result : results) {
    const std::string key = fmt::format(" {} {} ", result.config.key(), result.status);
    // A word like q_len=1024 must be the whole value of an axis; another word may be any part of the key.
    const auto has = [&](const std::string& word) {
      return key.find(word.find('=') == word.npos ? word : " " + word + " ") != key.npos;
    };
    if (std::ranges::all_of(words, has)) {
      found.push_back(&result);
    }
  }
  return found;
}

/// For each group, the seconds with which the group's cases are compared: the time of the group's fastest case or, with
/// options.baseline, of the fastest case that has the baseline's value. A filter may hide this case from the table.
class Baselines {
 public:
  Baselines(const std::vector<Measurement>& results, const TableOptions& options)
      : axes_(options.compared_axes.begin(), options.compared_axes.end()) {
    if (options.baseline) axes_.insert(options.baseline->name);
    for (const Measurement& result : results) {
      const Timing* time = result.main_timing();
      if (!time) continue;
      const std::string key = result.config.key_without(axes_);
      ++members_[key];
      if (options.baseline && !has_value(result.config, *options.baseline)) continue;
      const auto [place, is_new] = seconds_.emplace(key, time->median_s);
      place->second = std::min(place->second, time->median_s);
    }
  }
  /// "fastest", "baseline" or "1.07x"; empty for a case that is alone in its group.
  std::string text(const Measurement& result, bool fastest) const {
    const Timing* time = result.main_timing();
    if (!time) return "";
    const std::string key = result.config.key_without(axes_);
    const auto found = seconds_.find(key);
    if (found == seconds_.end() || members_.at(key) < 2) return "";
    if (time->median_s == found->second) return fastest ? "fastest" : "baseline";
    return format_ratio(time->median_s / found->second);
  }

 private:
  std::set<std::string> axes_;
  std::map<std::string, double> seconds_;
  std::map<std::string, int> members_;
};

std::vector<Column> columns_of(const Results& results, const Ceilings& ceilings, const Baselines& baselines,
                               const TableOptions& options) {
  double most = 0;
  for (const Measurement* result : results) most = std::max(most, launched(*result) ? result->tflops() : 0);
  const double rate = most < 1 ? 1e3 : 1;
  const auto main = [](const std::function<std::string(const Timing&)>& text) {
    return [text](const Measurement& result) { return result.main_timing() ? text(*result.main_timing()) : ""; };
  };
  // The first columns are kept longest if the table is too wide.
  return {
      {"time", main([](const Timing& time) {
         return fmt::format("{} +-{}%", format_seconds(time.median_s),
                            percent_of((time.ci_hi_s - time.ci_lo_s) / 2, time.median_s));
       })},
      {options.baseline ? fmt::format("vs {}={}", options.baseline->name, to_string(options.baseline->values.front()))
                        : "vs fastest",
       [&](const Measurement& result) { return baselines.text(result, !options.baseline); }},
      {"status",
       [](const Measurement& result) {
         return result.status == "ok" && !throttled(result) ? "" : result.status + (throttled(result) ? " !" : "");
       }},
      {rate > 1 ? "GFLOP/s" : "TFLOP/s",
       [rate](const Measurement& result) {
         return launched(result) && result.tflops() > 0 ? fmt::format("{:.4g}", rate * result.tflops()) : "";
       }},
      {"matrix_%",
       [](const Measurement& result) {
         return result.matrix_pct ? fmt::format("{:.1f}", result.matrix_pct->value) : "";
       }},
      {"cold",
       [](const Measurement& result) {
         const Timing* cold = result.timing(Scope::device_cold);
         return cold == result.main_timing() ? "" : time_text(cold);
       }},
      {"GB/s",
       [](const Measurement& result) {
         const bool memory = result.work && result.work->bound == Bound::memory;
         return result.main_timing() && memory ? fmt::format("{:.4g}", result.gbps()) : "";
       }},
      {"copy_%",
       [](const Measurement& result) { return result.copy_pct ? fmt::format("{:.1f}", result.copy_pct->value) : ""; }},
      {"max_abs",
       [](const Measurement& result) {
         return result.check && !result.main_timing() ? fmt::format("{:.1e}", result.check->max_abs) : "";
       }},
      {"host", [](const Measurement& result) { return time_text(result.timing(Scope::host)); }, false},
      {"hot_GB/s",
       [](const Measurement& result) { return launched(result) ? fmt::format("{:.4g}", result.gbps()) : ""; }, false},
      {"hot_copy_%",
       [&](const Measurement& result) { return launched(result) ? percent_of(result.gbps(), ceilings.copy_gbps) : ""; },
       false},
      {"cv_%", main([](const Timing& time) { return fmt::format("{:.1f}", 100 * time.cv); }), false},
      {"n", main([](const Timing& time) { return std::to_string(time.n); }), false},
      {"stop", main([](const Timing& time) { return time.stop; }), false},
      {"error",
       [](const Measurement& result) { return result.check ? fmt::format("{:.1e}", result.check->max_abs) : ""; },
       false}};
}

/// The most common value of an axis, and the share of the rows that have it.
std::pair<std::string, double> common_value(const Results& rows, const std::string& axis) {
  std::map<std::string, size_t> counts;
  for (const Measurement* row : rows) ++counts[row->config.value_text(axis)];
  const auto most = std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; });
  return {most->first, static_cast<double>(most->second) / static_cast<double>(rows.size())};
}

/// A table of some axes and columns. The axes in `folded` share the last column, which names only the values that
/// differ from the most common value.
Rows rows_of(const Results& results, const std::vector<std::string>& axes, const std::vector<std::string>& folded,
             const std::vector<Column>& columns) {
  Rows rows(1);
  for (const std::string& axis : axes) rows[0].push_back(axis);
  for (const Column& column : columns) rows[0].push_back(column.head);
  if (!folded.empty()) rows[0].emplace_back(also);
  std::map<std::string, std::string> common;
  for (const std::string& axis : folded) common[axis] = common_value(results, axis).first;
  for (const Measurement* result : results) {
    std::vector<std::string> row;
    for (const std::string& axis : axes) row.push_back(result->config.value_text(axis));
    for (const Column& column : columns) row.push_back(column.cell(*result));
    if (!folded.empty()) {
      std::vector<std::string> own;
      for (const std::string& axis : folded) {
        if (result->config.value_text(axis) != common[axis]) own.push_back(result->config.key({axis}));
      }
      row.push_back(fmt::format("{}", fmt::join(own, " ")));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

/// The index at which the shared column begins; npos if there is none.
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

/// One line for each reason of the cases that were skipped, and the whole reasons of the cases that failed.
std::string reasons(const Results& results, const std::vector<std::string>& varying, size_t width) {
  std::map<std::pair<std::string, std::string>, Results> groups;
  for (const Measurement* result : results) {
    if (!result->reason.empty()) groups[{result->status, result->reason}].push_back(result);
  }
  std::string text;
  for (const auto& [why, cases] : groups) {
    const std::string example = cases.front()->config.key(varying);
    const std::string where = why.first == "skipped" || example.empty() ? ""
                              : cases.size() == 1                       ? fmt::format(" ({})", example)
                                                                        : fmt::format(" (first {})", example);
    text += wrapped(fmt::format("{} {}{}: {}", cases.size(), why.first, where, why.second), width, 2);
  }
  return text.empty() ? "" : "\n" + text;
}

}  // namespace

bool has_value(const Case& config, const Axis& axis) {
  return config.value_text(axis.name) == to_string(axis.values.front());
}

std::string table(const std::vector<Measurement>& results, const Ceilings& ceilings, const TableOptions& options) {
  const Results all = selected(results, options);
  if (all.empty()) return results.empty() ? "no cases\n" : fmt::format("no case has \"{}\"\n", options.filter);
  std::vector<Case> cases;
  for (const Measurement* result : all) cases.push_back(result->config);
  const std::vector<std::string> varying_of_all = varying_axes(cases);
  Results rows = all;
  std::erase_if(rows, [](const Measurement* result) { return result->status == "skipped"; });
  const std::string below = reasons(all, varying_of_all, options.width);
  if (rows.empty()) return "no case ran\n" + below;

  cases.clear();
  for (const Measurement* row : rows) cases.push_back(row->config);
  std::vector<std::string> axes, said, folded;
  const std::vector<std::string> varying = varying_axes(cases);
  for (const auto& [axis, value] : cases.front().axes()) {
    const auto equal = std::ranges::find_if(axes, [&](const std::string& other) {
      return std::ranges::all_of(
          rows, [&](const Measurement* row) { return row->config.value_text(axis) == row->config.value_text(other); });
    });
    if (std::ranges::find(varying, axis) == varying.end()) {
      said.push_back(cases.front().key({axis}));
    } else if (equal != axes.end()) {
      said.push_back(axis + "=" + *equal);
    } else {
      axes.push_back(axis);
    }
  }
  const Baselines baselines(results, options);
  std::vector<Column> columns = columns_of(rows, ceilings, baselines, options);
  std::erase_if(columns, [&](const Column& column) {
    return std::ranges::all_of(rows, [&](const Measurement* row) { return column.cell(*row).empty(); });
  });
  std::vector<std::string> dropped;
  if (!options.all_columns) {
    std::erase_if(columns, [](const Column& column) { return !column.by_default; });
  }
  const auto text = [&] { return text_table(rows_of(rows, axes, folded, columns), Align::right); };
  const auto too_wide = [&] { return !options.all_columns && width_of(text()) > options.width; };
  const auto fold = [&](double share) {  // folds the axis whose values differ in the fewest rows
    const auto most =
        std::ranges::max_element(axes, {}, [&](const std::string& axis) { return common_value(rows, axis).second; });
    if (most == axes.end() || common_value(rows, *most).second < share) return false;
    folded.push_back(*most);
    axes.erase(most);
    return true;
  };
  while (too_wide() && fold(almost_all)) {
  }
  while (too_wide() && columns.size() > 1) {
    dropped.insert(dropped.begin(), columns.back().head);
    columns.pop_back();
  }
  while (too_wide() && fold(0)) {
  }

  std::vector<std::string> unless_said;
  for (const std::string& axis : folded) unless_said.push_back(axis + "=" + common_value(rows, axis).first);
  std::string above = said.empty() ? "" : wrapped(fmt::format("{}", fmt::join(said, " ")), options.width, 0);
  if (!unless_said.empty()) {
    above +=
        wrapped(fmt::format("where `also` does not say otherwise: {}", fmt::join(unless_said, " ")), options.width, 0);
  }
  std::string body = text();
  if (!options.all_columns) {
    const size_t place = place_of_also(body), indent = place == body.npos ? 2 : std::min(place, options.width / 2);
    std::istringstream lines(std::exchange(body, {}));
    for (std::string line; std::getline(lines, line);) body += wrapped(line, options.width, indent);
  }
  if (!dropped.empty()) {
    body += wrapped(fmt::format("left out for width: {}; --columns all shows them", fmt::join(dropped, ", ")),
                    options.width, 0);
  }
  return above + body + below;
}

std::string csv(const std::vector<Measurement>& results, const Ceilings& ceilings, const TableOptions& options) {
  const Results rows = selected(results, options);
  std::vector<std::string> axes;
  for (const Measurement* row : rows) {
    for (const auto& [axis, value] : row->config.axes()) {
      if (std::ranges::find(axes, axis) == axes.end()) axes.push_back(axis);
    }
  }
  const Baselines baselines(results, options);
  const auto quoted = [](const std::string& cell) {
    if (cell.find_first_of(",\"\n") == cell.npos) return cell;
    std::string text = "\"";
    for (const char c : cell) text += c == '"' ? "\"\"" : std::string(1, c);
    return text + "\"";
  };
  const auto number = [](double value) { return value > 0 ? fmt::format("{:.6g}", value) : ""; };
  std::string text = fmt::format(
      "{},id,status,reason,scope,median_s,ci_lo_s,ci_hi_s,cv,n,stop,cold_s,host_s,vs,tflops,matrix_pct,gbps,copy_pct,"
      "max_abs\n",
      fmt::join(axes, ","));
  for (const Measurement* row : rows) {
    std::vector<std::string> cells;
    for (const std::string& axis : axes) cells.push_back(quoted(row->config.value_text(axis)));
    const Timing* main = row->main_timing();
    const auto median_of = [&](Scope scope) { return row->timing(scope) ? number(row->timing(scope)->median_s) : ""; };
    for (const std::string& cell :
         {row->id, row->status, row->reason, main ? std::string(name(main->scope)) : "",
          main ? number(main->median_s) : "", main ? number(main->ci_lo_s) : "", main ? number(main->ci_hi_s) : "",
          main ? number(main->cv) : "", main ? std::to_string(main->n) : "", main ? main->stop : "",
          median_of(Scope::device_cold), median_of(Scope::host), baselines.text(*row, !options.baseline),
          number(row->tflops()), row->matrix_pct ? number(row->matrix_pct->value) : "", number(row->gbps()),
          percent_of(row->gbps(), ceilings.copy_gbps), row->check ? fmt::format("{:.1e}", row->check->max_abs) : ""}) {
      cells.push_back(quoted(cell));
    }
    text += fmt::format("{}\n", fmt::join(cells, ","));
  }
  return text;
}

}  // namespace attn
