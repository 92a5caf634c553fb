// Mutations: kernels of the paged cache that are broken on purpose. A check must notice each mutation.
#pragma once

#include <string>
#include <vector>

namespace attn::test {

/// `to` takes the place of `from` in `file`.
struct PagedMutation {
  const char* what;  // what the broken kernel does
  std::string file;
  const char *from, *to;
  std::string axes = "";  // of a case that runs the kernel, for paged_config()
};

inline std::vector<PagedMutation> append_mutations(bool cuda) {
  const std::string dialect = cuda ? ".cuda.cu" : ".cpu.cpp";
  const std::string fused = "common/paged/kernels/decode" + dialect, chain = "common/paged/kernels/append" + dialect;
  std::vector<PagedMutation> mutations = {
      {"writes to the next slot", chain, "slot = key % ", "slot = (key + 1) % ", "append=chain"},
      {"writes keys in the place of values", chain, "copy(p.v, p.v_strides, p.cache.v",
       "copy(p.k, p.k_strides, p.cache.v", "append=chain"},
      {"rotates with a wrong sign", cuda ? fused : "common/paged/kernels/turn_cpu.h", "y * cosines[i] + x * sines[i]",
       "y * cosines[i] - x * sines[i]", "append=fused"}};
  const auto add = [&](const char* what, const char* from, const char* to) {
    mutations.push_back({what, fused, from, to, "append=fused"});
  };
  if (cuda) {
    const char* const position = "query.exists ? first_new(here) + query.query : -1;";
    const char* const last = "end = min(here.keys, first_key + TEAM_KEYS);\n    if (first >= end)";
    add("does not rotate queries", position, "-1;");
    add("rotates queries for the previous position", position,
        "query.exists ? first_new(here) + query.query - 1 : -1;");
    add("rotates keys for the previous position", "return first + row; });", "return first + row - 1; });");
    add("takes the page of first_key for each new key", "unit == thread ? first_page : page_of(here, key);",
        "page_of(here, first_key);");
    add("takes head 0 of the cache for each head", "here.kv_head * strides.head + slot_of(key)",
        "0 * strides.head + slot_of(key)");
    add("rotates and writes only the first new token of a block", last,
        "end = min(min(here.keys, first_key + TEAM_KEYS), first + 1);\n    if (first >= end)");
    add("writes no token", "if (here.tile != 0) return;", "return;");
  } else {
    add("does not rotate queries", "position >= 0) turn(", "false) turn(");
    add("rotates queries for the previous position", "first_new() + query_of(row); position",
        "first_new() + query_of(row) - 1; position");
    add("rotates keys for the previous position", "turn(values, tokens_of(p), first_new() + token);",
        "turn(values, tokens_of(p), max(first_new() + token - 1, 0));");
    add("writes to the previous slot", "to_place = place_of(key);", "to_place = place_of(key > 0 ? key - 1 : 0);");
    add("writes no token", "if (first_row > 0) continue;", "continue;");
  }
  return mutations;
}

/// Mutations of the decoding kernel, for launches that append no tokens.
inline std::vector<PagedMutation> decode_mutations(bool cuda) {
  const std::string file = cuda ? "common/paged/kernels/decode.cuda.cu" : "common/paged/kernels/decode.cpu.cpp";
  if (cuda) {
    const char* const many_parts = "kv_len=900 q_len=1 workers=60";  // of a tile of few rows
    return {
        {"leaves out a last block that is not full", file, "(end + BLOCK_C - 1) / BLOCK_C - place.first_block",
         "end / BLOCK_C - place.first_block"},
        {"takes the page of the sequence's first key for each key", file, "cache.max_pages + key / PAGE_SIZE",
         "cache.max_pages"},
        {"takes the pages of sequence 0 for each sequence", file, "static_cast<long long>(batch) * cache.max_pages",
         "0LL * cache.max_pages"},
        {"takes query heads of another group", file, "place.kv_head * group + (exists ? number / p.q_len : 0)",
         "place.kv_head + (exists ? number / p.q_len : 0) * p.kv_heads"},
        {"takes head 0 of the cache for each head", file, "ahead.kv_head * strides.head * KV_BYTES",
         "0 * strides.head * KV_BYTES"},
        {"leaves out the scale", file, "scale_log2 = p.scale * log2_e", "scale_log2 = log2_e"},
        {"does not rescale O when the maximum grows", file, "o[i / 2][2 * r + i % 2] *= alpha;",
         "o[i / 2][2 * r + i % 2] *= 1;"},
        {"does not rescale the sums when the maximum grows", file, "sum[r] *= alpha;", ""},
        {"does not reset the counter", file, "*arrived = 0;\n    *done = 0;", "*done = 0;"},
        {"leaves out the last part", file, "if (mine < items.parts.count())", "if (mine < items.parts.count() - 1)"},
        {"leaves out the parts of other lanes", file, "distance = units; distance < WARP;",
         "distance = units; distance < 0;", many_parts},
        {"leaves the maximum out of the log-sum-exp", file, "(FOLD ? shift * ln_2 : shift) + __logf", "__logf"}};
  }
  return {
      {"leaves out the last key", file, "sequence.seen.end) - block.first_key, 0)",
       "sequence.seen.end - 1) - block.first_key, 0)"},
      {"adds a part to outputs that are not rescaled", file, "load<Floats>(to) * factors[0] + added",
       "load<Floats>(to) + added"},
      {"joins a part without its weight", file, "d) * factors[1]", "d)"},
      {"leaves out the last worker's part", file, "worker <= last_worker", "worker < last_worker"},
      {"takes the page of the sequence's first key for each key", file,
       "const int page = key / static_cast<int>(PAGE_SIZE)", "const int page = 0"},
      {"takes the pages of sequence 0 for each sequence", file,
       "static_cast<long long>(sequence.batch) * p.cache.max_pages", "0LL * p.cache.max_pages"},
      {"takes query heads of another group", file, "kv_head * (p.q_heads / p.kv_heads) + (first_row + row) / p.q_len",
       "kv_head + (first_row + row) / p.q_len * p.kv_heads"},
      {"takes head 0 of the cache for each head", file, ", kv_head, slot}", ", 0, slot}"},
      {"does not rescale O when the maximum grows", file, "d) * alpha", "d)"},
      {"does not rescale the sums when the maximum grows", file, "sum[row] *= alpha", "sum[row] *= 1"},
      {"does not reset the counter", file, "__atomic_store_n(arrived, 0, __ATOMIC_RELAXED)",
       "static_cast<void>(arrived)"},
      {"leaves the maximum out of the log-sum-exp", file, "end_of_row(maximum[row],", "end_of_row(0,"},
      {"lets a query see the key after its own key", file, "max(min(seen.end - block.first_key",
       "max(min(seen.end + 1 - block.first_key"}};
}

/// Mutations of the kernel `decode_wgmma`. A part that nobody has written holds NaN, and rows that are not finite are
/// computed anew; so a mutation must read another part that is written.
inline std::vector<PagedMutation> wide_mutations() {
  const std::string file = "common/paged/kernels/decode_wgmma.cuda.cu", appends = "append=fused page_order=random",
                    shared = "lengths=equal workers=12";  // tiles of five blocks, most of them of two workers
  return {{"leaves out the last part", file, "if (mine < items.parts.count())", "if (mine < items.parts.count() - 1)"},
          {"adds the last part but one twice, and the last part not at all", file, "      at += step;",
           "      if (mine < items.parts.count() - 1) at += step;"},
          {"takes the part of another row", file, "mine == 0) * ROWS + number;", "mine == 0) * ROWS + (number ^ 1);"},
          {"does not reset the number of workers that are done", file, "*done = 0;", ""},
          {"does not reset the number of parts", file, "*arrived = 0;\n    *done = 0;", "*done = 0;"},
          {"does not reset the number of parts of a tile of two workers", file, "if (thread == 0) *arrived = 0;", "",
           shared},
          {"leaves the other part of a tile of two workers out of O", file,
           "add_part(p.part_o + row * HEAD_DIM + column, factor);", "", shared},
          {"takes another row of the other part of a tile of two workers", file, "first_row + lane / 4;\n    float",
           "first_row + (lane / 4 ^ 1);\n    float", shared},
          {"makes the window of all queries the last query's", file, "visible_keys(rows[r].query,",
           "visible_keys(p.q_len - 1,", "window_left=37"},
          {"lets a query see the key after its own key", file, "key >= end[r]", "key > end[r]"},
          {"masks no block but the last", file, "first_key + BLOCK_C > min(end[0], end[1])",
           "first_key + BLOCK_C > here.keys"},
          {"does not rescale O when the maximum grows", file, "if (grew && i > 0) scale_o", "if (false) scale_o"},
          {"does not rescale the sums when the maximum grows", file, "sum[r] *= alpha[r];", ""},
          {"adds to O of the tile before", file, "step > 0 || !first_block", "true", "batch=8"},
          {"leaves out the scale", file, "scale_log2 = p.scale * log2_e", "scale_log2 = log2_e"},
          {"takes the first page of a block for all its pages", file, "place.block) * BLOCK_C + box * BOX_KEYS;",
           "place.block) * BLOCK_C;"},
          {"takes head 0 of the cache for each head", file, "from.kv_head, from.page);", "0, from.page);"},
          {"leaves the maximum out of the log-sum-exp", file, "(FOLD ? shift * ln_2 : shift) + __logf", "__logf"},
          {"rotates queries for the previous position", file, "here.keys - p.q_len + row.query);\n        store",
           "here.keys - p.q_len + row.query - 1);\n        store", appends},
          {"rotates keys for the previous position", file, "OF_KEYS ? key : -1);", "OF_KEYS ? key - 1 : -1);", appends},
          {"rotates with a wrong sign", file, "y * cosine + x * sine", "y * cosine - x * sine", appends},
          {"takes the new keys for the new values", file, "OF_KEYS ? tokens.k : tokens.v", "tokens.k", appends},
          {"takes the page of the first new key for each new key", file, "named_page(p.cache, here.batch, key);",
           "named_page(p.cache, here.batch, first);", appends},
          {"writes the new tokens of all heads to head 0", file, "{page, here.kv_head, slot_of(key)}",
           "{page, 0, slot_of(key)}", appends},
          {"writes no token", file, "if (here.tile != 0) continue;", "continue;", appends}};
}

/// Mutations of what two consumers of the kernel `decode_wgmma` do that take the blocks of a tile in turn.
inline std::vector<PagedMutation> turn_mutations() {
  const std::string file = "common/paged/kernels/decode_wgmma.cuda.cu";
  return {{"leaves one consumer's blocks out", file, "if (blocks > 1) join_turns", "if (false) join_turns"},
          {"takes the same block for both consumers", file, "place.block) * BLOCK_C + box",
           "place.block / TURNS * TURNS) * BLOCK_C + box"},
          {"does not apply the shift of the consumer that passes", file, "factor = power(stats.x - larger);",
           "factor = 1;"},
          {"does not apply the shift of the consumer that takes", file,
           "alpha[r] = power(shift[r] - larger);\n    shift", "alpha[r] = 1;\n    shift"},
          {"leaves out the sums that are passed", file, "alpha[r] + stats.y * factor;", "alpha[r];"},
          {"adds the passed elements to the wrong rows", file, "\"f\"(factor[0]), \"f\"(factor[1]),\n      EIGHT",
           "\"f\"(factor[1]), \"f\"(factor[0]),\n      EIGHT"}};
}

/// Mutations of what the kernel `decode_wgmma` does with caches of 8 bits.
inline std::vector<PagedMutation> wide_scale_mutations() {
  const std::string file = "common/paged/kernels/decode_wgmma.cuda.cu";
  return {{"takes the scale of the neighbouring page", file, "(of.page) * p.decode.kv_heads + of.kv_head;",
           "(of.page > 0 ? of.page - 1 : 1) * p.decode.kv_heads + of.kv_head;"},
          {"takes the scale of the neighbouring head", file, "(of.page) * p.decode.kv_heads + of.kv_head;",
           "(of.page) * p.decode.kv_heads + 1 - of.kv_head;"},
          {"takes K's scale for V", file, "__ldg(cache.v_scales + at)", "__ldg(cache.k_scales + at)"},
          {"takes V's scale for K", file, "__ldg(cache.k_scales + at)", "__ldg(cache.v_scales + at)"},
          {"takes the first box's scale in K for all boxes", file, "k_scales[i / 4 * 8 / BOX_KEYS]", "k_scales[0]"},
          {"takes the first box's scale in V for all boxes", file, "v_scales[i / 4 * 8 / BOX_KEYS]", "v_scales[0]"},
          {"leaves out the power of 2 by which Q was divided", file, "factor *= q_scale[i / 2 % 2];", ""},
          {"takes the scales of the first block", file,
           "entry = entry + TURNS < SCALE_ENTRIES ? entry + TURNS : entry + TURNS - SCALE_ENTRIES;\n      ring", "ring",
           "workers=3"},
          {"takes the first page of a block for all its pages", file, "place.block) * BLOCK_C + box * BOX_KEYS;",
           "place.block) * BLOCK_C;"},
          {"stores the halves of units in the wrong order", file, "second_half, second ? of.x : of.z",
           "second_half, second ? of.z : of.x"},
          {"does not convert the last units of a block", file, "exists(int unit) const {\n    return",
           "exists(int unit) const {\n    return unit < 3 &&", "block_c=64"}};
}

/// Mutations of the kernel that joins the rows of a shared prefix and of a sequence's own keys.
inline std::vector<PagedMutation> cascade_mutations(bool cuda) {
  const std::string file = std::string("common/paged/kernels/merge") + (cuda ? ".cuda.cu" : ".cpu.cpp");
  if (cuda) {
    return {{"adds without a weight", file, "a.x * of_prefix + b.x * of_own", "a.x * of_prefix + b.x"},
            {"gives the prefix full weight", file, "of_prefix = exp2_approx(prefix_lse - larger)", "of_prefix = 1"},
            {"takes another row", file, "head) * p.batch + batch", "batch) * p.heads + head"},
            {"takes another unit", file, "log2_e * p.own_lse[own]", "p.own_lse[own]"},
            {"leaves the sum out of the log-sum-exp", file, "ln_2 * (larger + __log2f(sum))", "ln_2 * larger"}};
  }
  return {{"adds without a weight", file, "a * weights[0] + b * weights[1]", "a * weights[0] + b"},
          {"gives both full weight", file, "exp4(Pair{prefix_lse - shift, own_lse - shift} * log4_e)", "Pair{1, 1}"},
          {"takes another row", file, "head) * p.batch + batch", "batch) * p.heads + head"},
          {"takes another unit", file, "own_lse = p.own_lse[own]", "own_lse = ln_2 * p.own_lse[own]"},
          {"leaves the sum out of the log-sum-exp", file, "most + ln_2 * __builtin_log2f(sum)", "most"}};
}

/// Mutations of the hooks of modifiers.
inline std::vector<PagedMutation> modifier_mutations() {
  const std::string folder = "common/attention/kernels/modifiers/";
  const std::string score = folder + "score.h", keys = folder + "keys.h", sink = folder + "sink.h";
  return {{"turns the sign of ALiBi", score, "static_cast<float>(k - own_key(q, context));",
           "static_cast<float>(own_key(q, context) - k);", "alibi=1"},
          {"takes the slope of another head", score, "slopes)[context.head]", "slopes)[context.head ^ 1]", "alibi=1"},
          {"takes half the cap", score, "return cap * tanh_of", "return cap / 2 * tanh_of", "soft_cap=2"},
          {"takes the sink of another head", sink, "sinks)[context.head]", "sinks)[context.head ^ 1]", "sinks=1"},
          {"makes the window one too long", keys, "own - static_cast<int>(WINDOW_LEFT))",
           "own - 1 - static_cast<int>(WINDOW_LEFT))", "window_left=37"},
          {"makes the window one too short", keys, "own - static_cast<int>(WINDOW_LEFT))",
           "own + 1 - static_cast<int>(WINDOW_LEFT))", "window_left=37"}};
}

/// Mutations of what the decoding kernel does with the scales of caches of 8 bits.
inline std::vector<PagedMutation> scale_mutations(bool cuda) {
  const std::string kernel = cuda ? "common/paged/kernels/decode.cuda.cu" : "common/paged/kernels/decode.cpu.cpp";
  const char* const place = "static_cast<long long>(at.batch) * p.kv_heads + kv_head;";
  if (cuda)
    return {{"takes the scale of the neighbouring page", kernel, "(page) * p.kv_heads + ahead.kv_head;",
             "(page > 0 ? page - 1 : 1) * p.kv_heads + ahead.kv_head;"},
            {"takes the scale of the neighbouring head", kernel, "(page) * p.kv_heads + ahead.kv_head;",
             "(page) * p.kv_heads + 1 - ahead.kv_head;"},
            {"takes K's scale for V", kernel, "p.cache.v_scales + at", "p.cache.k_scales + at"},
            {"takes V's scale for K", kernel, "p.cache.k_scales + at", "p.cache.v_scales + at"},
            {"leaves out the scale of scores", kernel, "value *= scales(number, false)[column];", "value *= 1;"},
            {"leaves out the scale of weights", kernel, "value *= v_scale(number, i / 4, i % 2);", "value *= 1;"},
            {"leaves out the power of 2 by which Q was divided", kernel, "value *= q_scale[r];", "value *= 1;"},
            {"takes V's elements 1 and 3 for elements 0 and 2", kernel,
             "multiply_add<F16>(o[4 * step + 2 * n], a, pair_of_four<CACHE_TYPE, 0, 2>(low)",
             "multiply_add<F16>(o[4 * step + 2 * n], a, pair_of_four<CACHE_TYPE, 1, 3>(low)"}};
  return {{"takes the scale of the neighbouring page", kernel, place,
           "(at.batch > 0 ? at.batch - 1LL : 1LL) * p.kv_heads + kv_head;"},
          {"takes the scale of the neighbouring head", kernel, place,
           "at.batch * static_cast<long long>(p.kv_heads) + 1 - kv_head;"},
          {"takes K's scale for V", kernel, "v_scale = cache.v_scales[scale]", "v_scale = cache.k_scales[scale]"},
          {"takes V's scale for K", kernel, "k_scale = cache.k_scales[scale]", "k_scale = cache.v_scales[scale]"},
          {"takes the scale of the block's first page", kernel, "block.k_scales[i] = k_scale",
           "block.k_scales[i] = i == 0 ? k_scale : block.k_scales[0]"},
          {"leaves out the scale of scores", kernel, "load<Scores>(s + i) * load<Scores>(block.k_scales + i)",
           "load<Scores>(s + i)"},
          {"leaves out the scale of weights", kernel, "weight * load<Scores>(block.v_scales + i)", "weight"},
          {"makes the sign of an e4m3 number also a bit of the exponent", "common/kernel/bytes_cpu.h", "0xbfff",
           "0xffff", "cache_dtype=e4m3"}};
}

/// Mutations of the kernel that converts a cache of 8 bits to Q's type before prefill.
inline std::vector<PagedMutation> expansion_mutations(bool cuda) {
  const std::string file = "common/paged/kernels/expand" + std::string(cuda ? ".cuda.cu" : ".cpu.cpp");
  return {{"takes K's scales for V", file, "cache.v_scales", "cache.k_scales"},
          {"takes K for V", file, "(cache.v, ", "(cache.k, "},
          {"takes the next slot", file, "place.row = key %", "place.row = (key + 1) %"},
          {"takes the page of the first key", file, "cache.max_pages + key /", "cache.max_pages + first /"},
          {"writes to head 0", file, "p.kv_heads + head) * p.most_keys", "p.kv_heads) * p.most_keys"},
          {"leaves elements out", file, cuda ? "expand_four(bytes.y, scale" : "d += LANES",
           cuda ? "expand_four(bytes.x, scale" : "d += 2 * LANES"},
          {"leaves the last key out", file, cuda ? "first + int{KEYS}, length)" : "key < end; ++key",
           cuda ? "first + int{KEYS} - 1, length)" : "key < end - 1; ++key"}};
}

/// Mutations of the kernels that prefill.
inline std::vector<PagedMutation> prefill_mutations(bool cuda) {
  const char *const pages = "common/paged/kernels/prefill/pages.h", *const keys = "common/paged/kernels/prefill/keys.h",
                    *const before = "common/paged/kernels/prefill/before.h",
                    *const rotate = "common/paged/kernels/prefill/rotate.h",
                    *const wgmma = "common/attention/kernels/wgmma.cuda.cu";
  std::vector<PagedMutation> mutations = {
      {"takes the page of the first key for each key", pages, "data.table[row + key / static_cast<int>(PAGE_SIZE)]",
       "data.table[row]"},
      {"takes the pages of sequence 0 for each sequence", pages, "static_cast<INT64>(context.batch) * data.max_pages",
       "0"},
      {"takes head 0 of the cache for each head", pages, ", kv_head, key %", ", 0, key %"},
      {"leaves out the last key", keys, "keys.end < own.kv_len ? keys.end : own.kv_len",
       "keys.end < own.kv_len - 1 ? keys.end : own.kv_len - 1"},
      {"rotates queries for the previous position", rotate, "const int key = q + ", "const int key = q - 1 + "},
      {"rotates keys for the position among the new tokens", before, "static_cast<long long>(key) * half",
       "static_cast<long long>(token) * half"},
      {"rotates with a wrong sign", before, "y * cosines[i] + x * sines[i]", "y * cosines[i] - x * sines[i]"},
      {"leaves out the last share of the new tokens", before, "share = (tokens + data.shares - 1) / data.shares;",
       "share = tokens / data.shares;"},
      {"writes to the next slot", before, "place.row = key % ", "place.row = (key + 1) % "},
      {"writes keys in the place of values", before, "of_v ? tokens.v : tokens.k", "tokens.k"}};
  mutations.push_back({"does not reset the counters", before, cuda ? "gridDim.z;" : "group.count[2];",
                       cuda ? "gridDim.z + 1;" : "group.count[2] + 1;"});
  if (cuda) {
    mutations.push_back(
        {"takes the first page of a block for all its pages", wgmma, "first = key + lane * BOX_KEYS;", "first = key;"});
    mutations.push_back({"takes the pages of the block before", wgmma, "place = next;",
                         "place = find_box(tile, p.attention, begin_of(max(key - BLOCK_C, 0)));"});
    mutations.push_back({"begins a page at the last group of the page before", wgmma, "place.batch * page_groups)",
                         "max(place.batch * page_groups - 1, 0))", "head_dim=128"});
    mutations.push_back({"takes the wrong panel of a group", wgmma, "(GROUPED ? 8 : BLOCK_C) * PANEL_ROW_BYTES",
                         "(GROUPED ? 0 : BLOCK_C) * PANEL_ROW_BYTES", "head_dim=128"});
    mutations.push_back({"clears values of keys that exist", wgmma, "/ 8 * (KV_GROUP_BYTES - 8 * PANEL_ROW_BYTES)",
                         "/ 8 * 0", "head_dim=128"});
  }
  return mutations;
}

}  // namespace attn::test
