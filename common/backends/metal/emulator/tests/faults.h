// Faults planted in Metal's kernels, one at a time. The author of this table had not seen the emulator's checks. In the
// first run some faults had no effect at the chosen shape: a missing barrier between two rounds of a loop, for example,
// has no effect if the loop has one round. In these cases the author changed the shape, not the fault.
#pragma once

#include <ostream>
#include <sstream>
#include <string>
#include <vector>

namespace attn::test {

/// What must find a fault: a check of the emulator, or the comparison with the oracle.
enum class FoundBy {
  race_in_threadgroup,  // two threads touch one word of threadgroup memory, and no barrier orders the two
  race_on_device,       // two threads touch one word of device memory, and no barrier orders the two
  coherence,            // a threadgroup reads what another wrote, and a pointer is not coherent(device)
  barrier,              // a barrier that not all threads reach
  divergence,           // a simdgroup function that not all lanes reach
  unwritten,            // threadgroup memory is read before it is written
  outside,              // an access outside of a buffer or of threadgroup memory
  much_memory,          // more than 32 KB of threadgroup memory
  fast_math,            // arithmetic with infinity or NaN
  address_space,        // an access to another address space than the pointer's
  constant,             // a function constant without a value
  compiler,             // a compile error
  later_version,        // a feature of a later version of the language than the kernel's
  oracle,               // the results differ from the oracle's
};

/// A program, and the axes of one case ("head_dim=40 causal=1").
struct MetalRun {
  const char* program;
  std::string axes;

