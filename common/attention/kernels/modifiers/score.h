// The modifiers of a score, in this order; each is off if its constant is 0. SCORE_RULES says how many are on.
//   SOFT_CAP   cap tanh(s / cap) (Gemma 2, 2024); the constant is the cap
//   ALIBI      - slope (position of q - position of k) (Press et al. 2022); the last query stands at the last key
//   BIAS       + an element of a tensor; positions along an axis share elements if the axis has stride 0
//   TREE       hides new tokens of a decoding step from each other. The new tokens are the q_len queries, and the last
//              q_len keys. For each new token, a table says which of the first 64 new tokens of its sequence the token
//              sees. All tokens see the older keys. If a sequence is shorter than q_len, its first tokens stand before
//              key 0 and see no key. This is a rule of scores, because the keys that a token sees are no range for
//              keys.h, and the kernels for decoding take no mask hook.
//
// For 16-bit elements CUDA kernels use the hardware's tanh, which is off by up to 2^-11 of the result.
#pragma once

#include "common/attention/kernels/attention.h"
#include "common/attention/kernels/modifiers/modifiers.h"
#include "common/kernel/base2.h"
#ifdef __METAL_VERSION__
#include "common/kernel/metal.h"
#else
#ifdef __CUDACC__
#include "common/kernel/cuda.h"
#else
#include "common/kernel/cpu.h"
#endif
#endif

#define SCORE_IS_IDENTITY (SCORE_RULES == 0)
#define SCORE_IS_LINEAR (ALIBI != 0 && SCORE_RULES == 1)
#define SCORE_IS_BOUNDED (SOFT_CAP != 0 && SCORE_RULES == 1 + (ALIBI != 0))
static_assert(SCORE_RULES >= (SOFT_CAP != 0) + (ALIBI != 0) + (BIAS != 0) + (TREE != 0));

#ifdef __CUDACC__
static inline float tanh_of(float x) { return IN_TYPE == F32 ? tanhf(x) : tanh_approx(x); }
#else
namespace modifiers {
#include "common/kernel/math.h"
}
static INLINE float tanh_of(float x) { return modifiers::tanhf(x); }
#endif

static inline float capped(float s) {
  constexpr float cap = SOFT_CAP;
  return cap * tanh_of(s * (1 / cap));
}
static inline float score_slope(const ScoreContext& context) {
  return table_at<float>(context, modifiers_of(context).alibi_slopes)[context.head];
}
static inline bool seen_in_tree(int q, int k, const ScoreContext& context) {
  const int older = context.kv_len - context.q_len, token = k - older;
  if (q + older < 0) return false;
  if (token < 0) return true;
  const GLOBAL INT64* const words = table_at<INT64>(context, modifiers_of(context).tree);
  return token < 64 && (words[context.batch * context.q_len + q] >> token & 1) != 0;
}
static inline int own_key(int q, const ScoreContext& context) { return q + context.kv_len - context.q_len; }
// Returns the address of the bias of a query for key 0; with BIAS_OF_ROWS this element is for all keys. A tile may
// reach beyond the last key (bias_slack) and beyond the last query: a query that does not exist gets the row of an
// existing one.
static inline const GLOBAL float* bias_row(int q, const ScoreContext& context) {
  const GLOBAL ModifierData& data = modifiers_of(context);
  const GLOBAL INT64* const strides = data.bias_strides;
  const int row = q < 0 ? 0 : q < context.q_len ? q : context.q_len - 1;
  return table_at<float>(context, data.bias) + context.batch * strides[0] + context.head * strides[1] +
         row * strides[2];
}

// A bias of -infinity hides a pair, even if its score is infinite or NaN. score_tile() need not check for this bias:
// the kernels that call score_tile() compute a row that becomes NaN anew, score by score (exact_row.h).
#ifdef __METAL_VERSION__
static inline float with_bias(float s, float bias) { return is_minus_infinity(bias) ? bias : s + bias; }
#else
static inline float with_bias(float s, float bias) { return bias < lowest_score ? bias : s + bias; }
#endif

