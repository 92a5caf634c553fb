// Functions that chunk_h and chunk_o share, in the cuda dialect, for sm_80 and later. Function constants: CHUNK,
// IN_TYPE, GATE, and HEAD_DIM for exact_tokens.h.
#pragma once

#include "common/kernel/ampere.h"
#include "common/kernel/base2.h"
#include "common/linear/kernels/exact_tokens.h"
#include "common/linear/kernels/phases_layout.h"

namespace {

constexpr int ELEMENT_BYTES = IN_TYPE == F32 ? 4 : 2;
constexpr int UNIT = 16 / ELEMENT_BYTES;  // elements of a copy

extern __shared__ __align__(16) unsigned char memory[];

/// Returns the index of element (row, 0) of a head in a tensor; `row` counts from the chunk's first row.
DEVICE long long row_at(const TensorStrides& strides, const ChunkPlace& place, int head, int row) {
  return place.batch * strides.batch + head * strides.head + (place.first + static_cast<long long>(row)) * strides.row;
}
DEVICE const char* row_from(const void* tensor, const TensorStrides& strides, const ChunkPlace& place, int head,
                            int row) {
  return static_cast<const char*>(tensor) + row_at(strides, place, head, row) * ELEMENT_BYTES;
}

// ---- tiles in threadgroup memory, by all threads

/// Returns threadIdx.x. The function reads threadIdx.x anew, so that addresses computed from it do not stay in
/// registers from one copy to the next.
DEVICE int thread_anew() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

/// Copies ROWS rows of UNITS times 16 bytes, `stride` bytes apart, to a tile. Rows from `rows` on and units from
/// `units` on become zeros.
template <int ROWS, int UNITS, int ROW_BYTES>
DEVICE void copy_tile(unsigned char* tile, const char* from, long long stride, int rows, int units) {
  const int thread = thread_anew();
  unsigned to = shared_address(tile);
  if constexpr (phases_threads % UNITS == 0) {
    constexpr int AT_ONCE = phases_threads / UNITS;  // rows
    const int begin = thread / UNITS, unit = thread % UNITS;
    to += begin * ROW_BYTES + unit * 16;
    from += begin * stride + unit * 16;
#pragma unroll 4
    for (int row = begin; row < ROWS; row += AT_ONCE) {
      copy_16(to, from, row < rows && unit < units);
      to += AT_ONCE * ROW_BYTES;
      from += AT_ONCE * stride;
    }
  } else {
#pragma unroll 2
    for (int i = thread; i < ROWS * UNITS; i += phases_threads) {
      const int row = i / UNITS, unit = i % UNITS;
      copy_16(to + row * ROW_BYTES + unit * 16, from + row * stride + unit * 16, row < rows && unit < units);
    }
  }
}

/// Replaces each element x in the first UNITS * 16 bytes of a row by feature(x) * weight(row), rounded to IN_TYPE. In
/// rows from `rows` on, replaces each element by 0.
template <int ROWS, int UNITS, int ROW_BYTES, typename Weight>
DEVICE void map_tile(unsigned char* tile, int rows, const void* feature_data, Weight weight) {
#pragma unroll 2
  for (int i = threadIdx.x; i < ROWS * UNITS; i += phases_threads) {
    const int row = i / UNITS;
    auto* const unit = reinterpret_cast<uint4*>(tile + row * ROW_BYTES + i % UNITS * 16);
    uint4 words = *unit;
    const float by = weight(row);
    UNROLL for (int j = 0; j < UNIT; ++j) {
      float x = feature(load_float<IN_TYPE>(&words, j), feature_data) * by;
      if (row >= rows) x = 0;
      store_float<IN_TYPE>(&words, j, x);
    }
    *unit = words;
  }
}

/// Loads two neighbouring elements; store_pair() stores two.
DEVICE float2 load_pair(const unsigned char* at) {
  if constexpr (IN_TYPE == F32) {
    return *reinterpret_cast<const float2*>(at);
  } else {
    const unsigned word = *reinterpret_cast<const unsigned*>(at);
    return {load_float<IN_TYPE>(&word, 0), load_float<IN_TYPE>(&word, 1)};
  }
}
DEVICE void store_pair(unsigned char* at, float2 pair) {
  if constexpr (IN_TYPE == F32) {
    *reinterpret_cast<float2*>(at) = pair;
  } else {
    *reinterpret_cast<unsigned*>(at) = pack<IN_TYPE>(pair.x, pair.y);
  }
}

// ---- decays, as logarithms in base 2

/// Returns the logarithm of one token's decay, but at least -144, so that sums stay finite. 2^-144 is below the
/// smallest normal float, so exp2_approx() returns 0 for -144 too.
DEVICE float decay_log2(float gate) { return at_least(gate * log2_e, -144.0f); }
DEVICE float2 decay_log2(float2 gate) { return {decay_log2(gate.x), decay_log2(gate.y)}; }

DEVICE float2 operator+(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }

/// For GATE_HEAD and GATE_TOKEN, called by one warp. Calls take(t, sum) for each token t from 0 to CHUNK - 1. `sum` is
/// the sum of the decays of tokens 0 to t; with BACKWARDS it is the sum of the decays of the tokens after t. Sums are
/// in double, so that their differences are accurate. Tokens after the chunk's last token do not decay. Returns the sum
/// of all decays.
template <bool BACKWARDS, typename Take>
DEVICE double scalar_decays(const LinearParams& p, const ChunkPlace& place, int head, Take take) {
  const int lane = threadIdx.x % WARP;
  const long long first = GATE == GATE_HEAD ? head : row_at(p.gate_strides, place, head, 0);
  const long long stride = GATE == GATE_HEAD ? 0 : p.gate_strides.row;
  double before = 0;
  UNROLL for (int begin = 0; begin < CHUNK; begin += WARP) {
    const int at = begin + lane, t = BACKWARDS ? static_cast<int>(CHUNK) - 1 - at : at;
    const double own = t >= 0 && t < place.rows ? decay_log2(p.gate[first + t * stride]) : 0.0f;
    double sum = own;
    UNROLL for (int step = 1; step < WARP; step *= 2) {
      const double other = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += other;
    }
    if (t >= 0 && t < CHUNK) take(t, before + sum - (BACKWARDS ? own : 0));
    before += __shfl_sync(~0u, sum, WARP - 1);
  }
  return before;
}

/// A slice is 16 rows. Returns the sum of the decays of a slice's rows, for a pair of columns. `gates` is [rows,
/// COLUMNS].
template <int COLUMNS>
DEVICE float2 sum_of_slice(const float* gates, int slice, int pair) {
  float2 sum{};
  UNROLL for (int i = 0; i < 16; ++i) {
    sum = sum + decay_log2(*reinterpret_cast<const float2*>(gates + (slice * 16 + i) * COLUMNS + 2 * pair));
  }
  return sum;
}

/// Decays the sixteen rows of a slice of K in place, for a pair of columns: each row by the gates of the slice's later
/// rows and by `after`. With MAPS the function applies the feature map first, and sets rows from `rows` on to 0.
/// Returns `after` plus the gates of all sixteen rows.
template <int COLUMNS, int ROW_BYTES, bool MAPS>
DEVICE float2 decay_slice(unsigned char* k, const float* gates, int slice, int pair, float2 after, int rows,
                          const void* feature_data) {
  UNROLL for (int i = 15; i >= 0; --i) {
    const int row = slice * 16 + i;
    unsigned char* const at = k + row * ROW_BYTES + pair * 2 * ELEMENT_BYTES;
    float2 x = load_pair(at);
    if (MAPS) x = {feature(x.x, feature_data), feature(x.y, feature_data)};
    if (MAPS && row >= rows) x = {0, 0};
    store_pair(at, {x.x * exp2_approx(after.x), x.y * exp2_approx(after.y)});
    after = after + decay_log2(*reinterpret_cast<const float2*>(gates + row * COLUMNS + 2 * pair));
  }
  return after;
}

}  // namespace
