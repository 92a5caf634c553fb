#include "common/attention/rotary.h"

#include <fmt/format.h>

#include "common/base/error.h"

namespace attn {
namespace {

RopeScaling scaling_of(const std::string& name) {
  if (name == "linear") return RopeLinear{4};
  if (name == "ntk") return RopeNtk{4};
  if (name == "yarn") return RopeYarn{.factor = 4, .original_length = 4096};
  if (name == "llama3") return RopeLlama3{};
  return {};
}

}  // namespace

const std::vector<std::pair<std::string, AxisValue>>& rotary_axes() {
  static const std::vector<std::pair<std::string, AxisValue>> axes = {{"rotary_dim", int64_t{0}},
                                                                      {"rope_pairing", std::string("half_split")},
                                                                      {"rope_theta", int64_t{10000}},
                                                                      {"rope_scaling", std::string("none")},
                                                                      {"rope_angles", std::string("computed")},
                                                                      {"rope_position", int64_t{0}},
                                                                      {"rope_in_place", int64_t{0}}};
  return axes;
}

Rotary Rotary::from(const Case& config) {
  Rotary rotary;
  rotary.by = config.text("rope");
  if (rotary.by == "none") return rotary;
  const int64_t dim = config.integer("head_dim"), rotary_dim = config.integer("rotary_dim");
  rotary.config = {
      .head_dim = dim,
      .rotary_dim = rotary_dim == 0 ? dim : rotary_dim,
      .pairing = config.text("rope_pairing") == "interleaved" ? RopePairing::interleaved : RopePairing::half_split,
      .theta = static_cast<double>(config.integer("rope_theta")),
      .scaling = scaling_of(config.text("rope_scaling"))};
  rotary.table = config.text("rope_angles") == "table";
  rotary.in_place = config.integer("rope_in_place") != 0;
  rotary.position = config.integer("rope_position");
  rope_frequencies(rotary.config);  // throws where the configuration cannot be
  if (rotary.in_kernel() && rotary.config.rotary_dim % 8 != 0) {
    throw BadInput(
        fmt::format("rope={}: rotary_dim={}: a kernel turns multiples of 8 on the way in; rope=before turns "
                    "any even number",
                    rotary.by, rotary.config.rotary_dim));
  }
  if (rotary.in_place && rotary.by != "before") {
    throw BadInput(fmt::format("rope_in_place=1 is for rope=before, not rope={}", rotary.by));
  }
  const int64_t first_query = rotary.position + config.integer("kv_len") - config.integer("q_len");
  if (rotary.table && first_query < 0) {
    throw BadInput(
        fmt::format("rope_angles=table: the first query is at position {}; a table begins at 0", first_query));
  }
  return rotary;
}

}  // namespace attn
