#include "common/records/decisions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <ranges>
#include <set>
#include <sstream>
#include <utility>

#include "common/base/text_table.h"
#include "common/records/claim.h"
#include "common/records/questions.h"
#include "common/records/spread.h"

namespace attn {
namespace {

constexpr size_t most_names = 4;  // the most options in a list
/// An option that takes at most this many times the time of the best is as good: less is no reason to choose. The claim
/// `best_tile` calls a tile the clear best from the same ratio on.
constexpr double as_good_up_to = 1.02;
constexpr const char* either = "either";

// ---- cases

/// The case's axes without `left_out`, in the order of their names: the same for cases with their axes in any order.
std::string key_of(const Case& config, const std::set<std::string>& left_out = {}) {
  std::map<std::string, std::string> axes;
  for (const auto& [axis, value] : config.axes()) {
    if (!left_out.contains(axis)) axes[axis] = to_string(value);
  }
  std::string key;
  for (const auto& [axis, value] : axes) key += axis + "=" + value + " ";
  return key;
}

Case without(const Case& config, const std::set<std::string>& left_out) {
  Case rest;
  for (const auto& [axis, value] : config.axes()) {
    if (!left_out.contains(axis)) rest.set(axis, value);
  }
  return rest;
}

std::optional<int64_t> number_of(const std::string& text) {
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end ? std::optional(number) : std::nullopt;
}

Case case_of_subject(const std::string& subject) {
  Case config;
  std::istringstream words(subject);
  for (std::string word; words >> word;) {
    const size_t at = word.find('=');
    if (at == word.npos) continue;
    const std::string value = word.substr(at + 1);
    const std::optional<int64_t> number = number_of(value);
    config.set(word.substr(0, at), number ? AxisValue(*number) : AxisValue(value));
  }
  return config;
}

const std::set<std::string> length_axes = {"q_len", "kv_len"};

int64_t length_of(const Case& config, const std::string& axis) {
  return number_of(config.value_text(axis)).value_or(0);
}

std::string range(const std::vector<int64_t>& values) {
  const auto [low, high] = std::ranges::minmax(values);
  return low == high ? std::to_string(low) : fmt::format("{} to {}", low, high);
}

/// Fills "{axis}" in a text. Adds the axes to `used`.
std::string filled(std::string text, const std::string& hypothesis, const std::vector<const Case*>& cases,
                   std::set<std::string>* used = nullptr) {
  for (size_t at = 0; (at = text.find('{', at)) != text.npos;) {
    const size_t end = text.find('}', at);
    const std::string axis = text.substr(at + 1, end - at - 1);
    std::vector<int64_t> numbers;
    for (const Case* one : cases) numbers.push_back(length_of(*one, axis));
    const std::string value = axis == "claim"                                          ? hypothesis
                              : std::ranges::min(numbers) == std::ranges::max(numbers) ? cases.front()->value_text(axis)
                                                                                       : range(numbers);
    text.replace(at, end - at + 1, value);
    at += value.size();  // a value may have a brace
    if (used) used->insert(axis);
  }
  return text;
}

/// Writes cases for people: type, head_dim, mask, heads and lengths, then each other axis whose value is not that of
/// more than half of `all`.
class Labels {
 public:
  Labels(const std::vector<Case>& all, std::set<std::string> left_out) : left_out_(std::move(left_out)) {
    std::map<std::string, std::map<std::string, size_t>> counts;
    for (const Case& config : all) {
      for (const auto& [axis, value] : config.axes()) ++counts[axis][to_string(value)];
    }
    for (const auto& [axis, values] : counts) {
      for (const auto& [value, count] : values) {
        if (2 * count > all.size()) usual_[axis] = value;
      }
    }
  }

  /// `cases` differ only in lengths, and in axes that are left out.
  std::string text(const std::vector<const Case*>& cases) const {
    const Case& config = *cases.front();
    const auto value = [&](const char* axis) { return config.value_text(axis); };
    const auto shown = [&](const char* axis) { return config.has(axis) && !left_out_.contains(axis); };
    std::vector<std::string> words;
    if (shown("dtype")) words.push_back(value("dtype"));
    if (shown("head_dim") && value("head_dim") != "0") words.push_back("D=" + value("head_dim"));
    const bool decodes = config.has("q_len") && config.has("kv_len") && value("q_len") == "1";
    if (shown("causal") && !decodes) words.push_back(value("causal") == "0" ? "full" : "causal");
    const std::string heads = config.has("q_heads") ? value("q_heads") : value("heads");
    const bool grouped = config.has("kv_heads") && value("kv_heads") != heads;
    if (!heads.empty()) {
      words.push_back(fmt::format("{}{}{} {}", config.has("batch") ? value("batch") + " x " : "", heads,
                                  grouped ? "/" + value("kv_heads") : "", heads == "1" ? "head" : "heads"));
    }
    const std::string axis = decodes || !config.has("q_len") ? "kv_len" : "q_len";
    if (config.has(axis) && value(axis.c_str()) != "1") {
      std::vector<int64_t> lengths;
      for (const Case* one : cases) lengths.push_back(length_of(*one, axis));
      const bool uneven = !decodes && config.has("kv_len") && config.has("q_len") && value("kv_len") != value("q_len");
      words.push_back(uneven ? fmt::format("{} on {} tokens", range(lengths), value("kv_len"))
                             : range(lengths) + " tokens");
    }
    static const std::set<std::string> told = {"dtype", "head_dim", "causal", "batch",  "q_heads",
                                               "heads", "kv_heads", "q_len",  "kv_len", "value_dim"};
    for (const auto& [name, one] : config.axes()) {
      if (told.contains(name) || left_out_.contains(name)) continue;
      if (name == "out_dtype" && to_string(one) == value("dtype")) continue;  // the default
      const bool uneven = name == "lengths" && std::holds_alternative<std::string>(one) && to_string(one) != "equal";
      const auto usual = usual_.find(name);
      if (!uneven && usual != usual_.end() && usual->second == to_string(one)) continue;
      words.push_back(uneven ? to_string(one) + " lengths" : name + "=" + to_string(one));
    }
    return fmt::format("{}", fmt::join(words, ", "));
  }

