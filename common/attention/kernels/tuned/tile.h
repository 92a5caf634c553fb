// A tile of queries, as the kernels of the family `tuned` compute it. A kernel includes this file within its namespace,
// after it has defined the template multiply_add_tile<ROWS>() (tuned.cpu.cpp says what this function computes).
#pragma once

INLINE void multiply_add(int count, float* rows, const Floats* factor, const char* a, long row_step, long step,
                         const float* panel, int depth, Floats* maximum) {
  (count == MAIN_ROWS ? multiply_add_tile<MAIN_ROWS> : multiply_add_tile<TAIL_ROWS>)(rows, factor, a, row_step, step,
                                                                                     panel, depth, maximum);
}

/// Returns two rows of floats as one row of bf16 pairs, rounded to nearest.
[[maybe_unused]] INLINE Floats to_pairs(Floats low, Floats high) {
  const Bits low_bits = (reinterpret_cast<Bits>(low) + 0x8000u) >> 16;
  const Bits high_bits = (reinterpret_cast<Bits>(high) + 0x8000u) & 0xFFFF0000u;
  return reinterpret_cast<Floats>(low_bits | high_bits);
}

/// Returns how many rows the next tile has if `left` rows are left: MAIN_ROWS if the tile ends with the last row or
/// leaves enough rows for a tail tile. Else TAIL_ROWS; a tile of TAIL_ROWS may reach beyond the last row.
INLINE int rows_of_tile(int left) { return left == MAIN_ROWS || left >= MAIN_ROWS + TAIL_ROWS ? MAIN_ROWS : TAIL_ROWS; }

struct Tile {
  const AttentionParams& p;
  float *q_panels, *o_panels, *maximum, *sum, *scores, *k_block, *v_block;
  int batch, head, kv_head;
  int first_query, queries;  // of this tile
  float unit;                // a positive factor: a score times `unit` is the score in base e

  INLINE Tile(const AttentionParams& params, const Threadgroup& group) : p(params) {
    float* memory = reinterpret_cast<float*>(group.memory);
    q_panels = memory + layout.q_panels;
    o_panels = memory + layout.o_panels;
    maximum = memory + layout.maximum;
    sum = memory + layout.sum;
    scores = memory + layout.scores;
    k_block = memory + layout.k_block;
    v_block = memory + layout.v_block;
    const int tile = static_cast<int>(CAUSAL ? group.count[0] - 1 - group.index[0] : group.index[0]);
    head = static_cast<int>(group.index[1]);
    batch = static_cast<int>(group.index[2]);
    kv_head = head / (p.q_heads / p.kv_heads);
    first_query = tile * static_cast<int>(BLOCK_R);
    queries = min(p.q_len - first_query, BLOCK_R);
    unit = BASE_4 ? ln_4 : !SCALE_LATE || p.scale == 0 ? 1 : p.scale < 0 ? -p.scale : p.scale;
  }

  static INLINE Ints lane_numbers() {
    Ints numbers = {};
    UNROLL for (int lane = 0; lane < VECTOR_WIDTH; ++lane) numbers[lane] = lane;
    return numbers;
  }

  static INLINE int min(int a, int b) { return a < b ? a : b; }

  INLINE ScoreContext context() const { return {batch, head, p.q_heads, p.q_len, p.kv_len, p.score_data}; }

  // Returns the keys that a query sees. Unless KEYS_ARE_DEFAULT, a lane without a query gets the range of the last
  // query.
  INLINE KeyRange keys_of(int query) const {
    return visible_keys(KEYS_ARE_DEFAULT ? query : min(query, p.q_len - 1), context());
  }

  // Returns how many of the `keys` keys from `first_key` on lie before the end of the query's range.
  INLINE int keys_seen(int query, int first_key, int keys) const {
    if (KEYS_ARE_DEFAULT && !CAUSAL) return keys;
    const int seen = keys_of(query).end - first_key;
    return seen < 0 ? 0 : min(seen, keys);
  }
  // Returns how many of the `keys` keys from `first_key` on lie before the first key of the query's range.
  INLINE int keys_before(int query, int first_key, int keys) const {
    if (KEYS_BEGIN_AT_ZERO) return 0;
    const int before = keys_of(query).begin - first_key;
    return before < 0 ? 0 : min(before, keys);
  }

