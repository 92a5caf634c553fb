#include "common/experiment/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "common/base/text_table.h"
#include "common/experiment/report.h"
#include "common/records/case_table.h"

namespace attn {
namespace {

/// A column of figures. `cell` gives the text of a result, or an empty text.
struct Column {
  std::string head;
  std::function<std::string(const Measurement&)> cell;
  bool by_default = true;
};

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
  /// "fastest", "baseline" or "1.07x"; empty for a case that was not timed or has nothing to be compared with.
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
  // If the table is too wide, the last columns are left out first.
  return {
      {"time", main(format_time)},
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
       [&](const Measurement& result) {
         return launched(result) && ceilings.copy_gbps > 0
                    ? fmt::format("{:.1f}", 100 * result.gbps() / ceilings.copy_gbps)
                    : "";
       },
       false},
      {"cv_%", main([](const Timing& time) { return fmt::format("{:.1f}", 100 * time.cv); }), false},
      {"n", main([](const Timing& time) { return std::to_string(time.n); }), false},
      {"stop", main([](const Timing& time) { return time.stop; }), false},
      {"error",
       [](const Measurement& result) { return result.check ? fmt::format("{:.1e}", result.check->max_abs) : ""; },
       false}};
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
  std::vector<CaseReason> reasons;
  Results rows;
  for (const Measurement* result : all) {
    const bool ran = result->status != "skipped";
    if (ran) rows.push_back(result);
    if (!result->reason.empty()) reasons.push_back({result->status, result->reason, result->config, ran});
  }
  const std::string below = reasons_text(reasons, varying_axes(cases), options.width);
  if (rows.empty()) return "no case ran\n" + below;

  const Baselines baselines(results, options);
  std::vector<Column> columns = columns_of(rows, ceilings, baselines, options);
  if (!options.all_columns) {
    std::erase_if(columns, [](const Column& column) { return !column.by_default; });
  }
  CaseTable shown = {.heads = {},
                     .rows = {},
                     .width = options.width,
                     .any_width = options.all_columns,
                     .remedy = "--columns all shows them"};
  for (const Column& column : columns) shown.heads.push_back(column.head);
  for (const Measurement* row : rows) {
    CaseRow& added = shown.rows.emplace_back(CaseRow{row->config, {}});
    for (const Column& column : columns) added.cells.push_back(column.cell(*row));
  }
  return case_table(std::move(shown)) + below;
}

std::string csv(const std::vector<Measurement>& results, const TableOptions& options) {
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
          row->copy_pct ? number(row->copy_pct->value) : "",
          row->check ? fmt::format("{:.1e}", row->check->max_abs) : ""}) {
      cells.push_back(quoted(cell));
    }
    text += fmt::format("{}\n", fmt::join(cells, ","));
  }
  return text;
}

}  // namespace attn
