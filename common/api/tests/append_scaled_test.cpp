// Engine on the device under test: calls that append tokens to caches of 8 bits. The stored bytes are compared with the
// host's quantisation, and the outputs with the oracle. One test breaks kernels on purpose, and must then see an error.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/api/engine.h"
#include "common/api/tests/caches.h"
#include "common/api/tests/device_engine.h"
#include "common/attention/rope.h"
#include "common/cases/reference.h"
#include "common/testing/mutated_sources.h"
#include "common/testing/some.h"

namespace attn::appending {
namespace {

constexpr int64_t q_heads = 6, kv_heads = 2, capacity = 144;

/// The third sequence may have fewer tokens than the call appends; the fourth has none.
const std::vector<int> lengths = {37, 131, 2, 0};
constexpr int64_t batch = 4;

struct AppendCase {
  bool prefill = false;
  int64_t q_len = 5, page = 16;  // page: tokens; 0: a contiguous cache
  DType dtype = DType::f32, cache_dtype = DType::int8;
  int64_t width = 64, rotary_dim = 64;
  RopePairing pairing = RopePairing::half_split;

  std::string text() const {
    return fmt::format("{} of {} tokens, page {}, {} over {}, width {}, rotary_dim {}{}",
                       prefill ? "prefill" : "decode", q_len, page, name(dtype), name(cache_dtype), width, rotary_dim,
                       pairing == RopePairing::interleaved ? ", interleaved" : "");
  }
};

/// Returns `value`, rounded to `dtype` as the host rounds.
double nearest(DType dtype, double value) {
  Tensor one = Tensor::zeros(1, 1, 1, 1, dtype, Layout::bhsd);
  one.set(0, 0, 0, 0, value);
  return one.at(0, 0, 0, 0);
}

/// K or V of a call.
struct Cached {
  Tensor before, after;        // [pages, kv_heads, tokens of a page, width]
  std::vector<float> scales;   // [pages, kv_heads]
  Tensor fresh;                // the new tokens
  std::vector<double> wanted;  // the new tokens (K's rotated), as [batch, kv_heads, q_len, width]
};

class DeviceAppendTest : public test::EngineOnDevice {
 protected:
  /// Runs a call. Returns the first error; an empty text if there is none. With new_nan each sequence has one NaN in
  /// new_k and one in new_v, and only the caches are checked.
  std::string error_of(const AppendCase& given, bool new_nan = false) {
    const int64_t rows = given.q_len, width = given.width;
    const test::CachePlaces places(batch, capacity, given.page, capacity);
    std::vector<int> first;
    for (const int length : lengths) first.push_back(length - static_cast<int>(rows));
    const RopeConfig rope{
        .head_dim = width, .rotary_dim = std::max<int64_t>(given.rotary_dim, 2), .pairing = given.pairing};
    const auto turned = [&](const Tensor& tensor, bool turns) {
      if (turns && given.rotary_dim > 0) return reference_rope(rope, tensor, first);
      return test::numbers_of(tensor);
    };
    const auto draw = [&](uint64_t stream, float least_scale, bool turns) {
      Cached cached{
          .before = Tensor::zeros(places.pages, kv_heads, places.page, width, given.cache_dtype, Layout::bhsd),
          .after = {},
          .scales = {},
          .fresh = random_tensor(batch, kv_heads, rows, width, given.dtype, Layout::bhsd, 1, stream),
          .wanted = {}};
      std::vector<double> numbers = test::numbers_of(
          random_tensor(places.pages, kv_heads, places.page, width, DType::f32, Layout::bhsd, 2, stream));
      for (double& number : numbers) number *= 20;
      cached.before.store(0, numbers);
      for (int64_t i = 0; i < places.pages * kv_heads; ++i) {
        cached.scales.push_back(least_scale + 0.003f * static_cast<float>(i % 7));
      }
      // The newest token of each sequence has elements far beyond the range of every scale.
      for (int64_t b = 0; b < batch; ++b) {
        cached.fresh.set(b, 0, rows - 1, 3, 1000);
        cached.fresh.set(b, 1, rows - 1, width - 1, new_nan ? NAN : -1000);
      }
      cached.wanted = turned(cached.fresh, turns);
      cached.after = cached.before;
      return cached;
    };
    const Tensor q = random_tensor(batch, q_heads, rows, width, given.dtype, Layout::bhsd, 1, 0);
    Cached k = draw(1, 0.02f, true), v = draw(2, 0.05f, false);
    CacheCall call{.q = on_device(q),
                   .k = on_device(k.before),
                   .v = on_device(v.before),
                   .o = drawn(batch, q_heads, rows, width, 3)};
    call.lse = on_device(std::vector<float>(static_cast<size_t>(batch * q_heads * rows), NAN));
    call.lengths = on_device(lengths);
    if (given.page > 0) call.table = on_device(places.table), call.max_pages = places.max_pages;
    call.k_scales = on_device(k.scales);
    call.v_scales = on_device(v.scales);
    call.new_k = on_device(k.fresh);
    call.new_v = on_device(v.fresh);
    if (given.rotary_dim > 0) {
      const RopeTable angles = rope_table(rope, capacity);
      call.rotary_dim = given.rotary_dim;
      call.pairing = given.pairing;
      call.cosines = on_device(angles.cosines);
      call.sines = on_device(angles.sines);
      call.positions = capacity;
    }
    given.prefill ? engine_->prefill(call) : engine_->decode(call);

    for (const auto& [what, view, cached] : {std::tuple{"K", &call.k, &k}, {"V", &call.v, &v}}) {
      Tensor& after = cached->after;
      after.data = values(static_cast<const std::byte*>(view->data), static_cast<int64_t>(after.data.size()));
      Tensor old = after;  // the loop puts the bytes from before the call into the slots of the new tokens
      std::string wrong;
      places.for_tokens(lengths, kv_heads, [&](int64_t b, int64_t h, int64_t key, int64_t page, int64_t slot) {
        const int64_t i = key - first[static_cast<size_t>(b)];
        if (i < 0 || !wrong.empty()) return;  // not new
        const double* const row = &cached->wanted[static_cast<size_t>(((b * kv_heads + h) * rows + i) * width)];
        const double scale = cached->scales[static_cast<size_t>(page * kv_heads + h)];
        double most = 0;
        for (int64_t d = 0; d < width; ++d) most = std::isnan(row[d]) ? most : std::max(most, std::abs(row[d]));
        const double error = 2e-6 + 3e-7 * most;  // of the rotation in f32
        for (int64_t d = 0; d < width; ++d) {
          const double got = after.at(page, h, slot, d), sign = row[d] > 0 ? 1 : -1;
          const double low = nearest(given.cache_dtype, (row[d] - error) / scale * (1 - 1e-6 * sign));
          const double high = nearest(given.cache_dtype, (row[d] + error) / scale * (1 + 1e-6 * sign));
          if (std::isnan(row[d]) ? got == low || (std::isnan(got) && std::isnan(low)) : low <= got && got <= high)
            continue;
          wrong = fmt::format("{} of new token {} of sequence {}, head {}, column {}: {} is stored, {} to {} wanted",
                              what, i, b, h, d, got, low, high);
        }
        test::copy_row(old, {page, h, slot}, cached->before, {page, h, slot});
      });
      if (!wrong.empty()) return wrong;
      if (old.data != cached->before.data) return fmt::format("{}: a token changed that is not new", what);
    }
    if (new_nan) return "";

    Tensor turned_q = q;
    turned_q.store(0, turned(q, true));
    const std::vector<float> o = values(call.o), lse = values(call.lse, batch * q_heads * rows);
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t length = lengths[static_cast<size_t>(b)];
      const auto stored = [&](const Cached& cached) {
        // Prefill reads a copy of the cache in Q's type.
        Tensor one = Tensor::zeros(1, kv_heads, length, width, given.prefill ? given.dtype : DType::f32, Layout::bhsd);
        for (int64_t h = 0; h < kv_heads; ++h) {
          for (int64_t key = 0; key < length; ++key) {
            const int64_t page = places.page_of(b, key);
            test::copy_row(one, {0, h, key}, cached.after, {page, h, key % places.page},
                           cached.scales[static_cast<size_t>(page * kv_heads + h)]);
          }
        }
        return one;
      };
      const AttentionShape shape{1, q_heads, kv_heads, rows, length, width, true};
      const ReferenceRows want =
          reference_attention(shape, test::part_of(turned_q, b, rows), stored(k), stored(v), all_rows(shape));
      const auto first_row = static_cast<size_t>(b * q_heads * rows), count = want.rows.size();
      const double wrong =
          std::max(test::largest_difference(std::span(lse).subspan(first_row, count), want.lse),
                   test::largest_difference(std::span(o).subspan(first_row * static_cast<size_t>(width), want.o.size()),
                                            want.o));
      // Values of a cache of 8 bits may be as large as 10.
      if (!(wrong < (given.dtype == DType::f32 ? 1e-3 : 0.3))) {
        return fmt::format("o or lse of sequence {} differs by {} from the oracle's", b, wrong);
      }
    }
    return "";
  }
};

/// Decoding over a cache of 8 bits needs Q of 16 bits on a GPU.
const DType narrow = test::on_cuda ? DType::f16 : DType::f32;
constexpr RopePairing interleaved = RopePairing::interleaved;

TEST_F(DeviceAppendTest, StoredBytesEqualTheHostsAndAttentionReadsThem) {
  // On a GPU a row of a cache has a multiple of 16 bytes.
  const int64_t more_than_64 = test::on_cuda ? 80 : 72, less_than_64 = test::on_cuda ? 48 : 40;
  const std::vector<AppendCase> cases = {
      {.q_len = 1, .dtype = narrow},
      {.q_len = 16, .page = 0, .dtype = DType::bf16, .cache_dtype = DType::e4m3, .pairing = interleaved},
      {.q_len = 2, .page = 1, .dtype = DType::f16, .cache_dtype = DType::e4m3, .rotary_dim = 0},
      {.page = 0, .dtype = DType::bf16, .width = 80, .rotary_dim = 20},
      {.page = 24, .dtype = narrow, .cache_dtype = DType::e4m3, .width = 112, .rotary_dim = 38, .pairing = interleaved},
      {.prefill = true, .q_len = 35},
      {.prefill = true, .q_len = 70, .page = 0, .cache_dtype = DType::e4m3, .width = more_than_64, .rotary_dim = 24},
      {.prefill = true, .q_len = 35, .page = 3, .dtype = DType::bf16, .width = less_than_64, .rotary_dim = 0},
      {.prefill = true,
       .q_len = 130,
       .page = 72,
       .dtype = DType::f16,
       .cache_dtype = DType::e4m3,
       .rotary_dim = 32,
       .pairing = interleaved},
      {.prefill = true,
       .q_len = 3,
       .page = 0,
       .dtype = DType::bf16,
       .cache_dtype = DType::e4m3,
       .width = 128,
       .rotary_dim = 128}};
  for (const AppendCase& one : cases) EXPECT_EQ(error_of(one), "") << one.text();
}

TEST_F(DeviceAppendTest, NanStaysInE4M3AndIsZeroInInt8) {
  for (const DType cache_dtype : {DType::int8, DType::e4m3}) {
    const AppendCase one{.dtype = DType::bf16, .cache_dtype = cache_dtype, .rotary_dim = 32};
    EXPECT_EQ(error_of(one, true), "") << one.text();
  }
}

TEST_F(DeviceAppendTest, RefusesBadScales) {
  CacheCall call{.q = drawn(1, q_heads, 1, 64, 0, DType::f16),
                 .k = on_device(Tensor::zeros(3, kv_heads, 16, 64, DType::int8, Layout::bhsd)),
                 .v = on_device(Tensor::zeros(3, kv_heads, 16, 64, DType::int8, Layout::bhsd)),
                 .o = drawn(1, q_heads, 1, 64, 3)};
  call.lengths = on_device<int>({17});
  call.table = on_device<int>({0, 2});
  call.max_pages = 2;
  call.k_scales = on_device<float>({0, 0, NAN, NAN, 1, 1});
  call.v_scales = on_device<float>({0, 0, NAN, NAN, 1, 1});
  call.new_k = call.new_v = drawn(1, kv_heads, 1, 64, 1, DType::f16);
  const auto refused = [&](const std::string& words, const CacheCall& wrong) {
    std::vector<void (Engine::*)(const CacheCall&, void*)> ways = {&Engine::check_cache};
    if (!test::on_cuda) ways.insert(ways.end(), {&Engine::decode, &Engine::prefill});
    for (const auto way : ways) test::expect_error<BadInput>([&] { (*engine_.*way)(wrong, nullptr); }, {words});
  };
  engine_->check_cache(call);  // the scales of other pages are not checked
  for (const auto& [scale, text] :
       {std::pair{0.0f, "0"}, {-1.0f, "-1"}, {NAN, "nan"}, {INFINITY, "inf"}, {0x1p-127f, "5.877472e-39"}}) {
    CacheCall wrong = call;
    wrong.v_scales = on_device<float>({1, 1, 1, 1, 1, scale});
    refused(fmt::format("v_scales[2, 1] is {}", text), wrong);
  }
  CacheCall contiguous = call;
  contiguous.table = nullptr;
  contiguous.max_pages = 0;
  contiguous.k.batch = contiguous.v.batch = 1;
  contiguous.lengths = on_device<int>({16});
  refused("k_scales[0, 0] is 0", contiguous);
  contiguous.lengths = on_device<int>({0});
  engine_->check_cache(contiguous);
}

// A change that breaks a kernel on purpose, and the case that must then fail.
struct Fault {
  const char* what;
  std::string file, from, to;
  AppendCase run;
};

std::vector<Fault> faults(bool cuda) {
  const std::string kernel = std::string("common/paged/kernels/append_scaled") + (cuda ? ".cuda.cu" : ".cpu.cpp"),
                    rotation = cuda ? kernel : "common/paged/kernels/turn_cpu.h", bytes = "common/kernel/to_bytes.h",
                    pages = "static_cast<long long>(place.batch) * p.kv_heads + head";
  const AppendCase plain{.dtype = DType::f16}, e4m3{.dtype = DType::bf16, .cache_dtype = DType::e4m3};
  AppendCase many = e4m3;
  many.prefill = true;
  many.q_len = 35;
  return {
      {"the scale of another page", kernel, pages, "static_cast<long long>(batch) * p.kv_heads + head", many},
      {"the scale of another head", kernel, pages, pages + " / 2", plain},
      {"the page of another token", kernel, cuda ? "key / PAGE_SIZE]" : "key / static_cast<int>(PAGE_SIZE)]", "0]",
       plain},
      {"the scale of K for V", kernel, cuda ? "/ v_scale" : "cache.v_scales[scale]",
       cuda ? "/ k_scale" : "cache.k_scales[scale]", plain},
      {"no saturation", bytes, "whole_size < largest", "whole_size < largest + 0x40000000u", plain},
      {"no saturation in e4m3", bytes, "whole_size < largest", "whole_size < largest + 0x40000000u", e4m3},
      {"no rounding", bytes, "size + 0x7ffffu + (size >> 20 & 1u)", "size", e4m3},
      {"numbers below 2^-6 are converted like larger numbers", bytes, "size < 0x3c800000u", "size < 1u", e4m3},
      {"keys that are not rotated", kernel, cuda ? "d, tokens, key) / k_scale" : "turn(row, p.tokens, key);\n  store",
       cuda ? "d, tokens, -1) / k_scale" : "store", plain},
      {"queries that are not rotated", kernel,
       cuda ? "token}), d, tokens, key)" : "if (key >= 0) turn(row, p.tokens, key);",
       cuda ? "token}), d, tokens, -1)" : "", many},
      {"rotation the other way", rotation, "x * cosine", "y * cosine", plain},
      {"the other pairing", rotation, "INTERLEAVED ?", "!INTERLEAVED ?", plain},
      {"tokens before the first key",
       kernel,
       "if (key < 0) return;",
       "",
       {.q_len = 3, .page = 0, .dtype = DType::f16, .rotary_dim = 0}}};
}

TEST(AppendFaults, TextsAreInTheSources) {
  for (const bool cuda : {false, true}) {
    test::expect_texts_in_sources(faults(cuda), [](const Fault& fault) { return fault.file; });
  }
}

TEST_F(DeviceAppendTest, BrokenKernelsAreCaught) {
  for (const Fault& fault : faults(test::on_cuda)) {
    const test::MutatedSources mutated(fault.file, fault.from, fault.to);
    reopen();
    EXPECT_NE(error_of(fault.run), "") << fault.what;
  }
}

}  // namespace
}  // namespace attn::appending
