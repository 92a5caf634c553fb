// Engine on the device under test: masks with a byte for each pair of a query and a key, against the oracle. One test
// breaks kernels on purpose, and must then see wrong outputs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "common/api/engine.h"
#include "common/api/tests/device_engine.h"
#include "common/data/tensor.h"
#include "common/testing/mutated_sources.h"
#include "common/testing/some.h"

namespace attn {
namespace {

/// Whether query q of a head sees key k.
using Sees = std::function<bool(int64_t batch, int64_t head, int64_t q, int64_t k)>;

/// A call with a mask. own[axis]: each position along the axis has its own bytes; if false, all positions share the
/// same bytes. `order` lists the mask's axes in memory, the outermost first. `gap` is the number of unused positions
/// that lie in memory after the mask's positions along an axis.
struct MaskCase {
  int64_t batch = 2, q_heads = 4, kv_heads = 2, q_len = 70, kv_len = 150, width = 64;
  DType dtype = DType::f32;
  bool own[4] = {true, true, true, true};
  int order[4] = {0, 1, 2, 3};
  int64_t gap = 0;
  bool expanded = false;  // along axes without own bytes the mask has the call's size and stride 0, not size 1
  std::function<void(FlashCall&)> change = {};
  ScoreFunction also = {};  // what `change` does to scores
  SinkFunction sink = {};