 private:
  std::map<std::string, std::string> usual_;
  std::set<std::string> left_out_;
};

/// The axes of cases that differ only in `merged`; such an axis has all values.
Json where_of(const std::vector<const Case*>& cases, const std::set<std::string>& merged) {
  Json where = cases.front()->json();
  for (const std::string& axis : merged) {
    if (!where.contains(axis)) continue;
    Json values = Json::array();
    for (const Case* one : cases) values.push_back(one->json().at(axis));
    if (std::ranges::any_of(values, [&](const Json& value) { return value != values[0]; })) where[axis] = values;
  }
  return where;
}

// ---- figures

/// The unit of a claim's figures: "x" for a ratio of times; else a unit, such as "%", or "".
std::string unit_of(const std::string& metric) {
  const std::string first = metric.substr(0, metric.find(' '));
  if (first == "%" || kind_of(false, metric) == FigureKind::absolute) return first;
  const bool of_times = metric.find("time") != metric.npos && metric.find(" / ") != metric.npos;
  return of_times ? "x" : "";
}

/// Returns "0.52x to 0.55x", "1.70 to 37.4 ns" or, with the interval of the next run, "1.02x [1.01 to 1.03]". A time
/// has the unit that fits `high`. Only noise makes a time negative: it is shown as 0.
std::string figure_text(double low, double high, std::string unit, const std::optional<Estimate>& next = {}) {
  static const std::vector<std::pair<std::string, double>> times = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}};
  double scale = 1, least = -INFINITY;
  if (const auto own = std::ranges::find(times, unit, &std::pair<std::string, double>::first); own != times.end()) {
    const auto fits =
        std::ranges::find_if(times, [&](const auto& time) { return high * own->second >= 0.9995 * time.second; });
    const auto& shown = fits == times.end() ? times.back() : *fits;
    scale = own->second / shown.second;
    least = 0;
    unit = shown.first;
  }
  if (unit == "TFLOPS" && high < 1) scale = 1e3, unit = "GFLOPS";
  const bool whole = low == std::round(low) && high == std::round(high) && unit != "x" && scale == 1;
  const auto text = [&](double value) {
    value = std::max(least, scale * value);
    return (whole && value == std::round(value)) || value == 0 ? fmt::format("{:.0f}", value) : three_digits(value);
  };
  const auto span = [&](double from, double to, const std::string& tail) {
    return text(from) == text(to) ? text(from) + tail : fmt::format("{}{} to {}{}", text(from), tail, text(to), tail);
  };
  const std::string each = unit == "x" ? unit : "", last = unit.empty() || unit == "x" ? "" : " " + unit;
  const bool bounded = !next || next->ci_lo <= 0 || next->ci_hi < 1e6 * next->ci_lo;
  const std::string brackets = !next     ? ""
                               : bounded ? fmt::format(" [{}]", span(next->ci_lo, next->ci_hi, ""))
                                         : " [no bound]";
  return span(low, high, each) + brackets + last;
}

std::string list_of(const std::vector<std::string>& names) {
  const std::vector<std::string> first(names.begin(),
                                       names.begin() + static_cast<std::ptrdiff_t>(std::min(most_names, names.size())));
  const std::string more = names.size() > most_names ? fmt::format(" and {} more", names.size() - most_names) : "";
  return fmt::format("{}{}", fmt::join(first, ", "), more);
}

/// A row without texts: the fields of decisions.h, with empty values.
Json empty_row() {
  return {{"what", ""},
          {"case", ""},
          {"where", nullptr},
          {"take", ""},
          {"as_good", Json::array()},
          {"default", nullptr},
          {"slower", Json::array()},
          {"options", 0},
          {"figure", ""},
          {"low", nullptr},
          {"high", nullptr},
          {"tflops", nullptr},
          {"share", nullptr},
          {"runs", 0},
          {"day", ""},
          {"today", true},
          {"example", false},
          {"id", ""}};
}

/// Adds the day of one of the row's cases. Of a row that has cases of older kernels, `day` is the latest of their days.
void add_day(Json& row, const std::string& day, bool today) {
  const bool kept = row.at("today");
  const std::string known = row.at("day");
  if (today == kept) {
    row["day"] = std::max(known, day);
  } else if (kept) {
    row["day"] = day;
  }
  row["today"] = kept && today;
}

// ---- choices among measurements

bool is_timed(const Measurement& result) {
  const Timing* time = result.main_timing();
  return result.status == "ok" && time && time->n > 0;
}

std::string option_of(const Choice& choice, const Case& config) {
  std::vector<std::string> values;
  for (const std::string& axis : choice.axes) {
    const std::string text = config.value_text(axis);
    if (!text.empty() && text != "none") values.push_back(text);
  }
  return fmt::format("{}", fmt::join(values, choice.between));
}

