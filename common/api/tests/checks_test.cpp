// Which calls check() lets pass and which calls check() refuses: options at their smallest and largest values, sizes,
// tables, and overlaps in memory. Also simplify() and elements(). All tests run without a device.
#include "common/api/checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "common/base/error.h"
#include "common/testing/messages.h"

namespace attn::checked {
namespace {

constexpr int64_t largest = std::numeric_limits<int64_t>::max();
float memory[1 << 16];  // the memory of all tensors; no test reads it

/// Returns a dense tensor that begins at memory[at].
TensorView dense(int64_t at, int64_t batch, int64_t heads, int64_t tokens, int64_t width) {
  return {.data = memory + at,
          .dtype = DType::f32,
          .batch = batch,
          .heads = heads,
          .tokens = tokens,
          .width = width,
          .strides = {heads * tokens * width, tokens * width, width}};
}

FlashCall flash_call() {
  return {.q = dense(0, 2, 4, 5, 8),
          .k = dense(1000, 2, 2, 9, 8),
          .v = dense(2000, 2, 2, 9, 8),
          .o = dense(3000, 2, 4, 5, 8)};
}

/// Two sequences on four pages of eight tokens. The call appends two tokens to each sequence.
struct Cache {
  Cache() {
    call.q = dense(0, 2, 4, 2, 8);
    call.k = dense(1000, 4, 2, 8, 8);
    call.v = dense(2000, 4, 2, 8, 8);
    call.o = dense(3000, 2, 4, 2, 8);
    call.new_k = dense(4000, 2, 2, 2, 8);
    call.new_v = dense(5000, 2, 2, 2, 8);
    call.rotary_dim = 8;
    call.cosines = memory + 6000;
    call.sines = memory + 7000;
    call.positions = 16;
    call.lengths = lengths;
    call.table = table;
    call.max_pages = 2;
  }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  int lengths[2] = {16, 3}, table[4] = {0, 3, 1, 99};  // the second sequence does not reach its second page
  CacheCall call;
};

LinearCall linear_call() {
  return {.q = dense(0, 2, 4, 5, 8),
          .k = dense(1000, 2, 4, 5, 8),
          .v = dense(2000, 2, 4, 5, 16),
          .o = dense(3000, 2, 4, 5, 16)};
}

RopeCall rope_call() {
  return {.q = dense(0, 2, 4, 5, 8),
          .k = dense(1000, 2, 2, 5, 8),
          .q_out = dense(2000, 2, 4, 5, 8),
          .k_out = dense(3000, 2, 2, 5, 8),
          .config = {.head_dim = 8, .rotary_dim = 8}};
}

template <typename Call, typename Change>
void passes(Call call, const Change& change, const char* what) {
  change(call);
  try {
    EXPECT_TRUE(check(call, false));
  } catch (const BadInput& error) {
    ADD_FAILURE() << what << ": " << error.what();
  }
}

/// Expects that check() throws BadInput with one line that contains `part`.
template <typename Call, typename Change>
void refused(Call call, const Change& change, const std::string& part) {
  change(call);
  const std::string text = test::message_of<BadInput>([&] { check(call, false); });
  test::expect_words(text, {part});
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}
#define CHANGE(call, ...) [&]([[maybe_unused]] std::remove_cvref_t<decltype(call)>& c) { __VA_ARGS__; }
#define PASSES(call, ...) passes(call, CHANGE(call, __VA_ARGS__), #__VA_ARGS__)
#define REFUSED(part, call, ...) refused(call, CHANGE(call, __VA_ARGS__), part)

// ---- options

TEST(ChecksTest, SmallestAndLargestOptionsOfFlash) {
  const FlashCall call = flash_call();
  PASSES(call, );
  for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{1} << 31, largest}) {
    PASSES(call, c.window_left = c.window_right = size);
    PASSES(call, c.causal = true, c.prefix = size);
    PASSES(call, c.window_left = 1, c.global_tokens = size);
    PASSES(call, c.global_tokens = size);
  }
  REFUSED("window_left -2", call, c.window_left = -2);
  REFUSED("window_right -2", call, c.window_right = -2);
  REFUSED("prefix -1", call, c.causal = true, c.prefix = -1);
  REFUSED("prefix 3 is allowed only with causal", call, c.prefix = 3);
  REFUSED("global_tokens -1", call, c.window_left = 1, c.global_tokens = -1);
  REFUSED("global_tokens -1", call, c.global_tokens = -1);
  for (const double cap : {0.001, 0.5, 30.5, 1000.0}) PASSES(call, c.soft_cap = cap);
  REFUSED("soft_cap 1001: 0.001 to 1000 are allowed", call, c.soft_cap = 1001);
  for (const double cap : {-1.0, 0.0009, 1000.5, 0x1p-1050, double{NAN}, double{INFINITY}}) {
    REFUSED("soft_cap", call, c.soft_cap = cap);
  }
  PASSES(call, c.soft_cap = 0.5, c.scale = 0x1p126);  // kernels multiply scores by scale / soft_cap
  REFUSED("scale", call, c.soft_cap = 0.5, c.scale = -0x1.8p126);
  PASSES(call, c.soft_cap = 30, c.scale = -0x1p127);
  REFUSED("alibi_slopes are allowed only with alibi", call, c.alibi_slopes = memory + 9000);
}

