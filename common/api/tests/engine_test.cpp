// Engine on the device under test: for example, options of any size, calls without keys or tokens, large caches, and
// the memory that the engine keeps.
#include "common/api/engine.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "common/api/tests/caches.h"
#include "common/api/tests/device_engine.h"
#include "common/base/error.h"
#include "common/data/tensor.h"
#include "common/device/device.h"
#include "common/paged/decode.h"
#include "common/testing/tested_device.h"

namespace attn {
namespace {

using test::expect_near;
class DeviceEngineTest : public test::EngineOnDevice {};

TEST_F(DeviceEngineTest, WindowsAndPrefixesOfAnySize) {
  test::DrawnFlash made = draw_flash({2, 4, 2, 40, 50, 64});
  const FlashCall plain = made.call;
  const auto same = [&](const FlashCall& call, auto seen, const char* what) {
    made.call = call;
    engine_->flash(call);
    const ScoreFunction score = each_score([&](double s, int64_t, int64_t, int64_t row, int64_t key) {
      return seen(row + 10, key) ? s : -std::numeric_limits<double>::infinity();
    });
    EXPECT_LT(worst_of(made, score), 1e-4) << what;
  };
  const int64_t above = std::numeric_limits<int>::max();
  for (const int64_t size : {above, above + 1, above + 6, 2 * above + 5, std::numeric_limits<int64_t>::max()}) {
    FlashCall call = plain;
    call.window_left = call.window_right = size;
    same(call, [](int64_t, int64_t) { return true; }, "window");
    call.window_left = 3;
    call.global_tokens = size;
    same(call, [](int64_t, int64_t) { return true; }, "global tokens");
    call = plain;
    call.window_right = 2;
    call.window_left = size;
    same(call, [](int64_t own, int64_t key) { return key <= own + 2; }, "window to the right");
    call = plain;
    call.causal = true;
    call.window_left = size;
    same(call, [](int64_t own, int64_t key) { return key <= own; }, "causal window");
    call.prefix = size;
    same(call, [](int64_t, int64_t) { return true; }, "prefix");
  }
  EXPECT_EQ(engine_->prepared(), 3u) << "wanted: one launch without a mask, one with window_right, one with causal";
}

/// If the decoding kernel takes the width, a call with few rows runs this kernel. Its launch serves both numbers of
/// keys; without decoding each number of keys needs its own launch.
TEST_F(DeviceEngineTest, FewRowsAreDecodedIfDecodingTakesTheirWidth) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t width : {24, 256, 512}) {
      const DecodeConfig config{.shape = {2, 6, 2, 3, 512, width, true}, .dtype = dtype, .cache_dtype = dtype};
      if (!device_->info().on_host && width > 256) continue;
      const size_t prepared = engine_->prepared();
      for (const int64_t keys : {77, 300}) {
        const test::DrawnFlash made = draw_flash({2, 6, 2, 3, keys, width, true}, dtype);
        engine_->flash(made.call);
        EXPECT_LT(worst_of(made), dtype == DType::f32 ? 1e-5 : 2e-2) << name(dtype) << " " << width << " " << keys;
      }
      EXPECT_EQ(engine_->prepared() - prepared, decode_takes(config, device_->info()) ? 1u : 2u)
          << name(dtype) << " of width " << width;
    }
  }
}

TEST_F(DeviceEngineTest, NoKeysGiveZeros) {
  for (const Layout layout : {Layout::bhsd, Layout::bshd}) {
    for (const int64_t rows : {1, 40}) {
      const Tensor tensor = random_tensor(2, 4, rows, 64, DType::bf16, layout, 1, 0);
      FlashCall call{.q = on_device(tensor),
                     .o = on_device(Tensor{2, 4, rows, 64, DType::bf16, layout,
                                           std::vector<std::byte>(tensor.bytes(), std::byte{0xFF})})};
      call.k = call.v = {.dtype = DType::bf16, .batch = 2, .heads = 2, .tokens = 0, .width = 64};
      call.causal = call.alibi = true;  // these options are about keys, and the call has no keys
      call.lse = on_device(std::vector<float>(static_cast<size_t>(8 * rows), 17));
      engine_->flash(call);
      EXPECT_EQ(values(static_cast<const std::byte*>(call.o.data), static_cast<int64_t>(tensor.bytes())),
                std::vector<std::byte>(tensor.bytes()));
      EXPECT_EQ(values(call.lse, 8 * rows), std::vector<float>(static_cast<size_t>(8 * rows), -INFINITY));
      call.sinks = on_device<float>({1, 2, 3, 4});
      engine_->flash(call);
      const std::vector<float> lse = values(call.lse, 8 * rows);
      for (int64_t row = 0; row < 8 * rows; ++row) {
        EXPECT_NEAR(lse[static_cast<size_t>(row)], 1 + row / rows % 4, 1e-5) << "row " << row;
      }
    }
  }
}

