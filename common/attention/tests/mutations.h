// Kernels broken on purpose: texts of the sources, and the texts that replace them.
#pragma once

#include <cstdint>
#include <iterator>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "common/cases/inputs.h"
#include "common/data/tensor.h"

namespace attn::test {

inline constexpr const char* tuned_file = "common/attention/kernels/tuned.cpu.cpp";
inline constexpr const char* amx_file = "common/attention/kernels/amx.cpu.cpp";    // `tuned` for bf16 on hosts with AMX
inline constexpr const char* neon_file = "common/attention/kernels/neon.cpu.cpp";  // `tuned` on AArch64
inline constexpr const char* neon_f16_file = "common/attention/kernels/neon_f16.cpu.cpp";
inline constexpr const char* neon_bf16_file = "common/attention/kernels/neon_bf16.cpu.cpp";
inline constexpr const char* tiled_file = "common/attention/kernels/tiled.cpu.cpp";
inline constexpr const char* naive_file = "common/attention/kernels/naive.cpu.cpp";
inline constexpr const char* cuda_naive_file = "common/attention/kernels/naive.cuda.cu";
inline constexpr const char* wgmma_file = "common/attention/kernels/wgmma.cuda.cu";
inline constexpr const char* mma_sync_file = "common/attention/kernels/mma_sync.cuda.cu";
inline constexpr const char* shared_file = "common/attention/kernels/attention.h";

// ---- small shapes

struct Mutation {
  const char *variant, *what, *file, *from, *to;
  int64_t head_dim = 24;
  DType out_dtype = DType::bf16;
};

inline void PrintTo(const Mutation& mutation, std::ostream* out) { *out << mutation.what; }

inline std::vector<Mutation> mutations(bool of_cuda) {
  if (of_cuda) {
    return {{"wgmma", "causal_edge_one_late", shared_file, "q + 1 + kv_len", "q + 2 + kv_len"},
            {"wgmma", "causal_edge_one_early", shared_file, "q + 1 + kv_len", "q + kv_len"},
            {"wgmma", "missing_rescale_of_outputs", wgmma_file, "if (grew && !first) scale_o<DIM / 2>(alpha);", ""},
            {"wgmma", "missing_rescale_of_sums", wgmma_file, "sum[r] *= alpha[r];", ""},
            {"wgmma", "mask_of_another_row", wgmma_file, "query + r * 8);\n        end[r]", "query);\n        end[r]"},
            {"wgmma", "wrong_head_of_group", wgmma_file, "key, tile.kv_head", "key, 0"},
            {"wgmma", "log_sum_exp_without_maximum", wgmma_file, "(ONE_ROUNDING ? shift[r] * ln_2 : shift[r]) + __logf",
             "__logf"},
            {"wgmma", "stray_row", wgmma_file, "thread % 4 == 0 && row_exists(a, query)", "thread % 4 == 0"},
            {"wgmma", "stray_row_of_f32", wgmma_file, "if (!row_exists(a, query)) continue;", "", 24, DType::f32},
            {"wgmma", "outputs_of_another_panel", wgmma_file, "to + Q_PANEL_BYTES : to", "to : to", 128},
            {"wgmma", "second_half_over_the_first", wgmma_file, "query, map_panel(panel)", "query, 0", 256},
            {"wgmma", "wrong_swizzle", wgmma_file, "(lane / 16 ^ lane % 8)", "(lane / 16)"},
            {"mma_sync", "wrong_transpose", "common/kernel/cuda.h", "const bool odd = threadIdx.x & step;",
             "const bool odd = !(threadIdx.x & step);"},
            {"mma_sync", "causal_edge_one_late", shared_file, "q + 1 + kv_len", "q + 2 + kv_len"},
            {"mma_sync", "causal_edge_one_early", shared_file, "q + 1 + kv_len", "q + kv_len"},
            {"mma_sync", "partly_seen_block_not_masked", mma_sync_file, "* BLOCK_C > all_see ||",
             "* BLOCK_C > some_see ||"},
            {"mma_sync", "missing_rescale_of_outputs", mma_sync_file,
             "if (i / 2 % 2 == r) o[tile][i / 4][i % 4] *= alpha;", ""},
            {"mma_sync", "missing_rescale_of_sums", mma_sync_file, "sum[tile][r] *= alpha;", ""},
            {"mma_sync", "skipped_tail_of_keys", mma_sync_file, "+ BLOCK_C - 1) / BLOCK_C - 1;", ") / BLOCK_C - 1;"},
            {"mma_sync", "wrong_head_of_group", mma_sync_file, "head / (p.q_heads / p.kv_heads)", "head % p.kv_heads"},
            {"mma_sync", "keys_of_another_batch", mma_sync_file, "batch * strides.batch", "0 * strides.batch"},
            {"mma_sync", "scale_left_out", mma_sync_file, "scale_log2 = p.scale * log2_e", "scale_log2 = log2_e"},
            {"mma_sync", "log_sum_exp_without_maximum", mma_sync_file,
             "(FOLD ? shift[tile][r] * ln_2 : shift[tile][r]) + logf", "logf"},
            {"mma_sync", "stray_row", mma_sync_file, "there = query < p.q_len", "there = true"},
            {"mma_sync", "products_of_high_parts", mma_sync_file,
             "multiply_add<F32>(d, a.high, b.low[i], b.low[i + 1]);", "", 24, DType::f32},
            {"naive", "causal_edge_one_early", shared_file, "q + 1 + kv_len", "q + kv_len"},
            {"naive", "skipped_tail_of_keys", cuda_naive_file, "min(visible.end, p.kv_len)",
             "min(visible.end, p.kv_len) / 4 * 4"},
            {"naive", "wrong_head_of_group", cuda_naive_file, "head / (p.q_heads / p.kv_heads)", "head % p.kv_heads"},
            {"naive", "keys_of_another_batch", cuda_naive_file, "batch * p.k_strides.batch", "0 * p.k_strides.batch"},
            {"naive", "scale_left_out", cuda_naive_file, "p.scale * dot", "dot"},
            {"naive", "weights_without_maximum", cuda_naive_file, "expf(scores[key] - maximum)", "expf(scores[key])"},
            {"naive", "sum_of_half_the_threads", cuda_naive_file, "half > 0; half /= 2", "half > 1; half /= 2"},
            {"naive", "log_sum_exp_without_maximum", cuda_naive_file, "maximum + logf(sum)", "logf(sum)"}};
  }
  std::vector<Mutation> all = {
      {"tuned", "causal_edge_one_late", shared_file, "q + 1 + kv_len", "q + 2 + kv_len"},
      {"tuned", "causal_edge_one_early", shared_file, "q + 1 + kv_len", "q + kv_len"},
      {"tuned", "causal_top_left", shared_file, "q + 1 + kv_len - q_len", "q + 1"},
      {"tuned", "missing_rescale_of_outputs", tuned_file, "v * VECTOR_WIDTH) * factor[v]", "v * VECTOR_WIDTH)"},
      {"tuned", "missing_rescale_of_sums", tuned_file, "load<Floats>(total) * alpha[v]", "load<Floats>(total)"},
      {"tuned", "skipped_tail_of_keys", tuned_file, "first_key < end; first_key += BLOCK_C",
       "first_key + BLOCK_C <= end; first_key += BLOCK_C"},
      {"tuned", "skipped_tail_of_queries", tuned_file, "query < queries; query += 4",
       "query + 4 < queries; query += 4"},
      {"tuned", "wrong_head_of_group", tuned_file, "head / (p.q_heads / p.kv_heads);\n    first_query",
       "head % p.kv_heads;\n    first_query"},
      {"tuned", "scale_left_out", tuned_file, "? p.scale * log4_e", "? log4_e"},
      {"tuned", "log_sum_exp_without_maximum", tuned_file, "end_of_row(maximum[query + i],", "end_of_row(0,"},
      {"tuned", "stray_row", tuned_file, "if (query + i >= queries) break;", ""},
      {"tuned", "wrong_transpose", tuned_file, "(a, b, 2, 3, 6, 7)", "(a, b, 2, 3, 7, 6)"},
      {"tuned", "transposed_output", tuned_file, "load<Quad>(o + (d + i) * PANEL)",
       "load<Quad>(o + (HEAD_DIM - 1 - d - i) * PANEL)"},
      {"tuned", "coarse_exponential", "common/attention/kernels/softmax.h", "5.55073374e-2f", "5.6e-2f"},
      {"tuned", "amx_missing_rescale_of_outputs", amx_file, "load<Floats>(o + row * O_STEP + d) * alpha",
       "load<Floats>(o + row * O_STEP + d)"},
      {"tuned", "amx_missing_rescale_of_sums", amx_file, "load<Floats>(sums + row * LANES) * alpha",
       "load<Floats>(sums + row * LANES)"},
      {"tuned", "amx_skipped_tail_of_keys", amx_file, "first_key < end; first_key += BLOCK_C",
       "first_key + BLOCK_C <= end; first_key += BLOCK_C"},
      {"tuned", "amx_skipped_tail_of_queries", amx_file, "row < tile.queries; row += PAIR",
       "row + PAIR < tile.queries; row += PAIR"},
      {"tuned", "amx_wrong_head_of_group", amx_file, "head / (p.q_heads / p.kv_heads)", "head % p.kv_heads"},
      {"tuned", "amx_wrong_transpose", amx_file, "8, 24, 9, 25,", "24, 8, 9, 25,"},
      {"tuned", "amx_log_sum_exp_without_maximum", amx_file, "end_of_row(maximum[row],", "end_of_row(0,"},
      {"tuned", "amx_stray_row", amx_file, "row < queries; ++row) {\n      float total",
       "row < queries + 1; ++row) {\n      float total"},
      {"tuned", "neon_missing_rescale_of_outputs", neon_file, "v * VECTOR_WIDTH) * factor[v]", "v * VECTOR_WIDTH)"},
      {"tuned", "neon_lane_left_out", neon_file, "lane < 4; ++lane", "lane < 3; ++lane"},
      {"tuned", "neon_row_left_out", neon_file, "four[r / 4][r % 4] * b", "four[r / 5][r % 4] * b"},
      {"tuned", "neon_f16_missing_rescale_of_outputs", neon_f16_file, "v * VECTOR_WIDTH) * factor[v]",
       "v * VECTOR_WIDTH)"},
      {"tuned", "neon_f16_missing_rescale_of_sums", neon_f16_file, "load<Floats>(total) * alpha[v]",
       "load<Floats>(total)"},
      {"tuned", "neon_f16_lane_left_out", neon_f16_file, "lane < 8; ++lane", "lane < 7; ++lane"},
      {"tuned", "neon_f16_queries_in_pairs", neon_f16_file, "to + PANEL + v * VECTOR_WIDTH, second[v]",
       "to + PANEL + v * VECTOR_WIDTH, first[v]"},
      {"tuned", "neon_f16_weights_of_another_key", neon_f16_file, "weights[2 * i + 1]", "weights[2 * i]"},
      {"tuned", "neon_bf16_missing_rescale_of_outputs", neon_bf16_file, "v * VECTOR_WIDTH) * factor[v]",
       "v * VECTOR_WIDTH)"},
      {"tuned", "neon_bf16_missing_rescale_of_sums", neon_bf16_file, "load<Floats>(total) * alpha[v]",
       "load<Floats>(total)"},
      {"tuned", "neon_bf16_one_key_of_two", neon_bf16_file, "(to + r) % 2 * GROUP_WORDS", "0"},
      {"tuned", "neon_bf16_weights_of_another_key", neon_bf16_file, "to_pairs(weights[2], weights[3])",
       "to_pairs(weights[2], weights[2])"},
      {"tuned", "neon_bf16_values_of_another_key", neon_bf16_file, "low_shorts(rows[2], rows[3])",
       "low_shorts(rows[2], rows[2])"},
      {"tuned", "neon_bf16_outputs_of_another_row", neon_bf16_file, "acc[2 * r + 1][v] = high_halves",
       "acc[2 * r + 1][v] = low_halves"},
      {"tiled_vector", "lane_left_out", tiled_file, "lane < step; ++lane", "lane < step - 1; ++lane"},
      {"naive", "causal_edge_one_late", shared_file, "q + 1 + kv_len", "q + 2 + kv_len"},
      {"naive", "skipped_tail_of_keys", naive_file, "visible.end < p.kv_len ? visible.end : p.kv_len;",
       "(visible.end < p.kv_len ? visible.end : p.kv_len) / 4 * 4;"},
      {"naive", "wrong_head_of_group", naive_file, "head / (p.q_heads / p.kv_heads)", "head % p.kv_heads"},
      {"naive", "keys_of_another_batch", naive_file, "batch * p.k_strides.batch", "0 * p.k_strides.batch"},
      {"naive", "outputs_of_another_row", naive_file, "query * p.o_strides.row", "(query / 2) * p.o_strides.row"},
      {"naive", "scale_left_out", naive_file, "p.scale * dot", "dot"},
      {"naive", "maximum_not_kept", naive_file, "maximum = scores[key] > maximum ? scores[key] : maximum;", ""},
      {"naive", "log_sum_exp_without_maximum", naive_file, "end_of_row(maximum,", "end_of_row(0,"}};
  for (const char* variant : {"tiled_scalar", "tiled_vector"}) {
    const Mutation of_tiles[] = {
        {variant, "causal_edge_one_early", shared_file, "q + 1 + kv_len", "q + kv_len"},
        {variant, "skipped_tail_of_keys", tiled_file, "first_key < end; first_key += BLOCK_C",
         "first_key + BLOCK_C <= end; first_key += BLOCK_C"},
        {variant, "wrong_head_of_group", tiled_file, "head / (p.q_heads / p.kv_heads)", "head % p.kv_heads"},
        {variant, "scale_left_out", tiled_file, "p.scale * dot", "dot"},
        {variant, "missing_rescale_of_outputs", tiled_file, "scale(o + row * HEAD_DIM, alpha);", ""},
        {variant, "missing_rescale_of_sums", tiled_file, "sum[row] *= alpha;", ""},
        {variant, "maximum_not_kept", tiled_file, "maximum[row] = new_maximum;", ""},
        {variant, "log_sum_exp_without_maximum", tiled_file, "end_of_row(maximum[row],", "end_of_row(0,"},
        {variant, "stray_row", tiled_file, "p.q_len - first_query < BLOCK_R ? p.q_len - first_query :", ""}};
    all.insert(all.end(), std::begin(of_tiles), std::end(of_tiles));
  }
  for (Mutation& mutation : all) mutation.out_dtype = DType::f32;
  return all;
}

/// The configuration for a mutation on small shapes: two sequences, three query heads for each key/value head, and
/// lengths that are no multiples of the sides of a tile.
inline FlashConfig mutation_config(const Mutation& mutation, bool of_cuda) {
  FlashConfig config;
  config.variant = mutation.variant;
  config.shape = {.batch = 2, .q_heads = 6, .kv_heads = 2, .q_len = 43, .kv_len = 70, .causal = true};
  config.shape.head_dim = mutation.head_dim;
  config.out_dtype = mutation.out_dtype;
  config.block_r = of_cuda ? 64 : 16;
  config.block_c = 16;
  if (config.variant == "wgmma") config.dtype = DType::bf16;
  if (mutation.head_dim > 128) {  // with these head_dims the outputs are stored in two halves
    config.block_r = 128;
    config.block_c = 64;
  }
  if (std::string_view(mutation.file) == neon_f16_file) config.dtype = DType::f16;
  if (std::string_view(mutation.file) == neon_bf16_file) {
    config.dtype = DType::bf16;
    config.shape.scale = 2;
  }
  if (std::string_view(mutation.file) == amx_file) {
    config.dtype = DType::bf16;
    config.block_r = 48;  // not a multiple of 32, the rows of two AMX tiles
    config.shape.scale = 2;
  }
  if (of_cuda) config.shape.scale = 2;  // so that maxima grow by more than 8 in base 2, and outputs are rescaled
  return config;
}

// ---- a wrong block among the blocks of 16384 keys

/// The file of a kernel, and the variant, the type and the host for which this kernel is chosen. `name` is part of the
/// tests' names. If `host` is not empty, the cpu is described as this host.
struct KernelPath {
  const char *name, *variant, *file;
  DType dtype;
  const char* host = "";
};

inline void PrintTo(const KernelPath& path, std::ostream* out) { *out << path.name; }

inline std::vector<KernelPath> kernel_paths(bool of_cuda) {
  if (of_cuda) {
    return {{"wgmma_f16", "wgmma", wgmma_file, DType::f16},
            {"wgmma_bf16", "wgmma", wgmma_file, DType::bf16},
            {"mma_sync_f32", "mma_sync", mma_sync_file, DType::f32},
            {"mma_sync_f16", "mma_sync", mma_sync_file, DType::f16},
            {"mma_sync_bf16", "mma_sync", mma_sync_file, DType::bf16}};
  }
  return {{"tuned_f32", "tuned", tuned_file, DType::f32},
          {"tuned_f16", "tuned", tuned_file, DType::f16},
          {"bf16_as_floats", "tuned", tuned_file, DType::bf16, "cascadelake"},
          {"bf16_dot", "tuned", tuned_file, DType::bf16, "znver4"},
          {"bf16_amx", "tuned", amx_file, DType::bf16},
          {"neon_f16", "tuned", neon_f16_file, DType::f16},
          {"neon_bf16", "tuned", neon_bf16_file, DType::bf16}};
}

/// How many keys the shape for block mutations has. The kernels take these keys in blocks of 64.
inline constexpr int64_t block_mutation_keys = 16384;

struct BlockMutation {
  const char *file, *what, *from, *to;
  const char* only = "";  // the mutation is only for paths whose name contains this text
  InputKind inputs = InputKind::random;