template <typename Call>
void check_scales(const Call& call) {
  for (const double size : {0x1p-126, 1e-30, 0.125, 1e30, 0x1p127}) {
    for (const double scale : {size, -size}) PASSES(call, c.scale = scale);
  }
  for (const double scale : {double{NAN}, double{INFINITY}, -double{INFINITY}, 0x1p128, 1e300, 0x1p-127, -1e-300}) {
    REFUSED("scale", call, c.scale = scale);
  }
}

TEST(ChecksTest, ScalesThatKernelsCanHold) {
  check_scales(flash_call());
  check_scales(Cache().call);
  check_scales(linear_call());
  LinearCall normalised = linear_call();
  normalised.normalised = true;
  PASSES(normalised, c.scale = 1);
  REFUSED("scale 3 is not allowed with normalised", normalised, c.scale = 3);
  REFUSED("initial_state is not allowed with normalised", normalised, c.initial_state = memory + 10000);
}

TEST(ChecksTest, SmallestAndLargestOptionsOfRope) {
  const RopeCall call = rope_call();
  PASSES(call, );
  PASSES(call, c.config.theta = 1e300);
  REFUSED("rotary_dim", call, c.config.rotary_dim = 10);
  const int first[] = {std::numeric_limits<int>::min(), std::numeric_limits<int>::max() - 4};
  PASSES(call, c.offsets = first);
  const int wraps[] = {0, first[1] + 1};  // with this offset the last of five tokens would stand at 2^31
  REFUSED("offsets[1] is 2147483644", call, c.offsets = wraps);
}

// ---- sizes

TEST(ChecksTest, SizesThatKernelsTake) {
  const FlashCall call = flash_call();
  for (const int64_t width : {1, 4, 12, 8200}) {
    REFUSED("", call, c.q.width = c.k.width = c.v.width = c.o.width = width);
  }
  REFUSED("width must be at least 1", call, c.q.width = c.k.width = c.v.width = c.o.width = 0);
  REFUSED("q: sizes [-1", call, c.q.batch = -1);
  REFUSED("k: sizes [65536", call, c.k.batch = 65536);
  REFUSED("o is [2, 4, 6]", call, c.o.tokens = 6);
  REFUSED("do not divide", call, c.q.heads = c.o.heads = 3);
  REFUSED("q has no data", call, c.q.data = nullptr);
  REFUSED("widths", call, c.k.width = 16);
  REFUSED("k: bf16", call, c.k.dtype = c.v.dtype = DType::bf16);
  REFUSED("o: f16", call, c.o.dtype = DType::f16);
  REFUSED("bias", call, c.bias = memory, c.bias_sizes[0] = c.bias_sizes[1] = c.bias_sizes[2] = 1, c.bias_sizes[3] = 6);
  // 2^60 rows of 8 elements: 2^63 elements.
  REFUSED("rows", call, c.q.batch = c.o.batch = 1 << 15, c.q.heads = c.o.heads = 1 << 15,
          c.q.tokens = c.o.tokens = 1 << 30);
  REFUSED("no memory is so large", call, c.k.strides.batch = largest / 8);
  PASSES(call, c.q.batch = c.k.batch = c.v.batch = c.o.batch = 1, c.k.strides.batch = largest / 8);
  FlashCall wide = call;
  wide.q.width = wide.k.width = wide.v.width = wide.o.width = 264;
  EXPECT_THROW(check(wide, true), BadInput);
}