std::string code_of(const Measurement& result) {
  std::string code;
  for (const Json& kernel : result.kernels()) code += kernel.value("code_sha256", "") + "\n";
  return code;
}

/// The ratio option / base, as one run measured it: by their comparison, or else by their times.
Session ratio_in(const MeasuredRun& run, const Measurement& option, const Measurement& base) {
  Session session;
  for (const Comparison& comparison : run.comparisons) {
    const bool straight = comparison.contender == option.config && comparison.baseline == base.config;
    const bool turned = comparison.baseline == option.config && comparison.contender == base.config;
    if (!straight && !turned) continue;
    for (const Comparison& one : comparison.parts.empty() ? std::vector{comparison} : comparison.parts) {
      Part part = ratio_part(one);
      if (turned) part.error /= part.value * part.value, part.value = 1 / part.value;
      session.push_back(part);
    }
    return session;
  }
  const auto relative = [](const Timing& time) { return standard_error(time.ci_lo_s, time.ci_hi_s) / time.median_s; };
  const Timing &a = *option.main_timing(), &b = *base.main_timing();
  const double value = a.median_s / b.median_s;
  return {{1, value, value * std::hypot(relative(a), relative(b)), std::min(a.rounds, b.rounds)}};
}

struct Option {
  std::string name;
  const Measurement* result = nullptr;  // of the reference run
  double ratio = 1;                     // its time / the time of the best, over all runs
  bool good = true;
};

/// The results of each run, in order of time.
using Runs = std::vector<std::pair<const MeasuredRun*, Results>>;

/// A combination of values of the axes that are no choice, as its reference run measured it: the latest run that
/// compared at least half as many options as any run.
struct Shape {
  Case config;
  std::vector<Option> options;  // the fastest first; the first is the best
  const Runs* runs = nullptr;   // that measured it
  std::string day;
  std::string fallback;  // the option that the experiment chooses by itself; empty: unknown

  const Option* option(const std::string& name) const {
    const auto own = std::ranges::find(options, name, &Option::name);
    return own == options.end() ? nullptr : &*own;
  }
};

/// The result of the same case with the same code, or null.
const Measurement* same(const Results& results, const Measurement& wanted) {
  const auto at = std::ranges::find_if(results, [&](const Measurement* one) {
    return one->config == wanted.config && code_of(*one) == code_of(wanted);
  });
  return at == results.end() ? nullptr : *at;
}

/// What the runs that compared an option with others say about it: geometric means, as pool() makes them.
struct OptionFigures {
  size_t runs = 0;
  double time_s = 0;
  std::optional<double> share;  // of the arithmetic ceiling, in per cent
};

class Chooser {
 public:
  Chooser(const Choice& choice, const DecisionInput& input)
      : choice_(choice), input_(input), free_(choice.axes.begin(), choice.axes.end()) {
    free_.insert(choice.own_axes.begin(), choice.own_axes.end());
    for (const Json& claim : input.claims) {
      const std::string metric = claim.at("metric");
      const Json pair = claim.value("pair", Json());
      if (pair.is_array() && metric.starts_with("time ") && metric.find(" / ") != metric.npos) {
        pairs_[{key_of(Case::from_json(pair.at(0))), key_of(Case::from_json(pair.at(1)))}].push_back(&claim);
      }
    }
    std::vector<std::string> order;  // of the first results
    for (const MeasuredRun* run : input.runs) {
      for (const Measurement& result : run->results) {
        const bool has_axes =
            std::ranges::all_of(choice.axes, [&](const std::string& axis) { return result.config.has(axis); });
        if (!has_axes || !is_timed(result) || (choice.takes && !choice.takes(result.config))) continue;
        if (is_below_start(result.config)) continue;
        const std::string key = key_of(result.config, free_);
        if (!found_.contains(key)) order.push_back(key);
        Runs& runs = found_[key];
        if (runs.empty() || runs.back().first != run) runs.emplace_back(run, Results());
        runs.back().second.push_back(&result);
      }
    }
    for (const std::string& key : order) {
      const Runs& runs = found_[key];
      const size_t most = std::ranges::max(runs, {}, [](const auto& own) { return own.second.size(); }).second.size();
      if (most < choice.at_least) continue;
      const auto whole = [&](const auto& own) {
        return own.second.size() >= std::max((most + 1) / 2, choice.at_least);
      };
      Shape shape = shape_of(runs, *std::find_if(runs.rbegin(), runs.rend(), whole));
      if (shape.options.size() >= choice.at_least) shapes_.push_back(std::move(shape));
    }
    for (const Shape& shape : shapes_) {
      for (const Option& option : shape.options) {
        Rank& rank = ranks_[option.name];
        rank.good += option.good;
        ++rank.shapes;
        rank.logarithms += std::log(option.ratio);
      }
    }
  }

  const std::vector<Shape>& shapes() const { return shapes_; }

  /// Sorts options by how far they serve: as good in the most shapes; of several, the fastest on average. So noise in
  /// one shape does not choose among options that are as good in it.
  void sort(std::vector<std::string>& options) const {
    std::ranges::stable_sort(options, {}, [&](const std::string& name) {
      const Rank& rank = ranks_.at(name);
      return std::pair(-rank.good, rank.logarithms / rank.shapes);
    });
  }

