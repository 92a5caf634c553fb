// Mutations: kernels of the paged cache that are broken on purpose. A check must notice each mutation.
#pragma once

#include <string>
#include <vector>

namespace attn::test {

struct AppendMutation {
  const char* append;  // the value of the axis `append` that runs the kernel
  std::string file;
  const char *what, *from, *to;
};

inline std::vector<AppendMutation> append_mutations(bool cuda) {
  const std::string dialect = cuda ? ".cuda.cu" : ".cpu.cpp";
  const std::string fused = "common/paged/kernels/decode" + dialect, chain = "common/paged/kernels/append" + dialect;
  std::vector<AppendMutation> mutations = {
      {"chain", chain, "the next slot", "slot = key % ", "slot = (key + 1) % "},
      {"chain", chain, "keys in the place of values", "copy(p.v, p.v_strides, p.cache.v",
       "copy(p.k, p.k_strides, p.cache.v"},
      {"fused", fused, "another rotation", "y * cosines[i] + x * sines[i]", "y * cosines[i] - x * sines[i]"}};
  const auto add = [&](const char* what, const char* from, const char* to) {
    mutations.push_back({"fused", fused, what, from, to});
  };
  if (cuda) {
    const char* const position = "query.exists ? first_new(here) + query.query : -1;";
    const char* const last = "end = min(here.keys, first_key + TEAM_KEYS);\n    if (first >= end)";
    add("queries that do not turn", position, "-1;");
    add("queries turned for the previous position", position, "query.exists ? first_new(here) + query.query - 1 : -1;");
    add("keys turned for the previous position", "return first + row; });", "return first + row - 1; });");
    add("page of the block's first key", "unit == thread ? first_page : page_of(here, key);",
        "page_of(here, first_key);");
    add("head of another group", "here.kv_head * strides.head + slot_of(key)", "0 * strides.head + slot_of(key)");
    add("only the first token", last,
        "end = min(min(here.keys, first_key + TEAM_KEYS), first + 1);\n    if (first >= end)");
    add("no token is written", "if (here.tile != 0) return;", "return;");
  } else {
    add("queries that do not turn", "position >= 0) turn_at", "false) turn_at");
    add("queries turned for the previous position", "first_new() + query_of(row); position",
        "first_new() + query_of(row) - 1; position");
    add("keys turned for the previous position", "turn_at(values, first_new() + token);",
        "turn_at(values, max(first_new() + token - 1, 0));");
    add("the previous slot", "to_place = place_of(key);", "to_place = place_of(key > 0 ? key - 1 : 0);");
    add("no token is written", "if (first_row > 0) continue;", "continue;");
  }
  return mutations;
}

/// A mutation of the decoding kernel. The tests run these mutations on a cache that already has all tokens.
struct DecodeMutation {
  const char *what, *from, *to;
};

inline std::string decode_file(bool cuda) {
  return cuda ? "common/paged/kernels/decode.cuda.cu" : "common/paged/kernels/decode.cpu.cpp";
}

inline std::vector<DecodeMutation> decode_mutations(bool cuda) {
  if (cuda) {
    return {{"last block left out unless it is full", "(end + BLOCK_C - 1) / BLOCK_C - place.first_block",
             "end / BLOCK_C - place.first_block"},
            {"the page of the first key", "cache.max_pages + key / PAGE_SIZE", "cache.max_pages"},
            {"pages of another sequence", "static_cast<long long>(batch) * cache.max_pages", "0LL * cache.max_pages"},
            {"head of another group", "place.kv_head * group + (exists ? number / p.q_len : 0)",
             "place.kv_head + (exists ? number / p.q_len : 0) * p.kv_heads"},
            {"another head of the cache", "ahead.kv_head * strides.head * KV_BYTES", "0 * strides.head * KV_BYTES"},
            {"scale left out", "scale_log2 = p.scale * log2_e", "scale_log2 = log2_e"},
            {"outputs that do not shrink", "o[i / 2][2 * r + i % 2] *= alpha;", "o[i / 2][2 * r + i % 2] *= 1;"},
            {"sums that do not shrink", "sum[r] *= alpha;", ""},
            {"counter that is not reset", "if (joins) arrived = 0;", ""},
            {"log-sum-exp without maximum", "(FOLD ? shift * ln_2 : shift) + __logf", "__logf"}};
  }
  return {{"tail of the last page left out", "sequence.seen.end) - block.first_key, 0)",
           "sequence.seen.end - 1) - block.first_key, 0)"},
          {"join without rescale", "load<Floats>(to) * factors[0] + added", "load<Floats>(to) + added"},
          {"join without one part's weight", "d) * factors[1]", "d)"},
          {"a part left out", "worker <= last_worker", "worker < last_worker"},
          {"the page of the first key", "const int page = key / static_cast<int>(PAGE_SIZE)", "const int page = 0"},
          {"pages of another sequence", "static_cast<long long>(sequence.batch) * p.cache.max_pages",
           "0LL * p.cache.max_pages"},
          {"head of another group", "kv_head * (p.q_heads / p.kv_heads) + (first_row + row) / p.q_len",
           "kv_head + (first_row + row) / p.q_len * p.kv_heads"},
          {"another head of the cache", ", kv_head, slot}", ", 0, slot}"},
          {"outputs that do not shrink", "d) * alpha", "d)"},
          {"sums that do not shrink", "sum[row] *= alpha", "sum[row] *= 1"},
          {"counter that is not reset", "__atomic_store_n(arrived, 0, __ATOMIC_RELAXED)", "static_cast<void>(arrived)"},
          {"log-sum-exp without maximum", "end_of_row(maximum[row],", "end_of_row(0,"},
          {"causal edge one late", "max(min(seen.end - block.first_key", "max(min(seen.end + 1 - block.first_key"}};
}

}  // namespace attn::test
