#include "common/experiment/answer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "common/base/json.h"
#include "common/base/text_table.h"
#include "common/records/advice.h"
#include "common/records/finding.h"

namespace attn {
namespace {

constexpr double worth_avoiding = 1.05;  // the least ratio (time / fastest time) at which a line says "avoid"
constexpr size_t most_avoided = 3;       // the most options to avoid that a line names
constexpr size_t most_values = 4;        // the most names or values in a list

using Names = std::set<std::string>;

/// A shape (answer.h) with the options that were measured in it.
struct Shape {
  Case config;  // the values of all axes except the choice's axes
  Picked picked;
  std::vector<std::pair<std::string, const Measurement*>> options;
};

std::string option_name(const Choice& choice, const std::function<std::string(const std::string&)>& value) {
  std::vector<std::string> values;
  for (const std::string& axis : choice.axes) {
    const std::string text = value(axis);
    if (!text.empty() && text != "none") values.push_back(text);
  }
  return fmt::format("{}", fmt::join(values, choice.between));
}

std::string option_of(const Choice& choice, const Case& config) {
  return option_name(choice, [&](const std::string& axis) { return config.value_text(axis); });
}

std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

Case without(const Case& config, const std::vector<std::string>& axes) {
  Case rest;
  for (const auto& [axis, value] : config.axes()) {
    if (std::ranges::find(axes, axis) == axes.end()) rest.set(axis, value);
  }
  return rest;
}

/// The time of `option` divided by the time of `best`.
double ratio_of(const Measurement& option, const Measurement& best, const std::vector<Comparison>& comparisons) {
  for (const Comparison& comparison : comparisons) {
    if (comparison.baseline == best.config && comparison.contender == option.config) return comparison.ratio.value;
    if (comparison.contender == best.config && comparison.baseline == option.config) return 1 / comparison.ratio.value;
  }
  return seconds(option) / seconds(best);
}

/// The options that records call the best or as good for a shape. Empty if no record has the shape.
Names recorded_options(const Choice& choice, const Shape& shape, const AnswerInput& input) {
  Names names;
  const Json& tuning = input.known.tuning;
  const Case& config = shape.config;
  const auto has = [&](const char* axis) { return config.has(axis); };
  const auto named = [&](const Json& params) {
    return option_name(
        choice, [&](const std::string& axis) { return params.contains(axis) ? text_of(params[axis]) : std::string(); });
  };
  const std::string experiment = shape.picked.best->experiment;
  const bool square = has("q_len") && (!has("kv_len") || config.integer("kv_len") == config.integer("q_len"));
  if (has("dtype") && has("head_dim") && square) {
    const Json::json_pointer place = Json::json_pointer() / "devices" / input.device / config.text("dtype") /
                                     std::to_string(config.integer("head_dim"));
    for (const Json& entry : tuning.contains(place) ? tuning[place] : Json::array()) {
      const bool compared = entry.at("tiles_compared") > 1 && entry.at("experiment") == experiment;
      const Json& lengths = entry.at("measured_at");
      const bool here = std::ranges::find(lengths, Json(config.integer("q_len"))) != lengths.end() &&
                        entry.at("causal") == (has("causal") ? config.integer("causal") : 0);
      const std::string gate = entry.value("/modifiers/gate"_json_pointer, "none");
      const bool plain = !entry.contains("modifiers") || entry["modifiers"].size() == entry["modifiers"].count("gate");
      if (!compared || !here || !plain || gate != (has("gate") ? config.text("gate") : "none")) continue;
      names.insert(named(entry.at("params")));
      for (const Json& tied : entry.at("tied")) names.insert(tied.get<std::string>());
    }
  }
  const Json::json_pointer place = Json::json_pointer() / "choices" / input.device;
  for (const Json& entry : tuning.contains(place) ? tuning[place] : Json::array()) {
    if (entry.at("experiment") != experiment || Case::from_json(entry.at("case")) != config) continue;
    names.insert(named(entry.at("params")));
    for (const Json& values : entry.at("as_good")) {
      Json params;
      for (size_t i = 0; i < choice.axes.size(); ++i) params[choice.axes[i]] = values.at(i);
      names.insert(named(params));
    }
  }
  return names;
}

Names common(const Names& a, const Names& b) {
  Names both;
  std::ranges::set_intersection(a, b, std::inserter(both, both.end()));
  return both;
}

/// The answer's line about a choice for `shapes`. Null if no option is as good as the fastest in all of several shapes.
Json choice_line(const Choice& choice, const std::vector<Shape>& shapes, const Case& where, const AnswerInput& input) {
  Names good, all, slower;
  std::map<std::string, double> ratios;  // the largest of each option in any shape
  for (const Shape& shape : shapes) {
    Names own = {option_of(choice, shape.picked.best->config)}, here;
    for (const Measurement* option : shape.picked.as_good) own.insert(option_of(choice, option->config));
    for (const auto& [name, result] : shape.options) {
      here.insert(name);
      if (result->main_timing()->ci_lo_s > shape.picked.best->main_timing()->ci_hi_s) slower.insert(name);
      double& most = ratios[name];
      most = std::max(most, ratio_of(*result, *shape.picked.best, input.comparisons));
    }
    good = &shape == &shapes.front() ? own : common(good, own);
    all = &shape == &shapes.front() ? here : common(all, here);
  }
  if (good.empty() && shapes.size() > 1) return nullptr;
  const auto faster = [&](const std::string& a, const std::string& b) { return ratios.at(a) < ratios.at(b); };
  std::vector<std::string> order(good.begin(), good.end());
  std::ranges::stable_sort(order, faster);
  Json line = {{"what", choice.what}, {"where", where.json()}, {"shapes", Json::array()}, {"of", all.size()}};
  for (const Shape& shape : shapes) line["shapes"].push_back(shape.config.json());
  std::string undecided;
  Names recorded = good;
  for (const Shape& shape : shapes) {
    const Names names = recorded_options(choice, shape, input);
    if (names.empty()) continue;
    line["records"] = true;
    recorded = common(recorded, names);
    if (recorded.empty() && undecided.empty()) {
      undecided = fmt::format("this run says {}, the records say {}", order.front(), fmt::join(names, ", "));
    }
  }
  if (!recorded.empty()) std::erase_if(order, [&](const std::string& name) { return !recorded.contains(name); });
  std::vector<std::string> bad, unclear;
  for (const std::string& name : all) {
    if (!good.contains(name)) (slower.contains(name) ? bad : unclear).push_back(name);
  }
  std::ranges::stable_sort(bad, [&](const std::string& a, const std::string& b) { return faster(b, a); });
  const bool narrowed = recorded.size() < good.size();  // the records leave fewer options
  if (undecided.empty() && bad.empty() && !narrowed && all.size() > 1) {
    undecided = unclear.empty() ? fmt::format("all {} options are equally good", all.size())
                                : fmt::format("the noise hides which of {} options is the fastest", all.size());
  }
  line["take"] = undecided.empty() ? Json(order.front()) : Json(nullptr);
  line["undecided"] = undecided;
  line["as_good"] = undecided.empty() ? Json(std::vector(order.begin() + 1, order.end())) : Json(order);
  const Measurement* taken = shapes.front().picked.best;
  for (const auto& [name, result] : shapes.front().options) {
    if (name == order.front()) taken = result;
  }
  line["measurement"] = taken->id;
  line["avoid"] = Json::array();
  for (const std::string& name : bad) line["avoid"].push_back({{"option", name}, {"ratio", ratios.at(name)}});
  line["unclear"] = unclear;
  if (input.complete) {
    Names defaults;
    for (const Shape& shape : shapes) {
      Case config = shape.config;
      input.complete(config);
      if (std::ranges::all_of(choice.axes, [&](const std::string& axis) { return config.has(axis); })) {
        defaults.insert(option_of(choice, config));
      }
    }
    if (defaults.size() == 1) {
      const std::string& name = *defaults.begin();
      line["default"] = {{"option", name}, {"ratio", ratios.contains(name) ? Json(ratios.at(name)) : Json(nullptr)}};
    }
  }
  return line;
}

Json choices_of(const AnswerInput& input) {
  Json lines = Json::array();
  for (const Choice& choice : input.spec.choices) {
    Results taken;
    for (const Measurement& result : input.results) {
      const bool timed = result.status == "ok" && result.main_timing() && result.main_timing()->n > 0;
      if (timed && (!choice.takes || choice.takes(result.config))) taken.push_back(&result);
    }
    std::vector<std::pair<Case, std::vector<Shape>>> rows;
    // The shapes have the order of their first results.
    const std::set<std::string> free(choice.axes.begin(), choice.axes.end());
    const std::map<std::string, Results> groups = group_results(taken, free);
    for (const Measurement* first : taken) {
      const Results& options = groups.at(first->config.key_without(free));
      if (options.front() != first) continue;
      if (options.size() < choice.at_least) continue;
      Shape shape = {without(options.front()->config, choice.axes), pick_option(options, choice.within), {}};
      for (const Measurement* option : options) shape.options.emplace_back(option_of(choice, option->config), option);
      Case where;
      for (const std::string& axis : choice.by) {
        const auto place = std::ranges::find(shape.config.axes(), axis, &std::pair<std::string, AxisValue>::first);
        if (place != shape.config.axes().end()) where.set(axis, place->second);
      }
      auto row = std::ranges::find(rows, where, &std::pair<Case, std::vector<Shape>>::first);
      if (row == rows.end()) row = rows.insert(rows.end(), {where, {}});
      row->second.push_back(std::move(shape));
    }
    for (const auto& [where, shapes] : rows) {
      if (const Json line = choice_line(choice, shapes, where, input); !line.is_null()) {
        lines.push_back(line);
        continue;
      }
      // Each shape gets its own line, with the axes in which the shapes differ.
      std::vector<Case> configs;
      for (const Shape& shape : shapes) configs.push_back(shape.config);
      const std::vector<std::string> differing = varying_axes(configs);
      for (const Shape& shape : shapes) {
        Case own = where;
        for (const auto& [axis, value] : shape.config.axes()) {
          if (std::ranges::find(differing, axis) != differing.end()) own.set(axis, value);
        }
        lines.push_back(choice_line(choice, {shape}, own, input));
      }
    }
  }
  return lines;
}

/// The cases of a claim, as this run and the records judge them. Throws Json::exception for records of another version.
std::vector<Judged> judged_cases(const std::string& hypothesis, const AnswerInput& input) {
  std::map<std::string, const Json*> recorded;  // by claim_key
  for (const Json& line : input.known.claims) {
    if (line.at("hypothesis") == hypothesis) recorded.emplace(line.at("claim_key").get<std::string>(), &line);
  }
  std::vector<Judged> found;
  for (const Json& finding : input.findings) {
    const Json& data = finding.at("data");
    if (data.at("/hypothesis/id"_json_pointer) != hypothesis) continue;
    const double value = data.at("/estimate/value"_json_pointer);
    Judged own = {data.at("subject"), state_of(data.at("/verdict/state"_json_pointer)), value, value, false,
                  finding.at("id")};
    const auto record = recorded.find(finding.at("claim_key"));
    if (record != recorded.end()) {
      const Judged known = judged(*record->second);
      recorded.erase(record);
      if (own.state == State::inconclusive) {
        if (known.state != State::inconclusive) own = known;
      } else if (known.state != State::inconclusive) {
        own.contradicted = known.state != own.state;
        if (own.contradicted) own.state = State::inconclusive;
        own.low = std::min(own.low, known.low);
        own.high = std::max(own.high, known.high);
      }
    }
    found.push_back(std::move(own));
  }
  if (input.whole_sweep) {
    for (const auto& [key, line] : recorded) found.push_back(judged(*line));
  }
  return found;
}

}  // namespace

Picked pick_option(const Results& options, double within) {
  Picked picked;
  picked.best = fastest(options);
  if (!picked.best) return picked;
  const Timing& best = *picked.best->main_timing();
  for (const Measurement* option : options) {
    const Timing& time = *option->main_timing();
    const bool good = within > 0 ? time.median_s <= within * best.median_s : time.ci_lo_s <= best.ci_hi_s;
    if (option != picked.best && good) picked.as_good.push_back(option);
  }
  return picked;
}

Known known_of(const std::string& pooled_claims, const std::string& experiment, const std::string& device) {
  Known known;
  std::ifstream pooled(pooled_claims);
  const std::string names[] = {Json(experiment).dump(), Json(device).dump()};
  for (std::string line; std::getline(pooled, line);) {
    // Parsing all lines would take longer than measuring a small case.
    if (line.find(names[0]) == line.npos || line.find(names[1]) == line.npos) continue;
    Json claim = parse_json(line, false);  // kb writes the file, so an error is not reported
    if (claim.is_object() && claim.value("experiment", "") == experiment && claim.value("device", "") == device) {
      known.claims.push_back(std::move(claim));
    }
  }
  return known;
}

Json answer(const AnswerInput& input) {
  const Json choices = choices_of(input);
  ClaimLines lines;
  const auto add = [&](const Claim& claim, bool without_words) {
    const Json values = {{"threshold", claim.hypothesis.threshold}};
    const Advice words = {render(claim.advice.holds, values), render(claim.advice.refuted, values)};
    add_lines(lines, claim.hypothesis, words, judged_cases(claim.hypothesis.id, input), without_words);
  };
  const bool all_claims = input.spec.claims.empty() && input.spec.choices.empty();
  for (const std::string& id : input.spec.claims) {
    const auto claim = std::ranges::find_if(input.claims, [&](const Claim& one) { return one.hypothesis.id == id; });
    if (claim != input.claims.end()) add(*claim, false);
  }
  const bool found_nothing = choices.empty() && lines.advised.empty() && lines.undecided.empty();
  for (const Claim& claim : input.claims) {
    const bool of_run = std::ranges::any_of(input.findings, [&](const Json& finding) {
      return finding.at("data").at("/hypothesis/id"_json_pointer) == claim.hypothesis.id;
    });
    if (all_claims || (found_nothing && of_run)) add(claim, of_run);
  }
  Json counts = {{"ok", 0}, {"wrong", 0}, {"skipped", 0}};
  for (const Measurement& result : input.results) {
    counts[result.status] = counts.value(result.status, 0) + 1;
  }
  return {{"device", input.device},  {"records", input.known.claims.size()}, {"choices", choices},
          {"claims", lines.advised}, {"undecided", lines.undecided},         {"counts", counts}};
}

namespace {

/// For example "f32 head_dim=64".
std::string label_of(const Json& where) {
  std::vector<std::string> words;
  for (const auto& [axis, value] : where.items()) {
    words.push_back(value.is_string() ? value.get<std::string>() : axis + "=" + value.dump());
  }
  return words.empty() ? "all cases" : fmt::format("{}", fmt::join(words, " "));
}

std::string list_of(const std::vector<std::string>& names, size_t most, const std::string& between = ", ") {
  const std::vector<std::string> first(names.begin(), names.begin() + std::min(most, names.size()));
  const std::string more = names.size() > most ? fmt::format(" and {} more", names.size() - most) : "";
  return fmt::format("{}{}", fmt::join(first, between), more);
}

std::string choice_text(const Json& line) {
  std::vector<std::string> parts;
  const Json chosen = line.value("default", Json());
  const auto named = [&](const std::string& option) {
    return chosen.is_object() && chosen["option"] == option ? option + " (the default)" : option;
  };
  std::vector<std::string> good;
  for (const Json& option : line.at("as_good")) good.push_back(named(option));
  const std::string undecided = line.at("undecided");
  if (undecided.empty()) {
    parts.push_back("take " + named(line.at("take")));
    if (!good.empty()) parts.push_back("as good: " + list_of(good, most_values));
  } else {
    parts.push_back("undecided: " + undecided);
    if (!good.empty()) parts.push_back("the fastest here: " + list_of(good, most_values));
  }
  std::vector<std::string> avoided;
  bool default_named = false;
  for (const Json& option : line.at("avoid")) {
    if (option["ratio"].get<double>() < worth_avoiding || avoided.size() == most_avoided) break;
    const std::string name = option["option"];
    default_named = default_named || named(name) != name;
    avoided.push_back(fmt::format("{} {}", named(name), format_ratio(option["ratio"])));
  }
  std::vector<std::string> unclear;
  for (const Json& option : line.at("unclear")) unclear.push_back(named(option));
  if (!unclear.empty()) parts.push_back("unclear: " + list_of(unclear, most_values));
  if (!avoided.empty()) parts.push_back("avoid " + fmt::format("{}", fmt::join(avoided, ", ")));
  const bool bad =
      chosen.is_object() && chosen["ratio"].is_number() && !default_named &&
      std::ranges::any_of(line.at("avoid"), [&](const Json& option) { return option["option"] == chosen["option"]; });
  if (bad) {
    parts.push_back(
        fmt::format("the default {} takes {}", chosen["option"].get<std::string>(), format_ratio(chosen["ratio"])));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace

std::string answer_text(const Json& answer, size_t width, size_t most_lines) {
  struct Piece {
    std::string text, name;
  };
  std::vector<Piece> parts;
  std::string last;
  size_t longest = 0;
  for (const Json& line : answer.at("choices")) longest = std::max(longest, label_of(line.at("where")).size());
  longest = std::min(longest, width / 3);
  for (const Json& line : answer.at("choices")) {
    const std::string what = line.at("what"), label = label_of(line.at("where"));
    const std::string text = fmt::format("  {:<{}}  {}", label, longest, choice_text(line));
    parts.push_back(
        {(what != last ? wrapped(what, width, 0) : "") + wrapped(text, width, std::min(longest + 4, width / 3)),
         fmt::format("{} of {}", what, label)});
    last = what;
  }
  for (const Json& line : answer.at("claims")) {
    parts.push_back({wrapped("- " + advice_text(line), width, 2), line.at("hypothesis")});
  }
  std::vector<std::string> undecided;
  for (const Json& line : answer.at("undecided")) {
    const size_t cases = line.at("cases"), contradicted = line.at("contradicted");
    undecided.push_back(fmt::format("{} {}{}", line.at("hypothesis").get<std::string>(), range_text(line),
                                    contradicted > 0 ? ", where this run and the records contradict each other"
                                    : cases > 1      ? fmt::format(" ({} cases)", cases)
                                                     : ""));
  }
  if (parts.empty() && undecided.empty()) {
    return wrapped("nothing: these cases have no options to compare, and decide no claim", width, 2);
  }
  const auto text_of = [&](size_t shown, size_t shown_undecided) {
    std::string text;
    std::vector<std::string> named;
    for (const Piece& part : parts) {
      if (static_cast<size_t>(&part - parts.data()) < shown) {
        text += part.text;
      } else {
        named.push_back(part.name);
      }
    }
    if (!named.empty()) {
      text += wrapped(fmt::format("- {} more: {}; --json prints all", named.size(), list_of(named, 2 * most_values)),
                      width, 2);
    }
    if (!undecided.empty()) text += wrapped("undecided: " + list_of(undecided, shown_undecided, "; "), width, 2);
    return text;
  };
  size_t shown = parts.size(), shown_undecided = undecided.size();
  const auto too_long = [&] {
    return static_cast<size_t>(std::ranges::count(text_of(shown, shown_undecided), '\n')) > most_lines;
  };
  while (too_long() && shown_undecided > most_values) --shown_undecided;
  while (too_long() && shown > 1) --shown;
  return text_of(shown, shown_undecided);
}

}  // namespace attn