  /// Returns the time of an option / the time of another one, with the interval of the next run. A claim about the pair
  /// decides, so that a row does not contradict its claims; of several, the one that is the surest of a difference. A
  /// claim of older kernels does not count for today's.
  Estimate ratio(const Runs& runs, const Measurement& option, const Measurement& base) const {
    if (&option == &base) return {1, 1, 1};
    std::optional<Estimate> told;
    const bool today = !input_.today || (input_.today(option) && input_.today(base));
    for (const bool turned : {false, true}) {
      const auto found = pairs_.find(turned ? std::pair{key_of(option.config), key_of(base.config)}
                                            : std::pair{key_of(base.config), key_of(option.config)});
      if (found == pairs_.end()) continue;
      for (const Json* claim : found->second) {
        if (today && !claim->value("today", true)) continue;
        const Json& estimate = claim->at("estimate");
        const double value = estimate.at("value"), low = estimate.at("next_lo"), high = estimate.at("next_hi");
        if (value <= 0 || low <= 0 || high <= 0) continue;
        const Estimate one = turned ? Estimate{1 / value, 1 / high, 1 / low} : Estimate{value, low, high};
        if (!told || one.ci_lo > told->ci_lo) told = one;
      }
    }
    if (told) return *told;
    std::vector<Session> sessions;
    for (const auto& [run, results] : runs) {
      const Measurement *a = same(results, option), *b = same(results, base);
      if (a && b) sessions.push_back(ratio_in(*run, *a, *b));
    }
    const Pooled pooled = pool(sessions, spread_of(input_.device, input_.experiment, "", FigureKind::ratio), true);
    return {pooled.value, pooled.next_lo, pooled.next_hi};
  }

  OptionFigures figures(const Shape& shape, const Option& option) const {
    OptionFigures found;
    double times = 0, shares = 0;  // sums of logarithms
    bool has_shares = true;
    for (const auto& [run, results] : *shape.runs) {
      const Measurement* own = same(results, *option.result);
      const auto is_other = [&](const Option& one) { return &one != &option && same(results, *one.result); };
      if (!own || std::ranges::none_of(shape.options, is_other)) continue;
      ++found.runs;
      times += std::log(own->main_timing()->median_s);
      has_shares = has_shares && own->matrix_pct && own->matrix_pct->value > 0;
      if (has_shares) shares += std::log(own->matrix_pct->value);
    }
    const auto count = static_cast<double>(found.runs);
    found.time_s = std::exp(times / count);
    if (has_shares) found.share = std::exp(shares / count);
    return found;
  }

 private:
  struct Rank {
    int good = 0;
    double shapes = 0, logarithms = 0;
  };

  /// Whether a claim `Choice::from` says that the choice is of use only for longer cases than this one.
  bool is_below_start(const Case& config) const {
    return std::ranges::any_of(input_.claims, [&](const Json& claim) {
      if (choice_.from.empty() || claim.at("hypothesis") != choice_.from) return false;
      const Case about = case_of_subject(claim.at("subject"));
      return length_of(config, "q_len") < claim.at("estimate").at("value").get<double>() &&
             std::ranges::all_of(
                 about.axes(),
                 [&](const auto& axis) {
                   return free_.contains(axis.first) || config.value_text(axis.first) == to_string(axis.second);
                 });
    });
  }

  Shape shape_of(const Runs& runs, const Runs::value_type& reference) const {
    const auto& [run, results] = reference;
    const Measurement* best = fastest(results);
    std::vector<Option> options = ranked(results, *best, runs);
    if (options.front().result != best) {  // all runs together say that another option is the fastest
      best = options.front().result;
      options = ranked(results, *best, runs);
      // Ratios of three noisy times may disagree about an order. The best is the one that was chosen.
      const auto chosen = std::ranges::find(options, best, &Option::result);
      std::rotate(options.begin(), chosen, chosen + 1);
    }
    Shape shape = {without(best->config, free_), std::move(options), &runs, run->ts.substr(0, 10), {}};
    Case config = shape.config;
    if (input_.complete) input_.complete(config);
    const bool known = std::ranges::all_of(choice_.axes, [&](const std::string& axis) { return config.has(axis); });
    shape.fallback = known ? option_of(choice_, config) : claimed_default(shape);
    return shape;
  }

  /// The options by their ratios. An option is as good as the best if neither its next run nor that of a faster option
  /// is expected above as_good_up_to. Of several results of one option the fastest counts.
  std::vector<Option> ranked(const Results& results, const Measurement& best, const Runs& runs) const {
    std::vector<std::pair<Estimate, const Measurement*>> ratios;
    for (const Measurement* result : results) ratios.emplace_back(ratio(runs, *result, best), result);
    std::ranges::stable_sort(ratios, {}, [](const auto& one) { return one.first.value; });
    std::vector<Option> options;
    bool good = true;
    for (const auto& [ratio, result] : ratios) {
      const std::string name = option_of(choice_, result->config);
      if (std::ranges::find(options, name, &Option::name) != options.end()) continue;
      good = good && ratio.ci_lo <= as_good_up_to;
      options.push_back({name, result, ratio.value, good});
    }
    return options;
  }

  std::string claimed_default(const Shape& shape) const {
    for (const auto& [keys, claims] : pairs_) {
      for (const Json* claim : claims) {
        if (claim->at("hypothesis") != "default_tile") continue;
        const Case contender = Case::from_json(claim->at("pair").at(1));
        if (key_of(contender, free_) == key_of(shape.config)) return option_of(choice_, contender);
      }
    }
    return {};
  }

