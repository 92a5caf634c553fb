#include "common/experiment/sweep_span.h"

#include <algorithm>

#include "common/attention/flash.h"

namespace attn {
namespace {

/// The span of devices that have this variant. The first row that fits counts.
struct Row {
  std::string variant;
  SweepSpan span;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> all = {
      {"mma_sync",  // products of 16-bit tiles, on hundreds of matrix units
       {.load = SweepSpan::Load::large,
        .dtype = "bf16",
        .other_dtype = "f16",
        .heads = 32,
        .ladder = {"naive", "mma_sync", "tuned"},
        .block_r = {64, 128, 192},
        .block_c = {64, 80, 96, 112, 128, 176, 192}}},
      {"tiled_vector",  // vectors of a core
       {.block_r = {16, 32, 64, 128}, .block_c = {64, 80, 128, 256}}},
      // 32 KiB of threadgroup memory hold the smaller tiles of each head_dim; the published study has 32 to 128 keys.
      {"tuned", {.other_dtype = "f16", .block_r = {16, 32, 64}, .block_c = {16, 32, 64, 80, 128}}}};
  return all;
}

}  // namespace

SweepSpan sweep_span(const DeviceInfo& device) {
  if (!device.operations->flash) return {};
  const std::vector<std::string> variants = device.operations->flash->variants();
  const auto row =
      std::ranges::find_if(rows(), [&](const Row& one) { return std::ranges::count(variants, one.variant) > 0; });
  SweepSpan span = row == rows().end() ? SweepSpan() : row->span;
  if (span.ladder.empty()) span.ladder = variants;
  if (device.has("untimed")) {
    span.most_tokens = 192;
    std::erase_if(span.block_c, [](int64_t keys) { return keys > 64; });
  }
  return span;
}

}  // namespace attn