  INLINE Floats in_base_4(Floats s) const { return BASE_4 ? s : s * (unit * log4_e); }

  // Returns four words of a row of Q, scaled if SCALE_Q.
  INLINE Quad q_words(long long row, [[maybe_unused]] int query, int d) const {
    if constexpr (SCALE_Q) {
      const auto load_q = [&](int at) INLINE_LAMBDA { return load_floats<IN_TYPE, 4>(p.q, row + at); };
      return rotate_query(load_q, first_query + query, d, context()) * (BASE_4 ? p.scale * log4_e : p.scale);
    } else {
      // With SCALE_LATE the softmax multiplies by `unit`, which is positive and keeps the order of scores. The sign of
      // the scale, and a scale of 0, are applied to Q here.
      const unsigned flip = SCALE_LATE && p.scale < 0 ? 0x80008000u : 0;
      const unsigned keep = SCALE_LATE && p.scale == 0 ? 0 : ~0u;
      return reinterpret_cast<Quad>((load<Vector<unsigned, 4>>(static_cast<const short*>(p.q) + row + 2 * d) ^ flip) &
                                    keep);
    }
  }

  // Returns the index of a key's row in K or V.
  INLINE long long row_of(const TensorStrides& strides, int key) const {
    return index_of(strides, place_of_key(key, kv_head, context()));
  }

  // k_rows() returns the address of a key's row in K itself. k_step() returns the bytes from one row of K to the next.
  INLINE const char* k_rows(int key) const {
    return static_cast<const char*>(p.k) + row_of(p.k_strides, key) * ELEMENT_BYTES;
  }
  INLINE long k_step() const { return p.k_strides.row * ELEMENT_BYTES; }

  // Packs Q into panels; lanes beyond the last query are zero. Sets outputs, maxima and sums to their first values.
  INLINE void begin() {
    const long long base = batch * p.q_strides.batch + head * p.q_strides.head + first_query * p.q_strides.row;
    for (int query = 0; query < queries || query % PANEL != 0; query += 4) {
      float* q = q_panels + query / PANEL * DEPTH * PANEL + query % PANEL;
      for (int d = 0; d < DEPTH; d += 4) {
        Quad rows[4];
        UNROLL for (int i = 0; i < 4; ++i) {
          rows[i] = query + i < queries ? q_words(base + (query + i) * p.q_strides.row, query + i, d) : Quad{};
        }
        transpose(rows);
        UNROLL for (int i = 0; i < 4; ++i) store(q + (d + i) * PANEL, rows[i]);
      }
    }
    for (int i = 0; i < HEAD_DIM * BLOCK_R; i += VECTOR_WIDTH) store(o_panels + i, Floats{});
    for (int i = 0; i < BLOCK_R; i += VECTOR_WIDTH) {
      store(maximum + i, Floats{} + hidden_score);
      store(sum + i, Floats{});
    }
  }

  // Copies `keys` rows of K or V from `first_key` on to `block`, as floats. TURN: the rotate hook rotates the rows.
  template <bool TURN>
  INLINE void stage(const void* tensor, const TensorStrides& strides, int first_key, int keys, float* block) {
    for (int key = 0; key < keys; ++key) {
      const long long row = row_of(strides, first_key + key);
      if constexpr (ASK_AHEAD) {
        const char* ahead = static_cast<const char*>(tensor) + (row + ROWS_AHEAD * strides.row) * ELEMENT_BYTES;
        for (int line = 0; line < ROW_LINES; ++line) __builtin_prefetch(ahead + line * LINE_BYTES);
      }
      if constexpr (TURN && !ROTATE_IS_IDENTITY) {
        const auto load_k = [&](int at) INLINE_LAMBDA { return load_floats<IN_TYPE, 4>(tensor, row + at); };
        for (int d = 0; d < HEAD_DIM; d += 4) {
          store(block + key * ROW_WORDS + d, rotate_key(load_k, first_key + key, d, context()));
        }
        continue;
      }
      for (int d = 0; d < HEAD_DIM; d += 8) {
        store(block + key * ROW_WORDS + d, load_floats<IN_TYPE, 8>(tensor, row + d));
      }
    }
  }

