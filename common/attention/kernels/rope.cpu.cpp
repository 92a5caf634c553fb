// RoPE: rotates pairs of elements of the rows of Q and K by angles that grow with the row's position. A threadgroup
// rotates a tile of rows of all heads, and computes the angles of the rows once.
//
// GROUP: elements of a vector; divides ROTARY_DIM, and without INTERLEAVED also ROTARY_DIM / 2. Threadgroup memory, in
// floats: cosines [tile_rows][FACTORS], sines [tile_rows][FACTORS]. Grid: (1, tiles of rows, batch).
#include "common/attention/kernels/rope.h"

#include "common/kernel/cpu.h"

namespace {

constexpr int HALF = ROTARY_DIM / 2;
constexpr int FACTORS = INTERLEAVED ? ROTARY_DIM : HALF;  // how many cosines, and how many sines, a row has
using Floats = Vector<float, GROUP>;

INLINE void find_angles(float* cosines, float* sines, const RopeParams& p, long long position) {
  if constexpr (TABLE) {
    const float* const from_cosines = p.cosines + position * HALF;
    const float* const from_sines = p.sines + position * HALF;
    for (int i = 0; i < HALF; ++i) cosines[i] = from_cosines[i], sines[i] = from_sines[i];
  } else {
    const unsigned long long* const frequencies = p.frequencies;
    const float factor = p.factor;
    VECTORIZE for (int i = 0; i < HALF; ++i) {
      const RopeAngle angle = rope_angle_at(frequencies[i], position);
      cosines[i] = angle.cosine * factor;
      sines[i] = angle.sine * factor;
    }
  }
}

// Finds the FACTORS cosines and sines of a row. With INTERLEAVED each element of a pair has a cosine and a sine, and
// the sine of the first element is negated.
INLINE void find_factors(float* cosines, float* sines, const RopeParams& p, long long position) {
  constexpr int first = FACTORS - HALF;
  find_angles(cosines + first, sines + first, p, position);
  if constexpr (INTERLEAVED) {
    for (int i = 0; i < HALF; ++i) {
      const float c = cosines[first + i], s = sines[first + i];
      cosines[2 * i] = cosines[2 * i + 1] = c;
      sines[2 * i] = -s;
      sines[2 * i + 1] = s;
    }
  }
}

// Swaps each element with its neighbour.
template <typename V>
INLINE V swap_neighbours(V values) {
  if constexpr (sizeof(V) == sizeof(float)) {
    return values;  // not called
  } else {
    using Pairs = Vector<unsigned long long, sizeof(V) / sizeof(unsigned long long)>;
    const Pairs pairs = reinterpret_cast<Pairs>(values);
    return reinterpret_cast<V>(pairs << 32 | pairs >> 32);
  }
}

INLINE void turn_row(const RopeTensor& t, long long in, long long out, const float* cosines, const float* sines) {
  for (int d = 0; d < FACTORS; d += GROUP) {
    const Floats c = load<Floats>(cosines + d), s = load<Floats>(sines + d);
    const Floats x = load_floats<IN_TYPE, GROUP>(t.in, in + d);
    if constexpr (INTERLEAVED) {
      store_floats<IN_TYPE, GROUP>(t.out, out + d, x * c + swap_neighbours(x) * s);
    } else {
      const Floats y = load_floats<IN_TYPE, GROUP>(t.in, in + HALF + d);
      store_floats<IN_TYPE, GROUP>(t.out, out + d, x * c - y * s);
      store_floats<IN_TYPE, GROUP>(t.out, out + HALF + d, y * c + x * s);
    }
  }
  if (t.in == t.out) return;
  using Pair = Vector<unsigned char, (IN_TYPE == F32 ? 8 : 4)>;
  for (int d = ROTARY_DIM; d < HEAD_DIM; d += 2) {
    constexpr int bytes = sizeof(Pair) / 2;
    store(static_cast<unsigned char*>(t.out) + (out + d) * bytes,
          load<Pair>(static_cast<const unsigned char*>(t.in) + (in + d) * bytes));
  }
}

}  // namespace

extern "C" void rope_rotate(const RopeParams* params, const Threadgroup* group) {
  const RopeParams& p = *params;
  const long long batch = group->index[2];
  const int first_row = static_cast<int>(group->index[1]) * p.tile_rows;
  const int rows = p.rows - first_row < p.tile_rows ? p.rows - first_row : p.tile_rows;
  float* cosines = reinterpret_cast<float*>(group->memory);
  float* sines = cosines + p.tile_rows * FACTORS;
  const int offset = p.offsets ? p.offsets[batch] : 0;
  for (int row = 0; row < rows; ++row) {
    find_factors(cosines + row * FACTORS, sines + row * FACTORS, p, offset + first_row + row);
  }
  const auto place = [&](const RopeStrides& strides, long long head, long long row) {
    return batch * strides.batch + head * strides.head + row * strides.row;
  };
  for (const RopeTensor& t : p.tensors) {
    // The loops follow the order of the input in memory.
    const bool heads_first = t.in_strides.head < t.in_strides.row;
    const int outer_count = heads_first ? rows : t.heads, inner_count = heads_first ? t.heads : rows;
    for (int outer = 0; outer < outer_count; ++outer) {
      for (int inner = 0; inner < inner_count; ++inner) {
        const int head = heads_first ? inner : outer, row = heads_first ? outer : inner;
        turn_row(t, place(t.in_strides, head, first_row + row), place(t.out_strides, head, first_row + row),
                 cosines + row * FACTORS, sines + row * FACTORS);
      }
    }
  }
}