  const Choice& choice_;
  const DecisionInput& input_;
  std::set<std::string> free_;
  std::map<std::pair<std::string, std::string>, std::vector<const Json*>> pairs_;
  std::map<std::string, Runs> found_;  // by the key of the shape
  std::vector<Shape> shapes_;          // in the order of their first results
  std::map<std::string, Rank> ranks_;  // of the options
};

/// The options that are as good as the best in all shapes.
std::vector<std::string> good_in_all(const std::vector<const Shape*>& shapes) {
  std::vector<std::string> good;
  for (const Option& option : shapes.front()->options) {
    const bool all = std::ranges::all_of(shapes, [&](const Shape* shape) {
      const Option* own = shape->option(option.name);
      return own && own->good;
    });
    if (all) good.push_back(option.name);
  }
  return good;
}

Json choice_row(const Choice& choice, const Chooser& chooser, const std::vector<const Shape*>& shapes,
                const Labels& labels, const DecisionInput& input) {
  std::vector<std::string> good = good_in_all(shapes);
  chooser.sort(good);
  const std::string fallback = shapes.front()->fallback;
  const auto usual = std::ranges::find(good, fallback);
  if (usual != good.end()) std::rotate(good.begin(), usual, usual + 1);
  const std::string take = good.front();
  // The largest ratio to what the row says to take, or null if a shape lacks the option.
  const auto against_taken = [&](const std::string& name) -> Json {
    Estimate most;
    for (const Shape* shape : shapes) {
      const Option* own = shape->option(name);
      if (!own) return nullptr;
      const Estimate ratio = chooser.ratio(*shape->runs, *own->result, *shape->option(take)->result);
      if (ratio.value > most.value) most = ratio;
    }
    return {{"option", name}, {"ratio", most.value}, {"next_lo", most.ci_lo}, {"next_hi", most.ci_hi}};
  };
  std::vector<const Case*> cases;
  std::vector<size_t> runs;
  std::vector<double> times, rates, shares;
  Json row = empty_row();
  for (const Shape* shape : shapes) {
    const Option& taken = *shape->option(take);
    const OptionFigures figures = chooser.figures(*shape, taken);
    const Measurement& result = *taken.result;
    cases.push_back(&shape->config);
    runs.push_back(figures.runs);
    times.push_back(figures.time_s);
    if (result.work && result.work->bound != Bound::memory && result.tflops() > 0)
      rates.push_back(result.tflops() * result.main_timing()->median_s / figures.time_s);
    if (figures.share) shares.push_back(*figures.share);
    row["options"] = std::max(row["options"].get<size_t>(), shape->options.size());
    add_day(row, shape->day, !input.today || std::ranges::all_of(shape->options, [&](const Option& option) {
              return input.today(*option.result);
            }));
  }
  row["what"] = choice.what;
  row["case"] = labels.text(cases);
  row["where"] = where_of(cases, length_axes);
  row["take"] = take;
  row["as_good"] = std::vector(good.begin() + 1, good.end());
  row["default"] = against_taken(fallback);
  for (const Option& option : shapes.front()->options) {
    if (std::ranges::find(good, option.name) != good.end()) continue;
    if (Json ratio = against_taken(option.name); !ratio.is_null()) row["slower"].push_back(std::move(ratio));
  }
  row["id"] = shapes.front()->option(take)->result->id;
  row["runs"] = std::ranges::min(runs);
  const bool rated = rates.size() == shapes.size();
  const auto [low, high] = std::ranges::minmax(rated ? rates : times);
  row["low"] = low;
  row["high"] = high;
  row["figure"] = figure_text(low, high, rated ? "TFLOPS" : "s");
  if (rated) row["tflops"] = high;
  if (rated && shares.size() == shapes.size()) {
    const auto [least, most] = std::ranges::minmax(shares);
    row["share"] = most;
    row["figure"] = fmt::format("{} ({})", row["figure"].get<std::string>(), figure_text(least, most, "%"));
  }
  return row;
}

/// Rows of a choice: shapes that differ only in length share a row while some option is as good as the best in all of
/// them.
std::vector<Json> choice_rows(const Choice& choice, const DecisionInput& input) {
  const Chooser chooser(choice, input);
  std::vector<Case> cases;
  std::map<std::string, std::vector<const Shape*>> groups;
  std::vector<std::string> order;
  for (const Shape& shape : chooser.shapes()) {
    cases.push_back(shape.config);
    const std::string key = key_of(shape.config, length_axes);
    if (!groups.contains(key)) order.push_back(key);
    groups[key].push_back(&shape);
  }
  const Labels labels(cases, {});
  std::vector<Json> rows;
  for (const std::string& key : order) {
    std::vector<const Shape*>& own = groups[key];
    std::ranges::stable_sort(own, {}, [](const Shape* shape) {
      return std::pair(length_of(shape->config, "q_len"), length_of(shape->config, "kv_len"));
    });
    const auto even = [](const Shape* shape) {
      return !shape->config.has("q_len") || !shape->config.has("kv_len") ||
             length_of(shape->config, "q_len") == length_of(shape->config, "kv_len");
    };
    std::vector<const Shape*> some;
    for (const Shape* shape : own) {
      std::vector<const Shape*> more = some;
      more.push_back(shape);
      // Two cases with other lengths of keys than of queries have no order.
      const bool joins =
          some.empty() ||
          (!good_in_all(more).empty() && even(shape) == even(some.front()) &&
           (even(shape) || length_of(shape->config, "q_len") == length_of(some.front()->config, "q_len")) &&
           shape->fallback == some.front()->fallback && shape->day == some.front()->day);
      if (!joins) {
        rows.push_back(choice_row(choice, chooser, some, labels, input));
        some.clear();
      }
      some.push_back(shape);
    }
    rows.push_back(choice_row(choice, chooser, some, labels, input));
  }
  return rows;
}