  // Copies `keys` rows of V from `first_key` on to v_block, as pairs of the values of two keys. An odd last key is
  // paired with zeros.
  INLINE void stage_pairs(int first_key, int keys) {
    using Shorts = Vector<unsigned short, 8>;
    using Words = Vector<unsigned, 8>;
    const auto* v = static_cast<const unsigned short*>(p.v);
    for (int key = 0; key < keys; key += 2) {
      const long long row = row_of(p.v_strides, first_key + key);
      for (int d = 0; d < HEAD_DIM; d += 8) {
        const Words low = __builtin_convertvector(load<Shorts>(v + row + d), Words);
        Words high = {};
        if (key + 1 < keys) {
          const long long next = PAGES_ARE_DEFAULT ? row + p.v_strides.row : row_of(p.v_strides, first_key + key + 1);
          high = __builtin_convertvector(load<Shorts>(v + next + d), Words);
        }
        store(reinterpret_cast<unsigned*>(v_block) + key / 2 * ROW_WORDS + d, low | high << 16);
      }
    }
  }

  // Copies `count` rows of K, unconverted, to k_block, from row `to` of k_block on.
  INLINE void copy_rows(const char* rows, long step, int count, int to = 0) {
    for (int r = 0; r < count; ++r) {
      for (int d = 0; d < DEPTH; d += 4) {
        store(k_block + (to + r) * ROW_WORDS + d, load<Vector<float, 4>>(rows + r * step + 4 * d));
      }
    }
  }

  // Computes the scores of the block's keys from `begin` to `keys`, with the score hook and the masks, into
  // scores[key][query]. Raises new_maximum to the largest score of each query. Without ASK_AHEAD and without a pages
  // hook, the call for panel i also prefetches cache line i of each row of V of the next block, so that a later copy
  // finds these rows in a cache.
  INLINE void compute_scores(int panel, int first_key, int begin, int keys, int block_keys, bool masked,
                             Floats (&new_maximum)[VECTORS]) {
    const ScoreContext context = this->context();
    const float* q = q_panels + panel * DEPTH * PANEL;
    const int first = first_query + panel * PANEL;
    const char* const copied = reinterpret_cast<const char*>(k_block);
    const char* const k = COPY_K ? copied : k_rows(first_key);
    const long k_bytes = COPY_K ? ROW_BYTES : k_step();
    const char* next_v = static_cast<const char*>(p.v) +
                         (PAGES_ARE_DEFAULT ? row_of(p.v_strides, first_key + BLOCK_C) : 0) * ELEMENT_BYTES;
    const long next_step = p.v_strides.row * ELEMENT_BYTES;
    // `visible`: how many keys of the block lie before the end of the lane's range. `hidden`: how many keys of the
    // block lie before the first key of the lane's range. Both numbers may be negative.
    Ints visible[VECTORS];
    [[maybe_unused]] Ints hidden[VECTORS];
    UNROLL for (int v = 0; v < VECTORS; ++v) {
      visible[v] = Ints{} + keys;
      if constexpr (!KEYS_ARE_DEFAULT) {
        for (int lane = 0; lane < VECTOR_WIDTH; ++lane) {
          const KeyRange seen = keys_of(first + v * VECTOR_WIDTH + lane);
          visible[v][lane] = min(seen.end - first_key, keys);
          hidden[v][lane] = seen.begin - first_key;
        }
      } else if (CAUSAL) {  // each lane sees one key more than the previous lane
        const Ints seen = lane_numbers() + (keys_of(first + v * VECTOR_WIDTH).end - first_key);
        visible[v] = seen < keys ? seen : visible[v];
      }
    }
    const int seen_by_all = keys_seen(first, first_key, keys);
    [[maybe_unused]] const int hidden_from_some = keys_before(first + PANEL - 1, first_key, keys);
    for (int key = begin, rows = 0; key < keys; key += rows) {
      rows = rows_of_tile(keys - key);
      const char* from = k + key * k_bytes;
      long step = k_bytes;
      if (!COPY_K && key + rows > block_keys) {  // rows beyond the block may lie beyond the tensor
        copy_rows(from, step, block_keys - key);
        from = copied;
        step = ROW_BYTES;
      }
      float* to = scores + key * PANEL;
      const bool as_they_are =
          SCORE_IS_IDENTITY && key + rows <= seen_by_all && (KEYS_BEGIN_AT_ZERO || key >= hidden_from_some) && !masked;
      multiply_add(rows, to, nullptr, from, step, WORD_BYTES, q, DEPTH, as_they_are ? new_maximum : nullptr);
      for (int r = 0; r < rows; ++r) {
        if (!ASK_AHEAD && PAGES_ARE_DEFAULT && panel < ROW_LINES)
          __builtin_prefetch(next_v + (key + r) * next_step + panel * LINE_BYTES, 0, 2);
      }
      if (as_they_are) continue;
#if SCORE_GRAIN == SCORE_TILE
      if constexpr (!SCALE_Q) {
        for (int i = 0; i < rows * PANEL; i += VECTOR_WIDTH) store(to + i, load<Floats>(to + i) * p.scale);
      }
      score_tile(to, rows, first, first_key + key, context);
#endif
      for (int r = 0; r < rows; ++r) {
        UNROLL for (int v = 0; v < VECTORS; ++v) {
          float* at = to + r * PANEL + v * VECTOR_WIDTH;
          Floats s = load<Floats>(at);
          if constexpr (!SCALE_Q && !SCALE_LATE && SCORE_GRAIN != SCORE_TILE) s *= p.scale;
          if constexpr (!SCORE_IS_IDENTITY && SCORE_GRAIN != SCORE_TILE) {
            apply_hook(s, first + v * VECTOR_WIDTH, first_key + key + r, context);
          }
          s = visible[v] > key + r ? s : Floats{} + hidden_score;
          if constexpr (!KEYS_BEGIN_AT_ZERO) s = hidden[v] <= key + r ? s : Floats{} + hidden_score;
          if (masked && key + r < keys) {
            s = seen_by(first + v * VECTOR_WIDTH, first_key + key + r) ? s : Floats{} + hidden_score;
          }
          new_maximum[v] = larger(new_maximum[v], s);
          store(at, s);
        }
      }
    }
  }

