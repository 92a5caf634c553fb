// RoPE: rotates pairs of elements of the rows of Q and K by angles that grow with the row's position. A group is GROUP
// neighbouring elements of a row. A unit is two groups of a row, which one thread takes. The two groups hold GROUP
// pairs: each group has one element of every pair, or each group has whole pairs. The last units of a row have the
// elements beyond ROTARY_DIM, which are only copied.
//
// The kernel is memory-bound. So a thread starts to load its unit in each of rope_heads heads, and computes the angles,
// which the heads share, while the loads run.
//
// GROUP divides ROTARY_DIM / 2; a group has at most 16 bytes; addresses and strides are multiples of a group's size.
// Grid: (heads of Q / rope_heads + heads of K / rope_heads, each rounded up; tiles of tile_rows rows; batch). Threads:
// tile_rows times the units of a row.
//
// Checked: rope_rotate[GROUP=8,HEAD_DIM=128,IN_TYPE=2,INTERLEAVED=0,ROTARY_DIM=128,TABLE=0] without spills
// Checked: rope_rotate[GROUP=8,HEAD_DIM=64,IN_TYPE=1,INTERLEAVED=1,ROTARY_DIM=64,TABLE=0] without spills
// Checked: rope_rotate[GROUP=8,HEAD_DIM=96,IN_TYPE=2,INTERLEAVED=1,ROTARY_DIM=64,TABLE=1] without spills
// Checked: rope_rotate[GROUP=4,HEAD_DIM=256,IN_TYPE=0,INTERLEAVED=0,ROTARY_DIM=256,TABLE=1] without spills
// Checked: rope_rotate[GROUP=4,HEAD_DIM=64,IN_TYPE=0,INTERLEAVED=1,ROTARY_DIM=32,TABLE=0] without spills
// Checked: rope_rotate[GROUP=2,HEAD_DIM=40,IN_TYPE=2,INTERLEAVED=1,ROTARY_DIM=20,TABLE=1] without spills
// Checked: rope_rotate[GROUP=1,HEAD_DIM=8,IN_TYPE=1,INTERLEAVED=1,ROTARY_DIM=2,TABLE=0] without spills
#include "common/attention/kernels/rope.h"
#include "common/kernel/cuda.h"

