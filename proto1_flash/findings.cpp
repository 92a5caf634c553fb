#include "proto1_flash/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "common/attention/axes.h"

namespace attn {

namespace {

double hot_seconds(const Measurement& result) { return result.timing(Scope::device_hot)->median_s; }

// Timed, correct results of the tuned kernel.
Results tuned(const std::vector<Measurement>& results) {
  Results found;
  for (const Measurement& result : results) {
    if (result.status == "ok" && result.timing(Scope::device_hot) && result.config.text("variant") == "tuned") {
      found.push_back(&result);
    }
  }
  return found;
}

bool faster(const Measurement* a, const Measurement* b) { return hot_seconds(*a) < hot_seconds(*b); }

const Measurement* fastest(const Results& results) { return *std::min_element(results.begin(), results.end(), faster); }

const std::set<std::string> tile_axes = {"block_r", "block_c"};
constexpr size_t whole_tile_sweep = 6;  // tiles of one shape from which "best" and "worst" mean something

bool power_of_two(int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

// The case with the tile that it would get if it named none.
Case with_default_tile(const Case& config, const DeviceInfo& device) {
  Case chosen;
  for (const auto& [axis, value] : config.axes()) {
    if (!tile_axes.contains(axis)) chosen.set(axis, value);
  }
  complete_flash(chosen, device);
  return chosen;
}

// For one shape with many tiles: best against worst, the default against the best other, and Bc = 80 against the best
// power of two.
void duel_tiles(const Results& tiles, const DeviceInfo& device, std::vector<Duel>& duels) {
  const Measurement* best = fastest(tiles);
  if (tiles.size() >= whole_tile_sweep) {
    const Measurement* worst = *std::max_element(tiles.begin(), tiles.end(), faster);
    duels.push_back({"worst_tile", best->config, worst->config});
    const Case chosen = with_default_tile(best->config, device);
    Results others = tiles;
    if (std::erase_if(others, [&](const Measurement* tile) { return tile->config == chosen; }) > 0) {
      duels.push_back({"default_tile", fastest(others)->config, chosen});
    }
  }
  Results eighty, powers;
  for (const Measurement* tile : tiles) {
    if (tile->config.integer("block_c") == 80) eighty.push_back(tile);
    if (power_of_two(tile->config.integer("block_c"))) powers.push_back(tile);
  }
  if (!eighty.empty() && !powers.empty()) {
    duels.push_back({"bc80", fastest(powers)->config, fastest(eighty)->config});
  }
}

// Pairs that differ in one axis alone, from `baseline` to `contender`; tiles may differ too, each has its fastest.
void duel_axis(const std::string& hypothesis, const Results& results, const std::string& axis,
               const AxisValue& baseline, const AxisValue& contender, std::vector<Duel>& duels) {
  std::set<std::string> free = tile_axes;
  free.insert(axis);
  for (const auto& [key, group] : grouped(results, free)) {
    Results from, to;
    for (const Measurement* result : group) {
      for (const auto& [name, value] : result->config.axes()) {
        if (name == axis && value == baseline) from.push_back(result);
        if (name == axis && value == contender) to.push_back(result);
      }
    }
    if (!from.empty() && !to.empty()) duels.push_back({hypothesis, fastest(from)->config, fastest(to)->config});
  }
}

// Of the duels of one hypothesis, those of the longest sequences: there the launch and the edges weigh least.
void keep_longest(const std::string& hypothesis, std::vector<Duel>& duels) {
  int64_t longest = 0;
  for (const Duel& duel : duels) {
    if (duel.hypothesis == hypothesis) longest = std::max(longest, duel.baseline.integer("q_len"));
  }
  std::erase_if(duels, [&](const Duel& duel) {
    return duel.hypothesis == hypothesis && duel.baseline.integer("q_len") != longest;
  });
}

std::string tile_text(const Case& config) {
  return fmt::format("{}x{}", config.integer("block_r"), config.integer("block_c"));
}

// The axes that say what a claim is about; a tile is a result, not a subject.
std::string subject_of(const Case& config, const std::set<std::string>& free) {
  std::set<std::string> left_out = tile_axes;
  left_out.insert(free.begin(), free.end());
  left_out.insert("variant");
  return config.key_without(left_out);
}

Json facts(const Case& config) {
  Json values = config.json();
  values["tile"] = tile_text(config);
  return values;
}

struct Wording {
  std::set<std::string> free;  // axes that the comparison varies
  std::string title, content;
};

const std::map<std::string, Wording>& wordings() {
  static const std::map<std::string, Wording> all = {
      {"worst_tile",
       {{},
        "The worst flash attention tile takes {compare.ratio:.2f} times the best at head_dim "
        "{values.baseline.head_dim}",
        "At head_dim {values.baseline.head_dim} and {values.baseline.q_len} queries the tile {values.contender.tile} "
        "(Br x Bc) takes {compare.ratio:.3f} (95 % interval {compare.ci_lo:.3f} to {compare.ci_hi:.3f}) of the time of "
        "the best tile, {values.baseline.tile}."}},
      {"default_tile",
       {{},
        "The default tile takes {compare.ratio:.3f} of the time of the best other at head_dim "
        "{values.baseline.head_dim}",
        "At head_dim {values.baseline.head_dim} and {values.baseline.q_len} queries the default tile, "
        "{values.contender.tile} (Br x Bc), takes {compare.ratio:.3f} (95 % interval {compare.ci_lo:.3f} to "
        "{compare.ci_hi:.3f}) of the time of the best other that was tried, {values.baseline.tile}."}},
      {"bc80",
       {{},
        "Bc = 80 takes {compare.ratio:.3f} of the best power of two at head_dim {values.baseline.head_dim}",
        "At head_dim {values.baseline.head_dim} and {values.baseline.q_len} queries the best tile with Bc = 80, "
        "{values.contender.tile}, takes {compare.ratio:.3f} ({compare.ci_lo:.3f} to {compare.ci_hi:.3f}) of the time "
        "of the best one whose Bc is a power of two, {values.baseline.tile}; the noise floor of the pair is "
        "{compare.aa_floor:.4f}."}},
      {"wider_heads",
       {{"head_dim"},
        "Doubling head_dim from {values.baseline.head_dim} to {values.contender.head_dim} takes {compare.ratio:.3f} "
        "times the time",
        "From head_dim {values.baseline.head_dim} to {values.contender.head_dim} the arithmetic doubles and the time "
        "grows by a factor of {compare.ratio:.3f} ({compare.ci_lo:.3f} to {compare.ci_hi:.3f}) at "
        "{values.baseline.q_len} queries: the softmax, which does not grow, weighs less."}},
      {"bf16",
       {{"dtype"},
        "bf16 inputs take {compare.ratio:.3f} of the time of f32 at head_dim {values.baseline.head_dim}",
        "With Q, K and V in bf16 the kernel takes {compare.ratio:.3f} ({compare.ci_lo:.3f} to {compare.ci_hi:.3f}) of "
        "its time with f32 at head_dim {values.baseline.head_dim} and {values.baseline.q_len} queries."}},
      {"causal",
       {{"causal"},
        "A causal mask leaves {compare.ratio:.3f} of the time at head_dim {values.baseline.head_dim}",
        "At head_dim {values.baseline.head_dim} and {values.baseline.q_len} queries a causal launch takes "
        "{compare.ratio:.3f} ({compare.ci_lo:.3f} to {compare.ci_hi:.3f}) of the time of a full one."}},
      {"layout",
       {{"layout"},
        "Layout bshd takes {compare.ratio:.3f} of the time of bhsd at head_dim {values.baseline.head_dim}",
        "With heads inside the sequence (bshd) the kernel takes {compare.ratio:.3f} ({compare.ci_lo:.3f} to "
        "{compare.ci_hi:.3f}) of its time on bhsd at head_dim {values.baseline.head_dim}."}},
      {"ladder",
       {{"variant"},
        "The tuned kernel takes {compare.ratio:.3f} of the time of {values.baseline.variant}",
        "On {values.baseline.q_len} queries at head_dim {values.baseline.head_dim} the tuned kernel "
        "({values.contender.tile}) takes {compare.ratio:.4f} ({compare.ci_lo:.4f} to {compare.ci_hi:.4f}) of the time "
        "of the variant {values.baseline.variant}."}}};
  return all;
}

Conclusion conclude_comparison(const Comparison& comparison, const std::vector<Measurement>& results) {
  const Wording& wording = wordings().at(comparison.hypothesis);
  Conclusion conclusion;
  conclusion.hypothesis = comparison.hypothesis;
  // The variant is the subject of the ladder alone.
  conclusion.subject = subject_of(comparison.baseline, wording.free);
  if (comparison.hypothesis == "ladder")
    conclusion.subject = "variant=" + comparison.baseline.text("variant") + " " + conclusion.subject;
  if (comparison.hypothesis == "wider_heads")
    conclusion.subject = fmt::format("head_dim={} {}", comparison.baseline.integer("head_dim"), conclusion.subject);
  conclusion.title = wording.title;
  conclusion.content = wording.content;
  conclusion.tags = {"flash_attention", "d" + std::to_string(comparison.baseline.integer("head_dim")),
                     comparison.hypothesis, comparison.baseline.text("dtype")};
  conclusion.estimate = comparison.ratio;
  conclusion.aa_floor = comparison.aa_floor();
  conclusion.cv = comparison.cv;
  conclusion.compare = comparison;
  conclusion.values = {{"baseline", facts(comparison.baseline)}, {"contender", facts(comparison.contender)}};
  for (const Measurement& result : results) {
    if (result.config == comparison.baseline || result.config == comparison.contender) {
      conclusion.measurements.push_back(result.id);
      conclusion.correct &= result.status == "ok";
    }
  }
  return conclusion;
}

// Share of the matrix ceiling, per head dim and mask, on the longest sequence that the default tile ran on.
void conclude_ceiling(const Results& results, std::vector<Conclusion>& conclusions) {
  std::map<std::string, const Measurement*> longest;
  for (const Measurement* result : results) {
    if (result->config.integer("head_dim") < 64 || !result->matrix_pct) continue;
    const Measurement*& chosen = longest[result->config.key({"head_dim", "causal", "dtype", "layout", "out_dtype"})];
    const auto rank = [](const Measurement& m) {
      const bool all_heads =
          m.config.integer("q_heads") >= 8 && m.config.integer("kv_len") == m.config.integer("q_len");
      return std::tuple(all_heads, m.config.integer("q_len"), -hot_seconds(m));
    };
    if (!chosen || rank(*result) > rank(*chosen)) chosen = result;
  }
  for (const auto& [key, result] : longest) {
    const int64_t length = result->config.integer("q_len");
    if (length < 1024 || length != result->config.integer("kv_len") || result->config.integer("q_heads") < 8) continue;
    const DType dtype = parse_dtype(result->config.text("dtype"));
    Conclusion conclusion;
    const bool causal = result->config.integer("causal") != 0;
    conclusion.hypothesis = std::string(dtype == DType::f32 ? "ceiling" : "ceiling_16_bit") + (causal ? "_causal" : "");
    conclusion.subject = result->config.key_without({"block_r", "block_c", "variant", "q_len", "kv_len"});
    conclusion.title =
        "The tuned kernel reaches {values.pct:.1f} % of the {values.dtype} ceiling at head_dim {values.head_dim}" +
        std::string(causal ? ", causal" : "");
    conclusion.content =
        "At {values.q_len} queries and head_dim {values.head_dim} the tuned kernel runs at "
        "{values.tflops:.4f} TFLOPS, {values.pct:.1f} % (95 % interval {estimate.ci_lo:.1f} to "
        "{estimate.ci_hi:.1f}) of the {values.ceiling_tflops:.4f} TFLOPS that a loop of {values.dtype} products "
        "which touches no memory reached in the same rounds.";
    conclusion.tags = {"flash_attention", "d" + std::to_string(result->config.integer("head_dim")), "ceiling",
                       result->config.text("dtype")};
    conclusion.estimate = *result->matrix_pct;
    conclusion.cv = result->timing(Scope::device_hot)->cv;
    conclusion.values = result->config.json();
    conclusion.values["pct"] = conclusion.estimate.value;
    conclusion.values["tflops"] = result->tflops();
    conclusion.values["ceiling_tflops"] = 100 * result->tflops() / conclusion.estimate.value;
    conclusion.measurements = {result->id};
    conclusions.push_back(std::move(conclusion));
  }
}

// How far the best tile of a shape is ahead of the next. The two were not measured in turn: the interval reaches from
// the closest to the farthest that theirs allow.
void conclude_best_tile(const Results& results, std::vector<Conclusion>& conclusions) {
  for (const auto& [key, group] : grouped(results, tile_axes)) {
    if (group.size() < 2) continue;
    Results tiles = group;
    std::partial_sort(tiles.begin(), tiles.begin() + 2, tiles.end(), faster);
    const Measurement &best = *tiles[0], &next = *tiles[1];
    const Estimate fast = best.timing(Scope::device_hot)->median(), slow = next.timing(Scope::device_hot)->median();
    Conclusion conclusion;
    conclusion.hypothesis = "best_tile";
    conclusion.subject = subject_of(best.config, {});
    conclusion.title =
        "{values.baseline.tile} is the fastest of {values.tiles} flash attention tiles at head_dim "
        "{values.baseline.head_dim}";
    conclusion.content =
        "Of {values.tiles} tiles (Br x Bc) at head_dim {values.baseline.head_dim} and {values.baseline.q_len} queries "
        "{values.baseline.tile} is the fastest, at {values.tflops:.4f} TFLOPS; the next, {values.contender.tile}, "
        "takes {estimate.value:.3f} ({estimate.ci_lo:.3f} to {estimate.ci_hi:.3f}) of its time.";
    conclusion.tags = {"flash_attention", "d" + std::to_string(best.config.integer("head_dim")), "best_tile",
                       best.config.text("dtype")};
    conclusion.estimate = {slow.value / fast.value, slow.ci_lo / fast.ci_hi, slow.ci_hi / fast.ci_lo};
    conclusion.cv = std::max(best.timing(Scope::device_hot)->cv, next.timing(Scope::device_hot)->cv);
    conclusion.values = {{"baseline", facts(best.config)},
                         {"contender", facts(next.config)},
                         {"tiles", tiles.size()},
                         {"tflops", best.tflops()}};
    conclusion.measurements = {best.id, next.id};
    conclusions.push_back(std::move(conclusion));
  }
}

// time = a * length^b over the lengths that one shape was measured with.
void conclude_scaling(const Results& results, std::vector<Conclusion>& conclusions) {
  for (const auto& [key, group] : grouped(results, {"q_len", "kv_len", "block_r", "block_c"})) {
    std::map<int64_t, const Measurement*> by_length;  // the fastest tile of each
    for (const Measurement* result : group) {
      const int64_t length = result->config.integer("q_len");
      if (length != result->config.integer("kv_len")) continue;
      const Measurement*& chosen = by_length[length];
      if (!chosen || faster(result, chosen)) chosen = result;
    }
    if (by_length.size() < 3) continue;
    std::vector<ScalingPoint> points;
    Conclusion conclusion;
    for (const auto& [length, result] : by_length) {
      points.push_back({static_cast<double>(length), result->main_timing()->median()});
      conclusion.measurements.push_back(result->id);
      conclusion.cv = std::max(conclusion.cv, result->timing(Scope::device_hot)->cv);
    }
    const Case& first = by_length.begin()->second->config;
    conclusion.hypothesis = "scaling";
    conclusion.subject = key;
    conclusion.title = "Time grows with length to the power {estimate.value:.3f} at head_dim {values.head_dim}";
    conclusion.content =
        "From {values.shortest} to {values.longest} tokens ({values.points} lengths) at head_dim "
        "{values.head_dim}, causal {values.causal}, the time grows with the length to the power "
        "{estimate.value:.3f} (95 % interval {estimate.ci_lo:.3f} to {estimate.ci_hi:.3f}).";
    conclusion.tags = {"flash_attention", "d" + std::to_string(first.integer("head_dim")), "scaling"};
    conclusion.estimate = scaling_exponent(points);
    conclusion.values = {{"head_dim", first.integer("head_dim")},
                         {"causal", first.integer("causal")},
                         {"shortest", by_length.begin()->first},
                         {"longest", by_length.rbegin()->first},
                         {"points", by_length.size()}};
    conclusions.push_back(std::move(conclusion));
  }
}

}  // namespace

std::vector<Hypothesis> flash_hypotheses() {
  const std::string study = "the published study on Apple M4 that this follows";
  return {
      {"worst_tile", "The choice of tile matters: the worst takes at least 1.25 times the best.",
       "time of the worst tile / time of the best", ">=", 1.25,
       "expectation before the first run; " + study + " compared tiles by hand"},
      {"best_tile", "One tile is the best: the next takes at least 2 % longer.",
       "time of the next best tile / time of the best", ">=", 1.02,
       "expectation: tiles nearer than 2 % change places from run to run"},
      {"default_tile", "The default tile takes at most 1.05 of the time of the best other.",
       "time of the default tile / time of the best other", "<=", 1.05,
       "expectation: the rules that choose it, made on other machines, carry over to this one"},
      {"bc80", "Bc = 80 is slower than the best power of two.", "time with Bc=80 / time with the best power of two",
       ">", 1.0, "rule of thumb: 80 divides neither cache nor vector sizes evenly"},
      {"wider_heads", "Twice the head_dim takes less than twice the time.", "time at 2D / time at D", "<", 2.0,
       "the softmax costs the same at every head_dim"},
      {"scaling", "Time grows at least as length^1.9.", "exponent of time over length", ">=", 1.9,
       "arithmetic is quadratic; " + study +
           " measured 389 us at 256 and 6.50 ms at 2048, an exponent of 1.35 between the two"},
      {"bf16", "bf16 inputs take at most two thirds of the time of f32.", "time with bf16 / time with f32", "<=", 0.667,
       "cores with a bf16 dot product multiply twice as many pairs per instruction; those without convert to f32 and "
       "gain nothing"},
      {"causal", "Skipping masked tiles leaves at most 0.6 of the time.", "time causal / time full", "<=", 0.6,
       "half the pairs are masked; the tiles on the diagonal are half wasted"},
      {"layout", "Layout bshd costs at most 10 % over bhsd.", "time with bshd / time with bhsd", "<=", 1.1,
       "rows of one head are heads * head_dim apart, which may meet in the same cache sets"},
      {"ladder", "The tuned kernel takes at most a tenth of the time of each simpler one.",
       "time of tuned / time of the simpler variant", "<=", 0.1,
       "vectors give up to the lanes of a vector, the register tile the rest"},
      {"ceiling", "The tuned kernel reaches 82 % of the f32 ceiling.", "% of the ceiling measured in the same rounds",
       ">=", 82, "the same design measured on a core with 512-bit vectors: 82 to 91 %"},
      {"ceiling_causal", "With a causal mask, half the arithmetic counted, it reaches 80 %.",
       "% of the ceiling measured in the same rounds", ">=", 80,
       "the same design measured on a core with 512-bit vectors: 81 to 86 %"},
      {"ceiling_16_bit", "With 16-bit inputs the tuned kernel reaches 75 % of the matrix ceiling.",
       "% of the ceiling measured in the same rounds", ">=", 75,
       "Shah et al. 2024 (FlashAttention-3): 75 % of an H100's peak"},
      {"ceiling_16_bit_causal", "With 16-bit inputs and a causal mask it reaches 65 %.",
       "% of the ceiling measured in the same rounds", ">=", 65,
       "expectation before the first run: ten points less, for the half masked tiles on the diagonal"},
  };
}

std::vector<Duel> flash_duels(const std::vector<Measurement>& results, const DeviceInfo& device) {
  const Results all = tuned(results);
  std::vector<Duel> duels;
  for (const auto& [key, tiles] : grouped(all, tile_axes)) duel_tiles(tiles, device, duels);
  for (const int64_t dim : {64, 128}) duel_axis("wider_heads", all, "head_dim", dim, 2 * dim, duels);
  duel_axis("bf16", all, "dtype", std::string("f32"), std::string("bf16"), duels);
  duel_axis("causal", all, "causal", int64_t{0}, int64_t{1}, duels);
  duel_axis("layout", all, "layout", std::string("bhsd"), std::string("bshd"), duels);
  Results variants;
  for (const Measurement& result : results) {
    if (result.status == "ok" && result.timing(Scope::device_hot)) variants.push_back(&result);
  }
  for (const std::string simpler : {"naive", "tiled_scalar", "tiled_vector", "mma_sync"}) {
    duel_axis("ladder", variants, "variant", simpler, std::string("tuned"), duels);
  }
  for (const Hypothesis& hypothesis : flash_hypotheses()) keep_longest(hypothesis.id, duels);
  return in_turn(duels);
}

std::vector<Conclusion> flash_conclusions(const std::vector<Measurement>& results,
                                          const std::vector<Comparison>& comparisons) {
  std::vector<Conclusion> conclusions;
  for (const Comparison& comparison : comparisons) conclusions.push_back(conclude_comparison(comparison, results));
  const Results all = tuned(results);
  conclude_best_tile(all, conclusions);
  conclude_ceiling(all, conclusions);
  conclude_scaling(all, conclusions);
  return conclusions;
}

}  // namespace attn
