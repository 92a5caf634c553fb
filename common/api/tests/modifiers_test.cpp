// Engine on the device under test: the modifiers of attention, above all over caches, against the oracle. Two tests
// break kernels on purpose, and must then see wrong outputs.
#include "common/attention/modifiers.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "common/api/engine.h"
#include "common/api/tests/caches.h"
#include "common/api/tests/device_engine.h"
#include "common/data/tensor.h"
#include "common/paged/decode.h"
#include "common/testing/mutated_sources.h"
#include "common/testing/some.h"

namespace attn::modified {
namespace {

constexpr int64_t q_heads = 6, kv_heads = 2, width = 64;  // three query heads share a key/value head
constexpr double hidden = -std::numeric_limits<double>::infinity();

/// The modifiers of a call. An empty table means that the call has no such table.
struct Rules {
  double soft_cap = 0;
  int64_t window_left = -1;
  bool alibi = false;
  std::vector<float> slopes = {}, sinks = {};
  std::vector<int> starts = {};
  std::vector<int64_t> tree = {};  // of all sequences

  /// The rules in double precision, for a sequence whose last query stands at its last key.
  ScoreFunction scores(int64_t sequence, int64_t q_len, int64_t kv_len) const {
    const std::vector<double> usual = alibi_slopes(q_heads);
    return each_score([=, *this](double s, int64_t, int64_t head, int64_t q, int64_t k) {
      const auto at = static_cast<size_t>(head);
      const int64_t own = q + kv_len - q_len;
      if (soft_cap != 0) s = soft_cap * std::tanh(s / soft_cap);
      if (alibi) s -= (slopes.empty() ? usual[at] : static_cast<double>(slopes[at])) * static_cast<double>(own - k);
      if (window_left >= 0 && k < own - window_left) return hidden;
      if (!tree.empty() && own < 0) return hidden;
      const int64_t token = k - (kv_len - q_len);
      if (!tree.empty() && token >= 0) {
        const auto word = static_cast<uint64_t>(tree[static_cast<size_t>(sequence * q_len + q)]);
        if ((word >> token & 1) == 0) return hidden;
      }
      if (!starts.empty() && k < starts[static_cast<size_t>(sequence)]) return hidden;
      return s;
    });
  }
  SinkFunction sink() const {
    if (sinks.empty()) return {};
    return [sinks = sinks](int64_t, int64_t head) { return static_cast<double>(sinks[static_cast<size_t>(head)]); };
  }
};

struct Named {
  const char* name;
  Rules rules;
};

/// Starts for sequences of 37, 130, 1 and 0 keys. The third start hides the only key of its sequence.
const std::vector<int> some_starts = {3, 64, 1, 0};

std::vector<Named> single_rules() {
  return {{"window_left", {.window_left = 5}},
          {"soft_cap", {.soft_cap = 2.5}},
          {"alibi", {.alibi = true}},
          {"alibi_slopes", {.alibi = true, .slopes = {0.5f, 0.25f, 0.1f, 1, 0, 2}}},
          {"sinks", {.sinks = {0.5f, -1, 2, 0, 1, -0.25f}}},
          {"starts", {.starts = some_starts}}};
}
Rules all_rules() {
  return {.soft_cap = 3,
          .window_left = 70,
          .alibi = true,
          .slopes = {},
          .sinks = {0.5f, -1, 2, 0, 1, -0.25f},
          .starts = some_starts};
}

/// Returns words for the new tokens of four sequences. Each token sees itself and the tokens that its parent sees.
std::vector<int64_t> some_trees(int64_t q_len) {
  std::vector<int64_t> words;
  for (int64_t sequence = 0; sequence < 4; ++sequence) {
    for (int64_t i = 0; i < q_len; ++i) {
      const int64_t parent = i - 1 - (5 * i + sequence) % 4;
      const uint64_t seen =
          parent < 0 ? 0 : static_cast<uint64_t>(words[static_cast<size_t>(sequence * q_len + parent)]);
      words.push_back(static_cast<int64_t>(seen | uint64_t{1} << i));
    }
  }
  return words;
}

/// Words for three new tokens of four sequences: tokens see later tokens, do not see themselves, or see no new token.
const std::vector<int64_t> any_words = {-1, 0, 2, 4, 1, -8, 6, 5, 0, 7, 7, 7};

/// A call over a cache of up to four sequences.
struct CacheCase {
  bool prefill = false;
  int64_t q_len = 3;
  int64_t page = 16;  // tokens; 0: a contiguous cache
  DType dtype = DType::f32, cache_dtype = DType::f32;
  bool appends = false;
  int64_t sequences = 4;
  int64_t capacity = 144;  // tokens of a sequence

