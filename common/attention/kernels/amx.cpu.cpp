// Variant `tuned` for bf16 on x86 cores with AMX: flash attention forward on tile registers, whose peak rate is 16
// times that of f32 vector multiply-adds (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1,
// chapter 18).
//
// One threadgroup computes BLOCK_R query rows of one head, 32 rows against a block of keys at a time. One AMX
// instruction multiplies 16 x 32 values by 32 x 16 values, and adds the product to 16 x 16 sums. Four tiles of sums,
// and two tiles of each operand, fill the eight tile registers. The kernel computes two products:
//   scores  S[query][key] = Q[query][d] K[key][d]
//   outputs O[query][column] += P[query][key] V[key][column]
// The first operand is stored by rows. The second operand consists of 32-bit words. A word has two values of one
// column, from two neighbouring rows: elements d and d + 1 of one key of K, or one column of two neighbouring keys of
// V. K and V are copied into such words once for each block of keys, and all BLOCK_R rows use the copies.
//
// Threadgroup memory (AmxLayout). ROWS, DIM and KEYS are BLOCK_R, HEAD_DIM and BLOCK_C, rounded up to multiples of 32.
//   q       bf16 [ROWS][DIM]
//   o       f32 [ROWS][DIM]          not yet divided by the row sums
//   maximum f32 [ROWS], sums f32 [ROWS][16], of the online softmax; finish() adds up the 16 sums of a row
//   scores  f32 [32][KEYS], weights bf16 [32][KEYS]
//   k       pairs of bf16 [DIM / 2][KEYS]
//   v       pairs of bf16 [KEYS / 2][DIM]
// Elements of q, k and v beyond the last query, head_dim and the last key are zero, because products read them too.
//
// The kernel takes no score hook, rotate hook or before hook. Grid: (query tiles, q_heads, batch); causal tiles run
// from the last rows to the first.
#include "common/kernel/amx.h"

#include "common/attention/kernels/amx.h"
#include "common/attention/kernels/attention.h"
#include "common/kernel/cpu.h"
// Hooks come after cpu.h, because the texts of hooks use cpu.h.
#include "common/attention/kernels/keys.h"
#include "common/attention/kernels/listed_blocks.h"
#include "common/attention/kernels/mask.h"
#include "common/attention/kernels/pages.h"
#include "common/attention/kernels/rotate.h"
#include "common/attention/kernels/score.h"
// repair.h comes after the hooks, because it calls them.
#include "common/attention/kernels/repair.h"