  // Returns -1 in the lanes of the queries that see the key according to the mask hook, and 0 in the other lanes. Lane
  // 0 is the query `first`. A lane without a query gets the answer for the last query.
  INLINE Ints seen_by(int first, int key) const {
    Ints seen = {};
    for (int lane = 0; lane < VECTOR_WIDTH; ++lane) {
      seen[lane] = ::visible(min(first + lane, p.q_len - 1), key, context()) ? -1 : 0;
    }
    return seen;
  }

  [[maybe_unused]] static INLINE void apply_hook(Floats& scores_of_key, [[maybe_unused]] int query,
                                                 [[maybe_unused]] int key,
                                                 [[maybe_unused]] const ScoreContext& context) {
    float lanes[VECTOR_WIDTH];
    store(lanes, scores_of_key);
#if SCORE_GRAIN == SCORE_ROW
    score_row(lanes, query, key, context);
#elif SCORE_GRAIN == SCORE_ELEMENT
    VECTORIZE for (int lane = 0; lane < VECTOR_WIDTH; ++lane) {
      lanes[lane] = score(lanes[lane], query + lane, key, context);
    }
#endif
    scores_of_key = load<Floats>(lanes);
  }

  // For SCALE_LATE: scores times the factor unit * log4_e are in base 4. If the product of the shift and this factor is
  // beyond largest_product in any lane of a vector, this function subtracts the shift from all scores of the vector,
  // and sets the shift to 0. Without the subtraction, softmax() would compute score * factor - product by a
  // multiply-add, and the rounding error of the product would be too large.
  INLINE void shift_large(int begin, int keys, Floats (&shift)[VECTORS]) {
    UNROLL for (int v = 0; v < VECTORS; ++v) {
      const Floats product = in_base_4(shift[v]);
      if (!any_lane(product > largest_product | product < -largest_product)) continue;
      for (int key = begin; key < keys; ++key) {
        float* const at = scores + key * PANEL + v * VECTOR_WIDTH;
        store(at, load<Floats>(at) - shift[v]);
      }
      shift[v] = Floats{};
    }
  }