  std::string text() const {
    return fmt::format("{} of {} queries, page {}, {} over {}{}, {} sequences, capacity {}",
                       prefill ? "prefill" : "decode", q_len, page, attn::name(dtype), attn::name(cache_dtype),
                       appends ? ", appended" : "", sequences, capacity);
  }
};

class DeviceModifiersTest : public test::EngineOnDevice {
 protected:
  template <typename T>
  const T* table(const std::vector<T>& values) {
    return values.empty() ? nullptr : on_device(values);
  }
  template <typename Call>
  void set_rules(Call& call, const Rules& rules) {
    call.soft_cap = rules.soft_cap;
    call.window_left = rules.window_left;
    call.alibi = rules.alibi;
    call.alibi_slopes = table(rules.slopes);
    call.sinks = table(rules.sinks);
    call.starts = table(rules.starts);
  }

  /// Calls Engine::flash(), and returns the largest difference from the oracle. `bias_axes` names the axes of a bias,
  /// letters of "bhqk"; an empty `bias_axes` means no bias. -infinity in the bias hides some pairs, and all pairs of
  /// some rows.
  double flash(const Rules& rules, int64_t q_len, int64_t kv_len, bool causal, DType dtype,
               const std::vector<int>& lengths = {}, const std::string& bias_axes = {}) {
    const auto batch = static_cast<int64_t>(std::max(rules.starts.size(), size_t{1}));
    test::DrawnFlash made = draw_flash({batch, q_heads, kv_heads, q_len, kv_len, width, causal}, dtype);
    FlashCall& call = made.call;
    call.lengths = table(lengths);
    set_rules(call, rules);
    std::vector<float> bias;
    const int64_t whole[] = {batch, q_heads, q_len, (kv_len + 3) / 4 * 4};
    for (size_t axis = 0; axis < 4; ++axis) {
      call.bias_sizes[axis] = bias_axes.find("bhqk"[axis]) == std::string::npos ? 1 : whole[axis];
    }
    const int64_t(&sizes)[4] = call.bias_sizes;
    if (!bias_axes.empty()) {
      for (int64_t i = 0; i < sizes[0] * sizes[1] * sizes[2] * sizes[3]; ++i) {
        const bool whole_row = sizes[3] > 1 && i / sizes[3] % 7 == 3;
        bias.push_back(whole_row || i * 7919 % 11 < 3 ? -INFINITY : 0.25f * static_cast<float>(i * 7919 % 13));
      }
      call.bias = on_device(bias);
    }
    engine_->flash(call);
    const ScoreFunction all = [&](std::span<double> scores, int64_t sequence, int64_t head, int64_t row) {
      rules.scores(sequence, q_len, kv_len)(scores, sequence, head, row);
      for (size_t key = 0; !bias.empty() && key < scores.size(); ++key) {
        const int64_t at[] = {sequence, head, row, static_cast<int64_t>(key)};
        int64_t index = 0;
        for (int axis = 0; axis < 4; ++axis) index = index * sizes[axis] + (sizes[axis] == 1 ? 0 : at[axis]);
        scores[key] += static_cast<double>(bias[static_cast<size_t>(index)]);
      }
      for (size_t key = 0; !lengths.empty() && key < scores.size(); ++key) {
        if (static_cast<int>(key) >= lengths[static_cast<size_t>(sequence)]) scores[key] = hidden;
      }
    };
    return worst_of(made, all, rules.sink());
  }

