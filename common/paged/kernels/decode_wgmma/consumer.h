// A consumer of `decode_wgmma`: a warpgroup that computes 64 rows of a tile. A thread has parts of rows r and r + 8,
// see common/kernel/wgmma.h.
#pragma once

#define MMA_WIDTH(n) ((n) == BLOCK_C_VALUE || (n) == (HEAD_DIM_VALUE + 15) / 16 * 16)
#include "common/kernel/grid.h"
#include "common/kernel/wgmma_named.h"
#include "common/paged/kernels/decode/join.h"
#include "common/paged/kernels/decode_wgmma/bytes.h"
#include "common/paged/kernels/decode_wgmma/new_tokens.h"
#include "common/paged/kernels/decode_wgmma/setup.h"
#include "common/paged/kernels/decode_wgmma/turns.h"

namespace {

using Mma_S = Mma<OPERAND_TYPE, BLOCK_C>;
using Mma_O = Mma<OPERAND_TYPE, DIM>;

// Of a tile that two workers share: what a consumer's thread 0 tells its other threads; and whether rows that this
// worker has written must be computed anew, in the worker's first and last tile.
__shared__ unsigned answers[CONSUMERS];
__shared__ bool kept_sums[2];

struct Consumer {
  const Params& p;
  const Line line{p};
  const int index;  // the number of the consumer
  const long long blocks_of_line;
  const int thread = threadIdx.x % WARPGROUP, lane = thread % WARP;
  const int group = TURNS == 1 ? index : 0, its_turn = TURNS == 1 ? 0 : index;  // among the rows, among the blocks
  const int member = its_turn * WARPGROUP + thread;     // among the threads of the consumers with the same rows
  const int tile_row = group * 64;                      // the first of the consumer's rows
  const int first_row = tile_row + thread / WARP * 16;  // of the warp's 16 rows
  const int column = thread % 4 * 2;                    // the first of the thread's columns, of each group of 8
  const int first_slot = its_turn * RING_SLOTS;         // of the consumer's buffers of operands
  unsigned char* const panels = memory + group * PANELS * Q_PANEL_BYTES;  // of the consumer's rows of Q
  const float scale_log2 = p.scale * log2_e;
  float s[BLOCK_C / 2];
  unsigned weights[BLOCK_C / 4];
  float sum[2], shift[2], alpha[2];  // of the thread's two rows
  bool grew;                         // whether outputs must be multiplied by alpha
  Row rows[2];
  int begin[2], end[2];  // keys that the rows see
  float q_scale[2];      // SCALES_Q: by which the rows' scores are multiplied
  int entry = its_turn;  // BYTES: of the block's scales

  DEVICE Consumer(const Params& params, int number, long long blocks)
      : p(params), index(number), blocks_of_line(blocks) {}

  DEVICE void sync_consumer() const {
    __syncwarp();
    named_sync(first_consumer + index, WARPGROUP);
  }
  DEVICE void sync_team() const {
    if constexpr (TURNS == 1) return sync_consumer();
    __syncwarp();
    named_sync(all_consumers, TEAM_THREADS);
  }
  DEVICE void release(int number) const {
    if (thread == 0) barriers().empty[number].arrive();
  }

