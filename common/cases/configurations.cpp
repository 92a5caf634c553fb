#include "common/cases/configurations.h"

#include <fmt/format.h>

#include "common/base/error.h"

namespace attn {
namespace {

void require_whole_groups(const AttentionShape& shape) {
  if (shape.q_heads % shape.kv_heads == 0) return;
  throw BadInput(
      fmt::format("kv_heads={} does not divide q_heads={}; each key/value head serves the same number of query heads",
                  shape.kv_heads, shape.q_heads));
}

}  // namespace

FlashConfig flash_config_of(const Case& config) {
  FlashConfig flash;
  flash.variant = config.text("variant");
  AttentionShape& shape = flash.shape;
  shape.batch = config.integer("batch");
  shape.q_heads = config.integer("q_heads");
  shape.kv_heads = config.integer("kv_heads");
  shape.q_len = config.integer("q_len");
  shape.kv_len = config.integer("kv_len");
  shape.head_dim = config.integer("head_dim");
  shape.causal = config.integer("causal") != 0;
  flash.dtype = parse_dtype(config.text("dtype"));
  flash.out_dtype = parse_dtype(config.text("out_dtype"));
  flash.layout = parse_layout(config.text("layout"));
  flash.block_r = config.integer("block_r");
  flash.block_c = config.integer("block_c");
  require_whole_groups(shape);
  return flash;
}

DecodeConfig decode_config_of(const Case& config) {
  DecodeConfig decode{.shape = {.batch = config.integer("batch"),
                                .q_heads = config.integer("q_heads"),
                                .kv_heads = config.integer("kv_heads"),
                                .q_len = config.integer("q_len"),
                                .kv_len = config.integer("kv_len"),
                                .head_dim = config.integer("head_dim"),
                                .causal = config.integer("causal") != 0},
                      .dtype = parse_dtype(config.text("dtype")),
                      .cache_dtype = parse_dtype(config.text("cache_dtype")),
                      .out_dtype = parse_dtype(config.text("out_dtype")),
                      .page_size = config.integer("page_size"),
                      .block_c = config.integer("block_c"),
                      .workers = config.integer("workers"),
                      .join_last = config.text("reduce") == "last"};
  require_whole_groups(decode.shape);
  return decode;
}

}  // namespace attn