TEST(ChecksTest, MorePagesThanAGridHas) {
  const Cache cache;
  PASSES(cache.call, c.k.batch = c.v.batch = std::numeric_limits<int>::max(), c.k.strides = c.v.strides = {},
         c.new_k = c.new_v = {}, c.cosines = c.sines = nullptr, c.rotary_dim = 0);
  REFUSED("k has a batch of 4", cache.call, c.table = nullptr);
  REFUSED("q: sizes [70000", cache.call, c.table = nullptr, c.k.batch = c.v.batch = c.q.batch = 70000);
}

// ---- tables

TEST(ChecksTest, LengthsOfFlash) {
  const FlashCall call = flash_call();
  int lengths[] = {0, 9};
  PASSES(call, c.lengths = lengths);
  lengths[1] = 10;
  REFUSED("lengths[1] is 10; 0 to 9", call, c.lengths = lengths);
  lengths[0] = -1;
  REFUSED("lengths[0] is -1", call, c.lengths = lengths);
}

TEST(ChecksTest, MasksWithAByteForEachPair) {
  static unsigned char bytes[45];
  FlashCall call = flash_call();
  call.mask = {.data = bytes, .sizes = {1, 1, 5, 9}, .strides = {0, 0, 9, 1}};
  PASSES(call, );
  REFUSED("mask: a shape of [1, 1, 5, 8]", call, c.mask.sizes[3] = 8);
  REFUSED("mask: a shape of [3, 1, 5, 9]", call, c.mask.sizes[0] = 3);
  REFUSED("mask: a stride of", call, c.mask.strides[2] = int64_t{1} << 60);
  REFUSED("o overlaps mask", call, c.mask.data = reinterpret_cast<unsigned char*>(memory + 3000));
  const int sequences[] = {0, 5};
  FlashCall one = call;
  one.q.batch = one.k.batch = one.v.batch = one.o.batch = 1;
  REFUSED("cu_seqlens_q is not allowed with a mask", one, c.cu_seqlens_q = c.cu_seqlens_k = sequences, c.sequences = 1);
}

TEST(ChecksTest, DocumentsOfTheQueriesOwnKeys) {
  const FlashCall call = flash_call();  // five queries, whose own keys are keys 4 to 8
  const std::vector<int> good = {-7, 99, 5, 2, -1, 0, 0, 0, 0, 6, 0, 6, 6, 9, 6, 9, 9, 9};
  PASSES(call, c.documents = good.data());
  for (const auto& [at, value] : {std::pair{8, -1}, {9, 10}, {11, 5}, {14, 5}, {16, 10}}) {
    std::vector<int> bad = good;
    bad[static_cast<size_t>(at)] = value;
    REFUSED("documents[" + std::to_string(at / 2) + "]", call, c.documents = bad.data());
  }
}

TEST(ChecksTest, PagesThatTokensAreAppendedTo) {
  Cache cache;
  cache.table[1] = 1;  // page 1 now belongs to both sequences
  REFUSED("appended to page 1 twice", cache.call, );
  PASSES(cache.call, c.new_k = c.new_v = {}, c.cosines = c.sines = nullptr, c.rotary_dim = 0);
  cache.lengths[0] = 10;  // the new tokens of the first sequence stand at keys 8 and 9
  REFUSED("appended to page 1 twice", cache.call, );
  cache.lengths[0] = 8;  // the new tokens stand at keys 6 and 7
  PASSES(cache.call, );
  cache.table[1] = cache.table[0];
  cache.lengths[0] = 9;  // the new tokens stand at keys 7 and 8, both on page 0
  REFUSED("appended to page 0 twice", cache.call, );
  cache.lengths[0] = 1;
  PASSES(cache.call, );
}

