// Mutations: kernels of the paged cache that are broken on purpose. A check must notice each mutation.
#pragma once

#include <string>
#include <vector>

namespace attn::test {

struct AppendMutation {
  const char* append;  // "fused" or "chain": the case must have append=fused or append=chain to run the kernel
  std::string file;
  const char* what;       // what the broken kernel does
  const char *from, *to;  // `to` takes the place of `from` in `file`
};

inline std::vector<AppendMutation> append_mutations(bool cuda) {
  const std::string dialect = cuda ? ".cuda.cu" : ".cpu.cpp";
  const std::string fused = "common/paged/kernels/decode" + dialect, chain = "common/paged/kernels/append" + dialect;
  std::vector<AppendMutation> mutations = {
      {"chain", chain, "writes to the next slot", "slot = key % ", "slot = (key + 1) % "},
      {"chain", chain, "writes keys in the place of values", "copy(p.v, p.v_strides, p.cache.v",
       "copy(p.k, p.k_strides, p.cache.v"},
      {"fused", cuda ? fused : "common/paged/kernels/turn_cpu.h", "rotates with a wrong sign",
       "y * cosines[i] + x * sines[i]", "y * cosines[i] - x * sines[i]"}};
  const auto add = [&](const char* what, const char* from, const char* to) {
    mutations.push_back({"fused", fused, what, from, to});
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

/// A mutation of the decoding kernel, for launches that append no tokens.
struct DecodeMutation {
  const char *what, *from, *to;  // as in AppendMutation; the file is decode_file()
};

inline std::string decode_file(bool cuda) {
  return cuda ? "common/paged/kernels/decode.cuda.cu" : "common/paged/kernels/decode.cpu.cpp";
}

inline std::vector<DecodeMutation> decode_mutations(bool cuda) {
  if (cuda) {
    return {{"leaves out a last block that is not full", "(end + BLOCK_C - 1) / BLOCK_C - place.first_block",
             "end / BLOCK_C - place.first_block"},
            {"takes the page of the sequence's first key for each key", "cache.max_pages + key / PAGE_SIZE",
             "cache.max_pages"},
            {"takes the pages of sequence 0 for each sequence", "static_cast<long long>(batch) * cache.max_pages",
             "0LL * cache.max_pages"},
            {"takes query heads of another group", "place.kv_head * group + (exists ? number / p.q_len : 0)",
             "place.kv_head + (exists ? number / p.q_len : 0) * p.kv_heads"},
            {"takes head 0 of the cache for each head", "ahead.kv_head * strides.head * KV_BYTES",
             "0 * strides.head * KV_BYTES"},
            {"leaves out the scale", "scale_log2 = p.scale * log2_e", "scale_log2 = log2_e"},
            {"does not rescale O when the maximum grows", "o[i / 2][2 * r + i % 2] *= alpha;",
             "o[i / 2][2 * r + i % 2] *= 1;"},
            {"does not rescale the sums when the maximum grows", "sum[r] *= alpha;", ""},
            {"does not reset the counter", "if (joins) arrived = 0;", ""},
            {"leaves the maximum out of the log-sum-exp", "(FOLD ? shift * ln_2 : shift) + __logf", "__logf"}};
  }
  return {
      {"leaves out the last key", "sequence.seen.end) - block.first_key, 0)",
       "sequence.seen.end - 1) - block.first_key, 0)"},
      {"adds a part to outputs that are not rescaled", "load<Floats>(to) * factors[0] + added",
       "load<Floats>(to) + added"},
      {"joins a part without its weight", "d) * factors[1]", "d)"},
      {"leaves out the last worker's part", "worker <= last_worker", "worker < last_worker"},
      {"takes the page of the sequence's first key for each key", "const int page = key / static_cast<int>(PAGE_SIZE)",
       "const int page = 0"},
      {"takes the pages of sequence 0 for each sequence", "static_cast<long long>(sequence.batch) * p.cache.max_pages",
       "0LL * p.cache.max_pages"},
      {"takes query heads of another group", "kv_head * (p.q_heads / p.kv_heads) + (first_row + row) / p.q_len",
       "kv_head + (first_row + row) / p.q_len * p.kv_heads"},
      {"takes head 0 of the cache for each head", ", kv_head, slot}", ", 0, slot}"},
      {"does not rescale O when the maximum grows", "d) * alpha", "d)"},
      {"does not rescale the sums when the maximum grows", "sum[row] *= alpha", "sum[row] *= 1"},
      {"does not reset the counter", "__atomic_store_n(arrived, 0, __ATOMIC_RELAXED)", "static_cast<void>(arrived)"},
      {"leaves the maximum out of the log-sum-exp", "end_of_row(maximum[row],", "end_of_row(0,"},
      {"lets a query see the key after its own key", "max(min(seen.end - block.first_key",
       "max(min(seen.end + 1 - block.first_key"}};
}

}  // namespace attn::test