  // Loads the consumer's rows of Q, rotated, if new tokens are. Many loads are in flight at once. The
  // producers' first copies wait until the first tile's loads are issued: after a ring full of copies the loads would
  // take 14 us on an H200.
  DEVICE void load_queries(const Place& here, bool first_tile) const {
    constexpr int row_units = PANELS * PANEL_ROW_BYTES / 16, units_there = HEAD_DIM / 8;  // of 16 bytes
    constexpr int rounds = 64 * row_units / TEAM_THREADS;
    constexpr int at_once = rounds > 8 / TURNS ? rounds / 2 : rounds;
    for (int first = 0; first < rounds; first += at_once) {
      uint4 elements[at_once];
      UNROLL for (int i = 0; i < at_once; ++i) {
        const int unit = member + (first + i) * TEAM_THREADS, at = unit % row_units;
        const Row row = row_of(p, here, tile_row + unit / row_units);
        elements[i] = uint4{};
        if (row.exists && at < units_there) {
          const long long from =
              here.batch * p.q_strides.batch + row.head * p.q_strides.head + row.query * p.q_strides.row;
          elements[i] = *reinterpret_cast<const uint4*>(static_cast<const char*>(p.q) + from * 2 + at * 16);
        }
      }
      if (first_tile && first + at_once == rounds) named_arrive(queries_asked, CONSUMER_THREADS + PRODUCERS * WARP);
      UNROLL for (int i = 0; i < at_once; ++i) {
        const int unit = member + (first + i) * TEAM_THREADS, number = unit / row_units, at = unit % row_units;
        *reinterpret_cast<uint4*>(panels + at / 8 * Q_PANEL_BYTES + number * PANEL_ROW_BYTES +
                                  (at % 8 ^ number % 8) * 16) = elements[i];
      }
    }
    if constexpr (APPENDS && ROTARY_DIM > 0) {
      sync_team();
      constexpr int pairs = ROTARY_DIM / 2;
#pragma unroll(HEAD_DIM > 128 ? 1 : 4)
      for (int unit = member; unit < 64 * pairs; unit += TEAM_THREADS) {
        const int number = unit / pairs;
        const Row row = row_of(p, here, tile_row + number);
        if (!row.exists) continue;
        Pair pair = pair_of(unit % pairs);
        unsigned short* const low = element_at(panels, Q_PANEL_BYTES, number, pair.low);
        unsigned short* const high = element_at(panels, Q_PANEL_BYTES, number, pair.high);
        pair.x = load_float<IN_TYPE>(low, 0);
        pair.y = load_float<IN_TYPE>(high, 0);
        turn(p, pair, unit % pairs, here.keys - p.q_len + row.query);
        store_float<IN_TYPE>(low, 0, pair.x);
        store_float<IN_TYPE>(high, 0, pair.y);
      }
    }
  }

  // Converts the consumer's rows of Q in threadgroup memory from bf16 to f16. Divides each row by the largest power of
  // 2 that is not above the row's largest magnitude.
  DEVICE void scale_queries() const {
    constexpr int pairs = HEAD_DIM / 2, turns = (pairs + WARP - 1) / WARP;
#pragma unroll 2
    for (int i = 0; i < 64 * WARP / TEAM_THREADS; ++i) {
      const int number = member / WARP + i * (TEAM_THREADS / WARP);
      unsigned mine[turns], largest = 0;
      UNROLL for (int j = 0; j < turns; ++j) {
        const int pair = lane + j * WARP;
        mine[j] = 0;
        if (pair < pairs) mine[j] = *reinterpret_cast<unsigned*>(element_at(panels, Q_PANEL_BYTES, number, pair * 2));
        largest = max(largest, max(mine[j] & 0x7fff, mine[j] >> 16 & 0x7fff));
      }
      const unsigned exponent = min(max(__reduce_max_sync(~0u, largest) >> 7, 1u), 253u);
      const float down = __uint_as_float((254 - exponent) << 23);
      UNROLL for (int j = 0; j < turns; ++j) {
        const int pair = lane + j * WARP;
        const float low = __uint_as_float(mine[j] << 16), high = __uint_as_float(mine[j] & 0xffff0000u);
        if (pair < pairs) {
          *reinterpret_cast<unsigned*>(element_at(panels, Q_PANEL_BYTES, number, pair * 2)) =
              pack<F16>(low * down, high * down);
        }
      }
      if (lane == 0) scales_of_rows()[tile_row + number] = __uint_as_float(exponent << 23);
    }
  }

