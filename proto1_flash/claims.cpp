#include "proto1_flash/claims.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

#include "common/cases/axes.h"
#include "proto1_flash/sweep.h"

namespace attn {

namespace {

const std::vector<std::string> tile_names = flash_tile_axes();
const std::set<std::string> tile_axes(tile_names.begin(), tile_names.end());
constexpr size_t whole_tile_sweep = 6;  // with fewer tiles, the shape's best or worst tile may be missing

bool tuned(const Measurement& result) { return result.config.text("variant") == "tuned"; }

bool as_many_keys(const Measurement& result) {
  return result.config.integer("q_len") == result.config.integer("kv_len");
}

std::set<std::string> tile_and(std::set<std::string> axes) {
  axes.insert(tile_axes.begin(), tile_axes.end());
  return axes;
}

std::vector<Results> best_and_worst(const Results& tiles) {
  return pair(tiles, {*std::max_element(tiles.begin(), tiles.end(), faster)});
}

std::vector<Results> best_and_next(const Results& tiles) {
  Results sorted = tiles;
  std::partial_sort(sorted.begin(), sorted.begin() + 2, sorted.end(), faster);
  return {{sorted[0], sorted[1]}};
}

// Pairs the best tile whose Bc is a power of two with the best tile with Bc = 80.
std::vector<Results> powers_and_eighty(const Results& tiles) {
  Results powers;
  for (const Measurement* tile : tiles) {
    const int64_t columns = tile->config.integer("block_c");
    if (columns > 0 && (columns & (columns - 1)) == 0) powers.push_back(tile);
  }
  return pair(powers, where(tiles, "block_c", "80"));
}

// Pairs the best of the other tiles with the default tile, which complete_flash() gives to a case that names no tile.
Pick others_and_default(const DeviceInfo& device) {
  return [device](const Results& tiles) {
    Case chosen;
    for (const auto& [axis, value] : tiles.front()->config.axes()) {
      if (!tile_axes.contains(axis)) chosen.set(axis, value);
    }
    complete_flash(chosen, device);
    Results own, others;
    for (const Measurement* tile : tiles) (tile->config == chosen ? own : others).push_back(tile);
    return pair(others, own);
  };
}

// Pairs the best of the other tiles with the study's.
std::vector<Results> others_and_16x64(const Results& tiles) {
  Results own, others;
  for (const Measurement* tile : tiles) {
    const bool published = tile->config.integer("block_r") == 16 && tile->config.integer("block_c") == 64;
    (published ? own : others).push_back(tile);
  }
  return pair(others, own);
}

void name_tiles(Conclusion& conclusion, const Evidence&) {
  for (const char* side : {"baseline", "contender"}) {
    Json& config = conclusion.values[side];
    config["tile"] = fmt::format("{}x{}", config["block_r"].get<int64_t>(), config["block_c"].get<int64_t>());
  }
}

void describe_best_tile(Conclusion& conclusion, const Evidence& evidence) {
  name_tiles(conclusion, evidence);
  conclusion.values["tiles"] = evidence.among;
  conclusion.values["tflops"] = evidence.results.front()->tflops();
}

void describe_lengths(Conclusion& conclusion, const Evidence& evidence) {
  const Case &shortest = evidence.results.front()->config, &longest = evidence.results.back()->config;
  conclusion.values = {{"head_dim", shortest.integer("head_dim")},
                       {"causal", shortest.integer("causal")},
                       {"shortest", shortest.integer("q_len")},
                       {"longest", longest.integer("q_len")},
                       {"points", evidence.results.size()}};
}

// Returns a claim about the share of the matrix ceiling (the rate of products that touch no memory) that the tuned
// kernel reaches on the longest sequence. Only cases that fill the device count. `f32`: whether the inputs are in f32
// or in 16 bits. `causal`: whether the cases have a causal mask.
Claim ceiling(const Hypothesis& hypothesis, bool f32, bool causal) {
  return {
      .hypothesis = hypothesis,
      .takes =
          [=](const Measurement& result) {
            const Case& config = result.config;
            return tuned(result) && result.matrix_pct && as_many_keys(result) && config.integer("q_heads") >= 8 &&
                   config.integer("q_len") >= 1024 && config.integer("head_dim") >= 64 &&
                   (config.integer("causal") != 0) == causal && (config.text("dtype") == "f32") == f32;
          },
      .varies = tile_and({"batch", "q_heads", "kv_heads", "q_len", "kv_len"}),
      .pick = [](const Results& group) -> std::vector<Results> { return {{largest(group, "q_len")}}; },
      .compared = false,
      .figure = [](const Evidence& evidence) { return *evidence.results.front()->matrix_pct; },
      .subject = subject_without(tile_and({"variant", "q_len", "kv_len"})),
      .selection = {"q_len", "kv_len"},
      .title = std::string("The tuned kernel reaches {estimate.value:.1f} % of the {values.dtype} ceiling at head_dim "
                           "{values.head_dim}") +
               (causal ? ", causal" : ""),
      .content =
          "At {values.q_len} queries and head_dim {values.head_dim} the tuned kernel runs at "
          "{values.tflops:.4f} TFLOPS, {estimate.value:.1f} % (95 % interval {estimate.ci_lo:.1f} to "
          "{estimate.ci_hi:.1f}) of the {values.ceiling_tflops:.4f} TFLOPS that a loop of {values.dtype} products "
          "which touches no memory reached in the same rounds.",
      .complete =
          [](Conclusion& conclusion, const Evidence& evidence) {
            const Measurement& result = *evidence.results.front();
            conclusion.values["tflops"] = result.tflops();
            conclusion.values["ceiling_tflops"] = 100 * result.tflops() / result.matrix_pct->value;
          }};
}

}  // namespace

std::vector<Claim> flash_claims(const DeviceInfo& device) {
  const std::string study = "the published study on Apple M4 that this follows";
  const std::string pct_of_ceiling = "% of the ceiling measured in the same rounds";
  std::vector<Claim> claims = {
      {.hypothesis = {"worst_tile", "The choice of tile matters: the worst takes at least 1.25 times the best.",
                      "time of the worst tile / time of the best", ">=", 1.25,
                      "expectation before the first run; " + study + " compared tiles by hand"},
       .takes = tuned,
       .varies = tile_axes,
       .at_least = whole_tile_sweep,
       .pick = best_and_worst,
       .title = "The worst flash attention tile takes {compare.ratio:.2f} times the best at head_dim "
                "{values.baseline.head_dim}",
       .content = "At head_dim {values.baseline.head_dim} and {values.baseline.q_len} queries the tile "
                  "{values.contender.tile} (Br x Bc) takes {compare.ratio:.3f} (95 % interval {compare.ci_lo:.3f} to "
                  "{compare.ci_hi:.3f}) of the time of the best tile, {values.baseline.tile}."},
      {.hypothesis = {"best_tile", "One tile is the best: the next takes at least 2 % longer.",
                      "time of the next best tile / time of the best", ">=", 1.02,
                      "expectation: tiles nearer than 2 % change places from run to run"},
       .takes = tuned,
       .varies = tile_axes,
       .at_least = 2,
       .pick = best_and_next,
       .compared = false,
       .figure = ratio_of_medians,
       .title = "{values.baseline.tile} is the fastest of {values.tiles} flash attention tiles at head_dim "
                "{values.baseline.head_dim}",
       .title_unless_supported =
           "No flash attention tile of {values.tiles} is clearly the fastest at head_dim {values.baseline.head_dim}: "
           "{values.contender.tile} takes {estimate.value:.3f} of the time of {values.baseline.tile}",
       .content =
           "Of {values.tiles} tiles (Br x Bc) at head_dim {values.baseline.head_dim} and {values.baseline.q_len} "
           "queries {values.baseline.tile} took the least time, at {values.tflops:.4f} TFLOPS; the next, "
           "{values.contender.tile}, takes {estimate.value:.3f} ({estimate.ci_lo:.3f} to {estimate.ci_hi:.3f}) of its "
           "time.",
       .complete = describe_best_tile},
      {.hypothesis = {"default_tile", "The default tile takes at most 1.05 of the time of the best other.",
                      "time of the default tile / time of the best other", "<=", 1.05,
                      "expectation: the rules that choose it, made on other machines, carry over to this one"},
       .takes = tuned,
       .varies = tile_axes,
       .at_least = whole_tile_sweep,
       .pick = others_and_default(device),
       .title = "The default tile takes {compare.ratio:.3f} of the time of the best other at head_dim "
                "{values.baseline.head_dim}",
       .content = "At head_dim {values.baseline.head_dim} and {values.baseline.q_len} queries the default tile, "
                  "{values.contender.tile} (Br x Bc), takes {compare.ratio:.3f} (95 % interval {compare.ci_lo:.3f} to "
                  "{compare.ci_hi:.3f}) of the time of the best other that was tried, {values.baseline.tile}."},
      {.hypothesis = {"tile_16x64", "At head_dim 64 no tile is more than 5 % faster than 16x64.",
                      "time with the tile 16x64 / time with the fastest other one", "<=", 1.05,
                      study + ", statement 1: 16x64 is the best tile at head_dim 64"},
       .takes = [](const Measurement& result) { return tuned(result) && result.config.integer("head_dim") == 64; },
       .varies = tile_axes,
       .at_least = whole_tile_sweep,
       .pick = others_and_16x64,
       .title = "The tile 16x64 takes {compare.ratio:.3f} of the time of {values.baseline.tile}",
       .content =
           "At head_dim 64 and {values.baseline.q_len} queries the tile 16x64 (Br x Bc) takes {compare.ratio:.3f} "
           "(95 % interval {compare.ci_lo:.3f} to {compare.ci_hi:.3f}) of the time of the best other, "
           "{values.baseline.tile}."},
      {.hypothesis = {"bc80", "Bc = 80 is slower than the best power of two.",
                      "time with Bc=80 / time with the best power of two", ">", 1.0,
                      "rule of thumb: 80 divides neither cache nor vector sizes evenly"},
       .takes = tuned,
       .varies = tile_axes,
       .pick = powers_and_eighty,
       .title = "Bc = 80 takes {compare.ratio:.3f} of the best power of two at head_dim {values.baseline.head_dim}",
       .content =
           "At head_dim {values.baseline.head_dim} and {values.baseline.q_len} queries the best tile with Bc = 80, "
           "{values.contender.tile}, takes {compare.ratio:.3f} ({compare.ci_lo:.3f} to {compare.ci_hi:.3f}) of the "
           "time of the best one whose Bc is a power of two, {values.baseline.tile}; the noise floor of the pair is "
           "{compare.aa_floor:.4f}."},
      {.hypothesis = {"wider_heads", "Twice the head_dim takes less than twice the time.", "time at 2D / time at D",
                      "<", 2.0, "the softmax costs the same at every head_dim"},
       .takes = tuned,
       .varies = tile_and({"head_dim"}),
       .pick = steps("head_dim", {{"64", "128"}, {"128", "256"}}),
       .subject = subject_without(tile_and({"head_dim", "variant"}), {"head_dim"}),
       .title = "Doubling head_dim from {values.baseline.head_dim} to {values.contender.head_dim} takes "
                "{compare.ratio:.3f} times the time",
       .content =
           "From head_dim {values.baseline.head_dim} to {values.contender.head_dim} the arithmetic doubles and the "
           "time grows by a factor of {compare.ratio:.3f} ({compare.ci_lo:.3f} to {compare.ci_hi:.3f}) at "
           "{values.baseline.q_len} queries."},
      {.hypothesis = {"scaling", "Time grows at least as length^1.9.", "exponent of time over length", ">=", 1.9,
                      "arithmetic is quadratic; " + study +
                          " measured 389 us at 256 and 6.50 ms at 2048, an exponent of 1.35 between the two"},
       .takes = [](const Measurement& result) { return tuned(result) && as_many_keys(result); },
       .varies = tile_and({"q_len", "kv_len"}),
       .pick = fastest_at_each("q_len", 3),
       .compared = false,
       .figure = exponent_over("q_len"),
       .subject = subject_without(tile_and({"q_len", "kv_len"})),
       .title = "Time grows with length to the power {estimate.value:.3f} at head_dim {values.head_dim}",
       .content = "From {values.shortest} to {values.longest} tokens ({values.points} lengths) at head_dim "
                  "{values.head_dim}, causal {values.causal}, the time grows with the length to the power "
                  "{estimate.value:.3f} (95 % interval {estimate.ci_lo:.3f} to {estimate.ci_hi:.3f}).",
       .complete = describe_lengths},
      {.hypothesis = {"bf16", "bf16 inputs take at most two thirds of the time of f32.",
                      "time with bf16 / time with f32", "<=", 0.667,
                      "cores with a bf16 dot product multiply twice as many pairs per instruction; those without "
                      "convert to f32 and gain nothing"},
       .takes = tuned,
       .varies = tile_and({"dtype"}),
       .pick = steps("dtype", {{"f32", "bf16"}}),
       .title = "bf16 inputs take {compare.ratio:.3f} of the time of f32 at head_dim {values.baseline.head_dim}",
       .content =
           "With Q, K and V in bf16 the kernel takes {compare.ratio:.3f} ({compare.ci_lo:.3f} to {compare.ci_hi:.3f}) "
           "of its time with f32 at head_dim {values.baseline.head_dim} and {values.baseline.q_len} queries."},
      {.hypothesis = {"causal", "Skipping masked tiles leaves at most 0.6 of the time.", "time causal / time full",
                      "<=", 0.6, "half the pairs are masked; the tiles on the diagonal are half wasted"},
       .takes = tuned,
       .varies = tile_and({"causal"}),
       .pick = steps("causal", {{"0", "1"}}),
       .title = "A causal mask leaves {compare.ratio:.3f} of the time at head_dim {values.baseline.head_dim}",
       .content = "At head_dim {values.baseline.head_dim} and {values.baseline.q_len} queries a causal launch takes "
                  "{compare.ratio:.3f} ({compare.ci_lo:.3f} to {compare.ci_hi:.3f}) of the time of a full one."},
      {.hypothesis = {"layout", "Layout bshd costs at most 10 % over bhsd.", "time with bshd / time with bhsd",
                      "<=", 1.1, "rows of one head are heads * head_dim apart, which may meet in the same cache sets"},
       .takes = tuned,
       .varies = tile_and({"layout"}),
       .pick = steps("layout", {{"bhsd", "bshd"}}),
       .title = "Layout bshd takes {compare.ratio:.3f} of the time of bhsd at head_dim {values.baseline.head_dim}",
       .content = "With heads inside the sequence (bshd) the kernel takes {compare.ratio:.3f} ({compare.ci_lo:.3f} to "
                  "{compare.ci_hi:.3f}) of its time on bhsd at head_dim {values.baseline.head_dim}."},
      {.hypothesis = {"ladder", "The tuned kernel takes at most a tenth of the time of each simpler one.",
                      "time of tuned / time of the simpler variant", "<=", 0.1,
                      "vectors give up to the lanes of a vector, the register tile the rest"},
       .varies = tile_and({"variant"}),
       .pick = steps("variant",
                     {{"naive", "tuned"}, {"tiled_scalar", "tuned"}, {"tiled_vector", "tuned"}, {"mma_sync", "tuned"}}),
       .subject = subject_without(tile_and({"variant"}), {"variant"}),
       .title = "The tuned kernel takes {compare.ratio:.3f} of the time of {values.baseline.variant}",
       .content =
           "On {values.baseline.q_len} queries at head_dim {values.baseline.head_dim} the tuned kernel "
           "({values.contender.tile}) takes {compare.ratio:.4f} ({compare.ci_lo:.4f} to {compare.ci_hi:.4f}) of the "
           "time of the variant {values.baseline.variant}."},
      ceiling({"ceiling", "The tuned kernel reaches 82 % of the f32 ceiling.", pct_of_ceiling, ">=", 82,
               "the same design measured on a core with 512-bit vectors: 82 to 91 %"},
              true, false),
      ceiling({"ceiling_causal", "With a causal mask, half the arithmetic counted, it reaches 80 %.", pct_of_ceiling,
               ">=", 80, "the same design measured on a core with 512-bit vectors: 81 to 86 %"},
              true, true),
      ceiling({"ceiling_16_bit", "With 16-bit inputs the tuned kernel reaches 75 % of the matrix ceiling.",
               pct_of_ceiling, ">=", 75, "Shah et al. 2024 (FlashAttention-3): 75 % of an H100's peak"},
              false, false),
      ceiling({"ceiling_16_bit_causal", "With 16-bit inputs and a causal mask it reaches 65 %.", pct_of_ceiling, ">=",
               65, "expectation before the first run: ten points less, for the half masked tiles on the diagonal"},
              false, true),
  };
  for (Claim& claim : claims) {
    const std::string& id = claim.hypothesis.id;
    // The longest case spends the smallest share of its time on the launch and on partly filled tiles.
    if (claim.compared) claim.longest = "q_len";
    if (!claim.complete) claim.complete = name_tiles;
    std::set<std::string> left_out = claim.varies;  // the claim picks the tile, so the subject names no tile
    left_out.insert("variant");
    if (!claim.subject) claim.subject = subject_without(left_out);
    claim.tags = [topic = id.starts_with("ceiling") ? "ceiling" : id](const Evidence& evidence) {
      const Case& config = evidence.results.front()->config;
      return std::vector<std::string>{"flash_attention", fmt::format("d{}", config.integer("head_dim")), topic,
                                      config.text("dtype")};
    };
  }
  return claims;
}

}  // namespace attn
