// The kernels of RoPE broken on purpose: texts of the sources, and the texts that replace them.
#pragma once

#include <ostream>
#include <vector>

#include "common/attention/rope.h"

namespace attn::test {

struct RopeMutation {
  const char *what, *from, *to;
  RopePairing pairing = RopePairing::half_split;
};

inline void PrintTo(const RopeMutation& mutation, std::ostream* out) { *out << mutation.what; }

inline const char* rope_file(bool of_cuda) {
  return of_cuda ? "common/attention/kernels/rope.cuda.cu" : "common/attention/kernels/rope.cpu.cpp";
}

/// Returns a configuration with which a test can find the mutation: only a part of a row is rotated, and YaRN gives an
/// attention factor. A test that runs the kernel must also give the sequences different offsets.
inline RopeConfig rope_mutation_config(const RopeMutation& mutation) {
  return {.head_dim = 96,
          .rotary_dim = 64,
          .pairing = mutation.pairing,
          .scaling = RopeYarn{.factor = 4, .original_length = 2048}};
}
inline RopeShape rope_mutation_shape() {
  return {.batch = 2, .q_heads = 5, .kv_heads = 2, .rows = 19, .dtype = DType::bf16};
}

inline std::vector<RopeMutation> rope_mutations(bool of_cuda) {
  constexpr auto interleaved = RopePairing::interleaved;
  if (of_cuda) {
    const char* const across = "constexpr bool ACROSS = !INTERLEAVED || GROUP == 1;";
    const char* const not_across = "constexpr bool ACROSS = INTERLEAVED || GROUP == 1;";
    return {{"rotated_by_negative_angles", "x * angle.cosine - y * angle.sine", "x * angle.cosine + y * angle.sine"},
            {"neighbours_as_pairs", across, not_across},
            {"halves_as_pairs", across, not_across, interleaved},
            {"offset_ignored", "p.offsets ? p.offsets[batch] : 0", "0"},
            {"offset_of_the_first", "p.offsets[batch]", "p.offsets[0]"},
            {"keys_left_out", "block < q_blocks ? 0 : 1", "0"},
            {"factor_left_out", "angle.sine * p.factor", "angle.sine"},
            {"unrotated_elements_not_copied", "!turns && t.in == t.out", "!turns"}};
  }
  return {{"rotated_by_negative_angles", "x * c - y * s", "x * c + y * s"},
          {"neighbours_rotated_by_negative_angles", "sines[2 * i] = -s", "sines[2 * i] = s", interleaved},
          {"neighbours_as_pairs", "x * c - y * s", "x * c - swap_neighbours(x) * s"},
          {"offset_ignored", "p.offsets ? p.offsets[batch] : 0", "0"},
          {"offset_of_the_first", "p.offsets[batch]", "p.offsets[0]"},
          {"factor_left_out", "angle.sine * factor", "angle.sine"},
          {"unrotated_elements_not_copied", "if (t.in == t.out) return;", "return;"}};
}

}  // namespace attn::test