namespace {

constexpr AmxLayout layout(HEAD_DIM, BLOCK_R, BLOCK_C);
constexpr int PAIR = AmxLayout::pair;
constexpr int DIM = layout.dim, ROWS = layout.rows;
// Distances from row to row, in elements.
constexpr int Q_STEP = layout.q_step / 2, O_STEP = layout.o_step / 4, S_STEP = layout.scores_step / 4;
constexpr int W_STEP = layout.weights_step / 2, K_STEP = layout.k_step / 4, V_STEP = layout.v_step / 4;
constexpr int LANES = 16;
constexpr int TILE_BYTES = 64;                                    // bytes of a row of a tile
constexpr int CHUNK = HEAD_DIM % LANES == 0 ? LANES : LANES / 2;  // columns that are loaded at once

using Floats = Vector<float, LANES>;
using Ints = Vector<int, LANES>;
using Words = Vector<unsigned, LANES>;
using Shorts = Vector<unsigned short, CHUNK>;

/// Computes c[32][32] = a[32][32 * steps] * b, or c += a * b if `add` is true. b is [16 * steps][32] words, as
/// described above. The distances between rows are in bytes.
INLINE void multiply_tiles(float* c, long c_step, const void* a, long a_step, const void* b, long b_step, int steps,
                           bool add) {
  char* const c0 = reinterpret_cast<char*>(c);
  char* const c1 = c0 + LANES * c_step;
  if (add) {
    __builtin_ia32_tileloadd64(0, c0, c_step);
    __builtin_ia32_tileloadd64(1, c0 + TILE_BYTES, c_step);
    __builtin_ia32_tileloadd64(2, c1, c_step);
    __builtin_ia32_tileloadd64(3, c1 + TILE_BYTES, c_step);
  } else {
    __builtin_ia32_tilezero(0);
    __builtin_ia32_tilezero(1);
    __builtin_ia32_tilezero(2);
    __builtin_ia32_tilezero(3);
  }
  const char* a0 = static_cast<const char*>(a);
  const char* b0 = static_cast<const char*>(b);
  for (int step = 0; step < steps; ++step) {
    __builtin_ia32_tileloadd64(4, a0, a_step);
    __builtin_ia32_tileloadd64(6, b0, b_step);
    __builtin_ia32_tdpbf16ps(0, 4, 6);
    __builtin_ia32_tileloadd64(7, b0 + TILE_BYTES, b_step);
    __builtin_ia32_tdpbf16ps(1, 4, 7);
    __builtin_ia32_tileloadd64(5, a0 + LANES * a_step, a_step);
    __builtin_ia32_tdpbf16ps(2, 5, 6);
    __builtin_ia32_tdpbf16ps(3, 5, 7);
    a0 += TILE_BYTES;
    b0 += LANES * b_step;
  }
  __builtin_ia32_tilestored64(0, c0, c_step);
  __builtin_ia32_tilestored64(1, c0 + TILE_BYTES, c_step);
  __builtin_ia32_tilestored64(2, c1, c_step);
  __builtin_ia32_tilestored64(3, c1 + TILE_BYTES, c_step);
}

/// Transposes 16 x 16 words. A round interleaves the words of rows r and r + 8. So the highest bit of a word's row
/// number becomes the lowest bit of its column number, and the highest bit of the column number becomes the lowest bit
/// of the row number. After four rounds the two numbers are exchanged.
INLINE void transpose(Words (&rows)[LANES]) {
  UNROLL for (int round = 0; round < 4; ++round) {
    Words next[LANES];
    UNROLL for (int r = 0; r < LANES / 2; ++r) {
      const Words a = rows[r], b = rows[r + LANES / 2];
      next[2 * r] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      next[2 * r + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    UNROLL for (int r = 0; r < LANES; ++r) rows[r] = next[r];
  }
}

INLINE int min(int a, int b) { return a < b ? a : b; }
INLINE int whole_pairs(int n) { return (n + PAIR - 1) / PAIR * PAIR; }

template <typename V>
INLINE V larger(V a, V b) {
  return a > b ? a : b;
}

// __builtin_reduce_max also handles NaNs, and takes three instructions for each instruction here.
INLINE float largest_lane(Floats x) {
  x = larger(x, Floats(__builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)));
  x = larger(x, Floats(__builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)));
  x = larger(x, Floats(__builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)));
  x = larger(x, Floats(__builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)));
  return x[0];
}

struct Tile {
  const AttentionParams& p;
  unsigned short* q;
  float *o, *maximum, *sums, *scores;
  unsigned short* weights;
  unsigned *k, *v;
  int batch, head, kv_head;
  int first_query, queries;  // of this tile
  // If s is an element of `scores`, the score is unit * s, and e^(unit * s) = 4^(factor * s). unit and factor are
  // positive.
  float unit, factor;

  INLINE Tile(const AttentionParams& params, const Threadgroup& group) : p(params) {
    q = reinterpret_cast<unsigned short*>(group.memory + layout.q);
    o = reinterpret_cast<float*>(group.memory + layout.o);
    maximum = reinterpret_cast<float*>(group.memory + layout.maximum);
    sums = reinterpret_cast<float*>(group.memory + layout.sums);
    scores = reinterpret_cast<float*>(group.memory + layout.scores);
    weights = reinterpret_cast<unsigned short*>(group.memory + layout.weights);
    k = reinterpret_cast<unsigned*>(group.memory + layout.k);
    v = reinterpret_cast<unsigned*>(group.memory + layout.v);
    const int tile = static_cast<int>(CAUSAL ? group.count[0] - 1 - group.index[0] : group.index[0]);
    head = static_cast<int>(group.index[1]);
    batch = static_cast<int>(group.index[2]);
    kv_head = head / (p.q_heads / p.kv_heads);
    first_query = tile * static_cast<int>(BLOCK_R);
    queries = min(p.q_len - first_query, BLOCK_R);
    unit = p.scale == 0 ? 1 : p.scale < 0 ? -p.scale : p.scale;
    factor = unit * log4_e;
  }

