// Variant `naive`: attention as in a textbook. For each query row the kernel computes all scores, then their softmax,
// then the weighted sum of V. So it reads K and V anew for every row, and holds a whole row of scores.
//
// Threadgroup memory: scores [kv_len], output [HEAD_DIM], in floats. Grid: (q_len, q_heads, batch).
#include "common/attention/kernels/attention.h"
#include "common/kernel/cpu.h"
// Hooks come after cpu.h, because the texts of hooks use cpu.h.
#include "common/attention/kernels/keys.h"
#include "common/attention/kernels/mask.h"
#include "common/attention/kernels/pages.h"
#include "common/attention/kernels/rotate.h"
#include "common/attention/kernels/score.h"
#include "common/attention/kernels/sink.h"
#include "common/attention/kernels/softmax.h"

extern "C" void flash_forward(const AttentionParams* params, const Threadgroup* group) {
  const AttentionParams& p = *params;
  const int query = static_cast<int>(group->index[0]);
  const int head = static_cast<int>(group->index[1]);
  const int batch = static_cast<int>(group->index[2]);
  const int kv_head = head / (p.q_heads / p.kv_heads);
  const long long q = batch * p.q_strides.batch + head * p.q_strides.head + query * p.q_strides.row;
  const long long k = batch * p.k_strides.batch + kv_head * p.k_strides.head;
  const long long v = batch * p.v_strides.batch + kv_head * p.v_strides.head;
  const long long o = batch * p.o_strides.batch + head * p.o_strides.head + query * p.o_strides.row;
  float* scores = reinterpret_cast<float*>(group->memory);
  float* output = scores + p.kv_len;

  (void)CAUSAL;  // counts as a use of CAUSAL; a keys hook need not use CAUSAL
  const ScoreContext context{batch, head, p.q_heads, p.q_len, p.kv_len, p.score_data};
  const KeyRange visible = visible_keys(query, context);
  const int keys = visible.end < 0 ? 0 : visible.end < p.kv_len ? visible.end : p.kv_len;
  const int first_key = KEYS_BEGIN_AT_ZERO || visible.begin < 0 ? 0 : visible.begin;
  // Returns the index of the first element of a key's row. `of_head` is the index of the head's first element.
  const auto row_of = [&](const TensorStrides& strides, long long of_head, int key) {
    return PAGES_ARE_DEFAULT ? of_head + key * strides.row : index_of(strides, place_of_key(key, kv_head, context));
  };
  const auto load_q = [&](int d) { return load_float<IN_TYPE>(p.q, q + d); };
  float maximum = hidden_score, sum = 0;
  for (int key = first_key; key < keys; ++key) {
    const auto load_k = [&](int d) { return load_float<IN_TYPE>(p.k, row_of(p.k_strides, k, key) + d); };
    float dot = 0;
    for (int d = 0; d < HEAD_DIM; ++d) {
      dot += rotate_query(load_q, query, d, context) * rotate_key(load_k, key, d, context);
    }
    scores[key] = score(p.scale * dot, query, key, context);
    if (!MASK_IS_NONE && !::visible(query, key, context)) scores[key] = hidden_score;
    maximum = scores[key] > maximum ? scores[key] : maximum;
  }
  // The score of a hidden key stays -infinity, so that the key's row of V does not count, even if it is not finite.
  for (int key = first_key; key < keys; ++key) {
    if (scores[key] == hidden_score) continue;
    scores[key] = __builtin_exp2f((scores[key] - maximum) * log2_e);
    sum += scores[key];
  }
  const RowEnd end = end_of_row(maximum, sum, 1, context);
  for (int d = 0; d < HEAD_DIM; ++d) output[d] = 0 * end.share;  // NaN in a row that is NaN
  for (int key = first_key; key < keys; ++key) {
    if (scores[key] == hidden_score) continue;
    const float weight = scores[key] * end.share;
    for (int d = 0; d < HEAD_DIM; ++d) {
      output[d] += weight * load_float<IN_TYPE>(p.v, row_of(p.v_strides, v, key) + d);
    }
  }
  for (int d = 0; d < HEAD_DIM; ++d) store_float<OUT_TYPE>(p.o, o + d, output[d]);
  if (p.lse) {
    const long long row = (static_cast<long long>(batch) * p.q_heads + head) * p.q_len + query;
    p.lse[row] = end.lse;
  }
}