TEST(ChecksTest, SlotsThatOneSequenceReadsWhileAnotherAppends) {
  Cache cache;
  // The first sequence writes slots 1 and 2 of page 0. The second sequence has two full pages before its new tokens.
  cache.call.max_pages = 3;
  int table[] = {0, 3, 3, 0, 1, 2};
  cache.call.table = table;
  cache.call.positions = 24;
  const auto set = [&](int first, int second) { cache.lengths[0] = first, cache.lengths[1] = second; };
  set(3, 20);
  REFUSED("sequence 1 reads token 1 of page 0, to which sequence 0 appends", cache.call, );
  PASSES(cache.call, c.new_k = c.new_v = {}, c.cosines = c.sines = nullptr, c.rotary_dim = 0);
  PASSES(cache.call, c.window_left = 9);  // the oldest new token stands at key 18, so no query sees key 8
  PASSES(cache.call, c.window_left = 10);
  REFUSED("reads token 2 of page 0", cache.call, c.window_left = 16);
  int starts[] = {0, 3};
  PASSES(cache.call, c.starts = starts);
  starts[1] = 2;
  REFUSED("reads token 2 of page 0", cache.call, c.starts = starts);
  set(2, 20);  // the new tokens are slots 0 and 1
  REFUSED("reads token 0 of page 0", cache.call, );
  // A shared prefix that ends inside a page: the second sequence ends there, and appends to other pages.
  table[0] = 3, table[1] = 0, table[3] = 0;
  set(13, 5);  // slots 3 and 4 of page 0 twice
  REFUSED("appended to page 0 twice", cache.call, );
  std::copy_n(std::data({0, 1, 2, 0, 3, 3}), 6, table);
  set(8, 10);  // the first sequence writes slots 6 and 7, the second has all of page 0 before its new tokens
  REFUSED("sequence 1 reads token 6 of page 0", cache.call, );
  // A sequence that sees its own new tokens through two entries.
  std::copy_n(std::data({0, 1, 0, 3, 3, 3}), 6, table);
  set(18, 0);
  REFUSED("sequence 0 reads token 0 of page 0, to which sequence 0 appends", cache.call, );
  PASSES(cache.call, c.window_left = 14);  // a ring of pages: no query sees the page's old tokens
}

TEST(ChecksTest, LengthsAndPagesOfACache) {
  Cache cache;
  PASSES(cache.call, );
  cache.lengths[1] = 0;
  PASSES(cache.call, );  // fewer keys than queries: queries before the first key see no key
  for (const int length : {17, -1, 1 << 30, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()}) {
    cache.lengths[1] = length;
    REFUSED("row 1: length " + std::to_string(length), cache.call, );
  }
  cache.lengths[1] = 9;
  REFUSED("row 1, column 1: page 99; the pool has pages 0 to 3", cache.call, );
  for (const int page : {-1, 4, 1000000000, std::numeric_limits<int>::min()}) {
    cache.table[3] = page;
    REFUSED("row 1, column 1: page " + std::to_string(page), cache.call, );
  }
  cache.table[3] = 2;
  PASSES(cache.call, );
}

TEST(ChecksTest, LengthsOfAContiguousCache) {
  Cache cache;
  cache.call.table = nullptr;
  cache.call.max_pages = 0;
  cache.call.k.batch = cache.call.v.batch = 2;
  cache.lengths[0] = 8;
  PASSES(cache.call, );
  cache.lengths[0] = 9;
  REFUSED("lengths[0] is 9; 0 to 8", cache.call, );
  cache.lengths[0] = -1;
  REFUSED("lengths[0] is -1", cache.call, );
}