// ---- claims

/// A claim as a row sees it.
struct ToldFigure {
  const Json* claim;
  Case config;
  std::string what, take;
  double value = 0, low = 0, high = 0;  // `low` and `high`: of the next run
  bool exact = false;
};

Json told_row(const Told& told, const std::vector<ToldFigure>& some, const Labels& labels,
              const std::set<std::string>& merged) {
  Json row = empty_row();
  std::vector<const Case*> cases;
  double low = some.front().value, high = low, next_lo = some.front().low, next_hi = some.front().high;
  bool exact = true;
  for (const ToldFigure& one : some) {
    cases.push_back(&one.config);
    low = std::min(low, one.value);
    high = std::max(high, one.value);
    next_lo = std::min(next_lo, one.low);
    next_hi = std::max(next_hi, one.high);
    exact = exact && one.exact;
    const size_t runs = one.claim->at("findings").size();
    row["runs"] = &one == &some.front() ? runs : std::min(row["runs"].get<size_t>(), runs);
    add_day(row, one.claim->at("ts").get<std::string>().substr(0, 10), one.claim->value("today", true));
  }
  const std::string id = some.front().claim->at("hypothesis");
  const std::string unit = told.unit.empty() ? unit_of(some.front().claim->at("metric")) : told.unit;
  const double scale = unit == "%" && !told.unit.empty() ? 100 : 1;
  row["what"] = filled(told.what, id, cases);
  row["case"] = labels.text(cases);
  row["where"] = where_of(cases, merged);
  row["take"] = filled(some.front().take, id, cases);
  row["low"] = low;
  row["high"] = high;
  const Estimate next = {low, next_lo, next_hi};
  row["figure"] = figure_text(scale * low, scale * high, unit, exact ? std::nullopt : std::optional(next));
  row["id"] = some.front().claim->at("latest");
  return row;
}

std::vector<Json> told_rows(const Told& told, const DecisionInput& input) {
  std::vector<ToldFigure> figures;
  std::vector<Case> cases;
  std::set<std::string> used;
  for (const Json& claim : input.claims) {
    const std::string id = claim.at("hypothesis");
    if (!tells(told, id, claim.at("metric"))) continue;
    const Json& estimate = claim.at("estimate");
    ToldFigure one = {.claim = &claim,
                      .config = case_of_subject(claim.at("subject")),
                      .what = {},
                      .take = {},
                      .value = estimate.at("value"),
                      .low = estimate.value("next_lo", estimate.at("value").get<double>()),
                      .high = estimate.value("next_hi", estimate.at("value").get<double>()),
                      .exact = estimate.value("scale", "log") == "exact"};
    if (!told.take.empty())
      one.take = one.high < 1 / as_good_up_to ? told.take : one.low > as_good_up_to ? told.other : either;
    std::string what = told.what;  // without the axis over which cases are merged
    if (!told.over.empty()) what.replace(what.find("{" + told.over + "}"), told.over.size() + 2, "");
    one.what = filled(what, id, {&one.config}, &used);
    filled(told.take, id, {&one.config}, &used);
    cases.push_back(one.config);
    figures.push_back(std::move(one));
  }
  std::set<std::string> merged = length_axes;
  if (!told.over.empty()) merged.insert(told.over);
  used.insert(told.over);
  const Labels labels(cases, used);
  std::ranges::stable_sort(figures, {}, [&](const ToldFigure& one) {
    return std::tuple(one.claim->at("hypothesis").get<std::string>(), one.what, key_of(one.config, merged),
                      length_of(one.config, "q_len"), length_of(one.config, "kv_len"),
                      length_of(one.config, told.over));
  });
  std::vector<Json> rows;
  std::vector<ToldFigure> some;
  double low = 0, high = 0;  // common to the intervals of all of `some`
  const auto finish = [&] {
    if (!some.empty()) rows.push_back(told_row(told, some, labels, merged));
    some.clear();
  };
  for (ToldFigure& one : figures) {
    const auto day = [](const ToldFigure& figure) { return figure.claim->at("ts").get<std::string>().substr(0, 10); };
    const auto differ_in = [&] {  // how many of the merged axes; lengths of queries and keys that are equal count once
      std::set<std::string> axes;
      for (const std::string& axis : merged) {
        if (one.config.value_text(axis) != some.back().config.value_text(axis)) {
          axes.insert(length_axes.contains(axis) ? "length" : axis);
        }
      }
      return axes.size();
    };
    const bool joins =
        !some.empty() && one.what == some.back().what &&
        one.claim->at("hypothesis") == some.back().claim->at("hypothesis") && one.take == some.back().take &&
        key_of(one.config, merged) == key_of(some.back().config, merged) && differ_in() == 1 &&
        some.front().claim->value("today", true) == one.claim->value("today", true) &&
        (one.claim->value("today", true) || day(one) == day(some.back())) &&
        (!one.take.empty() || std::max(low, one.low) <= std::min(high, one.high)) && one.exact == some.back().exact;
    if (!joins) finish();
    low = joins ? std::max(low, one.low) : one.low;
    high = joins ? std::min(high, one.high) : one.high;
    some.push_back(std::move(one));
  }
  finish();
  return rows;
}

