// The entry of the kernels of the family `tuned`. A kernel includes this file after it has defined Tile and Params.
#pragma once

extern "C" void flash_forward(const Params* params, const Threadgroup* group) {
  if constexpr (!BEFORE_IS_NONE) before_all<1>(*params, *group);
  Tile tile(*params, *group);
  tile.begin();
  const int last = tile.first_query + tile.queries - 1;
  const int end = tile.keys_seen(last, 0, params->kv_len);
  const int begin = tile.keys_before(tile.first_query, 0, end);
  [[maybe_unused]] ListedBlocks blocks(*params, tile.batch, tile.head, tile.first_query);
  for (int first_key = begin; first_key < end; first_key += BLOCK_C) {
    if (MASK_LISTS && !blocks.next(first_key)) break;
    const int block_keys = Tile::min(end - first_key, BLOCK_C);
    if constexpr (COPY_K) {
      if constexpr (BF16_DOT) {
        const int at_once = PAGES_ARE_DEFAULT ? block_keys : 1;  // keys that are known to lie next to each other
        for (int key = 0; key < block_keys; key += at_once) {
          tile.copy_rows(tile.k_rows(first_key + key), tile.k_step(), at_once, key);
        }
      } else {
        tile.stage<true>(params->k, params->k_strides, first_key, block_keys, tile.k_block);
      }
    }
    if constexpr (BF16_DOT) {
      tile.stage_pairs(first_key, block_keys);
    } else {
      tile.stage<false>(params->v, params->v_strides, first_key, block_keys, tile.v_block);
    }
    for (int panel = 0; panel * PANEL < tile.queries; ++panel) {
      const int keys = tile.keys_seen(tile.first_query + panel * PANEL + PANEL - 1, first_key, block_keys);
      const int hidden = tile.keys_before(tile.first_query + panel * PANEL, first_key, keys);
      if (keys == hidden) continue;
      const int first = hidden - (BF16_DOT ? hidden % 2 : 0);  // the first key to work on; pairs of keys are not split
      Floats new_maximum[VECTORS], alpha[VECTORS];
      UNROLL for (int v = 0; v < VECTORS; ++v) {
        new_maximum[v] = load<Floats>(tile.maximum + panel * PANEL + v * VECTOR_WIDTH);
      }
      tile.compute_scores(panel, first_key, first, keys, block_keys, !MASK_IS_NONE && blocks.masked, new_maximum);
      tile.softmax(panel, first, keys, new_maximum, alpha);
      tile.accumulate(panel, first, keys, alpha);
    }
  }
  tile.finish();
}