  INLINE ScoreContext context() const { return {batch, head, p.q_heads, p.q_len, p.kv_len, p.score_data}; }

  // Unless KEYS_ARE_DEFAULT, a row without a query gets the range of the last query.
  INLINE KeyRange keys_of(int query) const {
    return visible_keys(KEYS_ARE_DEFAULT ? query : min(query, p.q_len - 1), context());
  }

  // Returns how many of the keys [first_key, first_key + keys) lie before the end of the query's range.
  INLINE int keys_seen(int query, int first_key, int keys) const {
    if (KEYS_ARE_DEFAULT && !CAUSAL) return keys;
    const int seen = keys_of(query).end - first_key;
    return seen < 0 ? 0 : min(seen, keys);
  }
  // Returns how many of the keys [first_key, first_key + keys) lie before the first key of the query's range.
  INLINE int keys_before(int query, int first_key, int keys) const {
    if (KEYS_BEGIN_AT_ZERO) return 0;
    const int before = keys_of(query).begin - first_key;
    return before < 0 ? 0 : min(before, keys);
  }

  // With pages, a key beyond the last key gets the row of the last key.
  INLINE const unsigned short* row_of(const void* tensor, const TensorStrides& strides, int key) const {
    if (!PAGES_ARE_DEFAULT) key = min(key, p.kv_len - 1);
    const KeyPlace place = place_of_key(key, kv_head, context());
    return static_cast<const unsigned short*>(tensor) + place.batch * strides.batch + place.head * strides.head +
           place.row * strides.row;
  }

  // Copies Q and initialises the softmax. The copy is -Q if the scale is negative, because `unit` is positive, and 0 if
  // the scale is 0.
  INLINE void begin() {
    const unsigned short flip = p.scale < 0 ? 0x8000 : 0, keep = p.scale == 0 ? 0 : 0xFFFF;
    const auto* from = static_cast<const unsigned short*>(p.q) + batch * p.q_strides.batch + head * p.q_strides.head +
                       first_query * p.q_strides.row;
    for (int row = 0; row < ROWS; ++row) {
      for (int d = 0; d < DIM; d += CHUNK) {
        const bool there = row < queries && d < HEAD_DIM;
        store(q + row * Q_STEP + d, there ? (load<Shorts>(from + row * p.q_strides.row + d) ^ flip) & keep : Shorts{});
      }
    }
    for (int i = 0; i < ROWS * O_STEP; i += LANES) store(o + i, Floats{});
    for (int i = 0; i < ROWS; ++i) {
      maximum[i] = hidden_score;
      store(sums + i * LANES, Floats{});
    }
  }

  // Words beyond head_dim are zero.
  INLINE Words words_of(const unsigned short* row, int word) const {
    if (word + LANES <= HEAD_DIM / 2) return load<Words>(row + 2 * word);
    Words words = {};
    for (int i = 0; word + i < HEAD_DIM / 2; ++i) words[i] = load<Vector<unsigned, 1>>(row + 2 * (word + i))[0];
    return words;
  }

  INLINE void stage_keys(int first_key, int keys) {
    for (int key = 0; key < whole_pairs(keys); key += LANES) {
      for (int word = 0; word < DIM / 2; word += LANES) {
        Words rows[LANES];
        UNROLL for (int r = 0; r < LANES; ++r) {
          rows[r] = key + r < keys ? words_of(row_of(p.k, p.k_strides, first_key + key + r), word) : Words{};
        }
        transpose(rows);
        UNROLL for (int r = 0; r < LANES; ++r) store(k + (word + r) * K_STEP + key, rows[r]);
      }
    }
  }

