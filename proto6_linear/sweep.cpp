#include "proto6_linear/sweep.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "common/cases/axes.h"
#include "common/cases/study_cases.h"
#include "common/cases/study_layout.h"
#include "common/cases/user_functions.h"
#include "common/experiment/sweep_span.h"
#include "common/linear/launch.h"
#include "proto6_linear/claims.h"
#include "proto6_linear/problem.h"

namespace attn {
namespace {

const std::vector<std::string> dtypes = {"f32", "f16", "bf16"};

// The searches for the crossover replace q_len.
Sweep linear_study(const DeviceInfo& /*device*/) {
  const Axis phases = texts("variant", {"phases"}), lookback = texts("scan", {"lookback"});
  const Block chunks = {phases, lookback, integers("q_len", {1024}), integers("chunk", {16, 32, 64})};
  const auto cases_of = [](int64_t head_dim, std::vector<Block> blocks) {
    return study_cases(
        {texts("dtype", {"f32"}), integers("head_dim", {head_dim}), integers("batch", {1}), integers("heads", {1})},
        std::move(blocks));
  };
  Sweep sweep = cases_of(64, {{texts("variant", {"softmax", "fused", "phases"}), lookback, integers("q_len", {256}),
                               integers("causal", {1, 0})},
                              {phases, texts("scan", {"host", "passes", "lookback"}), integers("q_len", study_lengths)},
                              chunks,
                              {texts("variant", {"softmax", "fused"}), integers("q_len", study_lengths)}});
  sweep.blocks.push_back(cases_of(128, {chunks}).blocks.front());
  return sweep;
}

}  // namespace

std::vector<AxisInfo> linear_axes() {
  return {
      {"variant",
       "phases: a launch for states, a scan, a launch for outputs; fused: one pass; recurrent: token by token, for "
       "decode; "
       "softmax: the project's fastest attention kernel, for comparison",
       {"phases", "fused", "recurrent", "softmax"}},
      {"scan",
       "how the variant phases makes the state before each chunk from the sums of the chunks; host: on the host, "
       "between two copies; "
       "passes: in passes over the chunks; lookback: in one pass, in which a threadgroup looks back at the sums of "
       "earlier threadgroups",
       {"host", "passes", "lookback", "none"}},
      {"dtype", "type of Q, K and V", dtypes},
      {"out_dtype", "type of O, by default dtype", dtypes},
      {"head_dim", "columns of Q and K", {}, 8, 256, 8},
      {"value_dim", "columns of V and O, by default head_dim", {}, 8, 256, 8},
      {"chunk", "tokens of a chunk; 0: the default of a variant with chunks (phases, fused)", {}, 0, 256, 16},
      {"batch", "number of sequences", {}, 1, 65535, 1},
      {"heads", "number of heads of Q, K, V and O", {}, 1, 65535, 1},
      {"q_len", "tokens of the longest sequence", {}, 1, longest_sequence, 1},
      {"causal", "1: a token sees the tokens up to itself; 0: it sees all tokens", {}, 0, 1, 1},
      {"gate",
       "one decay for each head, each token of a head, or each channel of a token",
       {"none", "head", "token", "channel"}},
      {"normalised", "1: O is divided by the product of the query and the sum of the keys", {}, 0, 1, 1},
      {"feature", "map of each element of Q and K", {"identity", "elu1", "relu"}},
      {"layout", "order of Q, K, V and O", {"bhsd", "bshd"}},
      {"lengths",
       "equal: each sequence has q_len tokens; ragged: the first sequence has q_len tokens, one other sequence has "
       "none, the rest have 1 to q_len",
       {"equal", "ragged"}},
      {"state", "1: each sequence begins with an initial state, and leaves a final state", {}, 0, 1, 1},
      {"segments",
       "parts of a sequence that the variant fused runs at once; 0: a rule chooses the number",
       {},
       0,
       4096,
       1},
  };
}

std::vector<std::string> linear_compared_axes() {
  return {"variant", "scan", "chunk", "gate", "normalised", "feature", "state", "segments"};
}

Sweep linear_sweep(const std::string& profile, const DeviceInfo& device) {
  const SweepSpan span = sweep_span(device);
  const bool full = profile == "full", large = span.large();
  Sweep sweep;
  // Adds a block with the axes in `own`, and with the usual axes that `own` lacks.
  const auto add = [&](Block own) {
    for (Axis& axis : Block{integers("batch", {large ? 4 : 1}), integers("heads", {span.heads}),
                            integers("q_len", {4096}), integers("head_dim", {64}), texts("dtype", {span.dtype})}) {
      if (std::ranges::find(own, axis.name, &Axis::name) == own.end()) own.push_back(std::move(axis));
    }
    sweep.blocks.push_back(std::move(own));
  };
  const Axis fused = texts("variant", {"fused"}), phases = texts("variant", {"phases"});
  const Axis lookback = texts("scan", {"lookback"}), all_scans = texts("scan", {"host", "passes", "lookback"});
  const Axis both = texts("variant", {"phases", "fused"}), wide = integers("head_dim", {128});
  const Axis one_batch = integers("batch", {1});
  // The searches for the crossover take their pairs from these cases, and replace q_len.
  const Axis compared = texts("variant", {"softmax", "fused", "phases"}), start = integers("q_len", {256});
  add({compared, lookback, one_batch, start, integers("causal", {1, 0})});
  add({compared, lookback, one_batch, start, wide});
  add({compared, lookback, one_batch, start, texts("gate", {"none", "token"})});
  add({compared, lookback, one_batch, start, texts("dtype", {span.other_dtype})});
  // These blocks measure the host's scan on one head (as the published study did), decoding, lengths, and segments.
  add({phases, all_scans, one_batch, integers("heads", {1}), integers("q_len", {256, 512, 1024})});
  const Axis decode = texts("variant", {"recurrent"}), token = integers("q_len", {1});
  add({decode, token, integers("batch", {1, large ? 256 : 64}), integers("head_dim", {64, 128})});
  add({fused, one_batch, integers("q_len", {1024, 4096, 16384})});
  add({fused, one_batch, integers("heads", {1}), integers("q_len", {16384}), integers("segments", {0, 1})});
  // These blocks vary forms, scans, gates, feature maps and chunks.
  add({both, all_scans, integers("head_dim", {64, 128})});
  add({both, lookback, texts("gate", {"none", "head", "token", "channel"})});
  add({fused, texts("feature", {"identity", "elu1"})});
  add({fused, texts("feature", {"elu1"}), integers("normalised", {0, 1})});
  add({both, lookback, integers("causal", {0})});
  const Axis chunks = integers("chunk", {16, 32, 64, 128, 256});
  for (const int64_t head_dim : {64, 128}) {
    const Axis dims = integers("head_dim", {head_dim});
    add({phases, lookback, dims, head_dim == 64 || large ? chunks : integers("chunk", {16, 64, 128})});
    if (!large) add({fused, dims, integers("chunk", {16, 32, 64})});
  }
  if (large) {
    // The shapes that the records of fla (flash-linear-attention) have, without a gate and with a gate by head.
    const Axis gates = texts("gate", {"none", "head"});
    const auto row = [&](int64_t head_dim, int64_t heads, int64_t batch, int64_t tokens) {
      add({fused, integers("head_dim", {head_dim}), integers("heads", {heads}), integers("batch", {batch}),
           integers("q_len", {tokens}), gates});
    };
    row(64, 32, 4, 4096);
    row(64, 32, 1, 65536);
    row(64, 32, 16, 1024);
    row(64, 1, 1, 1024);
    row(128, 16, 4, 4096);
    row(128, 16, 1, 65536);
    row(128, 32, 1, 8192);
    row(256, 8, 4, 4096);
    // Gates by token and by channel, as in GLA.
    for (const auto& [head_dim, heads, batch, tokens] : {std::array{128, 24, 2, 8192}, {64, 16, 8, 2048}}) {
      add({fused, integers("head_dim", {head_dim}), integers("heads", {heads}), integers("batch", {batch}),
           integers("q_len", {tokens}), texts("gate", {"token", "channel"})});
    }
  }
  if (!full) return sweep;
  for (const int64_t head_dim : {64, 128, 256}) {
    const Axis dims = integers("head_dim", {head_dim});
    add({compared, lookback, one_batch, start, dims, integers("causal", {1, 0}),
         integers("heads", {1, large ? 16 : 4})});
    add({compared, lookback, one_batch, start, dims, texts("gate", {"none", "head", "token", "channel"})});
    add({compared, lookback, one_batch, start, dims, texts("dtype", {"f32", "f16", "bf16"})});
    add({both, lookback, dims, texts("dtype", {"f32", "f16", "bf16"})});
    add({both, lookback, dims, texts("gate", {"none", "head", "token", "channel"})});
    add({phases, texts("scan", {"passes", "lookback"}), dims, chunks});
    add({decode, dims, integers("q_len", {1, 2, 4, 8, 16}), integers("batch", {1, 16, 64})});
  }
  add({both, lookback, wide, integers("value_dim", {64, 256})});
  add({both, lookback, texts("layout", {"bhsd", "bshd"})});
  add({both, lookback, integers("batch", {8}), integers("q_len", {2048}), texts("lengths", {"equal", "ragged"})});
  add({both, lookback, integers("state", {0, 1})});
  add({both, all_scans, one_batch, integers("heads", {1, 4}),
       integers("q_len", {1024, 4096, 16384, 65536, 262144, 1048576})});
  add({fused, one_batch, integers("heads", {1, 2, 4}), integers("q_len", {65536}),
       integers("segments", {0, 1, 2, 4, 8, 32})});
  return sweep;
}

FileOption feature_file() {
  return {.name = feature_option,
          .help = "a feature map of your own, of each element of Q and K: float feature(float x)",
          .axes = [](const std::string& path) -> std::vector<Axis> {
            return {texts("feature", {read_function(FunctionKind::feature, path).text_name()})};
          }};
}

Sweep feature_sweep(const std::string& /*profile*/, const DeviceInfo& device) {
  const SweepSpan span = sweep_span(device);
  const bool large = span.large();
  return {{{texts("variant", {"phases", "fused"}), texts("scan", {"lookback"}), integers("batch", {large ? 4 : 1}),
            integers("heads", {span.heads}), integers("q_len", {4096}), integers("head_dim", {64, 128}),
            integers("normalised", {0, 1})}}};
}

void complete_linear(Case& config, const DeviceInfo& device) {
  config.set_default("variant", std::string("fused"));
  const std::string variant = config.text("variant");
  config.set_default("scan", std::string("lookback"));
  if (variant == "phases" && config.text("scan") == "none") config.set("scan", std::string("lookback"));
  if (variant != "phases") config.set("scan", std::string("none"));
  config.set_default("dtype", sweep_span(device).dtype);
  config.set_default("out_dtype", config.text("dtype"));
  config.set_default("head_dim", int64_t{64});
  config.set_default("value_dim", config.integer("head_dim"));
  config.set_default("batch", int64_t{1});
  config.set_default("heads", int64_t{8});
  config.set_default("q_len", int64_t{4096});
  config.set_default("causal", int64_t{1});
  config.set_default("gate", std::string("none"));
  config.set_default("normalised", int64_t{0});
  config.set_default("feature", std::string(config.integer("normalised") != 0 ? "elu1" : "identity"));
  config.set_default("layout", std::string("bhsd"));
  config.set_default("lengths", std::string("equal"));
  config.set_default("state", int64_t{variant == "recurrent"});
  config.set_default("segments", int64_t{0});
  const bool chunked = variant == "phases" || variant == "fused";
  const int64_t chunk = linear_chunk(variant, device);
  if (!config.has("chunk") || config.integer("chunk") == 0) config.set("chunk", chunk);
  if (!chunked) config.set("chunk", int64_t{0});
  if (variant != "fused") config.set("segments", int64_t{0});
  if (variant != "softmax") return;
  for (const auto& [axis, value] : {std::pair<const char*, AxisValue>{"gate", std::string("none")},
                                    {"normalised", int64_t{0}},
                                    {"feature", std::string("identity")},
                                    {"state", int64_t{0}}}) {
    config.set(axis, value);
  }
}

ExperimentSpec linear_experiment() {
  return {.name = "proto6_linear",
          .summary = "Linear attention, its forms, and where it overtakes softmax attention.",
          .axes = linear_axes(),
          .compared_axes = linear_compared_axes(),
          .default_tile = false,
          .claims = linear_claims,
          .alternatives = {"variant", "scan", "chunk", "segments"},
          .sweep = linear_sweep,
          .study_sweep = linear_study,
          .complete = complete_linear,
          .plan = linear_case_plan,
          .make = linear_problems(),
          .make_host = host_scan_problems(),
          .file_options = {feature_file()},
          .file_sweep = feature_sweep,
          .study_bytes = [](const Case& config, const DeviceInfo& device) -> size_t {
            if (!names_study_bytes(device) || config.text("variant") != "phases") return 0;
            return study_chunk_bytes(config.integer("head_dim"), config.integer("value_dim"), config.integer("chunk"));
          },
          .prepare =
              [](Experiment& lab) {
                require_compiles(lab.device(), read_function(FunctionKind::feature, lab.file(feature_option)));
              }};
}

}  // namespace attn