  // Loads the consumer's rows of Q, and sets what belongs to the rows.
  DEVICE void begin_tile(const Place& here, bool first_tile) {
    load_queries(here, first_tile);
    if constexpr (SCALES_Q) {
      sync_team();
      scale_queries();
    }
    UNROLL for (int r = 0; r < 2; ++r) {
      shift[r] = lowest_score;
      sum[r] = 0;
      rows[r] = row_of(p, here, first_row + lane / 4 + 8 * r);
      const KeyRange seen = visible_keys(rows[r].query, line.context_of(here.batch, rows[r].head, here.keys));
      begin[r] = seen.begin;
      end[r] = min(seen.end, here.keys);
    }
    fence_stores();
    sync_team();
    if constexpr (SCALES_Q) {
      UNROLL for (int r = 0; r < 2; ++r) q_scale[r] = scales_of_rows()[first_row + lane / 4 + 8 * r];
    }
  }

  // Issues S = Q K^T, 16 columns of Q and K a step. If no block is left, this function still issues the first step, and
  // nobody uses the result: if a branch could skip all products of S, ptxas would do all products one after the other.
  DEVICE void multiply_scores(int number, bool block_exists) {
    const unsigned q_tile = operand(panels), k_block = operand(slot(number));
    mma_fence();
    Mma_S::shared(q_tile, k_block, false);
    if (block_exists) {
      mma_fence();
      UNROLL for (int step = 1; step < DIM / 16; ++step) {
        const int panel = step / 4, bytes = step % 4 * 32;
        Mma_S::shared(q_tile + (panel * Q_PANEL_BYTES + bytes) / 16, k_block + (panel * KV_PANEL_BYTES + bytes) / 16,
                      true);
      }
      mma_commit();
    } else {
      mma_commit();
    }
  }

  // Issues O += P V, or O = P V for the first block of the worker's part of a tile.
  DEVICE void multiply_outputs(int number, bool first_block) {
    const unsigned v = operand(slot(number), KV_PANEL_BYTES);
    mma_fence();
    UNROLL for (int step = 0; step < BLOCK_C / 16; ++step) {
      Mma_O::registers(weights + 4 * step, v + step * 16 * PANEL_ROW_BYTES / 16, step > 0 || !first_block);
    }
    mma_commit();
  }

  // Writes zeros to the block's rows of V from `first` on. They belong to no key. Another consumer writes the same.
  DEVICE void clear_values(int number, int first) {
    const int units = (BLOCK_C - first) * 8;
    for (int unit = thread; unit < units * PANELS; unit += WARPGROUP) {
      *reinterpret_cast<uint4*>(slot(number) + unit / units * KV_PANEL_BYTES + first * PANEL_ROW_BYTES +
                                unit % units * 16) = uint4{};
    }
    fence_stores();
    sync_consumer();
  }