static inline float score(float s, [[maybe_unused]] int q, [[maybe_unused]] int k,
                          [[maybe_unused]] const ScoreContext& context) {
  if constexpr (TREE != 0) {
    if (!seen_in_tree(q, k, context)) return -__builtin_inff();
  }
  if constexpr (SOFT_CAP != 0) s = capped(s);
  if constexpr (ALIBI != 0) s += score_slope(context) * static_cast<float>(k - own_key(q, context));
  if constexpr (BIAS != 0) s = with_bias(s, bias_row(q, context)[BIAS == BIAS_OF_KEYS ? k : 0]);
  return s;
}

#if defined(__CUDACC__) && defined(BLOCK_C_VALUE) && SCORE_RULES_VALUE && \
    SCORE_RULES_VALUE == !!SOFT_CAP_VALUE + !!ALIBI_VALUE + !!BIAS_VALUE
// A second text of these three modifiers, for a GPU. A kernel with another modifier changes scores one by one. By tile,
// ALiBi costs a score one multiply-add, slope * (columns from the first key) + the term of the first key, and one
// addition. The kernel's own factors include those of the soft cap. The bias is read two keys at a time.
#define SCORE_GRAIN SCORE_TILE
#if SOFT_CAP_VALUE
#define SCORE_IN (1 / static_cast<float>(SOFT_CAP))
#define SCORE_OUT (ALIBI || BIAS ? 1.0f : static_cast<float>(SOFT_CAP))
#endif
#if BIAS_VALUE
#define SCORE_AHEAD
#endif
// The elements of the bias that a thread adds to its scores of a tile. `wgmma` reads them while earlier products run.
struct ScoreAhead {
  float2 pairs[2][BLOCK_C / 8];  // BIAS_OF_KEYS: for two rows, keys k + 8 i and k + 8 i + 1
  float of_row[2];               // BIAS_OF_ROWS: the element of each row

  __device__ __forceinline__ void read([[maybe_unused]] int q, [[maybe_unused]] int k,
                                       [[maybe_unused]] const ScoreContext& context) {
    UNROLL for (int r = 0; r < 2; ++r) {
      if constexpr (BIAS == BIAS_OF_KEYS) {
        const float* const row = bias_row(q + r * 8, context) + k;
        UNROLL for (int i = 0; i < BLOCK_C / 8; ++i) pairs[r][i] = *reinterpret_cast<const float2*>(row + i * 8);
        // Prefetches the lines of the next block: blocks go from the last key to the first. The four threads of a row
        // take different lines.
        UNROLL for (int line = 0; k >= BLOCK_C && line < BLOCK_C; line += 4 * 32) {
          const int ahead = line + threadIdx.x % 4 * 32;
          asm volatile("prefetch.global.L2 [%0];" ::"l"(row - BLOCK_C + (ahead < BLOCK_C ? ahead : BLOCK_C - 1)));
        }
      } else if constexpr (BIAS == BIAS_OF_ROWS) {
        of_row[r] = *bias_row(q + r * 8, context);
      }
    }
  }
};
static inline void score_tile(float* s, int, int q, int k, [[maybe_unused]] const ScoreContext& context,
                              [[maybe_unused]] const ScoreAhead& read) {
  [[maybe_unused]] float slope = 0, first[2] = {};
  if constexpr (ALIBI != 0) {
    slope = score_slope(context);
    for (int r = 0; r < 2; ++r) first[r] = slope * static_cast<float>(k - own_key(q + r * 8, context));
  }
  UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) {
    [[maybe_unused]] const int r = i / 2 % 2, column = i / 4 * 8 + i % 2;
    if constexpr (SOFT_CAP != 0) s[i] = tanh_of(s[i]) * (ALIBI || BIAS ? static_cast<float>(SOFT_CAP) : 1.0f);
    if constexpr (ALIBI != 0) s[i] += slope * static_cast<float>(column) + first[r];
    if constexpr (BIAS == BIAS_OF_KEYS) s[i] += i % 2 == 0 ? read.pairs[r][i / 4].x : read.pairs[r][i / 4].y;
    if constexpr (BIAS == BIAS_OF_ROWS) s[i] += read.of_row[r];
  }
}
static inline void score_tile(float* s, int keys, int q, int k, const ScoreContext& context) {
  ScoreAhead read;
  read.read(q, k, context);
  score_tile(s, keys, q, k, context, read);
}
#endif