  struct RaggedCase {
    bool causal = false;
    int64_t prefix = 0;
    DType dtype = DType::f32;
  };
  /// Runs attention over sequences that lie one after the other. Returns the largest difference from the oracle.
  double ragged(const Rules& rules, const RaggedCase& given) {
    const std::vector<int> queries = {0, 5, 5, 6, 76, 76, 109, 149}, keys = {0, 9, 13, 14, 84, 91, 91, 121};
    constexpr int64_t rest = 3;  // tokens after the last sequence
    const int64_t q_len = queries.back() + rest, kv_len = keys.back() + rest;
    // The oracle sees one long sequence, in which the pairs of a query and a key of different sequences are hidden.
    test::DrawnFlash made = draw_flash({1, q_heads, kv_heads, q_len, kv_len, width}, given.dtype);
    FlashCall& call = made.call;
    call.causal = given.causal;
    call.prefix = given.prefix;
    call.cu_seqlens_q = on_device(queries);
    call.cu_seqlens_k = on_device(keys);
    call.sequences = static_cast<int64_t>(queries.size()) - 1;
    set_rules(call, rules);
    engine_->flash(call);
    const ScoreFunction all = [&](std::span<double> scores, int64_t, int64_t head, int64_t row) {
      const auto after = std::ranges::upper_bound(queries, static_cast<int>(row));
      const auto at = static_cast<size_t>(after - queries.begin());
      const int64_t first = after == queries.end() ? kv_len : keys[at - 1],
                    end = after == queries.end() ? kv_len : keys[at];
      for (int64_t key = 0; key < kv_len; ++key) {
        if (key < first || key >= end) scores[static_cast<size_t>(key)] = hidden;
      }
      if (first >= end) return;
      const int64_t own_row = row - queries[at - 1], rows = queries[at] - queries[at - 1];
      const std::span<double> own = scores.subspan(static_cast<size_t>(first), static_cast<size_t>(end - first));
      rules.scores(0, rows, end - first)(own, 0, head, own_row);
      for (int64_t key = 0; given.causal && key < end - first; ++key) {
        if (key > own_row + end - first - rows && key >= given.prefix) own[static_cast<size_t>(key)] = hidden;
      }
    };
    return worst_of(made, all, rules.sink());
  }