TEST(ChecksTest, OptionsOfACacheThatNeedEachOther) {
  const Cache cache;
  REFUSED("positions", cache.call, c.positions = 15);
  REFUSED("new_k and new_v must both be given", cache.call, c.new_v = {});
  REFUSED("cosines and sines must both be given", cache.call, c.sines = nullptr);
  REFUSED("rotary_dim, cosines and sines are allowed only with new_k", cache.call, c.new_k = c.new_v = {});
  REFUSED("lengths are missing", cache.call, c.lengths = nullptr);
  REFUSED("soft_cap 1001", cache.call, c.soft_cap = 1001);
  REFUSED("window_left -2", cache.call, c.window_left = -2);
  REFUSED("alibi_slopes are allowed only with alibi", cache.call, c.alibi_slopes = memory + 9000);
  REFUSED("new_v: bf16", cache.call, c.new_v.dtype = DType::bf16);
  const int starts[] = {0, 17};
  REFUSED("starts[1] is 17", cache.call, c.starts = starts);
  REFUSED("too long", cache.call, c.max_pages = largest / 8);
  const float scales[8] = {1, 1, 1, 1, 1, 1, 1, 1};  // [4 pages, 2 heads]
  for (const DType dtype : {DType::int8, DType::e4m3}) {
    const auto of_bytes = [&](CacheCall& c) {
      c.k.dtype = c.v.dtype = dtype;
      c.k_scales = c.v_scales = scales;
    };
    PASSES(cache.call, of_bytes(c));
    REFUSED("k_scales and v_scales must be given for a cache", cache.call, of_bytes(c), c.v_scales = nullptr);
    REFUSED("it must have the type of q, f32", cache.call, of_bytes(c), c.new_k.dtype = c.new_v.dtype = dtype);
    REFUSED("new_k and new_v must both be given", cache.call, of_bytes(c), c.new_v = {}, c.cosines = c.sines = nullptr,
            c.rotary_dim = 0);
    PASSES(cache.call, of_bytes(c), c.new_k = c.new_v = {}, c.cosines = c.sines = nullptr, c.rotary_dim = 0);
  }
}

// ---- overlaps in memory

TEST(ChecksTest, OutputsHaveMemoryOfTheirOwn) {
  const FlashCall call = flash_call();
  REFUSED("o overlaps q", call, c.o = c.q);
  REFUSED("o overlaps q", call, c.o.data = memory + 1);
  REFUSED("o overlaps v", call, c.o.data = memory + 2000 + 2 * 2 * 9 * 8 - 1);
  PASSES(call, c.o.data = memory + 2000 + 2 * 2 * 9 * 8);
  REFUSED("o overlaps lse", call, c.lse = memory + 3319);
  PASSES(call, c.lse = memory + 3320);
  REFUSED("lse overlaps k", call, c.lse = memory + 961);
  REFUSED("o overlaps sinks", call, c.sinks = memory + 3000);
  REFUSED("rows that overlap one another", call, c.o.strides.batch = 0);
  REFUSED("rows that overlap one another", call, c.o.strides.row = 7);
  PASSES(call, c.q.strides = {}, c.k.strides = {});  // rows of inputs may overlap

  const Cache cache;
  REFUSED("k overlaps v", cache.call, c.v = c.k);
  REFUSED("k overlaps new_k", cache.call, c.new_k.data = c.k.data);
  REFUSED("k: rows that overlap", cache.call, c.k.strides.batch = 0);
  PASSES(cache.call, c.v = c.k, c.new_k = c.new_v = {}, c.cosines = c.sines = nullptr, c.rotary_dim = 0);

  LinearCall linear = linear_call();
  linear.initial_state = linear.final_state = memory + 10000;
  PASSES(linear, );
  REFUSED("final_state overlaps initial_state", linear, c.final_state += 8);
  REFUSED("o overlaps initial_state", linear, c.initial_state = memory + 3001, c.final_state = nullptr);

  const RopeCall rope = rope_call();
  PASSES(rope, c.q_out = c.q, c.k_out = c.k);
  REFUSED("q_out overlaps q", rope, c.q_out = c.q, c.q_out.data = memory + 8);
  REFUSED("q_out overlaps q", rope, c.q_out = c.q, c.q_out.strides = {160, 8, 32});
  REFUSED("q_out overlaps k", rope, c.q_out.data = c.k.data);
  REFUSED("q_out overlaps k_out", rope, c.k_out.data = c.q_out.data);
}

