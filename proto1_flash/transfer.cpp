#include "proto1_flash/transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace attn {
namespace {

using Tile = std::pair<int64_t, int64_t>;  // block_r, block_c
using Tiles = std::map<Tile, const Measurement*>;

Tile tile_of(const Measurement& result) { return {result.config.integer("block_r"), result.config.integer("block_c")}; }

/// Returns for each head_dim the results of the tuned kernel without a mask, on the shape (with dtype and layout) that
/// was run with the most tiles.
std::map<int64_t, Tiles> tile_sweeps(const std::vector<Measurement>& results) {
  std::map<int64_t, std::map<std::string, Tiles>> shapes;
  for (const Measurement& result : results) {
    const Case& config = result.config;
    if (result.status != "ok" || !result.main_timing() || config.text("variant") != "tuned" ||
        config.integer("causal") != 0) {
      continue;
    }
    const std::string shape = config.key({"batch", "q_heads", "kv_heads", "q_len", "kv_len", "dtype", "layout"});
    shapes[config.integer("head_dim")][shape][tile_of(result)] = &result;
  }
  std::map<int64_t, Tiles> sweeps;
  for (auto& [head_dim, by_shape] : shapes) {
    sweeps[head_dim] = std::max_element(by_shape.begin(), by_shape.end(), [](const auto& a, const auto& b) {
                         return a.second.size() < b.second.size();
                       })->second;
  }
  return sweeps;
}

Tiles only(const Tiles& tiles, const Tiles& others) {
  Tiles found = tiles;
  std::erase_if(found, [&](const auto& tile) { return !others.contains(tile.first); });
  return found;
}

const Measurement* best_of(const Tiles& tiles) {
  Results results;
  for (const auto& [tile, result] : tiles) results.push_back(result);
  return fastest(results);
}

void conclude_tiles(const Claim& claim, const DeviceRecords& from, const DeviceRecords& to,
                    std::vector<Conclusion>& conclusions) {
  const auto swept_from = tile_sweeps(from.measurements), swept_to = tile_sweeps(to.measurements);
  for (const auto& [head_dim, tiles] : swept_from) {
    const auto other = swept_to.find(head_dim);
    if (other == swept_to.end()) continue;
    const Tiles on_from = only(tiles, other->second), on_to = only(other->second, tiles);
    if (on_to.size() < 3) continue;
    const Measurement *taken = best_of(on_from), *best = best_of(on_to);
    const Measurement* moved = on_to.at(tile_of(*taken));
    Conclusion conclusion = conclude(claim, {.results = {best, moved}});  // both results are from the sweep of `to`
    conclusion.subject = fmt::format("head_dim={}", head_dim);
    conclusion.tags = {"flash_attention", fmt::format("d{}", head_dim), "tile", "devices"};
    const auto name = [](const Measurement* result) {
      return fmt::format("{}x{}", tile_of(*result).first, tile_of(*result).second);
    };
    conclusion.values = {{"head_dim", head_dim},
                         {"from", taken->device},
                         {"to", best->device},
                         {"from_dtype", taken->config.text("dtype")},
                         {"to_dtype", best->config.text("dtype")},
                         {"taken", name(taken)},
                         {"best", name(best)},
                         {"tiles", on_to.size()}};
    conclusion.measurements = {taken->id, moved->id};
    if (moved != best) conclusion.measurements.push_back(best->id);
    conclusions.push_back(std::move(conclusion));
  }
}

/// Returns the verdict of most decided findings of each hypothesis. Leaves out hypotheses with as many supported as
/// refuted findings.
std::map<std::string, std::string> majorities(const std::vector<Json>& findings) {
  std::map<std::string, int> balance;
  for (const Json& finding : findings) {
    const Json& data = finding.at("data");
    const std::string state = data.at("verdict").at("state");
    balance[data.at("hypothesis").at("id")] += state == "supported" ? 1 : state == "refuted" ? -1 : 0;
  }
  std::map<std::string, std::string> majority;
  for (const auto& [id, sum] : balance) {
    if (sum != 0) majority[id] = sum > 0 ? "supported" : "refuted";
  }
  return majority;
}

void conclude_verdicts(const Claim& claim, const DeviceRecords& from, const DeviceRecords& to,
                       std::vector<Conclusion>& conclusions) {
  const auto from_verdicts = majorities(from.findings), to_verdicts = majorities(to.findings);
  int judged = 0, same = 0;
  std::string flips;
  for (const auto& [id, state] : from_verdicts) {
    const auto other = to_verdicts.find(id);
    if (other == to_verdicts.end()) continue;
    ++judged;
    same += other->second == state;
    if (other->second != state)
      flips += fmt::format("{}{} ({}, then {})", flips.empty() ? "" : "; ", id, state, other->second);
  }
  if (judged == 0) return;
  Conclusion conclusion = conclude(claim, Evidence{});
  conclusion.tags = {"flash_attention", "devices"};
  const double share = static_cast<double>(same) / judged;
  conclusion.estimate = {.value = share, .ci_lo = share, .ci_hi = share, .next_lo = share, .next_hi = share};
  conclusion.exact = true;  // the figure is counted, not measured
  conclusion.values = {{"from", from.findings.front().at("data").at("device")},
                       {"to", to.findings.front().at("data").at("device")},
                       {"same", same},
                       {"judged", judged},
                       {"flips", flips.empty() ? "none" : flips}};
  for (const DeviceRecords* records : {&from, &to}) {
    for (const Json& finding : records->findings) conclusion.measurements.push_back(finding.at("id"));
  }
  conclusions.push_back(std::move(conclusion));
}

}  // namespace

std::vector<Claim> transfer_claims() {
  return {{.hypothesis = {"tile_transfers", "The best tile of one device takes at most 1.1 times the best of another.",
                          "time of the other device's best tile / time of the best", "<=", 1.1,
                          "expectation before the first run: what a tile must fit into differs by device"},
           .figure = ratio_of_medians,
           .title = "At head_dim {values.head_dim} the best tile of {values.from} takes {estimate.value:.3f} of the "
                    "time of the best on {values.to}",
           .content = "Of the {values.tiles} tiles that both devices ran, {values.taken} is best on {values.from} "
                      "({values.from_dtype}) and {values.best} on {values.to} ({values.to_dtype}). There "
                      "{values.taken} takes {estimate.value:.3f} ({estimate.ci_lo:.3f} to {estimate.ci_hi:.3f}) of the "
                      "time of {values.best}."},
          {.hypothesis = {"verdicts_transfer", "Four of five verdicts hold on both devices.",
                          "share of hypotheses with the same verdict", ">=", 0.8,
                          "expectation before the first run: rules about tiles and masks are arithmetic, not hardware"},
           .title = "{values.same} of {values.judged} verdicts are the same on {values.from} and {values.to}",
           .content = "Most findings of {values.judged} hypotheses are decided on both {values.from} and {values.to}; "
                      "{values.same} have the same verdict. The others: {values.flips}."}};
}

std::vector<Conclusion> transfer_conclusions(const DeviceRecords& from, const DeviceRecords& to) {
  const std::vector<Claim> claims = transfer_claims();
  std::vector<Conclusion> conclusions;
  conclude_tiles(claims.at(0), from, to, conclusions);
  conclude_verdicts(claims.at(1), from, to, conclusions);
  return conclusions;
}

}  // namespace attn
