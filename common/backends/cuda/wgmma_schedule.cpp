#include "common/backends/cuda/wgmma_schedule.h"

#include <algorithm>

#include "common/base/divided_up.h"

namespace attn {
namespace {

// Returns how many heads (of all sequences) each section has. Multiprocessors take the tiles of one section, then the
// tiles of the next section. Without a causal mask a section is one head. With a causal mask a section has as many
// heads as fit, with their keys and values, into an eighth of the last-level cache, but at least one head. The last
// section may have more heads: it gets at least three tiles for every multiprocessor if there are enough heads, so that
// all multiprocessors end at about the same time. The heads that do not fill a section make the first section.
std::vector<int64_t> sections(const FlashConfig& config, const DeviceInfo& device) {
  const AttentionShape& shape = config.shape;
  const int64_t heads = shape.batch * shape.q_heads;
  if (!shape.causal) return std::vector<int64_t>(heads, 1);
  const double kv_bytes_per_q_head = 2.0 * static_cast<double>(shape.kv_len * shape.head_dim) * sizeof(uint16_t) *
                                     static_cast<double>(shape.kv_heads) / static_cast<double>(shape.q_heads);
  const double cached = static_cast<double>(device.last_level_cache_bytes) / 8 / std::max(kv_bytes_per_q_head, 1.0);
  const auto each = static_cast<int64_t>(std::clamp(cached, 1.0, static_cast<double>(heads)));
  const int64_t last = std::clamp(divided_up(3 * static_cast<int64_t>(device.units), config.row_tiles()), each, heads);
  std::vector<int64_t> sizes((heads - last) / each, each);
  if (const int64_t rest = (heads - last) % each; rest > 0) sizes.insert(sizes.begin(), rest);
  sizes.push_back(last);
  return sizes;
}

}  // namespace

int64_t wgmma_first_query(const FlashConfig& config) {
  return config.shape.causal ? divided_up(config.shape.q_len, 64) * 64 - config.row_tiles() * config.block_r : 0;
}

std::vector<WgmmaTile> wgmma_schedule(const FlashConfig& config, const DeviceInfo& device) {
  const AttentionShape& shape = config.shape;
  const int64_t tiles_of_head = config.row_tiles();
  std::vector<WgmmaTile> tiles;
  tiles.reserve(static_cast<size_t>(shape.batch * shape.q_heads * tiles_of_head));
  int64_t first_pair = 0;
  for (const int64_t heads : sections(config, device)) {
    for (int64_t tile = tiles_of_head - 1; tile >= 0; --tile) {
      const int64_t first = wgmma_first_query(config) + tile * config.block_r;
      const int64_t last = std::min(first + config.block_r, shape.q_len) - 1;
      int64_t end = shape.kv_len;
      if (shape.causal) {
        end = causal_end(static_cast<int>(last), static_cast<int>(shape.q_len), static_cast<int>(shape.kv_len));
      }
      const int64_t blocks = divided_up(end, config.block_c);
      for (int64_t pair = first_pair; pair < first_pair + heads; ++pair) {
        tiles.push_back({.batch = static_cast<int>(pair / shape.q_heads),
                         .head = static_cast<int>(pair % shape.q_heads),
                         .kv_head = static_cast<int>(pair % shape.q_heads / (shape.q_heads / shape.kv_heads)),
                         .first_query = static_cast<int>(first),
                         .blocks = static_cast<int>(std::max<int64_t>(blocks, 1))});
      }
    }
    first_pair += heads;
  }
  return tiles;
}

}  // namespace attn