/// Tensors that are slices of one tensor: every row lies between rows of the other slices, and no rows overlap. Then
/// one slice moves so that it overlaps another slice.
TEST(ChecksTest, SlicesOfOneTensorAreApart) {
  const int64_t heads = 4, tokens = 5, width = 8, all = 4 * heads * width;
  const auto slice = [&](int64_t number) {  // [batch, tokens, 4, heads, width]
    TensorView view = dense(number * heads * width, 2, heads, tokens, width);
    view.strides = {tokens * all, width, all};
    return view;
  };
  FlashCall call{.q = slice(0), .k = slice(1), .v = slice(2), .o = slice(3)};
  PASSES(call, );
  REFUSED("o overlaps v", call, c.o.data = memory + 3 * heads * width - 1);
  PASSES(call, c.o = slice(0), c.q = slice(3));
  const auto planes = [&](int64_t number) {  // [pages, 2, heads, tokens, width]
    TensorView view = dense(20000 + number * 2 * 8 * 8, 4, 2, 8, 8);
    view.strides.batch *= 2;
    return view;
  };
  const Cache cache;
  PASSES(cache.call, c.k = planes(0), c.v = planes(1));
  REFUSED("k overlaps v", cache.call, c.k = planes(0), c.v = planes(1), c.v.data = memory + 20000 + 2 * 8 * 8 - 1);
}

// ---- options that change nothing

/// Whether a query sees a key, by the rules of attn.h.
bool visible(const FlashCall& call, int64_t q, int64_t k) {
  const int64_t own = q + call.k.tokens - call.q.tokens;
  const bool in_window =
      (call.window_left < 0 || own - k <= call.window_left) && (call.window_right < 0 || k - own <= call.window_right);
  const bool global = call.global_tokens > 0 && (k < call.global_tokens || own < call.global_tokens);
  return (!call.causal || k <= own || k < call.prefix) && (in_window || global);
}

TEST(SimplifyTest, HidesAndShowsTheSameKeys) {
  const std::vector<int64_t> sizes = {0, 1, 2, 3, 4, 5, 6, 7, (int64_t{1} << 31) - 1, (int64_t{1} << 32) + 3, largest};
  std::vector<int64_t> windows = sizes;
  windows.push_back(-1);
  FlashCall call = flash_call();
  const auto same = [&] {
    FlashCall simple = call;
    simplify(simple);
    bool equal = true;
    for (int64_t q = 0; q < call.q.tokens; ++q) {
      for (int64_t k = 0; k < call.k.tokens; ++k) equal = equal && visible(call, q, k) == visible(simple, q, k);
    }
    // The remaining options become 32-bit constants of a kernel, and each value needs its own kernel. So every value
    // must be less than the larger of the numbers of queries and keys.
    const int64_t left = std::max({simple.prefix, simple.window_left, simple.window_right, simple.global_tokens});
    return equal && left < std::max(call.q.tokens, call.k.tokens);
  };
  for (call.q.tokens = 1; call.q.tokens <= 6; ++call.q.tokens) {
    for (call.k.tokens = 1; call.k.tokens <= 6; ++call.k.tokens) {
      for (const int64_t left : windows) {
        for (const int64_t right : windows) {
          for (const int64_t global : sizes) {
            for (const int64_t prefix : sizes) {
              call.window_left = left;
              call.window_right = right;
              call.global_tokens = global;
              call.prefix = prefix;
              call.causal = true;
              ASSERT_TRUE(same()) << call.q.tokens << " queries, " << call.k.tokens << " keys, prefix " << prefix
                                  << ", window " << left << ", " << right << ", global " << global;
              call.causal = false;
              ASSERT_TRUE(prefix > 0 || same()) << call.q.tokens << " queries, " << call.k.tokens << " keys, window "
                                                << left << ", " << right << ", global " << global;
            }
          }
        }
      }
    }
  }
}

TEST(ChecksTest, CountsElementsThatNoMemoryHas) {
  constexpr int64_t most = int64_t{1} << 30;
  EXPECT_EQ(elements({2, 3, 5, 7}), 210);
  EXPECT_EQ(elements({1, 65535, most, most}), most_elements);
  EXPECT_EQ(elements({most, most, most, most, 0}), 0);
  EXPECT_GT(8 * most_elements, 0);
}

}  // namespace
}  // namespace attn::checked