// ---- counts

std::vector<Json> counted_rows(const Counted& counted, const DecisionInput& input) {
  std::map<std::string, std::map<std::string, std::pair<const MeasuredRun*, const Measurement*>>> found;
  std::vector<std::string> order;
  for (const MeasuredRun* run : input.runs) {
    for (const Measurement& result : run->results) {
      if (result.status != "ok" || !counted.takes(result.config)) continue;
      const std::string key = result.config.key(counted.axes);
      if (!found.contains(key)) order.push_back(key);
      found[key][key_of(result.config)] = {run, &result};  // the latest counts
    }
  }
  std::vector<Json> rows;
  for (const std::string& key : order) {
    std::set<const MeasuredRun*> runs;
    std::vector<std::string> figures;
    Json row = empty_row();
    for (const Counted::Number& number : counted.numbers) {
      std::vector<double> values;
      for (const auto& [name, latest] : found[key]) {
        const double value = number.value(*latest.second);
        if (std::isnan(value)) continue;
        values.push_back(value);
        runs.insert(latest.first);
        add_day(row, latest.first->ts.substr(0, 10), !input.today || input.today(*latest.second));
        row["id"] = latest.second->id;
      }
      if (values.empty()) continue;
      const auto [low, high] = std::ranges::minmax(values);
      figures.push_back(figure_text(low, high, number.unit));
      if (row["low"].is_null()) row["low"] = low, row["high"] = high;
    }
    if (figures.empty()) continue;
    Case config;
    for (const std::string& axis : counted.axes) {
      config.set(axis, found[key].begin()->second.second->config.value_text(axis));
    }
    row["what"] = config.value_text(counted.axes.front());
    row["case"] = Labels({}, {counted.axes.front()}).text({&config});
    row["where"] = config.json();
    row["figure"] = fmt::format("{}", fmt::join(figures, "; "));
    row["runs"] = runs.size();
    rows.push_back(std::move(row));
  }
  return rows;
}

// ---- the table

/// Whether the row is the question's example, by the first `count` of its values of axes.
bool is_example(const Question& question, const Json& row, size_t count) {
  return row.at("what").get<std::string>().starts_with(question.example) &&
         std::ranges::all_of(question.example_axes | std::views::take(count), [&](const auto& wanted) {
           const Json value = row.at("where").value(wanted.first, Json());
           return (value.is_string() ? value.get<std::string>() : value.dump()) == wanted.second;
         });
}

struct Column {
  const char* head;
  std::string (*text)(const Json& row);
};
const std::vector<Column>& columns() {
  static const std::vector<Column> list = {
      {"what", [](const Json& row) { return row.at("what").get<std::string>(); }},
      {"case", [](const Json& row) { return row.at("case").get<std::string>(); }},
      {"take",
       [](const Json& row) {
         const bool usual = !row.at("default").is_null() && row["default"]["option"] == row.at("take");
         return row.at("take").get<std::string>() + (usual ? " (default)" : "");
       }},
      {"of", [](const Json& row) { return row.at("options") > 0 ? row.at("options").dump() : std::string(); }},
      {"others",
       [](const Json& row) {
         std::vector<std::string> names;
         const auto add = [&](const Json& one) {
           const double ratio = one.at("ratio");
           names.push_back(
               fmt::format("{} {}", one.at("option").get<std::string>(),
                           figure_text(ratio, ratio, "x", Estimate{ratio, one.at("next_lo"), one.at("next_hi")})));
         };
         const Json& fallback = row.at("default");
         const bool slower = std::ranges::find(row.at("slower"), fallback) != row.at("slower").end();
         if (slower) add(fallback), names.front().insert(0, "default ");
         const size_t most = row.at("options") > 8 ? 2 : 3;  // the next ones say enough
         for (const Json& one : row.at("slower")) {
           if (names.size() < most && one != fallback) add(one);
         }
         return fmt::format("{}", fmt::join(names, ", "));
       }},
      {"as good",
       [](const Json& row) {
         const std::vector<std::string> names = row.at("as_good");
         const size_t options = row.at("options");
         return options > 2 && names.size() + 1 == options ? fmt::format("all {} others", names.size())
                                                           : list_of(names);
       }},
      {"figure", [](const Json& row) { return row.at("figure").get<std::string>(); }},
      {"runs", [](const Json& row) { return row.at("runs").dump(); }},
      {"kernels of",
       [](const Json& row) { return row.at("today").get<bool>() ? "today" : row.at("day").get<std::string>(); }},
      {"record", [](const Json& row) { return row.at("id").get<std::string>().substr(0, 8); }}};
  return list;
}

}  // namespace

