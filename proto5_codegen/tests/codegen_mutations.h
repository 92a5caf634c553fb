// Mutations of the hand-written kernels and the plain loops of proto5_codegen, which a check must notice. A mutation
// replaces the text `from` in the source `file` by the text `to`.
#pragma once

#include <vector>

#include "proto5_codegen/tests/codegen_run.h"

namespace attn::test {

struct CodegenMutation {
  CodegenWork work;
  DType dtype;
  const char *generator, *file, *from, *to;
  int64_t tokens = 296;  // a multiple of 8, as 16-bit kernels for GPUs need; no multiple of 16, so edges are tested
};

inline CodegenCase case_of(const CodegenMutation& mutation) {
  CodegenCase one = codegen_case(mutation.work, mutation.generator, mutation.tokens, 64, true);
  one.dtype = mutation.dtype;
  return one;
}

inline std::vector<CodegenMutation> cpu_codegen_mutations() {
  using enum DType;
  return {
      {WORK_SCORES, f32, "hand", "scores.cpu.cpp", "key + i < keys ?", "key + i < keys - 1 ?"},
      {WORK_SCORES, f32, "hand", "scores.cpu.cpp", "c < keys; ++c", "c < keys - 1; ++c"},
      {WORK_SCORES, f32, "hand", "products.h", "3 * g * row_step", "2 * g * row_step"},
      {WORK_VALUES, f32, "hand", "values.cpu.cpp", "product<true>(rows", "product<false>(rows"},
      {WORK_VALUES, f32, "hand", "products.h", "whole ? TILE_ROWS : 1;", "TILE_ROWS;"},
      {WORK_SOFTMAX, f32, "hand", "softmax.cpu.cpp",
       "key < keys; ++key) out[key] *=", "key < keys - 1; ++key) out[key] *="},
      {WORK_SOFTMAX, f32, "hand", "softmax.cpu.cpp", "sum += out[key];", ""},
      {WORK_ATTENTION, f32, "hand", "tuned.cpu.cpp", "end_of_row(maximum[query + i],", "end_of_row(0,"},
      {WORK_ATTENTION, f32, "hand", "tuned.cpu.cpp", "p.lse && query + i < queries",
       "p.lse && query + i + 1 < queries"},
      {WORK_ATTENTION, f32, "hand", "tuned.cpu.cpp", "first_lse + query + i]", "first_lse + (query + i) / 2]"},
      {WORK_MODIFIED, f32, "hand", "tuned.cpu.cpp", "end_of_row(maximum[query + i],", "end_of_row(0,"},
      {WORK_ATTENTION, f32, "compiler", "plain.cpu.cpp", "CAUSAL ? query + 1", "CAUSAL ? query + (query == 0)"},
      {WORK_MODIFIED, f32, "compiler", "plain.cpu.cpp", "key - at.query", "at.query - key"},
      {WORK_MODIFIED, f32, "compiler", "plain.cpu.cpp", "soft_cap * plain::tanhf", "soft_cap + plain::tanhf"},
      {WORK_SCORES, f32, "hand", "scores.cpu.cpp", "keys, p.scale);", "keys, 1);"},
      {WORK_SCORES, f32, "hand", "scores.cpu.cpp", "head * p.kv_len * HEAD_DIM", "0 * p.kv_len * HEAD_DIM"},
      {WORK_VALUES, f32, "hand", "values.cpu.cpp", "head * p.kv_len * HEAD_DIM", "0 * p.kv_len * HEAD_DIM"},
      {WORK_VALUES, f32, "hand", "values.cpu.cpp", "static_cast<long>(key) * HEAD_DIM", "0L * HEAD_DIM"},
      {WORK_VALUES, f32, "hand", "values.cpu.cpp", "in + key", "in"},
      {WORK_SOFTMAX, f32, "hand", "softmax.cpu.cpp", "inverse = 1 / sum", "inverse = 2 / sum"},
      {WORK_SOFTMAX, f32, "hand", "softmax.cpu.cpp", "sums[i] += weight;", "sums[0] = weight;"},
      {WORK_SOFTMAX, f32, "hand", "softmax.cpu.cpp", "* p.q_len + row) * p.kv_len", "* p.q_len + first) * p.kv_len"},
      {WORK_ATTENTION, f32, "compiler", "plain.cpu.cpp", "sum * at.p.scale", "sum"},
      {WORK_ATTENTION, f32, "compiler", "plain.cpu.cpp", "head * p.kv_len * columns", "0 * p.kv_len * columns"},
      {WORK_ATTENTION, f32, "compiler", "plain.cpu.cpp", "sum += out[key];", "sum += 1;"}};
}

inline std::vector<CodegenMutation> cuda_codegen_mutations() {
  using enum DType;
  return {
      {WORK_SCORES, bf16, "hand", "scores.cuda.cu", "key / BLOCK_C % 2 * K_BYTES);", "0);"},
      {WORK_SCORES, bf16, "hand", "scores.cuda.cu", "step > 0);", "false);"},
      {WORK_SCORES, bf16, "hand", "swizzled.h", "(chunk ^ row % 8)", "chunk"},
      {WORK_VALUES, bf16, "hand", "values.cuda.cu", "block > 0 || step > 0", "step > 0"},
      {WORK_VALUES, bf16, "hand", "values.cuda.cu", "p.q_len - static_cast<int>(first_row), keys)",
       "p.q_len - static_cast<int>(first_row), keys - 8)"},
      {WORK_SCORES, f32, "hand", "products_f32.cuda.cu", "multiply(low[step], high_panel + at,",
       "multiply(high[step], high_panel + at,"},
      {WORK_SCORES, f32, "hand", "products_f32.cuda.cu", "block % of_tile == 0", "block == 0", 1040},
      {WORK_VALUES, f32, "hand", "products_f32.cuda.cu", "high[step], low_panel + at, 1", "high[step], low_panel, 1"},
      {WORK_VALUES, f32, "hand", "products_f32.cuda.cu", "depth - done);", "depth - done - 4);"},
      {WORK_SOFTMAX, bf16, "hand", "softmax.cuda.cu", "sum += weights[unit][i];", "sum += i ? weights[unit][i] : 0;"},
      {WORK_SOFTMAX, f32, "hand", "softmax.cuda.cu", "0xff800000 : IN_TYPE", "0 : IN_TYPE"},
      {WORK_ATTENTION, bf16, "hand", "wgmma.cuda.cu", "(ONE_ROUNDING ? shift[r] * ln_2 : shift[r]) + __logf", "__logf"},
      {WORK_ATTENTION, f32, "hand", "mma_sync.cuda.cu", "(FOLD ? shift[tile][r] * ln_2 : shift[tile][r]) + logf",
       "logf"},
      {WORK_ATTENTION, f32, "hand", "mma_sync.cuda.cu", "p.lse && quarter == 0", "p.lse && quarter == 0 && r == 0"},
      {WORK_ATTENTION, bf16, "compiler", "plain.cuda.cu", "CAUSAL ? query + 1", "CAUSAL ? query + 2"},
      {WORK_MODIFIED, f32, "compiler", "plain.cuda.cu", "(key - query)", "(query - key)"},
      {WORK_SCORES, bf16, "hand", "scores.cuda.cu", "(s, p.scale,", "(s, 1,"},
      {WORK_SCORES, bf16, "hand", "scores.cuda.cu", "head * p.kv_len + key", "key"},
      {WORK_VALUES, bf16, "hand", "values.cuda.cu", "head * p.kv_len * HEAD_DIM * 2;", "0 * p.kv_len * HEAD_DIM * 2;"},
      {WORK_VALUES, bf16, "hand", "values.cuda.cu", "values + key * HEAD_DIM * 2", "values"},
      {WORK_VALUES, bf16, "hand", "values.cuda.cu", "swizzled(row, step % 4 * 2", "swizzled(row, step % 2 * 2"},
      {WORK_SCORES, f32, "hand", "products_f32.cuda.cu", "store(scores, p.scale, out,", "store(scores, 1, out,"},
      {WORK_SOFTMAX, bf16, "hand", "softmax.cuda.cu", "factor *= reciprocal_approx(sum);", ""},
      {WORK_SOFTMAX, f32, "hand", "softmax.cuda.cu", "(exists ? row : 0)", "0"},
      {WORK_ATTENTION, bf16, "compiler", "plain.cuda.cu", "return sum * p.scale;", "return sum;"},
      {WORK_ATTENTION, bf16, "compiler", "plain.cuda.cu", "sum = sum * alpha + weight;", "sum += weight;"},
      {WORK_ATTENTION, f32, "compiler", "plain.cuda.cu", "outputs[d] * alpha + weight", "outputs[d] + weight"}};
}

}  // namespace attn::test
