#include "proto6_linear/sweep.h"

#include <algorithm>

#include "common/attention/axes.h"

namespace attn {
namespace {

const std::vector<std::string> dtypes = {"f32", "f16", "bf16"};

}  // namespace

std::vector<AxisInfo> linear_axes() {
  return {
      {"variant",
       "phases: a launch for states, a scan, a launch for outputs; fused: one pass; recurrent: token by token, for decode; "
       "softmax: the project's fastest attention kernel, for comparison",
       {"phases", "fused", "recurrent", "softmax"},
       0,
       0,
       1},
      {"scan",
       "how phases turns what chunks add into the state before each: copied to the host and back; in passes; in one pass "
       "that looks back",
       {"host", "passes", "lookback", "none"},
       0,
       0,
       1},
      {"dtype", "of Q, K and V", dtypes, 0, 0, 1},
      {"out_dtype", "of O; as dtype where not named", dtypes, 0, 0, 1},
      {"head_dim", "columns of Q and K", {}, 8, 256, 8},
      {"value_dim", "columns of V and O; as head_dim where not named", {}, 8, 256, 8},
      {"chunk", "tokens of a chunk; 0: the variant has none", {}, 0, 256, 16},
      {"batch", "sequences", {}, 1, 65535, 1},
      {"heads", "of Q, K, V and O", {}, 1, 65535, 1},
      {"q_len", "tokens of the longest sequence", {}, 1, longest_sequence, 1},
      {"causal", "1: a token sees those up to its own; 0: it sees all", {}, 0, 1, 1},
      {"gate", "what has a decay of its own", {"none", "head", "token", "channel"}, 0, 0, 1},
      {"normalised", "1: divided by the sum of the keys' products", {}, 0, 1, 1},
      {"feature", "of each element of Q and K", {"identity", "elu1", "relu"}, 0, 0, 1},
      {"layout", "order of Q, K, V and O", {"bhsd", "bshd"}, 0, 0, 1},
      {"lengths",
       "equal: each sequence has q_len tokens; ragged: the first has, one of several has none, others are between",
       {"equal", "ragged"},
       0,
       0,
       1},
      {"state", "1: from an initial state to a final state", {}, 0, 1, 1},
      {"segments", "of fused, parts of a sequence that run at once; 0: by rule", {}, 0, 4096, 1},
  };
}

std::vector<std::string> linear_compared_axes() {
  return {"variant", "scan", "chunk", "gate", "normalised", "feature", "state", "segments"};
}

Sweep linear_sweep(const std::string& profile, const DeviceInfo& device) {
  (void)profile;
  const bool cuda = device.is_cuda();
  Sweep sweep;
  sweep.blocks.push_back({texts("variant", {"phases", "fused"}), texts("scan", {"passes", "lookback"}),
                          texts("dtype", {cuda ? "bf16" : "f32"}), integers("head_dim", {64}), integers("batch", {1}),
                          integers("heads", {8}), integers("q_len", {4096})});
  return sweep;
}

void complete_linear(Case& config, const DeviceInfo& device) {
  const auto otherwise = [&](const char* axis, AxisValue value) {
    if (!config.has(axis)) config.set(axis, std::move(value));
  };
  otherwise("variant", std::string("fused"));
  const std::string variant = config.text("variant");
  otherwise("scan", std::string("lookback"));
  if (variant == "phases" && config.text("scan") == "none") config.set("scan", std::string("lookback"));
  if (variant != "phases") config.set("scan", std::string("none"));
  otherwise("dtype", std::string(device.is_cuda() ? "bf16" : "f32"));
  otherwise("out_dtype", config.text("dtype"));
  otherwise("head_dim", int64_t{64});
  otherwise("value_dim", config.integer("head_dim"));
  otherwise("batch", int64_t{1});
  otherwise("heads", int64_t{8});
  otherwise("q_len", int64_t{4096});
  otherwise("causal", int64_t{1});
  otherwise("gate", std::string("none"));
  otherwise("normalised", int64_t{0});
  otherwise("feature", std::string(config.integer("normalised") != 0 ? "elu1" : "identity"));
  otherwise("layout", std::string("bhsd"));
  otherwise("lengths", std::string("equal"));
  otherwise("state", int64_t{variant == "recurrent"});
  otherwise("segments", int64_t{0});
  const bool chunked = variant == "phases" || variant == "fused";
  if (!config.has("chunk") || config.integer("chunk") == 0) config.set("chunk", int64_t{64});
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

}  // namespace attn