  /// Calls decode() or prefill() over a cache. Returns the largest difference from the oracle, or infinity if the cache
  /// lacks a token that the call appended.
  double over_cache(const Rules& rules, const CacheCase& given) {
    constexpr int64_t longest = 130;
    const int64_t batch = given.sequences, rows = given.q_len;
    std::vector<int> lengths = {37, longest, 1, 0};
    lengths.resize(static_cast<size_t>(batch));
    const test::CachePlaces places(batch, given.capacity, given.page, longest);
    const bool scaled = has_scales(given.cache_dtype);
    /// K or V.
    struct Side {
      Tensor read, whole;  // the elements as the kernel reads them; the cache after the call
      std::vector<float> scales;
      TensorView cache, fresh;
    };
    const auto side = [&](uint64_t stream) {
      Side made{.read = random_tensor(batch, kv_heads, longest, width, scaled ? DType::f32 : given.dtype, Layout::bhsd,
                                      1, stream),
                .whole = Tensor::zeros(places.pages, kv_heads, places.page, width, given.cache_dtype, Layout::bhsd),
                .scales = {},
                .cache = {},
                .fresh = {}};
      for (int64_t i = 0; scaled && i < places.pages * kv_heads; ++i) {
        made.scales.push_back(0.02f + 0.001f * static_cast<float>(i % 5));
      }
      Tensor before = made.whole, tokens = Tensor::zeros(batch, kv_heads, rows, width, given.dtype, Layout::bhsd);
      places.for_tokens(lengths, kv_heads, [&](int64_t b, int64_t h, int64_t key, int64_t page, int64_t slot) {
        const double scale = scaled ? made.scales[static_cast<size_t>(page * kv_heads + h)] : 1;
        test::copy_row(made.whole, {page, h, slot}, made.read, {b, h, key}, 1 / scale);
        test::copy_row(made.read, {b, h, key}, made.whole, {page, h, slot}, scale);
      });
      // Prefill reads a copy of the cache in Q's type.
      if (scaled && given.prefill) made.read = convert(made.read, given.dtype, Layout::bhsd);
      places.for_tokens(lengths, kv_heads, [&](int64_t b, int64_t h, int64_t key, int64_t page, int64_t slot) {
        const int64_t newest = key - lengths[static_cast<size_t>(b)] + rows;
        const bool missing = given.appends && newest >= 0;  // the call appends the token
        test::copy_row(before, {page, h, slot}, made.whole, {page, h, slot}, missing ? NAN : 1);
        if (missing) test::copy_row(tokens, {b, h, newest}, made.read, {b, h, key});
      });
      made.cache = on_device(before);
      if (given.appends) made.fresh = on_device(tokens);
      return made;
    };
    const Tensor q = random_tensor(batch, q_heads, rows, width, given.dtype, Layout::bhsd, 1, 0);
    const Side k = side(1), v = side(2);
    CacheCall call;
    call.q = on_device(q);
    call.k = k.cache;
    call.v = v.cache;
    call.o = drawn(batch, q_heads, rows, width, 3);
    call.lse = on_device(std::vector<float>(static_cast<size_t>(batch * q_heads * rows), NAN));
    call.lengths = on_device(lengths);
    if (given.page > 0) call.table = on_device(places.table), call.max_pages = places.max_pages;
    call.k_scales = table(k.scales);
    call.v_scales = table(v.scales);
    call.new_k = k.fresh;
    call.new_v = v.fresh;
    set_rules(call, rules);
    call.tree = table(rules.tree);
    given.prefill ? engine_->prefill(call) : engine_->decode(call);

    const std::vector<float> o = values(call.o), lse = values(call.lse, batch * q_heads * rows);
    double worst = 0;
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t length = lengths[static_cast<size_t>(b)];
      const AttentionShape shape{1, q_heads, kv_heads, rows, length, width, rules.tree.empty()};
      const ReferenceRows want = reference_attention(shape, test::part_of(q, b, rows), test::part_of(k.read, b, length),
                                                     test::part_of(v.read, b, length), all_rows(shape),
                                                     rules.scores(b, rows, length), rules.sink());
      const auto first = static_cast<size_t>(b * q_heads * rows), count = want.rows.size();
      worst = std::max({worst, test::largest_difference(std::span(lse).subspan(first, count), want.lse),
                        test::largest_difference(std::span(o).subspan(first * width, count * width), want.o)});
    }
    for (const Side* cached : {&k, &v}) {
      Tensor after = cached->whole;
      after.data = values(static_cast<const std::byte*>(cached->cache.data), static_cast<int64_t>(after.data.size()));
      if (test::numbers_of(after) != test::numbers_of(cached->whole)) worst = INFINITY;
    }
    return worst;
  }
};

double tolerance(DType dtype) { return dtype == DType::f32 ? 1e-4 : 3e-2; }

TEST_F(DeviceModifiersTest, StartsHideTheKeysBeforeThem) {
  test::Some some(11);
  for (const auto& [q_len, kv_len] : {std::pair{70, 83}, {1, 90}, {3, 130}, {200, 200}, {1, 1}, {30, 17}}) {
    const int last = static_cast<int>(kv_len);
    const Rules rules{.starts = {0, last / 2, last - 1, last}};
    for (const bool causal : {false, true}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        if (some.skips()) continue;
        EXPECT_LT(flash(rules, q_len, kv_len, causal, dtype), tolerance(dtype))
            << q_len << " on " << kv_len << (causal ? " causal " : " ") << name(dtype);
      }
    }
    EXPECT_LT(flash(rules, q_len, kv_len, true, DType::f32, {last, last, last / 2, 0}), 1e-4)
        << q_len << " on " << kv_len << " with lengths";
  }
}