TEST_F(DeviceEngineTest, RefusesWhatNoKernelTakesEvenWithoutRows) {
  LinearCall linear;
  linear.q = linear.k = linear.v = linear.o = {.batch = 2, .heads = 2, .tokens = 0, .width = 32};
  linear.feature = "gelu";
  test::expect_error<BadInput>([&] { engine_->linear(linear); }, {"feature 'gelu'"});
  linear.feature = "relu";
  engine_->linear(linear);
  linear.v.width = linear.o.width = 12;
  test::expect_error<BadInput>([&] { engine_->linear(linear); }, {"value_dim 12"});

  CacheCall cache;
  cache.q = cache.o = {.batch = 2, .heads = 4, .tokens = 0, .width = 64};
  cache.new_k = cache.new_v = {.batch = 2, .heads = 2, .tokens = 0, .width = 64};
  cache.k = drawn(2, 2, 9, 64, 1);
  cache.v = drawn(2, 2, 9, 64, 2);
  cache.lengths = on_device<int>({9, 9});
  cache.cosines = cache.sines = on_device(std::vector<float>(9 * 36));
  cache.positions = 9;
  const auto decode = [&] { engine_->decode(cache); };
  const auto prefill = [&] { engine_->prefill(cache); };
  for (const int64_t rotary_dim : {64, 12, 72}) {
    cache.rotary_dim = rotary_dim;
    rotary_dim == 72 ? test::expect_error<BadInput>(decode, {"rotary_dim 72"}) : decode();
    rotary_dim != 64 ? test::expect_error<BadInput>(prefill, {"rotary_dim"}) : prefill();
  }
  cache.rotary_dim = 64;
  cache.q.dtype = cache.o.dtype = DType::bf16;
  test::expect_error<BadInput>(decode, {"cache_dtype f32"});
  test::expect_error<BadInput>(prefill, {"cache_dtype f32"});
}

TEST_F(DeviceEngineTest, LinearOfNoTokensLeavesTheState) {
  LinearCall call;
  call.q = call.k = {.batch = 2, .heads = 2, .tokens = 0, .width = 32};
  call.v = call.o = {.batch = 2, .heads = 2, .tokens = 0, .width = 16};
  constexpr int64_t count = 2 * 2 * 32 * 16;
  std::vector<float> state(count);
  for (size_t i = 0; i < state.size(); ++i) state[i] = static_cast<float>(i) - 7;
  call.initial_state = on_device(state);
  call.final_state = on_device(std::vector<float>(count, NAN));
  engine_->linear(call);
  EXPECT_EQ(values(call.final_state, count), state);
  call.initial_state = call.final_state;
  engine_->linear(call);
  EXPECT_EQ(values(call.final_state, count), state);
  call.initial_state = nullptr;
  engine_->linear(call);
  EXPECT_EQ(values(call.final_state, count), std::vector<float>(count));
  call.final_state = nullptr;
  engine_->linear(call);
}

TEST_F(DeviceEngineTest, LinearReadsAndWritesAStateInPlace) {
  constexpr int64_t count = 2 * 2 * 32 * 16;
  for (const bool causal : {true, false}) {
    for (const int64_t tokens : {1, 70, 1500}) {
      LinearCall call;
      call.q = drawn(2, 2, tokens, 32, 0);
      call.k = drawn(2, 2, tokens, 32, 1);
      call.v = drawn(2, 2, tokens, 16, 2);
      call.causal = causal;
      const std::vector<float> state(count, 3);
      call.initial_state = on_device(state);
      call.final_state = on_device(state);
      call.o = drawn(2, 2, tokens, 16, 3);
      engine_->linear(call);
      LinearCall in_place = call;
      in_place.o = drawn(2, 2, tokens, 16, 3);
      in_place.initial_state = in_place.final_state = on_device(state);
      engine_->linear(in_place);
      // The order of the kernel's additions may differ from run to run.
      const auto near = [&](const std::vector<float>& got, const std::vector<float>& want) {
        expect_near(got, {want.begin(), want.end()}, 1e-2);
      };
      SCOPED_TRACE(tokens);
      near(values(in_place.o), values(call.o));
      near(values(in_place.final_state, count), values(call.final_state, count));
    }
  }
}

