// Causal attention of one head, with an online softmax: the example of docs/metal.md. The text has three faults on
// purpose: too much threadgroup memory, an infinite maximum, and a missing barrier at the end of the loop over tiles.
#include <metal_stdlib>
using namespace metal;

constant uint TILE_Q = 16;
constant uint TILE_KV = 64;
constant uint MOST_DIM = 128;
constant uint SIMDGROUPS = 8;
constant float LEAST = -INFINITY;

struct AttentionParams {
  uint tokens, head_dim;
  float scale;
};

struct OnlineSoftmax {
  float maximum, sum;
  static OnlineSoftmax empty() {
    OnlineSoftmax state;
    state.maximum = LEAST;
    state.sum = 0.0f;
    return state;
  }
  // Returns the factor of the sums so far.
  float add(float score) {
    if (score <= maximum) {
      sum += exp(score - maximum);
      return 1.0f;
    }
    const float factor = exp(maximum - score);
    sum = sum * factor + 1.0f;
    maximum = score;
    return factor;
  }
  float weight(float score) const { return exp(score - maximum); }
};

kernel void attention(device const half* Q [[buffer(0)]], device const half* K [[buffer(1)]],
                      device const half* V [[buffer(2)]], device half* O [[buffer(3)]],
                      constant AttentionParams& params [[buffer(4)]], uint tile [[threadgroup_position_in_grid]],
                      uint thread_number [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                      uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup half k[TILE_KV][MOST_DIM + 4] __attribute__((aligned(16)));
  threadgroup half v[TILE_KV][MOST_DIM + 4] __attribute__((aligned(16)));
  const uint rows = TILE_Q / SIMDGROUPS, first_row = tile * TILE_Q + simdgroup * rows, dim = params.head_dim;
  float o[TILE_Q / SIMDGROUPS][MOST_DIM / 32] = {};
  OnlineSoftmax state[TILE_Q / SIMDGROUPS];
  for (uint i = 0; i < rows; ++i) state[i] = OnlineSoftmax::empty();
  for (uint first = 0; first < params.tokens; first += TILE_KV) {
    const uint keys = min(TILE_KV, params.tokens - first);
    for (uint i = thread_number * 4; i < keys * dim; i += SIMDGROUPS * 32 * 4) {
      *reinterpret_cast<threadgroup half4*>(&k[i / dim][i % dim]) =
          *reinterpret_cast<device const half4*>(&K[first * dim + i]);
      *reinterpret_cast<threadgroup half4*>(&v[i / dim][i % dim]) =
          *reinterpret_cast<device const half4*>(&V[first * dim + i]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < rows; ++i) {
      const uint query = first_row + i;
      if (query >= params.tokens) continue;
      for (uint key = 0; key < keys && first + key <= query; ++key) {
        float score = 0.0f;
        for (uint d = lane; d < dim; d += 32) score += float(Q[query * dim + d]) * float(k[key][d]);
        score = simd_sum(score) * params.scale;
        const float factor = state[i].add(score), weight = state[i].weight(score);
        for (uint d = lane; d < dim; d += 32) o[i][d / 32] = o[i][d / 32] * factor + weight * float(v[key][d]);
      }
    }
  }
  for (uint i = 0; i < rows && first_row + i < params.tokens; ++i) {
    for (uint d = lane; d < dim; d += 32) O[(first_row + i) * dim + d] = half(o[i][d / 32] / state[i].sum);
  }
}