/// A call with a bias and few queries runs the decoding kernel. One launch serves up to 512 keys.
TEST_F(DeviceModifiersTest, FewQueriesTakeABias) {
  for (const auto& [q_len, kv_len] : {std::pair{1, 130}, {5, 77}}) {
    for (const bool causal : {false, true}) {
      EXPECT_LT(flash(all_rules(), q_len, kv_len, causal, DType::f32), 1e-4) << q_len << " on " << kv_len;
    }
  }
  test::Some some(5);
  for (const char* axes : {"k", "bk", "hk", "bhqk", "qk", "h"}) {
    if (some.skips()) continue;
    for (const DType dtype : {DType::f32, DType::bf16}) {
      EXPECT_LT(flash({.starts = {0, 0}}, 1, 130, true, dtype, {}, axes), tolerance(dtype)) << axes << name(dtype);
      const size_t prepared = engine_->prepared();
      for (const int64_t keys : {131, 77, 500, 130}) {
        EXPECT_LT(flash({.starts = {0, 0}}, 1, keys, true, dtype, {}, axes), tolerance(dtype)) << axes << keys;
      }
      EXPECT_EQ(engine_->prepared(), prepared) << axes;
    }
    EXPECT_LT(flash(all_rules(), 5, 83, true, DType::f32, {}, axes), 1e-4) << axes;
    EXPECT_LT(flash({}, 16, 3, false, DType::f32, {}, axes), 1e-4) << axes;
  }
}

TEST_F(DeviceModifiersTest, SequencesOneAfterTheOther) {
  const Rules sinks_and_cap{.soft_cap = 3, .window_left = 20, .sinks = {0.5f, -1, 2, 0, 1, -0.25f}};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    EXPECT_LT(ragged({}, {.dtype = dtype}), tolerance(dtype));
    EXPECT_LT(ragged({}, {.causal = true, .dtype = dtype}), tolerance(dtype));
    EXPECT_LT(ragged(sinks_and_cap, {.causal = true, .dtype = dtype}), tolerance(dtype));
  }
  EXPECT_LT(ragged({}, {.causal = true, .prefix = 8}), 1e-4);
  EXPECT_LT(ragged({.window_left = 3}, {}), 1e-4);

  FlashCall call{.q = drawn(1, q_heads, 40, width, 0),
                 .k = drawn(1, kv_heads, 40, width, 1),
                 .v = drawn(1, kv_heads, 40, width, 2),
                 .o = drawn(1, q_heads, 40, width, 3)};
  call.sequences = 2;
  call.cu_seqlens_q = on_device<int>({0, 7, 40});
  EXPECT_THROW(engine_->flash(call), BadInput);  // cu_seqlens_k is missing
  call.cu_seqlens_k = call.cu_seqlens_q;
  engine_->flash(call);
  call.starts = on_device<int>({0});
  EXPECT_THROW(engine_->flash(call), BadInput);
  call.starts = nullptr;
  if (test::on_cuda) return;  // on CUDA the values of tables are not checked
  for (const std::vector<int>& wrong : {std::vector{1, 7, 40}, {0, 41, 41}, {0, 7, 6}}) {
    call.cu_seqlens_k = on_device(wrong);
    EXPECT_THROW(engine_->flash(call), BadInput);
  }
}

// Without $ATTN_TEST_ALL each modifier runs either with decoding or with a prompt.
TEST_F(DeviceModifiersTest, EachModifierOverACache) {
  bool prompt = false;
  for (const auto& [name, rules] : single_rules()) {
    prompt = !prompt;
    if (!prompt || test::Some::all()) {
      EXPECT_LT(over_cache(rules, {}), 1e-4) << name;
    }
    if (prompt || test::Some::all()) {
      EXPECT_LT(over_cache(rules, {.prefill = true, .q_len = 33}), 1e-4) << name << ", prefill";
    }
  }
}