  std::string text() const {
    return fmt::format("[{}, {}/{}, {}, {}, {}] {} own {}{}{}{} order {}{}{}{} gap {}", batch, q_heads, kv_heads, q_len,
                       kv_len, width, attn::name(dtype), own[0], own[1], own[2], own[3], order[0], order[1], order[2],
                       order[3], gap);
  }
};

/// Returns a pseudo-random number from 0 to 99, which depends only on the arguments.
int64_t drawn_percent(int64_t batch, int64_t head, int64_t q, int64_t k) {
  uint64_t x = static_cast<uint64_t>(((batch * 64 + head) * 4096 + q) * 4096 + k) * 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 31) * 0xBF58476D1CE4E5B9u;
  return static_cast<int64_t>((x ^ x >> 29) % 100);
}
bool half_of_all(int64_t batch, int64_t head, int64_t q, int64_t k) { return drawn_percent(batch, head, q, k) < 50; }
bool all_pairs(int64_t, int64_t, int64_t, int64_t) { return true; }
bool no_pairs(int64_t, int64_t, int64_t, int64_t) { return false; }
/// A row sees one run of keys. The run moves with the row, and differs between sequences and between heads. Some rows
/// see no key, and most pairs are hidden.
bool moving_window(int64_t batch, int64_t head, int64_t q, int64_t k) {
  return q % 37 != 5 && k >= q - 20 + 7 * batch && k <= q + 3 * head;
}
bool blocks_on_the_diagonal(int64_t, int64_t, int64_t q, int64_t k) { return q / 65 == k / 65; }
bool first_and_last(int64_t, int64_t, int64_t q, int64_t k) { return k < 3 || k >= 300 || q == 0; }

class DeviceMaskTest : public test::EngineOnDevice {
 protected:
  /// Returns the largest difference of o and lse from the oracle's. Runs the call twice, the first time with the
  /// opposite mask.
  double worst(const MaskCase& given, const Sees& sees) {
    test::DrawnFlash made =
        draw_flash({given.batch, given.q_heads, given.kv_heads, given.q_len, given.kv_len, given.width}, given.dtype);
    FlashCall& call = made.call;
    const int64_t sizes[4] = {given.batch, given.q_heads, given.q_len, given.kv_len};
    if (given.change) given.change(call);
    int64_t stride = 1;
    for (int at = 3; at >= 0; --at) {
      const int axis = given.order[at];
      call.mask.sizes[axis] = given.own[axis] || given.expanded ? sizes[axis] : 1;
      call.mask.strides[axis] = given.own[axis] ? stride : given.expanded ? 0 : 12345;
      if (given.own[axis]) stride *= sizes[axis] + given.gap;
    }
    const auto place = [&](int64_t b, int64_t h, int64_t row, int64_t key) {
      const int64_t at[4] = {b, h, row, key};
      int64_t sum = 0;
      for (int axis = 0; axis < 4; ++axis) sum += given.own[axis] ? at[axis] * call.mask.strides[axis] : 0;
      return static_cast<size_t>(sum);
    };
    const auto seen = [&](int64_t b, int64_t h, int64_t row, int64_t key) {
      return sees(given.own[0] ? b : 0, given.own[1] ? h : 0, given.own[2] ? row : 0, given.own[3] ? key : 0);
    };
    for (const bool opposite : {true, false}) {
      std::vector<unsigned char> bytes(static_cast<size_t>(stride));
      for (int64_t b = 0; b < (given.own[0] ? given.batch : 1); ++b) {
        for (int64_t h = 0; h < (given.own[1] ? given.q_heads : 1); ++h) {
          for (int64_t row = 0; row < (given.own[2] ? given.q_len : 1); ++row) {
            for (int64_t key = 0; key < (given.own[3] ? given.kv_len : 1); ++key) {
              // Any byte that is not 0 lets a pair take part.
              bytes[place(b, h, row, key)] = seen(b, h, row, key) == opposite ? 0 : key % 3 == 0 ? 0x80 : 1;
            }
          }
        }
      }
      call.mask.data = on_device(bytes);
      engine_->flash(call);
    }
    const ScoreFunction score = [&](std::span<double> scores, int64_t b, int64_t h, int64_t row) {
      if (given.also) given.also(scores, b, h, row);
      for (size_t key = 0; key < scores.size(); ++key) {
        if (!seen(b, h, row, static_cast<int64_t>(key))) scores[key] = -std::numeric_limits<double>::infinity();
      }
    };
    made.shape.causal = call.causal;
    return worst_of(made, score, given.sink);
  }
  /// A case with FlashCall::blocks.
  MaskCase with_blocks() {
    MaskCase sparse{.q_len = 300, .kv_len = 300};
    sparse.change = [&](FlashCall& call) { call.blocks = on_device<unsigned>({5, 2, 6}); };
    sparse.also = [](std::span<double> scores, int64_t, int64_t, int64_t row) {
      const int64_t words[] = {5, 2, 6};
      for (int64_t key = 0; key < 300; ++key) {
        if ((words[row / 128] >> key / 128 & 1) == 0) scores[static_cast<size_t>(key)] = -INFINITY;
      }
    };
    return sparse;
  }
  void expect_right(const MaskCase& given, const Sees& sees, const char* what) {
    EXPECT_LT(worst(given, sees), given.dtype == DType::f32 ? 1e-4 : 3e-2) << what << ", " << given.text();
  }
};

struct NamedMask {
  const char* name;
  Sees sees;
};
const std::vector<NamedMask> masks = {{"half of all pairs", half_of_all},
                                      {"all pairs", all_pairs},
                                      {"no pairs", no_pairs},
                                      {"moving window", moving_window},
                                      {"blocks on the diagonal", blocks_on_the_diagonal},
                                      {"first and last keys", first_and_last}};

TEST_F(DeviceMaskTest, EachMask) {
  for (const auto& [name, sees] : masks) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      expect_right({.q_len = 200, .kv_len = 400, .dtype = dtype, .own = {false, false, true, true}}, sees, name);
      expect_right({.batch = 2, .q_heads = 2, .kv_heads = 1, .q_len = 131, .kv_len = 333, .dtype = dtype}, sees, name);
    }
  }
}

