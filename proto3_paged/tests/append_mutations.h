// Mutations of the kernels that append new tokens. A check must notice each of them.
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
    add("queries of the position before", position, "query.exists ? first_new(here) + query.query - 1 : -1;");
    add("keys of the position before", "return first + row; });", "return first + row - 1; });");
    add("page of the block's first key", "unit == thread ? first_page : page_of(here, key);",
        "page_of(here, first_key);");
    add("head of another group", "here.kv_head * strides.head + slot_of(key)", "0 * strides.head + slot_of(key)");
    add("only the first token", last,
        "end = min(min(here.keys, first_key + TEAM_KEYS), first + 1);\n    if (first >= end)");
    add("no token is written", "if (here.tile != 0) return;", "return;");
  } else {
    add("queries that do not turn", "position >= 0) turn_at", "false) turn_at");
    add("queries of the position before", "first_new() + query_of(row); position",
        "first_new() + query_of(row) - 1; position");
    add("keys of the position before", "turn_at(values, first_new() + token);",
        "turn_at(values, max(first_new() + token - 1, 0));");
    add("the slot before", "to_place = place_of(key);", "to_place = place_of(key > 0 ? key - 1 : 0);");
    add("no token is written", "if (first_row > 0) continue;", "continue;");
  }
  return mutations;
}

}  // namespace attn::test
