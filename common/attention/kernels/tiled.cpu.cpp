// Variants `tiled_scalar` and `tiled_vector`: flash attention's tiles and online softmax (Dao et al. 2022, algorithm
// 1). `tiled_scalar` works on one element at a time (LANES is 1), `tiled_vector` on LANES elements. The step from
// `naive` to `tiled_scalar` shows the gain from tiling alone. The step from `tiled_scalar` to `tiled_vector` shows the
// gain from vectors alone. Neither variant has a register tile: every operand comes from the cache.
//
// Threadgroup memory, in floats: TiledLayout in tiled.h. Grid: (query tiles, q_heads, batch). Tiles of a causal kernel
// run from the last rows to the first.
#include "common/attention/kernels/tiled.h"

#include "common/attention/kernels/attention.h"
#include "common/kernel/cpu.h"
// Hooks come after cpu.h, because their texts use it.
#include "common/attention/kernels/keys.h"
#include "common/attention/kernels/listed_blocks.h"
#include "common/attention/kernels/mask.h"
#include "common/attention/kernels/pages.h"
#include "common/attention/kernels/rotate.h"
#include "common/attention/kernels/score.h"
// repair.h comes after the hooks, because it calls them.
#include "common/attention/kernels/repair.h"

namespace {

constexpr int step = LANES;  // 1, or a divisor of HEAD_DIM
using Lanes = Vector<float, step>;

INLINE float dot(const float* a, const float* b) {
  Lanes sum = {};
  for (int d = 0; d < HEAD_DIM; d += step) sum += load<Lanes>(a + d) * load<Lanes>(b + d);
  float total = 0;
  for (int lane = 0; lane < step; ++lane) total += sum[lane];
  return total;
}

INLINE void scale(float* y, float factor) {
  for (int d = 0; d < HEAD_DIM; d += step) store(y + d, load<Lanes>(y + d) * factor);
}

INLINE void add_scaled(float* y, const float* x, float factor) {
  for (int d = 0; d < HEAD_DIM; d += step) store(y + d, load<Lanes>(y + d) + load<Lanes>(x + d) * factor);
}

using Params = ParamsWithLists<MASK_LISTS, AttentionParams>::type;

}  // namespace