/// 70000 pages, which hold more than a million tokens together. The calls read the last page too, and append tokens to
/// pages 65535 and 65536.
TEST_F(DeviceEngineTest, CachesOfManyPages) {
  constexpr int64_t pages = 70000, page = 16, width = 8, keys = 70;
  const std::vector<int> table = {69999, 3, 65536, 0, 65535};
  CacheCall call;
  call.table = on_device(table);
  call.max_pages = 5;
  call.lengths = on_device<int>({static_cast<int>(keys)});
  for (const DType dtype : {DType::f32, DType::f16}) {
    Tensor k = Tensor::zeros(pages, 1, page, width, dtype, Layout::bhsd), v = k;
    const Tensor all_k = random_tensor(1, 1, keys, width, dtype, Layout::bhsd, 1, 1);
    const Tensor all_v = random_tensor(1, 1, keys, width, dtype, Layout::bhsd, 1, 2);
    for (int64_t key = 0; key < keys; ++key) {
      const int64_t at = table[static_cast<size_t>(key / page)];
      test::copy_row(k, {at, 0, key % page}, all_k, {0, 0, key});
      test::copy_row(v, {at, 0, key % page}, all_v, {0, 0, key});
    }
    call.k = on_device(k);
    call.v = on_device(v);
    engine_->check_cache([&] {
      CacheCall cache = call;
      cache.q.batch = 1;
      return cache;
    }());
    for (const int64_t rows : {2, 40}) {
      for (const bool appends : {false, true}) {
        const AttentionShape shape{1, 1, 1, rows, keys, width, true};
        const Tensor q = random_tensor(1, 1, rows, width, dtype, Layout::bhsd, 1, 0);
        call.q = on_device(q);
        call.o = drawn(1, 1, rows, width, 3);
        call.new_k = call.new_v = {};
        if (appends) {  // the call appends the tokens that the cache already has
          const auto last = [&](const Tensor& tensor) {
            Tensor newest = Tensor::zeros(1, 1, rows, width, dtype, Layout::bhsd);
            std::copy(tensor.data.end() - static_cast<int64_t>(newest.bytes()), tensor.data.end(), newest.data.begin());
            return on_device(newest);
          };
          call.new_k = last(all_k);
          call.new_v = last(all_v);
        }
        rows == 2 ? engine_->decode(call) : engine_->prefill(call);
        const ReferenceRows want = reference_attention(shape, q, all_k, all_v, all_rows(shape));
        expect_near(values(call.o), want.o, dtype == DType::f32 ? 1e-4 : 2e-2);
      }
    }
  }
}

TEST_F(DeviceEngineTest, ACacheIsCheckedOnItsDevice) {
  CacheCall call;
  call.k = drawn(4, 2, 8, 64, 1);
  call.v = drawn(4, 2, 8, 64, 2);
  call.q = drawn(2, 4, 1, 64, 0);
  call.o = drawn(2, 4, 1, 64, 3);
  call.max_pages = 2;
  const auto expect = [&](const std::vector<int>& lengths, const std::vector<int>& table, const std::string& wrong) {
    call.lengths = on_device(lengths);
    call.table = on_device(table);
    const auto check = [&] { engine_->check_cache(call); };
    wrong.empty() ? check() : test::expect_error<BadInput>(check, {wrong});
    if (test::on_cuda) return;  // on CUDA decode() and prefill() do not check the values
    if (wrong.empty()) return engine_->decode(call);
    EXPECT_THROW(engine_->decode(call), BadInput);
    EXPECT_THROW(engine_->prefill(call), BadInput);
  };
  expect({16, 0}, {0, 3, -1, -1}, "");
  expect({16, 17}, {0, 3, 1, 2}, "row 1: length 17");
  expect({-1, 16}, {0, 3, 1, 2}, "row 0: length -1");
  expect({16, 9}, {0, 3, 1, 4}, "row 1, column 1: page 4");
  expect({16, 9}, {0, 3, -1, 2}, "row 1, column 0: page -1");
  call.new_k = call.new_v = drawn(2, 2, 1, 64, 2);
  expect({16, 9}, {0, 3, 1, 2}, "");
  expect({16, 9}, {0, 2, 1, 2}, "appended to page 2 twice");
  expect({7, 9}, {0, 3, 0, 2}, "sequence 1 reads token 6 of page 0, to which sequence 0 appends");
  call.window_left = 1;
  expect({7, 9}, {0, 3, 0, 2}, "");
}