  INLINE void stage_values(int first_key, int keys) {
    using Wide = Vector<unsigned, CHUNK>;
    for (int key = 0; key < whole_pairs(keys); key += 2) {
      const unsigned short* row = row_of(p.v, p.v_strides, first_key + key);
      for (int d = 0; d < DIM; d += CHUNK) {
        Wide low = {}, high = {};
        if (d < HEAD_DIM && key < keys) low = __builtin_convertvector(load<Shorts>(row + d), Wide);
        if (d < HEAD_DIM && key + 1 < keys) {
          const unsigned short* next =
              PAGES_ARE_DEFAULT ? row + p.v_strides.row : row_of(p.v, p.v_strides, first_key + key + 1);
          high = __builtin_convertvector(load<Shorts>(next + d), Wide);
        }
        store(v + key / 2 * V_STEP + d, low | high << 16);
      }
    }
  }

  // Processes a block of keys for 32 rows of the tile, from row `first` on.
  INLINE void attend(int first, int first_key, int block_keys, bool masked) {
    const int needed = keys_seen(first_query + first + PAIR - 1, first_key, block_keys);
    const int hidden = keys_before(first_query + first, first_key, needed);
    if (needed == hidden) return;
    const int keys = whole_pairs(needed), begin = hidden / PAIR * PAIR;
    for (int key = begin; key < keys; key += PAIR) {
      multiply_tiles(scores + key, S_STEP * 4, q + first * Q_STEP, Q_STEP * 2, k + key, K_STEP * 4, DIM / PAIR, false);
    }
    // Two loops, because the weights of a row wait for its maximum. In one loop they would delay the next row's
    // maximum.
    for (int r = 0; r < PAIR; ++r) {
      const int visible = keys_seen(first_query + first + r, first_key, block_keys);
      const int before = keys_before(first_query + first + r, first_key, block_keys);
      if (masked) mask(first + r, scores + r * S_STEP, first_key, before, visible);
      raise_maximum(first + r, scores + r * S_STEP, begin, before, visible, keys);
    }
    for (int r = 0; r < PAIR; ++r) weigh(first + r, scores + r * S_STEP, weights + r * W_STEP, begin, keys);
    for (int column = 0; column < DIM; column += PAIR) {
      multiply_tiles(o + first * O_STEP + column, O_STEP * 4, weights + begin, W_STEP * 2,
                     v + begin / 2 * V_STEP + column, V_STEP * 4, (keys - begin) / PAIR, true);
    }
  }

  // A row without a query is masked like the last query.
  INLINE void mask(int row, float* s, int first_key, int begin, int end) const {
    for (int key = begin; key < end; ++key) {
      if (!::visible(min(first_query + row, p.q_len - 1), first_key + key, context())) s[key] = hidden_score;
    }
  }

  // Hides the row's scores outside the keys [hidden, visible). If the row's maximum grows, scales down the row's
  // outputs and sums.
  INLINE void raise_maximum(int row, float* s, int begin, int hidden, int visible, int keys) {
    for (int key = begin; !KEYS_BEGIN_AT_ZERO && key < keys && key < hidden; key += LANES) {
      Ints lanes = {};
      UNROLL for (int i = 0; i < LANES; ++i) lanes[i] = i;
      store(s + key, lanes + key >= hidden ? load<Floats>(s + key) : Floats{} + hidden_score);
    }
    for (int key = visible / LANES * LANES; key < keys; key += LANES) {
      Ints lanes = {};
      UNROLL for (int i = 0; i < LANES; ++i) lanes[i] = i;
      store(s + key, lanes + key < visible ? load<Floats>(s + key) : Floats{} + hidden_score);
    }
    Floats largest[2] = {load<Floats>(s + begin), load<Floats>(s + begin + LANES)};
    for (int key = begin + PAIR; key < keys; key += PAIR) {
      UNROLL for (int i = 0; i < 2; ++i) { largest[i] = larger(largest[i], load<Floats>(s + key + i * LANES)); }
    }
    const float found = largest_lane(larger(largest[0], largest[1]));
    if (found <= maximum[row]) return;
    const Floats alpha = exp4(Floats{} + (maximum[row] - found) * factor);
    maximum[row] = found;
    store(sums + row * LANES, load<Floats>(sums + row * LANES) * alpha);
    for (int d = 0; d < DIM; d += LANES) store(o + row * O_STEP + d, load<Floats>(o + row * O_STEP + d) * alpha);
  }

