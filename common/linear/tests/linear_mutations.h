// Mistakes in linear attention: changes to the kernels that a check must notice.
#pragma once

#include <string>
#include <vector>

#include "common/linear/kernels/linear.h"

namespace attn::test {

struct LinearMutation {
  const char* variant;
  Gate gate;
  std::string file;
  const char *what, *from, *to;
  bool looks_back = false;  // the mistake shows only if a sequence has several spans (LinearConfig::segments > 1)
  int head_dim = 64;        // with which the kernel runs
};

inline std::vector<LinearMutation> linear_mutations(bool cuda) {
  std::vector<LinearMutation> mutations;
  const auto add = [&](const char* variant, Gate gate, const char* file, const char* what, const char* from,
                       const char* to, bool looks_back = false) {
    mutations.push_back({variant, gate, std::string("common/linear/kernels/") + file, what, from, to, looks_back});
  };
  const auto of_phases = [&](const char* file, const char* what, const char* from, const char* to) {
    add("phases", GATE_TOKEN, file, what, from, to);
  };
  if (cuda) {
    of_phases("chunk_o.cuda.cu", "the state before the previous chunk is read",
              "CAUSAL ? static_cast<int>(blockIdx.x) :", "CAUSAL ? static_cast<int>(blockIdx.x) - (place.chunk > 0) :");
    of_phases("scan.cuda.cu", "decay applied twice", "x[i] = x[i] * decay + added.x[i];",
              "x[i] = x[i] * decay * decay + added.x[i];");
    of_phases("scan.cuda.cu", "scan without decay", "x[i] = x[i] * decay + added.x[i];", "x[i] = x[i] + added.x[i];");
    add("fused", GATE_TOKEN, "fused.cuda.cu", "no mask in the diagonal chunk",
        "x[i] = token <= row + i / 2 * 8 ? weight : 0.0f;", "x[i] = weight;");
    add("fused", GATE_TOKEN, "fused.cuda.cu", "decay applied twice", "const float factor = exp2_approx(sum);",
        "const float factor = exp2_approx(2 * sum);");
    of_phases("chunk_o.cuda.cu", "no mask in the diagonal chunk", "masked && column > first_row",
              "false && column > first_row");
    of_phases("chunk_o.cuda.cu", "scale left out", "scale = NORMALISED ? 1.0f : p.scale;", "scale = 1.0f;");
    add("fused", GATE_TOKEN, "fused.cuda.cu", "scale left out", "{p.linear.scale, p.linear.scale}", "{1, 1}");
    add("fused", GATE_TOKEN, "fused.cuda.cu", "the initial state is left out",
        "const float* const from = p.linear.initial_state;", "const float* const from = nullptr;");
    add("fused", GATE_TOKEN, "fused.cuda.cu", "a token does not see itself", "x[i] = token <= row",
        "x[i] = token < row");
    const auto by_channel = [&](const char* what, const char* from, const char* to, bool looks_back = false) {
      add("fused", GATE_CHANNEL, "fused.cuda.cu", what, from, to, looks_back);
    };
    by_channel("a chunk is left out", "decay_chunk<true>(stage, task.tokens - chunk * CHUNK",
               "decay_chunk<true>(stage, chunk == 2 ? 0 : task.tokens - chunk * CHUNK");
    by_channel("a channel takes the gate of the next", "{gate.x, gate.y, gate.z, gate.w}",
               "{gate.y, gate.z, gate.w, gate.x}");
    by_channel("a key also decays by the gate of its own token", "q[r][c] = WITH_Q ?",
               "k[r][c] *= all[r][c];\n            q[r][c] = WITH_Q ?");
    by_channel("a query lacks the gate of its own token", "WITH_Q ? q[r][c] * all[r][c] :", "WITH_Q ? q[r][c] :");
    by_channel("the halves of a block of 16 tokens or less are exchanged", "const bool later = lane & STEP;",
               "const bool later = (lane & STEP) == 0;");
    by_channel("the quarters of a half take each other's decays", "table(QUARTER + (quarter ^ 1), channel)",
               "table(QUARTER + quarter, channel)");
    by_channel("the halves of a chunk take each other's decays", "quarter < 2 ? SECOND_HALF : FIRST_HALF",
               "quarter < 2 ? FIRST_HALF : SECOND_HALF");
    by_channel("the state takes the decay of the first half only",
               "decays_of(FIRST_HALF)[channel] * decays_of(SECOND_HALF)[channel]", "decays_of(FIRST_HALF)[channel]");
    by_channel("the decays of the segments in between are left out", "decay[n / 2][n % 2] *= load_shared_float(",
               "decay[n / 2][n % 2] *= 1 + 0 * load_shared_float(", true);
    const auto before_fused = [&](const char* what, const char* from, const char* to, const char* file) {
      add("fused", GATE_CHANNEL, file, what, from, to);
      mutations.back().head_dim = 128;
    };
    const char* const first = "decay_chunks.cuda.cu";
    before_fused("a chunk is left out", "inside && row < place.rows", "inside && row < place.rows && place.chunk != 2",
                 first);
    before_fused("the quarters of a half take each other's decays", "four_decays(quarter ^ 1, channel)",
                 "four_decays(quarter, channel)", first);
    before_fused("the halves of a chunk take each other's decays", "quarter < 2 ? 2 : 0", "quarter < 2 ? 0 : 2", first);
    before_fused("the state takes the decay of the first half only", " * (*decay_of(2, i) * *decay_of(3, i))", "",
                 first);
    before_fused("the scores of a panel are left out", "step < 2 * halves", "step < 2 * halves - 4", first);
    before_fused("the state takes the decay of the chunk after the next", "read_decays(task, chunk + 1)",
                 "read_decays(task, chunk + 2)", "fused.cuda.cu");
    const auto of_recurrent = [&](const char* what, const char* from, const char* to) {
      add("recurrent", GATE_TOKEN, "recurrent.cuda.cu", what, from, to);
    };
    of_recurrent("all tokens take the decay of the block's first token", "(GATE == GATE_CHANNEL ? t * DIMS : t)", "0");
    of_recurrent("scale left out", "factor = p.scale", "factor = 1");
    of_recurrent("the initial state is left out", "p.initial_state != nullptr && has(i)", "false && has(i)");
    of_recurrent("a warp's rows are left out", "w < WARPS; ++w) o +=", "w < WARPS - 1; ++w) o +=");
    of_recurrent("the last token of a block is left out", "t < count; ++t) step(t);", "t < count - 1; ++t) step(t);");
    of_recurrent("rows of the final state are not written", "p.final_state == nullptr || !has(i)",
                 "p.final_state == nullptr || !has(i) || i == 0");
    return mutations;
  }
  of_phases("chunk_o.cpu.cpp", "the state before the previous chunk is read",
            "CAUSAL ? number :", "CAUSAL && place.chunk > 0 ? number - 1 :");
  of_phases("scan.cpu.cpp", "decay applied twice", "before[e] = was * factor + there[e];",
            "before[e] = was * factor * factor + there[e];");
  of_phases("scan.cpu.cpp", "scan without decay", "before[e] = was * factor + there[e];",
            "before[e] = was + there[e];");
  of_phases("scan.cpu.cpp", "the final state is written before the chunks are added",
            "    rows.pass_chunks<CAUSAL>(span);\n    if (p.spans == 1) rows.end();",
            "    if (p.spans == 1) rows.end();\n    rows.pass_chunks<CAUSAL>(span);");
  of_phases("chunk_h.cpu.cpp", "a chunk decays too little", "= steps.logs[d];", "= steps.logs[d] / 32;");
  of_phases("chunk_h.cpu.cpp", "a chunk is left out", "{ steps.add(first, rows); }",
            "{ if (place.chunk != 1) steps.add(first, rows); }");
  of_phases("chunk_o.cpu.cpp", "a row of the next sequence is read", "const int end = place.first + place.rows;",
            "const int end = place.first + place.rows + (place.rows < CHUNK && place.first > 64);");
  of_phases("step_outputs.h", "no mask in the diagonal chunk",
            "store(own, place <= i ? load<Floats>(own) * since[n] : Floats{});", "store(own, load<Floats>(own));");
  of_phases("step_outputs.h", "a token does not see itself",
            "since[n] = place == i ? Floats{} + 1 :", "since[n] = place == i ? Floats{} :");
  of_phases("steps.h", "a token takes the decay of the token before it", "        all *= decays[i];\n",
            "        all *= decays[i > 0 ? i - 1 : 0];\n");
  const auto of_recurrent = [&](const char* what, const char* from, const char* to) {
    add("recurrent", GATE_TOKEN, "recurrent.cpu.cpp", what, from, to);
  };
  of_recurrent("all tokens take the decay of the first token of a group", "rows[n] *= s.decay(t, d);",
               "rows[n] *= s.decay(0, d);");
  of_recurrent("scale left out", ": 0 : p.scale;", ": 0 : 1;");
  of_recurrent("the initial state is left out", "first ? p.initial_state ?", "first ? p.initial_state && false ?");
  of_recurrent("the state is lost between groups of tokens", "first = begin == 0, last", "first = true, last");
  of_recurrent("all tokens of a group take the value of the group's first token",
               "load<Floats>(s.v + t * VALUE_DIM + e", "load<Floats>(s.v + e");
  of_recurrent("a row of the state is not written", "if (s.to) store(s.to + d * VALUE_DIM + e",
               "if (s.to && d > 0) store(s.to + d * VALUE_DIM + e");
  add("fused", GATE_CHANNEL, "step_outputs.h", "a key also decays by the gate of its own token",
      "lane_numbers() < i - j", "lane_numbers() <= i - j");
  add("fused", GATE_CHANNEL, "step_outputs.h", "queries do not decay",
      "store(query + d, load<Floats>(query + d) * all)", "store(query + d, load<Floats>(query + d))");
  add("fused", GATE_NONE, "look_back.h", "only the nearest earlier span is taken",
      "for (int before = span - 1; before >= 0; --before)",
      "for (int before = span - 1; before >= 0 && before == span - 1; --before)", true);
  add("fused", GATE_TOKEN, "look_back.h", "the decays of the spans in between are left out",
      "logs[r] += p.span_decays[row(before) + r]", "logs[r] += 0 * p.span_decays[row(before) + r]", true);
  add("fused", GATE_NONE, "look_back.h", "the initial state is left out", "if (p.initial_state) take",
      "if (p.initial_state && false) take", true);
  return mutations;
}

/// Mistakes for checks of long sequences: tokens left out of one of 1024 chunks of 64 tokens, and wrong decays in all
/// chunks.
inline std::vector<LinearMutation> long_mutations(bool cuda) {
  const std::string folder = "common/linear/kernels/";
  const std::string of_states = folder + (cuda ? "chunk_h.cuda.cu" : "chunk_h.cpu.cpp");
  const char* const rows = cuda ? "return place.rows - block * BLOCK;" : "{ steps.add(first, rows); }";
  const char* const without_token = cuda ? "return place.rows - block * BLOCK - (place.chunk == 500);"
                                         : "{ steps.add(first, rows - (place.chunk == 500)); }";
  const char* const without_chunk = cuda ? "return place.chunk == 500 ? 0 : place.rows - block * BLOCK;"
                                         : "{ if (place.chunk != 500) steps.add(first, rows); }";
  std::vector<LinearMutation> mutations;
  for (const Gate gate : {GATE_NONE, GATE_HEAD}) {
    mutations.push_back({"phases", gate, of_states, "a token is left out", rows, without_token});
    mutations.push_back({"phases", gate, of_states, "a chunk is left out", rows, without_chunk});
    if (!cuda) continue;
    const char* const product = "multiply<IN_TYPE, 1, 1>(state[panel], at,";
    mutations.push_back({"fused", gate, folder + "fused.cuda.cu", "16 tokens are left out", product,
                         "if (chunk != 500 || step != 3) multiply<IN_TYPE, 1, 1>(state[panel], at,"});
    mutations.push_back({"fused", gate, folder + "fused.cuda.cu", "a chunk is left out", product,
                         "if (chunk != 500) multiply<IN_TYPE, 1, 1>(state[panel], at,"});
  }
  if (cuda) {
    mutations.push_back({"phases", GATE_HEAD, folder + "scan.cuda.cu", "decay applied twice",
                         "x[i] = x[i] * decay + added.x[i];", "x[i] = x[i] * decay * decay + added.x[i];"});
  } else {
    mutations.push_back({"phases", GATE_TOKEN, folder + "steps.h", "a token takes the decay of the token before it",
                         "        all *= decays[i];\n", "        all *= decays[i > 0 ? i - 1 : 0];\n"});
  }
  return mutations;
}

}  // namespace attn::test