TEST_F(DeviceMaskTest, ManySizesAndWidths) {
  test::Some some(11);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const auto& [q_len, kv_len] :
         {std::pair{1, 1}, {1, 300}, {17, 5}, {64, 128}, {63, 129}, {257, 250}, {300, 9}}) {
      if (some.skips()) continue;
      expect_right({.q_len = q_len, .kv_len = kv_len, .dtype = dtype}, half_of_all, "half of all pairs");
    }
    for (const int64_t width : {8, 40, 96, 128, 192, 256}) {
      if (some.skips()) continue;
      expect_right({.batch = 1, .q_heads = 7, .kv_heads = 1, .q_len = 70, .width = width, .dtype = dtype}, half_of_all,
                   "half of all pairs");
    }
  }
}

TEST_F(DeviceMaskTest, AxesThatShareBytesAndOtherStrides) {
  for (int axes = 0; axes < 16; ++axes) {
    MaskCase given{.own = {(axes & 1) != 0, (axes & 2) != 0, (axes & 4) != 0, (axes & 8) != 0}};
    expect_right(given, half_of_all, "size 1");
    given.expanded = true;
    given.gap = 3;
    expect_right(given, half_of_all, "stride 0");
  }
  const std::vector<std::vector<int>> orders = {{0, 1, 3, 2}, {3, 2, 1, 0}, {2, 0, 3, 1}, {1, 0, 2, 3}};
  for (const std::vector<int>& order : orders) {
    for (const int64_t gap : {0, 1, 10}) {
      MaskCase given{.gap = gap};
      std::ranges::copy(order, given.order);
      expect_right(given, half_of_all, "strides");
    }
  }
  // Rows begin at multiples of 8 bytes, and unused bytes lie between the rows.
  expect_right({.kv_len = 152, .gap = 8}, half_of_all, "rows of whole groups of 8 bytes");
  expect_right({.kv_len = 150, .gap = 2}, half_of_all, "rows that end within a group of 8 bytes");
}

TEST_F(DeviceMaskTest, WithTheOtherOptions) {
  MaskCase causal{.q_len = 200, .kv_len = 300};
  causal.change = [](FlashCall& call) { call.causal = true; };
  expect_right(causal, half_of_all, "causal");
  MaskCase given{.q_len = 200, .kv_len = 300, .dtype = DType::bf16};
  given.change = [&](FlashCall& call) {
    call.window_left = 90;
    call.soft_cap = 3;
    call.lengths = on_device<int>({250, 0});
    call.starts = on_device<int>({130, 0});
    call.sinks = on_device<float>({0.5f, -1, 2, 0});
  };
  given.also = [](std::span<double> scores, int64_t sequence, int64_t, int64_t row) {
    const int64_t length = sequence == 0 ? 250 : 0, start = sequence == 0 ? 130 : 0;
    for (int64_t key = 0; key < 300; ++key) {
      double& score = scores[static_cast<size_t>(key)];
      score = 3 * std::tanh(score / 3);
      if (key < row + 100 - 90 || key >= length || key < start) score = -INFINITY;
    }
  };
  given.sink = [](int64_t, int64_t head) { return std::vector{0.5, -1., 2., 0.}[static_cast<size_t>(head)]; };
  for (const bool own : {false, true}) {
    given.own[0] = given.own[1] = own;
    expect_right(given, half_of_all, "window, soft cap, lengths, starts and sinks");
  }
  expect_right(with_blocks(), half_of_all, "blocks");
}

// One launch serves all masks that have own bytes along the same axes, whatever their strides.
TEST_F(DeviceMaskTest, OneLaunchForAllStrides) {
  EXPECT_LT(worst({}, half_of_all), 1e-4);
  const size_t prepared = engine_->prepared();
  EXPECT_LT(worst({.order = {2, 0, 3, 1}, .gap = 5}, moving_window), 1e-4);
  EXPECT_EQ(engine_->prepared(), prepared);
  EXPECT_LT(worst({.own = {false, true, true, true}}, half_of_all), 1e-4);
  EXPECT_EQ(engine_->prepared(), prepared + 1);
}