Json decisions(const DecisionInput& input) {
  const auto known = std::ranges::find(questions(), input.experiment, &Question::experiment);
  Question fallback = {
      .experiment = input.experiment, .id = input.experiment, .title = "What do the cases and the claims say?"};
  if (!input.compared.empty()) fallback.choices = {{.what = "", .axes = input.compared}};
  fallback.told = {{.hypotheses = {}, .what = "{claim}"}};
  const Question& question = known == questions().end() ? fallback : *known;
  std::vector<Json> rows;
  const auto add = [&](std::vector<Json> more) { std::ranges::move(more, std::back_inserter(rows)); };
  for (const Choice& choice : question.choices) add(choice_rows(choice, input));
  for (const Told& told : question.told) add(told_rows(told, input));
  for (const Counted& counted : question.counted) add(counted_rows(counted, input));
  bool found = false;
  for (size_t count = question.example_axes.size() + 1; count-- > 0 && !found;) {
    for (Json& row : rows) {
      row["example"] = is_example(question, row, count);
      found = found || row["example"].get<bool>();
    }
  }
  // The most useful rows first: an example, then of each `what` one row, then of each a second, and so on.
  std::map<std::string, size_t> place, seen;
  for (const Json& row : rows) place.try_emplace(row.at("what"), place.size());
  std::ranges::stable_sort(rows, {}, [&](const Json& row) {
    return std::tuple(place.at(row.at("what")), !row.at("today").get<bool>(), !row.at("example").get<bool>(),
                      -row.at("options").get<int>(), -row.at("runs").get<int>(),
                      row.at("case").get<std::string>().size());
  });
  bool has_example = false;
  std::vector<std::pair<size_t, Json>> ranked;
  for (Json& row : rows) {
    const size_t rank = row.at("example").get<bool>() && !has_example ? 0 : ++seen[row.at("what")];
    has_example = has_example || rank == 0;
    ranked.emplace_back(rank, std::move(row));
  }
  std::ranges::stable_sort(ranked, {}, &std::pair<size_t, Json>::first);
  Json table = {{"question", question.id}, {"title", question.title}, {"experiment", question.experiment},
                {"device", input.device},  {"heads", Json::array()},  {"rows", Json::array()}};
  std::vector<const Column*> shown;
  for (const Column& column : columns()) {
    if (std::ranges::any_of(ranked, [&](const auto& row) { return !column.text(row.second).empty(); })) {
      shown.push_back(&column);
      table["heads"].push_back(column.head);
    }
  }
  for (auto& [rank, row] : ranked) {
    Json cells = Json::array();
    for (const Column* column : shown) cells.push_back(column->text(row));
    row["cells"] = std::move(cells);
    table["rows"].push_back(std::move(row));
  }
  return table;
}

Json pair_of(const Json& finding) {
  const Json& data = finding.at("data");
  const Json cases = data.value("cases", Json::array());
  if (cases.size() != 2) return nullptr;
  const Json compare = data.value("compare", Json());
  const Json& sides = compare.is_object() ? compare : data.value("values", Json());
  // The values may have more fields than the case has axes.
  const auto is_side = [&](const Json& config, const char* side) {
    const Json named = sides.is_object() ? sides.value(side, Json()) : Json();
    return named.is_object() && std::ranges::all_of(config.items(), [&](const auto& axis) {
             return named.contains(axis.key()) && named.at(axis.key()) == axis.value();
           });
  };
  if (is_side(cases[0], "baseline") && is_side(cases[1], "contender")) return cases;
  if (is_side(cases[1], "baseline") && is_side(cases[0], "contender")) return Json::array({cases[1], cases[0]});
  return nullptr;
}

Json claim_of(const Json& finding) {
  const Json& data = finding.at("data");
  Json claim = {{"experiment", data.at("experiment")},
                {"hypothesis", data.at("hypothesis").at("id")},
                {"metric", data.at("hypothesis").at("metric")},
                {"pair", pair_of(finding)},
                {"latest", finding.at("id")},
                {"findings", Json::array({finding.at("id")})},
                {"ts", ""}};
  for (const char* field : {"subject", "verdict", "estimate"}) claim[field] = data.at(field);
  return claim;
}

std::string decisions_text(const Json& table, size_t width, size_t most_lines) {
  const Json& rows = table.at("rows");
  std::string left_out;
  if (const size_t count = table.value("left_out", size_t{0}); count > 0) {
    left_out = wrapped(fmt::format("  left out, of a loaded machine or with scattered samples: {} measurements", count),
                       width, 2);
  }
  if (rows.empty())
    return wrapped("nothing: these cases have no options to compare, and decide no claim", width, 2) + left_out;
  std::string text = table.at("title").get<std::string>() + "\n";
  size_t lines = 1, shown = 0;
  for (const Json& row : rows) {
    std::vector<std::string> words;
    const auto add = [&](const std::string& before, const std::string& cell) {
      if (!cell.empty()) words.push_back(before + cell);
    };
    for (size_t i = 0; i < table.at("heads").size(); ++i) {
      const std::string head = table["heads"][i], cell = row.at("cells")[i];
      if (head == "take" || head == "as good") add(head == "take" ? "take " : "as good: ", cell);
      if (head == "of" && !cell.empty()) words.back() += " of " + cell;
      if (head == "others") add("", cell);
      if (head == "figure") add("", cell);
      if (head == "kernels of" && cell != "today") add("kernels of ", cell);
    }
    std::vector<std::string> place;
    for (const char* field : {"what", "case"}) {
      if (const std::string part = row.at(field); !part.empty()) place.push_back(part);
    }
    const std::string line =
        wrapped(printable(fmt::format("  {}: {}", fmt::join(place, ", "), fmt::join(words, "; "))), width, 6);
    const auto taken = static_cast<size_t>(std::ranges::count(line, '\n'));
    if (shown > 0 && lines + taken + (shown + 1 < rows.size()) > most_lines) break;
    text += line;
    lines += taken;
    ++shown;
  }
  if (shown < rows.size())
    text += wrapped(fmt::format("  {} more rows: --json prints all", rows.size() - shown), width, 2);
  return text + left_out;
}

}  // namespace attn