TEST_F(DeviceModifiersTest, AllModifiersOverManyCaches) {
  test::Some some(11);
  const std::vector<CacheCase> cases = {
      {.q_len = 1, .page = 0},
      {.q_len = 16, .dtype = DType::bf16, .cache_dtype = DType::bf16},
      {.q_len = 1, .cache_dtype = test::on_cuda ? DType::f32 : DType::int8},
      {.page = 0, .dtype = DType::bf16, .cache_dtype = DType::int8},
      {.dtype = DType::f16, .cache_dtype = DType::e4m3},
      {.q_len = 2, .appends = true},
      {.prefill = true, .q_len = 40, .page = 0},
      {.prefill = true, .q_len = 17, .dtype = DType::bf16, .cache_dtype = DType::bf16},
      {.prefill = true, .q_len = 40, .cache_dtype = DType::int8},
      {.prefill = true, .q_len = 33, .page = 0, .dtype = DType::bf16, .cache_dtype = DType::e4m3},
      {.prefill = true, .q_len = 1, .page = 1, .dtype = DType::f16, .cache_dtype = DType::int8},
      {.prefill = true, .q_len = 35, .appends = true},
      {.q_len = 2, .dtype = DType::bf16, .cache_dtype = DType::int8, .appends = true},
      {.q_len = 16, .page = 0, .dtype = DType::f16, .cache_dtype = DType::e4m3, .appends = true},
      {.prefill = true, .q_len = 35, .cache_dtype = DType::e4m3, .appends = true},
      {.prefill = true, .q_len = 70, .page = 0, .dtype = DType::bf16, .cache_dtype = DType::int8, .appends = true}};
  for (const CacheCase& one : cases) {
    if (some.skips()) continue;
    EXPECT_LT(over_cache(all_rules(), one), tolerance(has_scales(one.cache_dtype) ? DType::f16 : one.dtype))
        << one.text();
  }
}

// The sequences of a batch take turns if the copies of their keys and values would take too much memory. In the first
// case the memory has room for two of the three sequences, so the second turn computes the second sequence once more.
// In the second case the memory lacks room even for one sequence, and each turn serves one sequence.
TEST_F(DeviceModifiersTest, SequencesOverALargeCacheOf8BitsTakeTurns) {
  const int64_t one_sequence = 1 << (test::on_cuda ? 18 : 16);  // tokens whose f32 copies take most_expanded_bytes()
  CacheCase one{.prefill = true, .q_len = 33, .cache_dtype = DType::int8, .sequences = 3};
  for (const int64_t capacity : {one_sequence / 2, 2 * one_sequence}) {
    one.capacity = capacity;
    one.appends = capacity < one_sequence;
    EXPECT_LT(over_cache(all_rules(), one), 1e-4) << one.text();
    EXPECT_EQ(engine_->launches(), 1u) << one.text();
    const size_t half_sequence = static_cast<size_t>(capacity) * kv_heads * width * sizeof(float);
    EXPECT_LT(engine_->prepared_bytes(), 5 * half_sequence) << one.text();
    reopen();
  }
}

// The new tokens of the second sequence begin in an earlier block of keys than the block with the sequence's start.
TEST_F(DeviceModifiersTest, NewTokensBeforeTheStartAreStored) {
  for (const auto& [name, starts] : {std::pair{"starts after the last keys", std::vector{37, 130, 1, 0}},
                                     {"starts at the last keys", {36, 129, 0, 0}}}) {
    const Rules rules{.starts = starts};
    for (const int64_t page : {0, 16}) {
      EXPECT_LT(over_cache(rules, {.page = page, .appends = true}), 1e-4) << name;
      EXPECT_LT(over_cache(rules, {.prefill = true, .q_len = 70, .page = page, .appends = true}), 1e-4) << name;
    }
  }
}