  // Turns scores into weights, and stores the new maximum and sum. alpha is the factor on the outputs so far.
  INLINE void softmax(int panel, int begin, int keys, const Floats (&new_maximum)[VECTORS], Floats (&alpha)[VECTORS]) {
    Floats row_sum[VECTORS] = {}, shift[VECTORS];
    UNROLL for (int v = 0; v < VECTORS; ++v) {
      shift[v] = shift_of(new_maximum[v]);
      float* old_maximum = maximum + panel * PANEL + v * VECTOR_WIDTH;
      // alpha is exactly 1 if the maximum is finite and has not grown.
      alpha[v] = exp4(in_base_4(load<Floats>(old_maximum) - shift[v]));
      store(old_maximum, new_maximum[v]);
    }
    if constexpr (SCALE_LATE) shift_large(begin, keys, shift);
    const auto weigh = [&](int key, int v) INLINE_LAMBDA {
      const Floats s = load<Floats>(scores + key * PANEL + v * VECTOR_WIDTH);
      const Floats distance = SCALE_LATE ? in_base_4(s) - in_base_4(shift[v]) : in_base_4(s - shift[v]);
      const Floats weight = exp4<BF16_DOT ? 3 : 5>(distance);
      row_sum[v] += weight;
      return weight;
    };
    if constexpr (BF16_DOT) {
      for (int key = begin; key < keys; key += 2) {
        UNROLL for (int v = 0; v < VECTORS; ++v) {
          const Floats low = weigh(key, v);
          const Floats high = key + 1 < keys ? weigh(key + 1, v) : Floats{};
          store(scores + key / 2 * PANEL + v * VECTOR_WIDTH, to_pairs(low, high));
        }
      }
    } else {
      for (int key = begin; key < keys; ++key) {
        UNROLL for (int v = 0; v < VECTORS; ++v) store(scores + key * PANEL + v * VECTOR_WIDTH, weigh(key, v));
      }
    }
    UNROLL for (int v = 0; v < VECTORS; ++v) {
      float* total = sum + panel * PANEL + v * VECTOR_WIDTH;
      store(total, load<Floats>(total) * alpha[v] + row_sum[v]);
    }
  }

  // O = O * alpha + V^T weights.
  INLINE void accumulate(int panel, int begin, int keys, const Floats (&alpha)[VECTORS]) {
    float* o = o_panels + panel * HEAD_DIM * PANEL;
    // The first row to use, in v_block and in the weights. With BF16_DOT a row holds two keys.
    const int first = BF16_DOT ? begin / 2 : begin;
    const int depth = (BF16_DOT ? (keys + 1) / 2 : keys) - first;
    for (int column = 0, rows = 0; column < HEAD_DIM; column += rows) {
      rows = rows_of_tile(HEAD_DIM - column);
      const char* const v = reinterpret_cast<const char*>(v_block + first * ROW_WORDS + column);
      multiply_add(rows, o + column * PANEL, alpha, v, WORD_BYTES, ROW_BYTES, scores + first * PANEL, depth, nullptr);
    }
  }

  // Writes the outputs, and the log-sum-exp if it is wanted. end_of_row() gives the factor on O, sink included. A row
  // with an output that is not finite is computed anew (repair.h), unless the factor is NaN: then NaN is the right
  // output.
  INLINE void finish() {
    const long long base = batch * p.o_strides.batch + head * p.o_strides.head + first_query * p.o_strides.row;
    const long long first_lse = (static_cast<long long>(batch) * p.q_heads + head) * p.q_len + first_query;
    for (int query = 0; query < queries; query += 4) {
      const float* o = o_panels + query / PANEL * HEAD_DIM * PANEL + query % PANEL;
      Quad share, not_finite = {};
      for (int i = 0; i < 4; ++i) {
        const RowEnd end = end_of_row(maximum[query + i], sum[query + i], unit, context());
        share[i] = end.share;
        if (p.lse && query + i < queries) p.lse[first_lse + query + i] = end.lse;
      }
      for (int d = 0; d < HEAD_DIM; d += 4) {
        Quad values[4];
        UNROLL for (int i = 0; i < 4; ++i) {
          values[i] = load<Quad>(o + (d + i) * PANEL) * share;
          not_finite += values[i] * 0.0f;
        }
        transpose(values);
        UNROLL for (int i = 0; i < 4; ++i) {
          if (query + i >= queries) break;
          store_floats<OUT_TYPE, 4>(p.o, base + (query + i) * p.o_strides.row + d, values[i]);
        }
      }
      for (int i = 0; i < 4 && query + i < queries; ++i) {
        if (not_finite[i] != 0 && share[i] == share[i]) repair_row(p, batch, head, first_query + query + i);
      }
    }
  }
};

using Params = ParamsWithLists<MASK_LISTS, AttentionParams>::type;