  // Turns a row's scores into weights exp4(factor * (s - maximum)), and adds the weights to the row's sum.
  INLINE void weigh(int row, float* s, unsigned short* weight, int begin, int keys) {
    float shift = shift_of(maximum[row]) * factor;
    if (shift > largest_product || shift < -largest_product) {
      for (int key = begin; key < keys; key += LANES) store(s + key, load<Floats>(s + key) - maximum[row]);
      shift = 0;
    }
    Floats sum = load<Floats>(sums + row * LANES);
    for (int key = begin; key < keys; key += PAIR) {
      const Floats low = exp4<3>(load<Floats>(s + key) * factor - shift);
      const Floats high = exp4<3>(load<Floats>(s + key + LANES) * factor - shift);
      sum += low + high;
      store(weight + key, __builtin_ia32_cvtne2ps2bf16_512(high, low));
    }
    store(sums + row * LANES, sum);
  }

  // Writes O / sum and the log-sum-exp to memory.
  INLINE void finish() {
    using Chunk = Vector<float, CHUNK>;
    const long long base = batch * p.o_strides.batch + head * p.o_strides.head + first_query * p.o_strides.row;
    for (int row = 0; row < queries; ++row) {
      float total = 0;
      UNROLL for (int i = 0; i < LANES; ++i) total += sums[row * LANES + i];
      const RowEnd end = end_of_row(maximum[row], total, unit, context());
      Chunk not_finite = {};
      for (int d = 0; d < HEAD_DIM; d += CHUNK) {
        const Chunk values = load<Chunk>(o + row * O_STEP + d) * end.share;
        store_floats<OUT_TYPE, CHUNK>(p.o, base + row * p.o_strides.row + d, values);
        not_finite += values * 0.0f;
      }
      if (p.lse) p.lse[(static_cast<long long>(batch) * p.q_heads + head) * p.q_len + first_query + row] = end.lse;
      if (any_lane(not_finite != 0) && end.share == end.share) repair_row(p, batch, head, first_query + row);
    }
  }
};

using Params = ParamsWithLists<MASK_LISTS, AttentionParams>::type;

}  // namespace

extern "C" void flash_forward(const Params* params, const Threadgroup* group) {
  static_assert(IN_TYPE == BF16 && SCORE_IS_IDENTITY && ROTATE_IS_IDENTITY);
  static const TileShapes shapes;
  __builtin_ia32_tile_loadconfig(&shapes);
  Tile tile(*params, *group);
  tile.begin();
  const int end = tile.keys_seen(tile.first_query + tile.queries - 1, 0, params->kv_len);
  const int begin = tile.keys_before(tile.first_query, 0, end);
  [[maybe_unused]] ListedBlocks blocks(*params, tile.batch, tile.head, tile.first_query);
  for (int first_key = begin; first_key < end; first_key += BLOCK_C) {
    if (MASK_LISTS && !blocks.next(first_key)) break;
    const int keys = min(end - first_key, BLOCK_C);
    tile.stage_keys(first_key, keys);
    tile.stage_values(first_key, keys);
    const bool masked = !MASK_IS_NONE && blocks.masked;
    for (int row = 0; row < tile.queries; row += PAIR) tile.attend(row, first_key, keys, masked);
  }
  tile.finish();
  __builtin_ia32_tilerelease();
}