extern "C" void flash_forward(const Params* params, const Threadgroup* group) {
  const AttentionParams& p = *params;
  const int tile = static_cast<int>(CAUSAL ? group->count[0] - 1 - group->index[0] : group->index[0]);
  const int head = static_cast<int>(group->index[1]);
  const int batch = static_cast<int>(group->index[2]);
  const int kv_head = head / (p.q_heads / p.kv_heads);
  const int first_query = tile * static_cast<int>(BLOCK_R);
  const int rows = p.q_len - first_query < BLOCK_R ? p.q_len - first_query : static_cast<int>(BLOCK_R);

  const TiledLayout layout(HEAD_DIM, BLOCK_R, BLOCK_C);
  float* memory = reinterpret_cast<float*>(group->memory);
  float* q = memory + layout.q;
  float* o = memory + layout.o;
  float* k = memory + layout.k;
  float* v = memory + layout.v;
  float* scores = memory + layout.scores;
  float* maximum = memory + layout.maximum;
  float* sum = memory + layout.sum;

  // Writes element(load, row, d) to element d of row `row` of `to`. load(d) reads element d of this row of the tensor.
  const auto copy_rows = [](float* to, const void* tensor, long long from, long long row_stride, int count,
                            const auto& element) {
    for (int row = 0; row < count; ++row) {
      const auto load = [&](int d) { return load_float<IN_TYPE>(tensor, from + row * row_stride + d); };
      for (int d = 0; d < HEAD_DIM; ++d) to[row * HEAD_DIM + d] = element(load, row, d);
    }
  };
  const auto sequence = [&] { return ScoreContext{batch, head, p.q_heads, p.q_len, p.kv_len, p.score_data}; };
  copy_rows(q, p.q, batch * p.q_strides.batch + head * p.q_strides.head + first_query * p.q_strides.row,
            p.q_strides.row, rows,
            [&](auto load, int row, int d) { return rotate_query(load, first_query + row, d, sequence()); });
  for (int row = 0; row < rows; ++row) {
    maximum[row] = hidden_score;
    sum[row] = 0;
    for (int d = 0; d < HEAD_DIM; ++d) o[row * HEAD_DIM + d] = 0;
  }

  const auto visible = [&](int row) { return visible_keys(first_query + row, sequence()); };
  const auto keys_of = [&](int row) {
    const int end = visible(row).end;
    return end < 0 ? 0 : end < p.kv_len ? end : p.kv_len;
  };
  const auto begin_of = [&](int row) {
    const int begin = KEYS_BEGIN_AT_ZERO ? 0 : visible(row).begin;
    return begin < 0 ? 0 : begin;
  };
  const int end = keys_of(rows - 1);
  const ScoreContext context{batch, head, p.q_heads, p.q_len, p.kv_len, p.score_data};
  [[maybe_unused]] ListedBlocks blocks(*params, batch, head, first_query);
  for (int first_key = begin_of(0); first_key < end; first_key += BLOCK_C) {
    if (MASK_LISTS && !blocks.next(first_key)) break;
    const int block = end - first_key < BLOCK_C ? end - first_key : static_cast<int>(BLOCK_C);
    const int at_once = PAGES_ARE_DEFAULT ? block : 1;  // keys that are known to lie next to each other
    int key = 0;
    do {
      const KeyPlace place = place_of_key(first_key + key, kv_head, context);
      copy_rows(k + key * HEAD_DIM, p.k, index_of(p.k_strides, place), p.k_strides.row, at_once,
                [&](auto load, int row, int d) { return rotate_key(load, first_key + key + row, d, context); });
      copy_rows(v + key * HEAD_DIM, p.v, index_of(p.v_strides, place), p.v_strides.row, at_once,
                [](auto load, int, int d) { return load(d); });
    } while (!PAGES_ARE_DEFAULT && ++key < block);
    for (int row = 0; row < rows; ++row) {
      const int seen = keys_of(row) - first_key;
      const int keys = seen < block ? seen : block;
      const int before = begin_of(row) - first_key;
      const int first = KEYS_BEGIN_AT_ZERO || before < 0 ? 0 : before;  // the first key of the block that the row sees
      if (keys <= first) continue;
      float new_maximum = maximum[row];
      for (int key = first; key < keys; ++key) {
        const float scaled = p.scale * dot(q + row * HEAD_DIM, k + key * HEAD_DIM);
        scores[key] = score(scaled, first_query + row, first_key + key, context);
        if (!MASK_IS_NONE && blocks.masked && !::visible(first_query + row, first_key + key, context)) {
          scores[key] = hidden_score;
        }
        new_maximum = scores[key] > new_maximum ? scores[key] : new_maximum;
      }
      const float shift = shift_of(new_maximum);
      const float alpha = __builtin_exp2f((maximum[row] - shift) * log2_e);  // the factor on the outputs so far
      maximum[row] = new_maximum;
      sum[row] *= alpha;
      scale(o + row * HEAD_DIM, alpha);
      for (int key = first; key < keys; ++key) {
        const float weight = __builtin_exp2f((scores[key] - shift) * log2_e);
        sum[row] += weight;
        add_scaled(o + row * HEAD_DIM, v + key * HEAD_DIM, weight);
      }
    }
  }

  for (int row = 0; row < rows; ++row) {
    const int query = first_query + row;
    const RowEnd end = end_of_row(maximum[row], sum[row], 1, context);
    const long long to = batch * p.o_strides.batch + head * p.o_strides.head + query * p.o_strides.row;
    float not_finite = 0;
    for (int d = 0; d < HEAD_DIM; ++d) {
      const float value = o[row * HEAD_DIM + d] * end.share;
      store_float<OUT_TYPE>(p.o, to + d, value);
      not_finite += value * 0;
    }
    if (p.lse) p.lse[(static_cast<long long>(batch) * p.q_heads + head) * p.q_len + query] = end.lse;
    if (not_finite != 0 && end.share == end.share) repair_row(p, batch, head, query);
  }
}