  bool is_of(const KernelPath& path) const {
    return std::string_view(path.file) == file && std::string_view(path.name).find(only) != std::string_view::npos;
  }
};

inline std::vector<BlockMutation> block_mutations() {
  constexpr const char *block_loop = "int first_key = begin; first_key < end; first_key += BLOCK_C",
                       *from_second = "int first_key = begin + BLOCK_C; first_key < end; first_key += BLOCK_C",
                       *to_last = "int first_key = begin; first_key < end - BLOCK_C; first_key += BLOCK_C",
                       *without_one =
                           "int first_key = begin; first_key < end; "
                           "first_key += first_key == 8128 ? 2 * BLOCK_C : BLOCK_C",
                       *one_twice =
                           "int first_key = begin, again = 1; first_key < end; "
                           "first_key += first_key == 8192 && again-- > 0 ? 0 : BLOCK_C";
  constexpr const char* k_block = "shared_address(memory + layout.k) + block % layout.stages";
  constexpr const char* v_block = "shared_address(memory + layout.v) + block % layout.stages";
  constexpr const char* v_block_f32 = "memory + layout.v + block % layout.stages";
  constexpr const char* mask = "if (MASK_IS_NONE && block >= visible) mask_s<";
  return {
      {tuned_file, "first_block_dropped", block_loop, from_second},
      {tuned_file, "last_block_dropped", block_loop, to_last},
      {tuned_file, "block_dropped", block_loop, without_one},
      {tuned_file, "block_doubled", block_loop, one_twice},
      {tuned_file, "values_of_the_block_before", "    if constexpr (BF16_DOT) {\n      tile.stage_pairs",
       "    if (first_key == 8192) {\n    } else if constexpr (BF16_DOT) {\n      tile.stage_pairs"},
      {tuned_file, "keys_of_the_block_before", "row_of(p.k_strides, key) * ELEMENT_BYTES",
       "row_of(p.k_strides, key == 8192 ? key - BLOCK_C : key) * ELEMENT_BYTES", "f32"},
      {tuned_file, "keys_of_the_block_before", "row_of(p.k_strides, key) * ELEMENT_BYTES",
       "row_of(p.k_strides, key == 8192 ? key - BLOCK_C : key) * ELEMENT_BYTES", "dot"},
      {tuned_file, "keys_of_the_block_before", "    if constexpr (COPY_K) {",
       "    if (first_key == 8192) {\n    } else if constexpr (COPY_K) {", "bf16_as_floats"},
      {tuned_file, "keys_of_the_block_before", "    if constexpr (COPY_K) {",
       "    if (first_key == 8192) {\n    } else if constexpr (COPY_K) {", "tuned_f16"},
      {tuned_file, "missing_rescale", "v * VECTOR_WIDTH) * factor[v]", "v * VECTOR_WIDTH)", "", InputKind::needles},

      {neon_f16_file, "block_dropped", block_loop, without_one},
      {neon_f16_file, "missing_rescale", "v * VECTOR_WIDTH) * factor[v]", "v * VECTOR_WIDTH)", "", InputKind::needles},
      {neon_bf16_file, "block_dropped", block_loop, without_one},
      {neon_bf16_file, "missing_rescale", "v * VECTOR_WIDTH) * factor[v]", "v * VECTOR_WIDTH)", "", InputKind::needles},

      {amx_file, "first_block_dropped", block_loop, from_second},
      {amx_file, "last_block_dropped", block_loop, to_last},
      {amx_file, "block_dropped", block_loop, without_one},
      {amx_file, "block_doubled", block_loop, one_twice},
      {amx_file, "values_of_the_block_before", "tile.stage_values(", "if (first_key != 8192) tile.stage_values("},
      {amx_file, "keys_of_the_block_before", "tile.stage_keys(", "if (first_key != 8192) tile.stage_keys("},
      {amx_file, "missing_rescale", "load<Floats>(o + row * O_STEP + d) * alpha", "load<Floats>(o + row * O_STEP + d)",
       "", InputKind::needles},

      // A consumer must hand back the buffers of all blocks that the producer copies, or the producer waits for
      // ever. So a mutation that drops a block either masks the block, or changes key_end(): the consumers then
      // hand back the buffers of the last block unused.
      {wgmma_file, "first_block_dropped", mask,
       "if (block == 0) end[0] = end[1] = 0;\n      if (block == 0 || block >= visible) mask_s<"},
      {wgmma_file, "last_block_dropped", "!CAUSAL) return a.kv_len;", "!CAUSAL) return a.kv_len - BLOCK_C;"},
      {wgmma_file, "block_dropped", mask,
       "if (block == 100) end[0] = end[1] = 0;\n      if (block == 100 || block >= visible) mask_s<"},
      {wgmma_file, "block_doubled", "read_s(s);\n    } else {",
       "read_s(s);\n      if (block == 100) {\n        UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) s[i] += 1 / "
       "p.scale_log2;\n      }\n    } else {"},
      {wgmma_file, "keys_and_values_of_another_block", "map, full, key, tile.kv_head",
       "map, full, key == 100 * BLOCK_C ? key + BLOCK_C : key, tile.kv_head"},
      {wgmma_file, "values_of_another_stage", "multiply_outputs(previous.index,",
       "multiply_outputs(block == 100 ? kv.index : previous.index,"},
      {wgmma_file, "keys_of_another_stage", "multiply_scores(kv.index,",
       "multiply_scores(block == 100 ? previous.index : kv.index,"},
      {wgmma_file, "missing_rescale", "if (grew && !first) scale_o<DIM / 2>(alpha);", "", "", InputKind::needles},

      {mma_sync_file, "first_block_dropped", "for (; block >= last_block; --block)",
       "for (; block > last_block; --block)"},
      {mma_sync_file, "last_block_dropped", "+ BLOCK_C - 1) / BLOCK_C - 1;", "+ BLOCK_C - 1) / BLOCK_C - 2;"},
      {mma_sync_file, "block_dropped", "if (number * BLOCK_C >= some_see) continue;",
       "if (number == 100 || number * BLOCK_C >= some_see) continue;"},
      {mma_sync_file, "block_doubled", "UNROLL for (int tile = 0; tile < TILES; ++tile) softmax(tile);",
       "UNROLL for (int tile = 0; tile < TILES; ++tile) {\n        UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) {\n"
       "          if (block == 100) s[tile][i / 4][i % 4] += FOLD ? 1 / scale_log2 : 1;\n        }\n"
       "        softmax(tile);\n      }"},
      {mma_sync_file, "values_of_another_buffer", v_block,
       "shared_address(memory + layout.v) + (block + (block == 100)) % layout.stages", "f16"},
      {mma_sync_file, "values_of_another_buffer", v_block_f32,
       "memory + layout.v + (block + (block == 100)) % layout.stages", "f32"},
      {mma_sync_file, "keys_of_another_buffer", k_block,
       "shared_address(memory + layout.k) + (block + (block == 100)) % layout.stages"},
      {mma_sync_file, "missing_rescale", "if (i / 2 % 2 == r) o[tile][i / 4][i % 4] *= alpha;", "", "",
       InputKind::needles}};
}

/// Returns the configuration for block mutations.
inline FlashConfig block_mutation_config(const KernelPath& path) {
  FlashConfig config;
  config.variant = path.variant;
  config.dtype = config.out_dtype = path.dtype;
  config.shape = {.batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 64, .kv_len = block_mutation_keys, .head_dim = 64};
  config.block_r = config.block_c = 64;
  return config;
}

}  // namespace attn::test