// Keys that no query sees have NaN in K and infinity in V. All outputs must be finite.
TEST_F(DeviceMaskTest, HiddenKeysMayHoldNanAndInfinity) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Tensor k = random_tensor(1, 2, 200, 64, dtype, Layout::bhsd, 1, 1);
    Tensor v = random_tensor(1, 2, 200, 64, dtype, Layout::bhsd, 1, 2);
    std::vector<unsigned char> bytes(200, 1);
    for (const int64_t key : {3, 150}) {
      bytes[static_cast<size_t>(key)] = 0;
      for (int64_t head = 0; head < 2; ++head) {
        for (int64_t d = 0; d < 64; ++d) {
          k.set(0, head, key, d, NAN);
          v.set(0, head, key, d, INFINITY);
        }
      }
    }
    FlashCall call{.q = on_device(random_tensor(1, 2, 100, 64, dtype, Layout::bhsd, 1, 0)),
                   .k = on_device(k),
                   .v = on_device(v),
                   .o = drawn(1, 2, 100, 64, 3)};
    call.mask = {.data = on_device(bytes), .sizes = {1, 1, 1, 200}, .strides = {0, 0, 0, 1}};
    engine_->flash(call);
    for (const float value : values(call.o)) ASSERT_TRUE(std::isfinite(value)) << name(dtype);
  }
}

TEST_F(DeviceMaskTest, BrokenMasksAreCaught) {
  struct Mutation {
    const char *what, *file, *from, *to;
    MaskCase given = {};
    Sees sees = half_of_all;
  };
  const std::string bits = test::on_cuda ? "mask_bits.cuda.cu" : "mask_bits.cpu.cpp", hook = "modifiers/mask_in_bits.h";
  const std::string seen_by_cuda = "modifiers/seen_in_bits.h";
  std::vector<Mutation> mutations = {
      {"the mask of another head", bits.c_str(), test::on_cuda ? "context.head * p.strides[1]" : "head * p.strides[1]",
       "0"},
      {"the mask of another sequence", bits.c_str(),
       test::on_cuda ? "context.batch * p.strides[0]" : "batch * p.strides[0]", "0"},
      {"the bits of the first head", "mask_bits.h", "head * bits.of_head", "0"},
      {"the bits of two neighbouring keys are exchanged", hook.c_str(), "% 2;", "% 2 ^ 1;"},
      {"a block that is not listed", bits.c_str(), test::on_cuda ? "!some ? 0" : "if (some)",
       test::on_cuda ? "!all ? 0" : "if (all)"},
      {"pairs of partial blocks are not masked", bits.c_str(), test::on_cuda ? "(found == 2)" : "+ !all",
       test::on_cuda ? "(found > 2)" : "+ 0 * all"},
      {"other rules are left out", bits.c_str(), "if (RULES", "if (RULES && p.q_len < 0", with_blocks(), all_pairs}};
  if (test::on_cuda) {
    mutations[3] = {"the bits of another row", seen_by_cuda.c_str(), "context.q_len - 1)", "context.q_len - 2)"};
    mutations.push_back({"a group of 8 bytes is read from its second half",
                         bits.c_str(),
                         "bytes.x >> odd",
                         "bytes.y >> odd",
                         {.kv_len = 256}});
    mutations.push_back({"a list with gaps",
                         bits.c_str(),
                         "__popc(listed & ((1u << threadIdx.x) - 1))",
                         "threadIdx.x",
                         {.q_len = 300, .kv_len = 300},
                         blocks_on_the_diagonal});
  }
  for (const Mutation& mutation : mutations) {
    const test::MutatedSources mutated(std::string("common/attention/kernels/") + mutation.file, mutation.from,
                                       mutation.to);
    reopen();
    EXPECT_GT(worst(mutation.given, mutation.sees), 1e-2) << mutation.what;
  }
}

}  // namespace
}  // namespace attn
