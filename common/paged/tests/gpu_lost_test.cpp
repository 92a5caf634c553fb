// The host does not check lengths and page numbers before a launch on a GPU. Here one sequence has a wrong length
// (negative, or above kv_len), or a wrong page number (of no page in the cache) for its first keys. Its rows must be
// NaN, the rows of the other sequences must be right, and no guard band may be overwritten.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "common/cases/reference.h"
#include "common/paged/decode.h"
#include "common/paged/prefill.h"
#include "common/testing/tested_device.h"

namespace attn::lost {
namespace {

using test::device;
using test::pipelines;

constexpr int64_t sequences = 3, q_heads = 6, kv_heads = 2, dim = 64, most_keys = 192;

/// Attention over a cache in which the pages of sequence b follow each other, from page b * most_keys / page_size on.
struct Attempt {
  DType dtype, cache_dtype;
  int64_t page_size, q_len;
  bool prefill, appends;
  std::vector<int> lengths = {150, 170, 90};
  int lost_page_of_second = 0;  // page number for the second sequence's first keys; 0: the right page

  std::string text() const {
    return fmt::format(
        "{} cache of {}, page_size {}, q_len {}{}, lengths {} {} {}, first page of sequence 1: {} (0: right)",
        prefill ? "prefill," : "", name(cache_dtype), page_size, q_len, appends ? ", appends" : "", lengths[0],
        lengths[1], lengths[2], lost_page_of_second);
  }
};

struct Result {
  Tensor o;
  std::vector<float> lse;
  std::vector<std::byte> k;  // the cache after the launch
  bool guards = false;
};

Tensor cached(const Attempt& of, uint64_t stream) {
  const int64_t tokens = of.page_size > 0 ? of.page_size : most_keys;
  const Tensor values =
      random_tensor(sequences * most_keys / tokens, kv_heads, tokens, dim, DType::f32, Layout::bhsd, 7, stream);
  return convert(values, of.cache_dtype, Layout::bhsd);
}
std::vector<std::byte> cache_before(const Attempt& of) { return cached(of, 2).data; }

Result run(const Attempt& of) {
  const int64_t max_pages = of.page_size > 0 ? most_keys / of.page_size : 0;
  const DecodeConfig config{.shape = {.batch = sequences,
                                      .q_heads = q_heads,
                                      .kv_heads = kv_heads,
                                      .q_len = of.q_len,
                                      .kv_len = most_keys,
                                      .head_dim = dim,
                                      .causal = true},
                            .dtype = of.dtype,
                            .cache_dtype = of.cache_dtype,
                            .out_dtype = of.dtype,
                            .page_size = of.page_size,
                            .block_c = of.prefill ? 0 : 64,
                            .appends = of.appends};
  const auto random = [&](int64_t heads, uint64_t stream) {
    return random_tensor(sequences, heads, of.q_len, dim, of.dtype, Layout::bhsd, 7, stream);
  };
  const bool scaled = has_scales(of.cache_dtype);
  const Tensor q = random(q_heads, 1);
  const Tensor k = cached(of, 2), v = cached(of, 3);
  const int64_t pages = k.batch;
  const Tensor new_k = random(kv_heads, 4);
  std::vector<int> table(static_cast<size_t>(sequences * max_pages));
  std::iota(table.begin(), table.end(), 0);
  if (of.lost_page_of_second != 0) table[static_cast<size_t>(max_pages)] = of.lost_page_of_second;
  Result result{.o = q, .lse = std::vector<float>(static_cast<size_t>(sequences * q_heads * of.q_len)), .k = k.data};
  const std::vector<float> scales(static_cast<size_t>(pages * kv_heads), 1.0f);
  const Buffer queries = uploaded(device(), q.data), keys = uploaded(device(), k.data),
               values = uploaded(device(), v.data), new_keys = uploaded(device(), new_k.data),
               scale = uploaded(device(), scales), pages_of = uploaded(device(), table),
               lengths = uploaded(device(), of.lengths);
  Buffer out(device(), q.bytes()), lse(device(), result.lse.size() * sizeof(float));
  DecodeTensors tensors{.q = queries.data(),
                        .o = out.data(),
                        .lse = static_cast<float*>(lse.data()),
                        .q_strides = q.strides(),
                        .o_strides = q.strides(),
                        .k = keys.data(),
                        .v = values.data(),
                        .k_strides = k.strides(),
                        .v_strides = v.strides(),
                        .table = of.page_size > 0 ? static_cast<const int*>(pages_of.data()) : nullptr,
                        .max_pages = max_pages,
                        .pages = pages,
                        .lengths = static_cast<const int*>(lengths.data())};
  if (scaled) tensors.k_scales = tensors.v_scales = static_cast<const float*>(scale.data());
  if (of.appends) {
    tensors.new_k = tensors.new_v = new_keys.data();
    tensors.new_k_strides = tensors.new_v_strides = new_k.strides();
  }
  CommandEncoder encoder;
  if (of.prefill) {
    const PrefillLaunch launch(device(), pipelines(), config, prefill_plan(config, device().info(), 0, 0), pages);
    launch.encode(encoder, tensors);
    device().submit(encoder);
    result.guards = launch.at_rest();
  } else {
    const DecodeLaunch launch(device(), pipelines(), config, decode_plan(config, device().info(), 0));
    launch.encode(encoder, tensors);
    device().submit(encoder);
    result.guards = launch.at_rest();
  }
  out.download(result.o.data.data(), result.o.bytes());
  lse.download(result.lse.data(), lse.bytes());
  keys.download(result.k.data(), result.k.size());
  for (const Buffer* buffer : std::initializer_list<const Buffer*>{&keys, &values, &out, &lse})
    result.guards = result.guards && buffer->guards_intact();
  return result;
}

/// Runs `lost`, in which the second sequence has a wrong length or page number. Returns the first error, or an empty
/// text. `right` is the result with the right length and page number.
std::string wrong(const Attempt& lost, const Result& right) {
  const Result result = run(lost);
  if (!result.guards) return "after the launch one of its counters is not 0, or a guard band was overwritten";
  for (const RowIndex& row : all_rows({.batch = sequences, .q_heads = q_heads, .q_len = lost.q_len})) {
    const float lse = result.lse[static_cast<size_t>((row.batch * q_heads + row.head) * lost.q_len + row.q)];
    if (row.batch == 1 && !std::isnan(lse))
      return fmt::format("sequence 1, head {1}, query {2}: lse is {0}, not NaN", lse, row.head, row.q);
    for (int64_t d = 0; d < dim; ++d) {
      const double got = result.o.at(row.batch, row.head, row.q, d), want = right.o.at(row.batch, row.head, row.q, d);
      const bool ok = row.batch == 1 ? std::isnan(got) : std::abs(got - want) <= 0.02;
      if (!ok)
        return fmt::format("sequence {}, head {}, query {}, element {}: {}, not {}", row.batch, row.head, row.q, d, got,
                           row.batch == 1 ? NAN : want);
    }
  }
  // If the second sequence's length is wrong, no token is appended to it. If its page number is wrong, its pages are
  // not compared.
  const std::vector<std::byte> before = cache_before(lost);
  const size_t of_sequence = result.k.size() / sequences;
  for (size_t i = 0; i < result.k.size(); ++i) {
    const bool second = i / of_sequence == 1;
    if (second && lost.lost_page_of_second != 0) continue;
    if (result.k[i] != (second ? before : right.k)[i]) return fmt::format("byte {} of the cache differs", i);
  }
  return "";
}

class GpuLostTest : public test::OnDevice<testing::Test> {
 protected:
  void expect_nan_only_in_the_second_sequence(const Attempt& attempt) {
    const Result right = run(attempt);
    for (const int length : {-1, -100, static_cast<int>(most_keys) + 1, std::numeric_limits<int>::max(),
                             std::numeric_limits<int>::min()}) {
      Attempt lost = attempt;
      lost.lengths[1] = length;
      EXPECT_EQ(wrong(lost, right), "") << lost.text();
    }
    if (attempt.page_size == 0) return;
    for (const int page : {-1, static_cast<int>(sequences * most_keys / attempt.page_size), 1'000'000'000,
                           std::numeric_limits<int>::min()}) {
      Attempt lost = attempt;
      lost.lost_page_of_second = page;
      EXPECT_EQ(wrong(lost, right), "") << lost.text();
    }
  }
};

TEST_F(GpuLostTest, Decode) {
  for (const auto& [dtype, cache_dtype] : {std::pair{DType::f32, DType::f32},
                                           {DType::bf16, DType::bf16},
                                           {DType::bf16, DType::e4m3},
                                           {DType::f16, DType::int8}}) {
    for (const int64_t page_size : {0, 1, 16, 64}) {
      for (const int64_t q_len : {1, 5})
        expect_nan_only_in_the_second_sequence({dtype, cache_dtype, page_size, q_len, false, false});
    }
  }
}

TEST_F(GpuLostTest, DecodeThatAppends) {
  for (const int64_t page_size : {0, 16})
    for (const DType cache_dtype : {DType::bf16, DType::int8})
      expect_nan_only_in_the_second_sequence({DType::bf16, cache_dtype, page_size, 3, false, true});
}

TEST_F(GpuLostTest, Prefill) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t page_size : {0, 1, 16, 64}) {
      for (const bool appends : {false, true})
        expect_nan_only_in_the_second_sequence({dtype, dtype, page_size, 40, true, appends});
    }
  }
  for (const DType cache_dtype : {DType::e4m3, DType::int8}) {
    for (const int64_t page_size : {0, 16}) {
      for (const bool appends : {false, true})
        expect_nan_only_in_the_second_sequence({DType::bf16, cache_dtype, page_size, 40, true, appends});
    }
  }
}

}  // namespace
}  // namespace attn::lost