namespace {

constexpr int HEADS = rope_heads;
constexpr int HALF = ROTARY_DIM / 2;
constexpr int ELEMENT_BYTES = IN_TYPE == F32 ? 4 : 2;
constexpr int GROUP_BYTES = GROUP * ELEMENT_BYTES;
constexpr int WORDS = (GROUP_BYTES + 3) / 4;  // of a group

constexpr int TURNED_UNITS = HALF / GROUP;
constexpr int COPIED_GROUPS = (HEAD_DIM - ROTARY_DIM) / GROUP;
constexpr int UNITS = TURNED_UNITS + (COPIED_GROUPS + 1) / 2;

// Whether a pair has one element in each group of its unit.
constexpr bool ACROSS = !INTERLEAVED || GROUP == 1;
// How many of a unit's angles are neighbours in memory.
constexpr int RUN = ACROSS ? GROUP : GROUP / 2;

using Group = unsigned[WORDS];

// The address of the words is a multiple of 16 bytes, or of the size of all words if that size is less.
template <int COUNT>
DEVICE void load_words(unsigned (&words)[COUNT], const void* from) {
  if constexpr (COUNT % 4 == 0) {
    UNROLL for (int i = 0; i < COUNT; i += 4) {
      const uint4 four = static_cast<const uint4*>(from)[i / 4];
      words[i] = four.x, words[i + 1] = four.y, words[i + 2] = four.z, words[i + 3] = four.w;
    }
  } else if constexpr (COUNT == 2) {
    const uint2 two = *static_cast<const uint2*>(from);
    words[0] = two.x, words[1] = two.y;
  } else {
    words[0] = *static_cast<const unsigned*>(from);
  }
}

DEVICE void load_group(Group& group, const char* from) {
  if constexpr (GROUP_BYTES == 2) {
    group[0] = *reinterpret_cast<const unsigned short*>(from);
  } else {
    load_words(group, from);
  }
}
DEVICE void store_group(char* to, const Group& group) {
  if constexpr (GROUP_BYTES == 16) *reinterpret_cast<uint4*>(to) = {group[0], group[1], group[2], group[3]};
  if constexpr (GROUP_BYTES == 8) *reinterpret_cast<uint2*>(to) = {group[0], group[1]};
  if constexpr (GROUP_BYTES == 4) *reinterpret_cast<unsigned*>(to) = group[0];
  if constexpr (GROUP_BYTES == 2) *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(group[0]);
}

DEVICE void unpack(float (&values)[GROUP], const Group& group) {
  UNROLL for (int i = 0; i < GROUP; ++i) {
    const unsigned word = group[i * ELEMENT_BYTES / 4];
    if constexpr (IN_TYPE == F32) values[i] = __uint_as_float(word);
    if constexpr (IN_TYPE == BF16) values[i] = __uint_as_float(i % 2 ? word & 0xffff0000u : word << 16);
    if constexpr (IN_TYPE == F16) {
      asm("cvt.f32.f16 %0, %1;" : "=f"(values[i]) : "h"(static_cast<unsigned short>(word >> i % 2 * 16)));
    }
  }
}
DEVICE void repack(Group& group, const float (&values)[GROUP]) {
  UNROLL for (int i = 0; i < WORDS; ++i) {
    if constexpr (IN_TYPE == F32) {
      group[i] = __float_as_uint(values[i]);
    } else {
      group[i] = pack<IN_TYPE>(values[2 * i], values[GROUP == 1 ? 0 : 2 * i + 1]);
    }
  }
}

// Finds the angles of a unit's pairs, in the order of the pairs.
DEVICE void find_angles(RopeAngle (&angles)[GROUP], const RopeParams& p, int unit, long long position) {
  UNROLL for (int run = 0; run < GROUP; run += RUN) {
    const int first = unit * RUN + (run == 0 ? 0 : HALF / 2);
    if constexpr (TABLE) {
      unsigned cosines[RUN], sines[RUN];
      load_words(cosines, p.cosines + position * HALF + first);
      load_words(sines, p.sines + position * HALF + first);
      UNROLL for (int i = 0; i < RUN; ++i) angles[run + i] = {__uint_as_float(cosines[i]), __uint_as_float(sines[i])};
    } else {
      unsigned frequencies[2 * RUN];
      load_words(frequencies, p.frequencies + first);
      UNROLL for (int i = 0; i < RUN; ++i) {
        const unsigned long long high = frequencies[2 * i + 1];
        const RopeAngle angle = rope_angle_at(high << 32 | frequencies[2 * i], position);
        angles[run + i] = {angle.cosine * p.factor, angle.sine * p.factor};
      }
    }
  }
}

DEVICE void turn_pair(float& x, float& y, const RopeAngle& angle) {
  const float turned = x * angle.cosine - y * angle.sine;
  y = y * angle.cosine + x * angle.sine;
  x = turned;
}

DEVICE void turn(Group& first, Group& second, const RopeAngle (&angles)[GROUP]) {
  float a[GROUP], b[GROUP];
  unpack(a, first);
  unpack(b, second);
  if constexpr (ACROSS) {
    UNROLL for (int i = 0; i < GROUP; ++i) turn_pair(a[i], b[i], angles[i]);
  } else {
    UNROLL for (int i = 0; i < RUN; ++i) {
      turn_pair(a[2 * i], a[2 * i + 1], angles[i]);
      turn_pair(b[2 * i], b[2 * i + 1], angles[RUN + i]);
    }
  }
  repack(first, a);
  repack(second, b);
}

DEVICE long long offset_bytes(const RopeStrides& strides, int batch, int head, int row) {
  return (batch * strides.batch + static_cast<long long>(head) * strides.head +
          static_cast<long long>(row) * strides.row) *
         ELEMENT_BYTES;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(rope_threads) rope_rotate(const __grid_constant__ RopeParams p) {
  const int q_blocks = (p.tensors[0].heads + HEADS - 1) / HEADS;
  const int block = blockIdx.x;
  const RopeTensor& t = p.tensors[block < q_blocks ? 0 : 1];
  const int first_head = (block < q_blocks ? block : block - q_blocks) * HEADS;
  const int batch = blockIdx.z;
  const int unit = threadIdx.x % UNITS;
  const bool turns = unit < TURNED_UNITS;
  if (!turns && t.in == t.out) return;

  // The first elements of the unit's groups. The last unit that is copied may have the same group twice.
  int a = unit * GROUP, b = a + HALF;
  if (INTERLEAVED && GROUP == 1) a = 2 * unit, b = a + 1;
  if (!turns) {
    a = ROTARY_DIM + (unit - TURNED_UNITS) * 2 * GROUP;
    b = min(a + GROUP, HEAD_DIM - GROUP);
  }
  const int from_a_to_b = (b - a) * ELEMENT_BYTES;
  const int offset = p.offsets ? p.offsets[batch] : 0;
  for (int row = blockIdx.y * p.tile_rows + threadIdx.x / UNITS; row < p.rows; row += gridDim.y * p.tile_rows) {
    const char* in =
        static_cast<const char*>(t.in) + offset_bytes(t.in_strides, batch, first_head, row) + a * ELEMENT_BYTES;
    char* out = static_cast<char*>(t.out) + offset_bytes(t.out_strides, batch, first_head, row) + a * ELEMENT_BYTES;
    Group first[HEADS] = {}, second[HEADS] = {};
    UNROLL for (int h = 0; h < HEADS; ++h) {
      if (first_head + h >= t.heads) break;
      const char* from = in + static_cast<long long>(h * ELEMENT_BYTES) * t.in_strides.head;
      load_group(first[h], from);
      load_group(second[h], from + from_a_to_b);
    }
    if (turns) {
      RopeAngle angles[GROUP];
      find_angles(angles, p, unit, offset + row);
      UNROLL for (int h = 0; h < HEADS; ++h) turn(first[h], second[h], angles);
    }
    UNROLL for (int h = 0; h < HEADS; ++h) {
      if (first_head + h >= t.heads) break;
      char* to = out + static_cast<long long>(h * ELEMENT_BYTES) * t.out_strides.head;
      store_group(to, first[h]);
      store_group(to + from_a_to_b, second[h]);
    }
  }
}