  DEVICE void finish_scores(const Place& here, int first_key) {
    read_s(s);
    if constexpr (BYTES) {
      const float* const k_scales = scales_of_block(entry);
      UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) {
        float factor = k_scales[i / 4 * 8 / BOX_KEYS];
        if constexpr (SCALES_Q) factor *= q_scale[i / 2 % 2];
        s[i] = __fmul_rn(s[i], FOLD ? factor * scale_log2 : factor);
      }
    }
    const bool masked =
        first_key + BLOCK_C > min(end[0], end[1]) || (!KEYS_BEGIN_AT_ZERO && first_key < max(begin[0], begin[1]));
    UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) {
      if constexpr (FOLD) {
        if (!BYTES) s[i] = __fmul_rn(s[i], scale_log2);  // rounded, as the shift is, before the subtraction
      } else {
        const int r = i / 2 % 2, key = first_key + i / 4 * 8 + column + i % 2;
        s[i] =
            score(__fmul_rn(s[i], p.scale), rows[r].query, key, line.context_of(here.batch, rows[r].head, here.keys));
      }
    }
    if (masked) {
      UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) {
        const int r = i / 2 % 2, key = first_key + i / 4 * 8 + column + i % 2;
        if (key >= end[r] || (!KEYS_BEGIN_AT_ZERO && key < begin[r])) s[i] = -infinity();
      }
    }
  }

  // Turns scores into weights, in place, and adds the weights to the rows' sums (decode/softmax.h says when shifts are
  // raised). With a cache of 8 bits multiplies the weights by V's scales.
  DEVICE void softmax() {
    constexpr float slack = FOLD ? 8 : 8 * ln_2, smallest_scale = 1e-30f;
    const float* const v_scales = BYTES ? scales_of_block(entry) + BOXES : nullptr;
    float part[4] = {-infinity(), -infinity(), -infinity(), -infinity()};
    if constexpr (BYTES) {
      UNROLL for (int box = 0; box < BOXES; ++box) {
        constexpr int of_box = BOX_KEYS / 2;
        const float scale = (FOLD ? 1 : ln_2) * __log2f(fmaxf(v_scales[box], smallest_scale));
        float most[4] = {s[box * of_box], s[box * of_box + 1], s[box * of_box + 2], s[box * of_box + 3]};
        UNROLL for (int i = 4; i < of_box; ++i) most[i % 4] = fmaxf(most[i % 4], s[box * of_box + i]);
        UNROLL for (int i = 0; i < 4; ++i) part[i] = fmaxf(part[i], most[i] + scale);
      }
    } else {
      UNROLL for (int i = 0; i < 4; ++i) part[i] = s[i];
      UNROLL for (int i = 4; i < BLOCK_C / 2; ++i) part[i % 4] = fmaxf(part[i % 4], s[i]);
    }
    const float largest[2] = {fmaxf(part[0], part[1]), fmaxf(part[2], part[3])};
    grew = __any_sync(~0u, largest[0] > shift[0] + slack || largest[1] > shift[1] + slack);
    if (grew) {
      UNROLL for (int r = 0; r < 2; ++r) {
        const float larger = fmaxf(maximum_of_quad(largest[r]), shift[r]);
        alpha[r] = power(shift[r] - larger);
        shift[r] = larger;
        sum[r] *= alpha[r];
      }
    }
    UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) {
      s[i] = power(s[i] - shift[i / 2 % 2]);
      sum[i / 2 % 2] += s[i];
      if constexpr (BYTES) s[i] *= v_scales[i / 4 * 8 / BOX_KEYS];
    }
  }

  // The consumer's `blocks` blocks of a tile: every TURNS-th from block `first` of the worker's on, counted from
  // `here`. An iteration issues Q K^T of a block, and P V of the consumer's block before it. After the last block comes
  // one more iteration, which has no Q K^T.
  DEVICE void attend(const Place& here, int first, int blocks, Ring<RING_SLOTS>& ring) {
    Barriers& bars = barriers();
    Ring<RING_SLOTS> values;  // V of the block before
#pragma unroll 1
    for (int i = 0;; ++i) {
      const int first_key = (here.first_block + here.block + first + i * TURNS) * BLOCK_C;
      const int keys_slot = first_slot + ring.index, values_slot = first_slot + values.index;
      const bool has_new = APPENDS && first_key + BLOCK_C > here.keys - p.q_len;
      if (i < blocks) {
        bars.full[keys_slot].wait(ring.parity);
        if (has_new) take_new<true>(p, here, keys_slot, first_key);
      }
      multiply_scores(keys_slot, i < blocks);
      if (i == 0) {
        mma_wait<0>();
      } else {
        bars.full[values_slot].wait(values.parity);
        const int before = first_key - TURNS * BLOCK_C, there = here.keys - before;  // keys of the block before
        if (APPENDS && there - p.q_len < BLOCK_C) take_new<false>(p, here, values_slot, before);
        if (there < BLOCK_C) clear_values(values_slot, max(there, 0));
        multiply_outputs(values_slot, i == 1);
        mma_wait<1>();
      }
      if (i == blocks) break;
      release(keys_slot);
      finish_scores(here, first_key);
      softmax();
      // A branch that is never taken, on the sums. Without it ptxas moves the wait for P V before the exponentials.
      if (sum[0] < 0 || sum[1] < 0) __trap();
      mma_wait<0>();
      if (i > 0) release(values_slot);
      UNROLL for (int j = 0; j < BLOCK_C / 4; ++j) weights[j] = pack<OPERAND_TYPE>(s[2 * j], s[2 * j + 1]);
      if (grew && i > 0) scale_o<DIM / 2>(alpha);
      if constexpr (BYTES) entry = entry + TURNS < SCALE_ENTRIES ? entry + TURNS : entry + TURNS - SCALE_ENTRIES;
      ring.advance();
      values = ring;
      ring.advance();
    }
    mma_wait<0>();
    if (TURNS == 1 || blocks > 0) release(first_slot + values.index);
  }

  // Passes, or with `takes` adds, elements of O from FROM on, as many at once as the memory of Q has room for.
  template <int FROM = 0>
  DEVICE void join_outputs(bool takes, const float (&factor)[2]) const {
    constexpr int all = DIM / 2, end = all - FROM < PASSED_AT_ONCE ? all : FROM + PASSED_AT_ONCE;
    float4* const at = reinterpret_cast<float4*>(memory) + thread;
    if (!takes) pass_o<FROM, end>(at);
    sync_team();
    if (takes) add_passed<FROM, end>(at, factor);
    if constexpr (end < all) {
      sync_team();
      join_outputs<end>(takes, factor);
    }
  }

  // Adds another shift and sum to those of row r. Returns the factor for the other's O. The consumer's own O must be
  // multiplied by alpha.
  DEVICE float add_stats(int r, float2 stats) {
    const float larger = fmaxf(shift[r], stats.x), factor = power(stats.x - larger);
    alpha[r] = power(shift[r] - larger);
    shift[r] = larger;
    sum[r] = sum[r] * alpha[r] + stats.y * factor;
    return factor;
  }

  // Joins the results of the two consumers of a tile: the one that `takes` adds the other's results to its own.
  DEVICE void join_turns(bool takes) {
    float factor[2]{};
    UNROLL for (int r = 0; r < 2; ++r) {
      if (!takes && thread % 4 == 0) passed_stats[first_row + lane / 4 + 8 * r] = make_float2(shift[r], sum[r]);
    }
    sync_team();  // no thread reads Q any more
    if (takes) {
      UNROLL for (int r = 0; r < 2; ++r) factor[r] = add_stats(r, passed_stats[first_row + lane / 4 + 8 * r]);
      scale_o<DIM / 2>(alpha);
    }
    join_outputs(takes, factor);
  }

  // Rounds results from column group GROUP on, and stores them to the consumer's panels of Q, whose last use is over.
  template <int GROUP = 0>
  DEVICE void round_outputs(unsigned to, unsigned (&sums)[2]) const {
    store_o<OUT_TYPE, 4 * GROUP>(to ^ GROUP % 8 * 16, sums);
    constexpr int next = GROUP + 2;
    if constexpr (next < DIM / 8) round_outputs<next>(next % 8 == 0 ? to + Q_PANEL_BYTES : to, sums);
  }

  DEVICE void keep_for_later(const Place& here, bool shared) const {
    if (shared) {
      kept_sums[here.block == 0] = true;
    } else {
      p.arrived[line.counter_of(here, 0)] = kept;
    }
    some_kept = true;
  }

  // Writes the rows to O. Rows of 16 bits go through threadgroup memory, so that a warp writes whole rows. `shared`:
  // another worker has added to the rows.
  DEVICE void write_outputs(const Place& here, bool shared) {
    float factor[2];
    UNROLL for (int r = 0; r < 2; ++r) {
      factor[r] = finish_row(p, line, here, rows[r], shift[r], sum[r], rows[r].exists && thread % 4 == 0);
    }
    if constexpr (OUT_TYPE == F32) {
      float o[DIM / 2];
      read_o(o);
      UNROLL for (int r = 0; r < 2; ++r) {
        if (!rows[r].exists) continue;
        const long long at = output_at(p, here, rows[r]) + column;
        float zeros = 0;  // NaN where a result is not finite
        UNROLL for (int j = 0; j < DIM / 8; ++j) {
          const float first = o[4 * j + 2 * r] * factor[r], second = o[4 * j + 2 * r + 1] * factor[r];
          zeros += 0 * first + 0 * second;
          if (DIM != HEAD_DIM && j * 8 >= HEAD_DIM) continue;
          *reinterpret_cast<float2*>(static_cast<float*>(p.o) + at + j * 8) = make_float2(first, second);
        }
        if (!(zeros == 0)) keep_for_later(here, shared);
      }
    } else {
      const int row = first_row % 64 + lane % 16;
      unsigned sums[2]{};
      scale_o<DIM / 2>(factor);
      sync_consumer();  // no thread reads Q any more
      round_outputs(shared_address(panels) + row * PANEL_ROW_BYTES + (row % 8 ^ lane / 16) * 16, sums);
      if (!finite_pairs<OUT_TYPE>(sums[0], sums[1])) keep_for_later(here, shared);
      sync_consumer();
      constexpr int row_units = HEAD_DIM / 8;  // of 16 bytes
      for (int unit = thread; unit < 64 * row_units; unit += WARPGROUP) {
        const int number = unit / row_units, at = unit % row_units;
        const Row its_row = row_of(p, here, tile_row + number);
        if (!its_row.exists) break;
        *reinterpret_cast<uint4*>(static_cast<unsigned short*>(p.o) + output_at(p, here, its_row) + at * 8) =
            *reinterpret_cast<const uint4*>(element_at(panels, Q_PANEL_BYTES, number, at * 8));
      }
    }
  }

  // Stores the rows as a part.
  DEVICE void store_part(const Place& here) const {
    float o[DIM / 2];
    read_o(o);
    UNROLL for (int r = 0; r < 2; ++r) {
      if (!rows[r].exists) continue;
      const long long at = part_number(blockIdx.x, here.block == 0) * ROWS + first_row + lane / 4 + 8 * r;
      UNROLL for (int j = 0; j < DIM / 8; ++j) {
        if (DIM != HEAD_DIM && j * 8 >= HEAD_DIM) continue;
        *reinterpret_cast<float2*>(p.part_o + at * HEAD_DIM + j * 8 + column) =
            make_float2(o[4 * j + 2 * r], o[4 * j + 2 * r + 1]);
      }
      if (thread % 4 == 0) reinterpret_cast<float2*>(p.part_stats)[at] = make_float2(shift[r], sum[r]);
    }
  }

  // Adds rows of a part, from element FROM of O on. Many loads are in flight at once.
  template <int FROM = 0>
  DEVICE void add_part(const float* part, const float (&factor)[2]) const {
    constexpr int end = DIM / 2 - FROM < 32 ? DIM / 2 : FROM + 32;
    float x[4][8];
    UNROLL for (int i = 0; i < end - FROM; i += 2) {
      const int r = i / 2 % 2, at = (FROM + i) / 4 * 8;
      float2 pair{};
      if (rows[r].exists && (DIM == HEAD_DIM || at < HEAD_DIM)) {
        pair = __ldcg(reinterpret_cast<const float2*>(part + r * 8 * HEAD_DIM + at));
      }
      x[i / 8][i % 8] = pair.x;
      x[i / 8][i % 8 + 1] = pair.y;
    }
    add_o<FROM>(x[0], factor);
    if constexpr (FROM + 8 < end) add_o<FROM + 8>(x[1], factor);
    if constexpr (FROM + 16 < end) add_o<FROM + 16>(x[2], factor);
    if constexpr (FROM + 24 < end) add_o<FROM + 24>(x[3], factor);
    if constexpr (end < DIM / 2) add_part<end>(part, factor);
  }

  // Adds the part of worker `other`, the only other worker of the tile.
  DEVICE void add_other(const Place& here, int other) {
    const long long row = part_number(other, here.block != 0) * ROWS + first_row + lane / 4;
    float factor[2]{};
    UNROLL for (int r = 0; r < 2; ++r) {
      alpha[r] = 1;
      if (!rows[r].exists) continue;
      factor[r] = add_stats(r, __ldcg(reinterpret_cast<const float2*>(p.part_stats) + row + 8 * r));
    }
    scale_o<DIM / 2>(alpha);
    add_part(p.part_o + row * HEAD_DIM + column, factor);
  }

  // Returns whether thread 0 gets a number other than 0 from `ask`.
  template <typename Ask>
  DEVICE bool asks(const Ask& ask) const {
    if (thread == 0) answers[index] = ask();
    sync_consumer();
    return answers[index] != 0;
  }

  // Writes the rows, or leaves them as a part. Of two workers the first to be done leaves a part, and the other adds it
  // to its own results. Each consumer does so on its own.
  DEVICE void leave_tile(const Place& here) {
    UNROLL for (int r = 0; PAGE_SIZE > 0 && r < 2; ++r) {
      if (some_lost) sum[r] = not_a_number();
    }
    const Parts parts = parts_of(p, here, blocks_of_line);
    const bool shared = parts.count() == 2;
    unsigned* const arrived = p.arrived + line.counter_of(here, shared ? group : 0);
    bool writes = parts.count() == 1;
    if (shared) writes = asks([&] { return load_flag(arrived); });
    if (!writes) {
      store_part(here);
      if (shared) {
        sync_consumer();
        writes = asks([&] {
          __threadfence();
          const unsigned before = atomicAdd(arrived, 1);
          __threadfence();
          return before;
        });
      } else {
        named_sync(BLOCK_THREADS == WARPGROUP ? first_consumer + index : all_consumers, BLOCK_THREADS);
        if (thread == 0 && group == 0) say_arrived(p, line, here, parts);
      }
    }
    if (!writes) return;
    if (shared) {
      add_other(here, here.block == 0 ? parts.last : parts.first);
      if (thread == 0) *arrived = 0;
    }
    write_outputs(here, shared);
  }

  DEVICE void run(Place here, long long count) {
    Ring<RING_SLOTS> ring;
    int first = its_turn;  // of the consumer's blocks, counted from `here`
#pragma unroll 1
    for (bool first_tile = true; count > 0; first_tile = false) {
      const int blocks = min(count, static_cast<long long>(here.blocks - here.block));
      begin_tile(here, first_tile);
      attend(here, first, (blocks - first + TURNS - 1) / TURNS, ring);
      UNROLL for (int r = 0; r < 2; ++r) sum[r] = sum_of_quad(sum[r]);
      if constexpr (TURNS > 1) {
        if (blocks > 1) join_turns(first == 0);
      }
      if (first == 0) leave_tile(here);
      sync_team();  // the next tile's Q may be stored
      first = (first + blocks) % TURNS;
      count -= blocks;
      here.index += blocks - 1;
      here.block += blocks - 1;
      line.advance(here);
    }
  }

  /// The consumers' threads, for join.h.
  struct Helpers {
    static constexpr int WARPS = CONSUMER_THREADS / WARP, RESIDENT = 1;
    DEVICE static int warp() { return threadIdx.x / WARP - WARPGROUP / WARP; }
    DEVICE static bool first_thread() { return threadIdx.x == WARPGROUP; }
    DEVICE static void sync() { named_sync(all_consumers, CONSUMER_THREADS); }
  };

  // After the worker's last block: joins tiles of several workers, and computes rows anew. `place`: the first of the
  // worker's `count` blocks.
  DEVICE void finish_share(Place place, long long count) const {
    Helpers::sync();
    join_shared_tiles<Helpers>(p, line);
    if (!some_kept) return;
    const long long end = place.index + count;
#pragma unroll 1
    while (place.index < end) {
      const int workers = parts_of(p, place, blocks_of_line).count();
      unsigned& mark = p.arrived[line.counter_of(place, 0)];
      const bool is_kept = workers == 2 ? kept_sums[place.block == 0] : workers == 1 && mark == kept;
      Helpers::sync();  // all threads have read the mark
      if (is_kept) {
        if (workers == 1 && Helpers::first_thread()) mark = 0;
        write_tile_anew(p, place, Helpers::warp(), Helpers::WARPS);
      }
      place.index += place.blocks - place.block - 1;
      place.block = place.blocks - 1;
      line.advance(place);
    }
  }
};

}  // namespace
