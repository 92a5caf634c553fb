#include "findings/kb/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "common/base/error.h"
#include "common/base/text_table.h"
#include "common/records/advice.h"
#include "common/records/finding.h"
#include "common/records/spread.h"
#include "findings/kb/pooled_claims.h"
#include "findings/kb/record_input.h"

namespace attn::kb {
namespace {

std::string text(const Json& claim, const char* field) { return claim.at(field); }

/// Returns the claims without those that have a later definition, by device.
std::map<std::string, std::vector<Json>> latest_by_device(const std::vector<Json>& pooled) {
  std::map<std::tuple<std::string, std::string, std::string, std::string>, const Json*> latest;
  for (const Json& claim : pooled) {
    const Json*& known =
        latest[{text(claim, "device"), text(claim, "experiment"), text(claim, "hypothesis"), text(claim, "subject")}];
    if (!known || text(*known, "ts") <= text(claim, "ts")) known = &claim;
  }
  std::map<std::string, std::vector<Json>> devices;
  for (const auto& [key, claim] : latest) devices[std::get<0>(key)].push_back(*claim);
  return devices;
}

/// The cases of one claim on one device.
struct Group {
  std::vector<Json> claims;
  size_t topic = 0, place = 0;  // the index of the topic, and of the registered claim
};

/// Returns the words for a claim's verdicts: those that are registered today, or else those in the findings.
Advice words_of(const Group& group, const Json* registered, double threshold) {
  Advice words;
  if (registered) {
    const Json values = {{"threshold", threshold}}, &advice = registered->at("advice");
    return {render(advice.value("supported", ""), values), render(advice.value("refuted", ""), values)};
  }
  for (const Json& claim : group.claims) {
    const State state = state_of(claim.at("verdict").at("state"));
    if (state != State::inconclusive) (state == State::supported ? words.holds : words.refuted) = claim.at("advice");
  }
  return words;
}

void add_group(const Group& group, const Json* registered, Json& advised, Json& undecided) {
  const Json& claim = std::ranges::max(group.claims, {}, [](const Json& one) { return text(one, "ts"); });
  const Hypothesis hypothesis = {.id = claim.at("hypothesis"),
                                 .text = claim.at("title"),
                                 .metric = claim.at("metric"),
                                 .op = claim.at("op"),
                                 .threshold = claim.at("threshold"),
                                 .origin = ""};
  const Advice words = words_of(group, registered, hypothesis.threshold);
  if (registered && words.holds.empty() && words.refuted.empty()) return;
  std::vector<Judged> cases;
  for (const Json& one : group.claims) cases.push_back(judged(one));
  ClaimLines lines;
  add_lines(lines, hypothesis, words, cases);
  for (const auto& [found, all] : {std::pair{&lines.advised, &advised}, std::pair{&lines.undecided, &undecided}}) {
    for (Json& line : *found) {
      const State state = state_of(line.value("state", ""));
      line["experiment"] = claim.at("experiment");
      line["topic"] = topic_of(claim.at("experiment"), hypothesis.id);
      line["op"] = hypothesis.op;
      line["threshold"] = hypothesis.threshold;
      for (const Judged& one : cases) {
        if (one.state == state) line["ids"].push_back(one.id);
      }
      all->push_back(std::move(line));
    }
  }
}

}  // namespace

std::vector<Json> advice_by_device(const std::vector<Json>& pooled, const std::vector<Json>& registered) {
  using Key = std::pair<std::string, std::string>;  // experiment, hypothesis
  std::map<Key, size_t> places;
  for (const Json& claim : registered)
    places.try_emplace({text(claim, "experiment"), text(claim, "hypothesis")}, places.size());
  std::vector<Json> devices;
  for (auto& [device, claims] : latest_by_device(pooled)) {
    std::map<Key, Group> groups;
    for (const Json& claim : claims)
      groups[{text(claim, "experiment"), text(claim, "hypothesis")}].claims.push_back(claim);
    std::vector<const Group*> order;
    for (auto& [key, group] : groups) {
      const auto topic = std::ranges::find(topics(), topic_of(key.first, key.second));
      group.topic = static_cast<size_t>(topic - topics().begin());
      group.place = places.contains(key) ? places.at(key) : registered.size();
      order.push_back(&group);
    }
    std::ranges::stable_sort(order, {}, [](const Group* group) { return std::pair(group->topic, group->place); });
    Json advised = Json::array(), undecided = Json::array();
    for (const Group* group : order) {
      add_group(*group, group->place < registered.size() ? &registered[group->place] : nullptr, advised, undecided);
    }
    const auto decided = std::ranges::count_if(claims, [](const Json& claim) {
      return text(claim.at("verdict"), "state") != name(State::inconclusive) && !is_exact(claim.at("estimate"));
    });
    devices.push_back({{"device", device},
                       {"decided", decided},
                       {"measurements", measurements_of(claims)},
                       {"wrong", expected_wrong(claims)},
                       {"advised", advised},
                       {"undecided", undecided}});
  }
  return devices;
}

std::string advice_page(const std::vector<Json>& devices) {
  std::string page;
  for (const Json& device : devices) {
    std::string topic;
    for (const Json& line : device.at("advised")) {
      if (topic.empty()) page += printable(with_one_unit(text(device, "device"))) + "\n";
      if (topic != text(line, "topic")) page += printable(topic = text(line, "topic")) + "\n";
      page += fmt::format("  {}  {}\n", printable(text(line, "id")), printable(advice_text(line)));
    }
  }
  return page;
}

std::vector<Json> read_lines(const std::string& name, const std::string& schema) {
  RecordInput input(name);
  std::vector<Json> found;
  for (std::string line; std::getline(input, line);) {
    Json json = parse_json(line, false);
    if (!json.is_object() || (!schema.empty() && json.value("schema", "") != schema)) {
      throw BadInput(fmt::format("{} line {}: no {}", name, found.size() + 1, schema.empty() ? "object" : schema));
    }
    found.push_back(std::move(json));
  }
  return found;
}

}  // namespace attn::kb