  /// Returns the run with these values of axes in place of its own.
  MetalRun with(const std::string& changes) const {
    MetalRun changed{program, changes};
    std::istringstream words(axes);
    for (std::string axis; words >> axis;) {
      const std::string name = " " + axis.substr(0, axis.find('=') + 1);
      if ((" " + changes).find(name) == std::string::npos) changed.axes += " " + axis;
    }
    return changed;
  }
};

/// A kernel's text with `from` replaced by `to`, and a run of the kernel.
struct MetalFault {
  const char* name;
  FoundBy found_by;
  std::string file, from, to;
  MetalRun run;
};

inline void PrintTo(const MetalFault& fault, std::ostream* out) { *out << fault.name; }

inline std::vector<MetalFault> metal_faults() {
  using enum FoundBy;
  const std::string attention = "common/attention/kernels/", linear = "common/linear/kernels/",
                    paged = "common/paged/kernels/";
  const std::string naive = attention + "naive.metal", tuned = attention + "tuned.metal",
                    row = attention + "exact_row_metal.h", masks = attention + "mask_blocks.metal",
                    rope = attention + "rope.metal", decode = paged + "decode.metal", append = paged + "append.metal",
                    append_scaled = paged + "append_scaled.metal", merge = paged + "merge.metal",
                    chunk_h = linear + "chunk_h.metal", chunk_o = linear + "outputs_metal.h",
                    scan = linear + "scan.metal", recurrent = linear + "recurrent.metal",
                    expand = "proto7_variants/kernels/expand.metal", dialect = "common/kernel/metal.h";
  const std::string barrier_text = "threadgroup_barrier(mem_flags::mem_threadgroup);";

  // Barriers of `tuned`, with their comments.
  const std::string k_barrier = barrier_text + "  // K is there; with two buffers, V has been read",
                    v_barrier = barrier_text + "  // all simdgroups have read K; with two buffers, V is there";

  const MetalRun flash_naive{"proto1_flash",
                             "batch=1 q_heads=2 kv_heads=1 q_len=19 kv_len=37 causal=1 layout=bhsd variant=naive "
                             "head_dim=40 dtype=f32"};
  const MetalRun no_keys = flash_naive.with("q_heads=1 kv_len=7");  // the first queries see no key
  const MetalRun flash_tuned = flash_naive.with("q_heads=4 kv_heads=2 variant=tuned block_r=16 block_c=16");
  const MetalRun one_head = flash_tuned.with("q_heads=1 kv_heads=1 causal=0");
  const MetalRun tuned_no_keys = one_head.with("kv_len=7 causal=1");
  const MetalRun wide_heads = one_head.with("causal=1 head_dim=200");
  // The first rows see fewer blocks of keys than the last rows.
  const MetalRun tall = one_head.with("q_len=64 kv_len=64 causal=1 block_r=64");
  const MetalRun sparse{"proto7_variants",
                        "task=attention batch=1 q_heads=2 kv_heads=1 q_len=21 kv_len=133 head_dim=40 layout=bhsd "
                        "variant=tuned block_r=16 block_c=32 dtype=f32 causal=1 block_sparse=50"};
  const MetalRun long_list = sparse.with("kv_len=333");  // a list of more blocks than a threadgroup has simdgroups
  const MetalRun plain{"proto7_variants",
                       "task=attention batch=1 q_heads=2 kv_heads=1 q_len=21 kv_len=37 head_dim=40 layout=bhsd "
                       "variant=tuned block_r=16 block_c=32 dtype=f32 causal=1"};
  const MetalRun sinks = plain.with("sinks=1"), alibi = plain.with("alibi=1");
  const MetalRun turn{"proto7_variants",
                      "task=rope batch=2 q_heads=3 kv_heads=1 q_len=21 kv_len=33 head_dim=40 layout=bshd dtype=f32 "
                      "rotary_dim=24"};
  const MetalRun turn_one = turn.with("batch=1");
  const MetalRun copies_of_one{"proto7_variants",
                               "task=expand batch=1 q_heads=3 kv_heads=1 q_len=21 kv_len=33 head_dim=40 layout=bshd "
                               "dtype=f16"};
  const MetalRun cache{"proto3_paged",
                       "task=decode append=none q_len=1 q_heads=6 kv_heads=2 batch=3 kv_len=70 head_dim=40 "
                       "lengths=ragged page_size=5 page_order=random reduce=last block_c=32 workers=4 dtype=f32 "
                       "cache_dtype=f32 causal=1 shared_pct=25 cascade=0 cache_layout=nhd alibi=0 soft_cap=0 "
                       "window_left=-1"};
  const MetalRun by_launch = cache.with("reduce=launch");
  const MetalRun one_sequence =
      by_launch.with("q_heads=1 kv_heads=1 batch=1 lengths=equal page_size=0 page_order=identity workers=1");
  const MetalRun decode_sinks = by_launch.with("sinks=1"), equal_lengths = by_launch.with("lengths=equal");
  const MetalRun appends = by_launch.with("append=chain q_len=2");
  const MetalRun appends_to_bytes = by_launch.with("append=fused rotary_dim=24 q_len=2 dtype=f16 cache_dtype=int8");
  // An empty sequence: its tokens would lie before key 0.
  const MetalRun appends_to_empty = appends.with("batch=2 page_size=0 page_order=identity");
  const MetalRun prefill = cache.with("task=prefill q_len=20 batch=2 workers=0 dtype=f16 cache_dtype=f16");
  const MetalRun cascade = equal_lengths.with("page_order=shared shared_pct=50 cascade=1");
  const MetalRun phases{"proto6_linear",
                        "batch=2 heads=1 q_len=37 head_dim=24 value_dim=40 layout=bhsd lengths=equal state=1 "
                        "variant=phases scan=passes chunk=16 causal=1 gate=token normalised=1 feature=elu1 dtype=f32"};
  const MetalRun two_steps = phases.with("chunk=32");
  const MetalRun one_chunk = phases.with("batch=1 q_len=13 gate=none normalised=0 feature=identity");
  const MetalRun steps{"proto6_linear",
                       "batch=1 heads=1 q_len=9 head_dim=40 value_dim=40 layout=bhsd lengths=equal state=1 "
                       "variant=recurrent chunk=0 causal=1 gate=head normalised=1 feature=elu1 dtype=f32"};
  const MetalRun one_token = steps.with("q_len=1");

  return {
      // naive
      {"naive_statistics_without_barrier", race_in_threadgroup, naive, barrier_text + "\n  Softmax all;",
       "Softmax all;", flash_naive},
      {"naive_weights_without_barrier", race_in_threadgroup, naive, barrier_text + "\n  for (int d", "for (int d",
       flash_naive},
      {"naive_all_lanes_write_one_word", race_in_threadgroup, naive, "if (lane == 0) {", "{", flash_naive},
      {"naive_a_key_too_many", unwritten, naive, "key < row.end && !all.strange", "key <= row.end && !all.strange",
       flash_naive},
      {"naive_scores_over_statistics", outside, naive, "scores + p.kv_len", "scores + p.kv_len + 4", flash_naive},
      {"naive_threadgroup_as_device", compiler, naive, "threadgroup float* const maxima", "device float* const maxima",
       flash_naive},
      {"naive_threadgroup_address_used_on_device", address_space, naive, "scores[key] = s;",
       "*reinterpret_cast<device float*>(reinterpret_cast<ulong>(scores + key)) = s;", flash_naive},
      {"naive_divides_by_no_weight", fast_math, naive, "all.sum == 0 ? 0.0f : 1 / all.sum", "1 / all.sum", no_keys},
      {"naive_log_sum_exp_without_maximum", oracle, naive, "row.store_lse(all.maximum,", "row.store_lse(0,",
       flash_naive},
      {"naive_maximum_of_some_lanes", divergence, row, "all.maximum = simd_max(own.maximum);",
       "if (own.sum != 0) all.maximum = simd_max(own.maximum);", flash_naive},
      // tuned
      {"tuned_keys_read_early", race_in_threadgroup, tuned, k_barrier, "", flash_tuned},
      {"tuned_values_read_early", race_in_threadgroup, tuned, v_barrier, "", flash_tuned},
      {"tuned_keys_over_values", race_in_threadgroup, tuned,
       barrier_text + "  // all simdgroups have read V of the previous block", "", wide_heads},
      {"tuned_values_over_keys", race_in_threadgroup, tuned, v_barrier, "", wide_heads},
      {"tuned_turn_read_early", race_in_threadgroup, tuned, barrier_text + "  // V is there", "", wide_heads},
      {"tuned_next_keys_over_keys", race_in_threadgroup, tuned, v_barrier + "\n    if (TAKE_TURNS) {",
       "if (block + 1 < end_block) set_flag(odd_k, tile.copy_k(k_block, first_key, thread_number), simdgroup, "
       "lane);\n" +
           barrier_text + "\n    if (TAKE_TURNS) {",
       flash_tuned},
      {"tuned_flags_of_keys_and_values_in_one", race_in_threadgroup, tuned, "odd_k + THREADS / SIMD", "odd_k",
       flash_tuned},
      {"tuned_barrier_for_some", barrier, tuned, k_barrier, k_barrier + "\nif (simdgroup == 0) " + barrier_text,
       flash_tuned},
      {"tuned_simdgroup_leaves_early", barrier, tuned, "strange = strange || (sees_some && any_set(odd_k));",
       "if (!simd_any(sees_some)) break;\n    strange = strange || (sees_some && any_set(odd_k));", tall},
      {"tuned_matrix_of_some_lanes", divergence, tuned, "simdgroup_multiply_accumulate(o[j], weights[c], v, o[j]);",
       "if (query < p.q_len) simdgroup_multiply_accumulate(o[j], weights[c], v, o[j]);", flash_tuned},
      {"tuned_vote_of_some_lanes", divergence, tuned, "const uint strange_rows = simd_or(strange ? row_bit : 0u);",
       "const uint strange_rows = row_bit != 0 ? simd_or(strange ? row_bit : 0u) : 0u;", flash_tuned},
      {"tuned_tile_not_filled", unwritten, tuned, "if (key >= keys_there) {\n        clear_8(there);",
       "if (key >= keys_there) {", one_head.with("kv_len=13 head_dim=200")},
      {"tuned_reads_keys_that_do_not_exist", outside, tuned, "if (key >= keys_there) {", "if (false) {", one_head},
      {"tuned_reads_values_that_do_not_exist", outside, tuned, "bool exists = key < keys_there;", "bool exists = true;",
       one_head},
      {"tuned_writes_rows_that_do_not_exist", outside, tuned, "query < p.q_len ? 1u << fragment_row(lane) : 0u",
       "1u << fragment_row(lane)", one_head},
      {"tuned_rows_too_wide", outside, tuned, "MetalTunedLayout(HEAD_DIM, BLOCK_R, BLOCK_C, IN_TYPE).row;",
       "MetalTunedLayout(HEAD_DIM, BLOCK_R, BLOCK_C, IN_TYPE).row + 8;", one_head},
      {"tuned_tiles_over_one_another", race_on_device, tuned, "tile_number * static_cast<int>(BLOCK_R));",
       "tile_number * 8);", one_head},
      {"tuned_hides_with_infinity", fast_math, tuned, "x * log2_e : lowest_score;", "x * log2_e : -INFINITY;",
       flash_tuned},
      {"tuned_divides_by_no_weight", fast_math, tuned, "sum == 0 ? 0.0f : 1 / sum", "1 / sum", tuned_no_keys},
      {"tuned_lost_block_of_keys", oracle, tuned, "block < end_block; ++block", "block < end_block - 1; ++block",
       flash_tuned},
      {"tuned_transposed_keys", oracle, tuned, "ROW, ulong2(0, 0), true);", "ROW, ulong2(0, 0), false);", flash_tuned},
      {"tuned_sums_that_do_not_shrink", oracle, tuned, "sum *= alpha;", "", flash_tuned},
      {"tuned_outputs_that_do_not_shrink", oracle, tuned, "o[j].thread_elements()[0] *= alpha;", "", flash_tuned},
      {"tuned_wrong_head_of_group", oracle, tuned, "head / (params.q_heads / params.kv_heads)",
       "head % params.kv_heads", flash_tuned},
      {"tuned_fragment_in_another_place", oracle, dialect, "(lane >> 3 & 1) * 4 + (lane & 1) * 2",
       "(lane & 1) * 4 + (lane >> 3 & 1) * 2", flash_tuned},
      {"tuned_constant_without_value", constant, tuned, "constexpr constant float MOST_SCORE = 1.0e37f;",
       "constant float MOST_SCORE [[function_constant(7)]];", flash_tuned},
      {"tuned_causal_edge_one_early", oracle, attention + "attention.h", "q + 1 + kv_len", "q + kv_len", flash_tuned},
      {"tuned_wrong_constant", oracle, tuned, "constexpr constant int COLUMNS = BLOCK_C / 8;",
       "constexpr constant int COLUMNS = BLOCK_C / 16;", flash_tuned},
      // hooks
      {"sink_of_another_head", oracle, attention + "modifiers/sink.h", "sinks)[context.head]",
       "sinks)[context.head ^ 1]", sinks},
      {"sink_lost", oracle, tuned, "SINK_IS_NONE", "true", sinks},
      {"alibi_with_the_other_sign", oracle, attention + "modifiers/score.h",
       "static_cast<float>(k - own_key(q, context));", "static_cast<float>(own_key(q, context) - k);", alibi},
      // lists of a mask
      {"list_found_overwritten", race_in_threadgroup, masks,
       barrier_text + "  // all threads have read found[] of the previous round", "", long_list},
      {"list_found_read_early", race_in_threadgroup, masks, barrier_text + "\n    for (int i = 0;", "for (int i = 0;",
       sparse},
      {"list_of_first_simdgroup_only", unwritten, masks, "if (lane == 0) found[simdgroup]",
       "if (writes) found[simdgroup]", sparse},
      {"list_needs_33_kb", much_memory, masks, "threadgroup int found[SIMDGROUPS];", "threadgroup int found[8448];",
       sparse},
      {"list_written_by_all_lanes", race_on_device, masks, "if (writes) p.lists.counts", "p.lists.counts", sparse},
      {"list_vote_of_some_lanes", divergence, masks, "some = simd_any(some);", "if (!all) some = simd_any(some);",
       sparse},
      {"list_lost_block", oracle, masks, "if (found[i] < 0) continue;", "if (found[i] < 0 || i == 1) continue;",
       sparse},
      // rope, copies of heads
      {"rope_rows_that_do_not_exist", outside, rope, "if (row >= p.rows) break;", "", turn_one},
      {"rope_copies_over_turned", race_on_device, rope, "const int d = unit + HALF;", "const int d = unit;", turn},
      {"rope_turns_the_other_way", oracle, rope, "y * angle.cosine + x * angle.sine",
       "y * angle.cosine - x * angle.sine", turn},
      {"expand_a_copy_too_many", race_on_device, expand, "copy < p.group", "copy <= p.group",
       copies_of_one.with("batch=2 q_heads=6 kv_heads=2")},
      {"expand_rows_that_do_not_exist", outside, expand, "if (row >= p.rows) break;", "", copies_of_one},
      // decode, append, prefill, merge
      {"decode_keys_read_early", race_in_threadgroup, decode, barrier_text + "\n      const bool sees_some",
       "const bool sees_some", one_sequence},
      {"decode_values_over_keys", race_in_threadgroup, decode,
       barrier_text + "  // all simdgroups of the team have read K", "", one_sequence.with("q_heads=16")},
      {"decode_teams_without_barrier", barrier, decode, barrier_text + "\n      if (team != 0) continue;",
       "if (team != 0) continue;\n      " + barrier_text, one_sequence},
      {"decode_parts_read_early", race_on_device, decode,
       "threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);", barrier_text, cache},
      {"decode_arrives_without_fence", race_on_device, decode,
       "atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);", "", cache},
      {"decode_parts_not_coherent", FoundBy::coherence, decode, "#define PART_SPACE coherent(device) device",
       "#define PART_SPACE device", cache},
      {"decode_fence_in_metal_3_1", later_version, decode, "#if JOIN_LAST_VALUE\n    const int first",
       "#if 1\n    const int first", by_launch},
      // A part that its worker has not written yet is NaN.
      {"decode_every_worker_joins", fast_math, decode, "if (is_last) {", "if (true) {", cache},
      {"decode_all_lanes_arrive", race_in_threadgroup, decode, "if (thread_index == 0) *before", "*before", cache},
      {"decode_key_without_bound", outside, decode, "if (key < end) place = any.place_of(key);",
       "place = any.place_of(key);", one_sequence},
      {"decode_wrong_page", oracle, decode, "static_cast<long>(context.batch) * p.cache.max_pages",
       "0L * p.cache.max_pages", equal_lengths},
      {"decode_wrong_head_of_group", oracle, decode,
       "key_head * (params.q_heads / params.kv_heads) + row / params.q_len",
       "key_head + row / params.q_len * params.kv_heads", by_launch},
      {"decode_sums_that_do_not_shrink", oracle, decode, "sum *= alpha;", "", by_launch},
      {"decode_a_part_left_out", oracle, decode, "worker <= last_worker", "worker < last_worker", by_launch},
      {"decode_lost_sink", oracle, decode, "sum = sum * alpha + fast::exp2(sink * log2_e - larger);",
       "sum = sum * alpha;", decode_sinks},
      {"decode_vote_of_some_lanes", divergence, decode, "const uint strange_rows = simd_or(strange ? row_bit : 0u);",
       "const uint strange_rows = exists(row) ? simd_or(strange ? row_bit : 0u) : 0u;", by_launch},
      {"append_key_before_the_first", race_on_device, append, "if (key < 0 || length > p.most_keys) return;", "",
       appends_to_empty},
      {"append_pages_of_another_sequence", race_on_device, append, "static_cast<long>(batch) * p.cache.max_pages",
       "0L * p.cache.max_pages", appends.with("lengths=equal")},
      {"append_the_next_slot", oracle, append, "slot = key % page_size;", "slot = (key + 1) % page_size;", appends},
      {"append_scaled_scale_of_another_head", oracle, append_scaled, "static_cast<long>(page) * p.kv_heads + head",
       "static_cast<long>(page) * p.kv_heads + (1 - head)", appends_to_bytes},
      {"append_scaled_query_not_rotated", oracle, append_scaled, "token), d, p.tokens, key));",
       "token), d, p.tokens, -1));", appends_to_bytes},
      {"append_scaled_an_element_too_many", race_on_device, append_scaled, "i < of_group * HEAD_DIM;",
       "i <= of_group * HEAD_DIM;", appends_to_bytes},
      {"prefill_wrong_head_of_group", oracle, tuned, "head / (params.q_heads / params.kv_heads)",
       "head % params.kv_heads", prefill},
      {"merge_two_lanes_on_one_word", race_on_device, merge, "static_cast<int>(thread_index) * 4 + i",
       "static_cast<int>(thread_index) * 3 + i", cascade},
      {"merge_all_lanes_write_lse", race_on_device, merge, "if (thread_index != 0 || p.lse == nullptr) return;",
       "if (p.lse == nullptr) return;", cascade},
      {"merge_log_sum_exps_swapped", oracle, merge, "fast::exp2((of_own - larger) * log2_e)",
       "fast::exp2((of_prefix - larger) * log2_e)", cascade},
      // linear attention
      {"chunk_h_step_overwritten_early", race_in_threadgroup, chunk_h,
       barrier_text + "  // all simdgroups have read the previous step", "", two_steps},
      {"chunk_h_step_read_early", race_in_threadgroup, chunk_h, barrier_text + "\n      if (row >= HEAD_DIM) continue;",
       "if (row >= HEAD_DIM) continue;", one_chunk},
      {"chunk_h_barrier_for_some", barrier, chunk_h, barrier_text + "\n      if (row >= HEAD_DIM) continue;",
       "if (row >= HEAD_DIM) continue;\n      " + barrier_text, phases},
      {"chunk_h_token_not_filled", unwritten, chunk_h, "keys[i * KEY_ROW + thread_number] = key;",
       "if (token < place.rows) keys[i * KEY_ROW + thread_number] = key;", one_chunk},
      {"chunk_h_rows_that_do_not_exist", outside, chunk_h, "if (row < HEAD_DIM) {", "{", one_chunk},
      {"chunk_h_matrix_of_some_lanes", divergence, chunk_h, "if (row >= HEAD_DIM) continue;",
       "if (row >= HEAD_DIM || thread_index == 5) continue;", phases},
      {"chunk_h_decay_of_its_own_token", oracle, chunk_h, "* power_of_e(since);",
       "* power_of_e(since + tokens.decay(token, thread_number));", phases},
      {"chunk_o_transposed_state", oracle, chunk_o, "static_cast<ulong>(state_row));",
       "static_cast<ulong>(state_row), ulong2(0, 0), true);", phases},
      {"chunk_o_causal_edge_one_early", oracle, chunk_o, "if (!there || other > token) continue;",
       "if (!there || other >= token) continue;", phases},
      {"chunk_o_matrix_of_some_lanes", divergence, chunk_o, "simdgroup_multiply_accumulate(o[e], q, of_state, o[e]);",
       "if (there) simdgroup_multiply_accumulate(o[e], q, of_state, o[e]);", phases},
      {"chunk_o_tokens_that_do_not_exist", outside, chunk_o, "const bool there = token < rows;",
       "const bool there = true;", one_chunk},
      // This launch runs in order 1, the last threadgroup first. Its access outside of the buffer precedes any race.
      {"scan_an_element_too_many", outside, scan, "i < SCAN_ROWS * VALUE_DIM;", "i <= SCAN_ROWS * VALUE_DIM;", phases},
      {"scan_without_decay", oracle, scan, "was * fast::exp2(log * log2_e)", "was", phases},
      {"recurrent_one_buffer", race_in_threadgroup, recurrent, "memory + token % 2 * PARTS * PART_FLOATS", "memory",
       steps},
      {"recurrent_without_barrier", race_in_threadgroup, recurrent, barrier_text, "", steps},
      {"recurrent_barrier_for_some", barrier, recurrent, barrier_text + "\n    if (simdgroup != 0) continue;",
       "if (simdgroup != 0) continue;\n    " + barrier_text, steps},
      {"recurrent_sum_of_some_lanes", divergence, recurrent, "divisor = simd_sum(q * key_sum);",
       "if (has_row) divisor = simd_sum(q * key_sum);", steps},
      {"recurrent_column_without_bound", outside, recurrent, "if (has_column) store_float", "store_float", one_token},
      {"recurrent_part_never_written", unwritten, recurrent, "for (int part = 0; part < PARTS;",
       "for (int part = 0; part < PARTS + 1;", one_token.with("gate=none normalised=0 feature=identity")},
  };
}

}  // namespace attn::test