TEST_F(DeviceModifiersTest, TreesSayWhichNewTokensAreSeen) {
  for (const int64_t q_len : {1, 5, 64}) EXPECT_LT(over_cache({.tree = some_trees(q_len)}, {.q_len = q_len}), 1e-4);
  EXPECT_LT(over_cache({.tree = any_words}, {.page = 0}), 1e-4);
  Rules all = all_rules();
  for (const CacheCase& one : {CacheCase{.q_len = 21, .dtype = DType::bf16, .cache_dtype = DType::bf16},
                               {.q_len = 7, .page = 0, .dtype = DType::f16, .cache_dtype = DType::int8},
                               {.q_len = 6, .appends = true},
                               {.q_len = 9, .dtype = DType::bf16, .cache_dtype = DType::e4m3, .appends = true}}) {
    all.tree = some_trees(one.q_len);
    EXPECT_LT(over_cache(all, one), tolerance(has_scales(one.cache_dtype) ? DType::f16 : one.dtype)) << one.text();
  }
  EXPECT_THROW(over_cache({.tree = some_trees(1)}, {.prefill = true, .q_len = 1}), BadInput);
  EXPECT_THROW(over_cache({.tree = some_trees(65)}, {.q_len = 65}), BadInput);
}

// A change that breaks a modifier's text on purpose, and rules that use the modifier over a cache.
struct Mutation {
  const char *what, *file, *from, *to;
  Rules rules;
};

TEST_F(DeviceModifiersTest, BrokenRangesOfSequencesAreCaught) {
  for (const auto& [from, to] : {std::pair{"queries[middle] <= q", "queries[middle] < q"},
                                 {"seen{first, last}", "seen{0, last}"},
                                 {"own + 1);\n  if constexpr (PREFIX", "own + 2);\n  if constexpr (PREFIX"},
                                 {"if (own >= last)", "if (own > last)"}}) {
    const test::MutatedSources mutated("common/attention/kernels/modifiers/keys_of_ragged.h", from, to);
    reopen();
    EXPECT_GT(ragged({}, {.causal = true}), 1e-2) << to;
  }
}

TEST_F(DeviceModifiersTest, BrokenModifiersOverACacheAreCaught) {
  const std::string folder = "common/attention/kernels/modifiers/";
  const std::vector<Named> single = single_rules();
  const std::vector<Mutation> mutations = {
      {"a window that is too wide", "keys.h", "own - static_cast<int>(WINDOW_LEFT)",
       "own - 1 - static_cast<int>(WINDOW_LEFT)", single[0].rules},
      {"a cap without tanh",
       "score.h",
       test::on_cuda ? "F32 ? tanhf(x)" : "modifiers::tanhf(x)",
       test::on_cuda ? "F32 ? x" : "x",
       {.soft_cap = 2}},
      {"slopes of another head", "score.h", "[context.head]", "[context.head ^ 1]", single[3].rules},
      {"the sink of another head", "sink.h", "[context.head]", "[0]", single[4].rules},
      {"a key of the padding", "keys.h", ".starts)[context.batch]", ".starts)[context.batch] - 1", single[5].rules},
      {"the start of another sequence", "keys.h", ".starts)[context.batch]", ".starts)[context.batch ^ 1]",
       single[5].rules},
      {"the tree of the first sequence", "score.h", "[context.batch * context.q_len + q]", "[q]", {.tree = any_words}},
      {"the first new token is always seen", "score.h", "token < 0", "token < 1", {.tree = any_words}},
      {"a token before key 0 sees keys", "score.h", "q + older < 0", "false", {.tree = any_words}}};
  for (const Mutation& mutation : mutations) {
    const test::MutatedSources mutated(folder + mutation.file, mutation.from, mutation.to);
    reopen();
    EXPECT_GT(over_cache(mutation.rules, {}), 1e-2) << mutation.what;
    if (!mutation.rules.tree.empty()) continue;  // trees are for decoding
    EXPECT_GT(over_cache(mutation.rules, {.prefill = true, .q_len = 33}), 1e-2) << mutation.what << ", prefill";
    EXPECT_GT(over_cache(mutation.rules, {.prefill = true, .q_len = 33, .cache_dtype = DType::int8}), 1e-2)
        << mutation.what << ", prefill over a cache of 8 bits";
  }
}

}  // namespace
}  // namespace attn::modified