TEST_F(DeviceEngineTest, ABiasOfMinusInfinityHidesKeysWithAnyElements) {
  constexpr int64_t rows = 40, keys = 44, at = 17;
  for (const float special : {NAN, INFINITY, -INFINITY, 1e36f}) {
    for (const bool in_v : {false, true}) {
      FlashCall call{.q = drawn(1, 2, rows, 64, 0), .o = drawn(1, 2, rows, 64, 3)};
      Tensor k = random_tensor(1, 2, keys, 64, DType::f32, Layout::bhsd, 1, 1);
      Tensor v = random_tensor(1, 2, keys, 64, DType::f32, Layout::bhsd, 1, 2);
      const auto run = [&] {
        call.k = on_device(k);
        call.v = on_device(v);
        engine_->flash(call);
        return values(call.o);
      };
      std::vector<float> bias(rows * keys);  // hides the key from even rows
      for (int64_t row = 0; row < rows; row += 2) bias[static_cast<size_t>(row * keys + at)] = -INFINITY;
      call.bias = on_device(bias);
      call.bias_sizes[0] = call.bias_sizes[1] = 1;
      call.bias_sizes[2] = rows;
      call.bias_sizes[3] = keys;
      const std::vector<float> want = run();
      std::byte* const element = (in_v ? v : k).data.data() + at * 64 * sizeof(float);
      std::memcpy(element, &special, sizeof special);
      const std::vector<float> got = run();
      for (size_t i = 0; i < got.size(); ++i) {
        const size_t row = i / 64, d = i % 64;
        if (row % 2 == 0 || row >= rows) {
          ASSERT_NEAR(got[i], want[i], 1e-4) << special << ", row " << row;
        } else if (std::isnan(special)) {
          ASSERT_EQ(std::isnan(got[i]), !in_v || d == 0) << "row " << row;
        }
      }
    }
  }
}

TEST_F(DeviceEngineTest, BiasesOfManyLengthsTakeBoundedMemory) {
  constexpr int64_t longest = 1024;
  const int turns = test::on_cuda ? 120 : 24;  // each call prepares 16 MiB or less
  const size_t most_bytes = size_t{1} << (test::on_cuda ? 30 : 28);
  const TensorView q = drawn(1, 4, longest, 8, 0), k = drawn(1, 4, longest, 8, 1), o = drawn(1, 4, longest, 8, 3);
  // The bias hides all keys.
  std::vector<float> bias(static_cast<size_t>(4 * longest * longest), -INFINITY);
  const auto call = [&](int64_t length) {
    FlashCall flash{.q = q, .k = k, .v = k, .o = o};
    flash.q.tokens = flash.k.tokens = flash.v.tokens = flash.o.tokens = length;
    flash.bias = static_cast<const float*>(buffers_.back().data());
    const int64_t sizes[] = {1, 4, length, length};
    std::copy_n(sizes, 4, flash.bias_sizes);
    engine_->flash(flash);
  };
  on_device(bias);
  for (int turn = 0; turn < turns; ++turn) {
    call(longest - 4 * turn);
    EXPECT_LE(engine_->prepared_bytes(), most_bytes);
    const size_t count = engine_->prepared();
    call(longest);  // this launch is never the least recently used launch
    EXPECT_EQ(engine_->prepared(), turn == 0 ? 1 : count);
  }
  EXPECT_LT(engine_->prepared(), static_cast<size_t>(turns));
}

TEST_F(DeviceEngineTest, KeepsALimitedNumberOfLaunches) {
  const TensorView q = drawn(1, 1, 1200, 8, 0), o = drawn(1, 1, 1200, 8, 3);
  for (int64_t rows = 20; rows < 1200; ++rows) {
    FlashCall flash{.q = q, .k = q, .v = q, .o = o};
    flash.q.tokens = flash.o.tokens = rows;
    flash.k.tokens = flash.v.tokens = 20;
    engine_->flash(flash);
    ASSERT_LE(engine_->prepared(), 1024u);
  }
}

}  // namespace
}  // namespace attn
