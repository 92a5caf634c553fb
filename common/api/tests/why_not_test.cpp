// attn_why_not says of each call what the call itself says: random calls of every operation, right and wrong ones, on
// the device under test.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/api/attn.h"
#include "common/backends/metal/buffers.h"
#include "common/device/device.h"
#include "common/testing/tested_device.h"

namespace attn {
namespace {

constexpr DLDataType f32 = {2, 32, 1}, f16 = {2, 16, 1}, bf16 = {4, 16, 1}, int8 = {0, 8, 1}, int32 = {0, 32, 1},
                     int64 = {0, 64, 1}, boolean = {6, 8, 1}, e4m3 = {10, 8, 1}, f64 = {2, 64, 1};

struct Described : DLTensor {
  std::vector<int64_t> sizes, steps;
};

/// The arguments of a call. All tables of positions and pages are zeros, which no call refuses: these tables have
/// memory that no call writes.
class Arguments {
 public:
  static constexpr size_t bytes_of_tensor = size_t{2} << 20, most_tensors = 32;

  Arguments(std::mt19937& random, Device& device, const Buffer& memory)
      : random_(random),
        device_(device.info()),
        buffers_(dynamic_cast<BufferDevice*>(&device)),
        memory_(static_cast<std::byte*>(memory.data())) {
    operation = static_cast<attn_operation>(below(5));
    if (operation == ATTN_FLASH) draw_flash();
    if (operation == ATTN_DECODE || operation == ATTN_PREFILL) draw_cache();
    if (operation == ATTN_LINEAR) draw_linear();
    if (operation == ATTN_ROPE) draw_rope();
    for (int64_t i = below(2) * (1 + below(2)); i > 0; --i) spoil();
  }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  attn_status call(attn_engine* engine) const {
    const DLTensor *a = main[0], *b = main[1], *c = main[2], *d = main[3];
    switch (operation) {
      case ATTN_FLASH:
        return attn_flash(engine, nullptr, a, b, c, d, &flash);
      case ATTN_DECODE:
        return attn_decode(engine, nullptr, a, b, c, d, &cache);
      case ATTN_PREFILL:
        return attn_prefill(engine, nullptr, a, b, c, d, &cache);
      case ATTN_LINEAR:
        return attn_linear(engine, nullptr, a, b, c, d, &linear);
      case ATTN_ROPE:
        return attn_rope(engine, nullptr, a, b, c, d, &rope);
    }
    return ATTN_FAILED;
  }
  /// Returns the answer of attn_why_not, "" if the call is served.
  std::string why_not(attn_engine* engine) const {
    const void* const options = operation == ATTN_FLASH    ? static_cast<const void*>(&flash)
                                : operation == ATTN_LINEAR ? static_cast<const void*>(&linear)
                                : operation == ATTN_ROPE   ? static_cast<const void*>(&rope)
                                                           : static_cast<const void*>(&cache);
    const char* const why = attn_why_not(engine, operation, main[0], main[1], main[2], main[3], options);
    return why ? why : "";
  }
  /// The memory that tensors have from its begin, apart from tables of integers.
  size_t bytes() const { return tensors_.size() * bytes_of_tensor; }
  /// Takes away the addresses of all tensors, and the outputs.
  void describe_alone() {
    for (Described& tensor : tensors_) tensor.data = nullptr;
    main[3] = nullptr;
    if (operation == ATTN_ROPE) main[2] = nullptr;
  }

  attn_operation operation;
  const DLTensor* main[4] = {};
  attn_flash_options flash = ATTN_FLASH_OPTIONS;
  attn_cache_options cache = ATTN_CACHE_OPTIONS;
  attn_linear_options linear = ATTN_LINEAR_OPTIONS;
  attn_rope_options rope = ATTN_ROPE_OPTIONS;

 private:
  int64_t below(int64_t count) { return std::uniform_int_distribution<int64_t>(0, count - 1)(random_); }
  bool one_in(int64_t count) { return below(count) == 0; }
  template <typename T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<int64_t>(values.size()))];
  }

  void one_of(std::initializer_list<std::function<void()>> choices) {
    choices.begin()[below(static_cast<int64_t>(choices.size()))]();
  }

  const DLTensor* tensor(std::vector<int64_t> sizes, DLDataType type) {
    Described& made = tensors_.emplace_back();
    made.sizes = std::move(sizes);
    made.steps.assign(made.sizes.size(), 1);
    for (size_t i = made.sizes.size() - 1; i > 0; --i) made.steps[i - 1] = made.steps[i] * made.sizes[i];
    const size_t at = tensors_.size() - 1;
    void* const address = memory_ + (type.code == int32.code ? most_tensors - 1 - at : at) * bytes_of_tensor;
    std::tie(made.data, made.byte_offset) =
        buffers_ ? buffers_->buffer_of(address) : std::pair<void*, uint64_t>(address, 0);
    made.device = {static_cast<decltype(made.device.device_type)>(device_.dlpack_type), device_.dlpack_id};
    made.ndim = static_cast<int32_t>(made.sizes.size());
    made.dtype = type;
    made.shape = made.sizes.data();
    made.strides = made.steps.data();
    return &made;
  }
  const DLTensor* in_layout(attn_layout layout, int64_t n, int64_t heads, int64_t tokens, int64_t width,
                            DLDataType type) {
    return layout == ATTN_BHSD ? tensor({n, heads, tokens, width}, type) : tensor({n, tokens, heads, width}, type);
  }

  void draw_flash() {
    const int64_t n = 1 + below(2), kv_heads = 1 + below(2), q_heads = kv_heads * (1 + below(2));
    const int64_t queries = pick<int64_t>({1, 5, 20, 0}), keys = pick<int64_t>({20, 70, 0});
    const DLDataType type = pick({f32, bf16});
    flash.layout = pick({ATTN_BHSD, ATTN_BSHD});
    flash.causal = static_cast<int>(below(2));
    main[0] = in_layout(flash.layout, n, q_heads, queries, 64, type);
    main[1] = in_layout(flash.layout, n, kv_heads, keys, 64, type);
    main[2] = in_layout(flash.layout, n, kv_heads, keys, 64, type);
    main[3] = in_layout(flash.layout, n, q_heads, queries, 64, one_in(2) ? f32 : type);
    one_of(
        {[&] { flash.soft_cap = 30; }, [&] { flash.window_left = 9; }, [&] { flash.lengths = tensor({n}, int32); },
         [&] { flash.starts = tensor({n}, int32); }, [&] { flash.documents = tensor({keys, 2}, int32); },
         [&] { flash.bias = tensor({n, one_in(2) ? q_heads : 1, one_in(2) ? queries : 1, (keys + 3) / 4 * 4}, f32); },
         [&] { flash.mask = tensor({one_in(2) ? n : 1, 1, queries, keys}, boolean); },
         [&] { flash.sinks = tensor({q_heads}, f32); }, [&] { flash.lse = tensor({n, q_heads, queries}, f32); },
         [&] { flash.cu_seqlens_q = tensor({3}, int32), flash.cu_seqlens_k = tensor({3}, int32); },
         [&] { flash.alibi = 1, flash.alibi_slopes = one_in(2) ? tensor({q_heads}, f32) : nullptr; },
         [&] { flash.blocks = tensor({(keys + 127) / 128, (keys + 4095) / 4096}, int32); }, [] {}});
  }

  void draw_cache() {
    const int64_t n = 1 + below(2), kv_heads = 1 + below(2), q_heads = kv_heads * (1 + below(2));
    const int64_t queries = operation == ATTN_DECODE ? pick<int64_t>({1, 3, 0}) : pick<int64_t>({5, 20});
    const DLDataType type = pick({f32, bf16}), stored = pick({type, type, int8, e4m3});
    const bool paged = one_in(2), in_8_bits = stored.bits == 8;
    const int64_t pages = paged ? 3 * n : n, page = paged ? 16 : 48;
    cache.layout = pick({ATTN_BHSD, ATTN_BSHD});
    cache.cache_layout = pick({ATTN_BHSD, ATTN_BSHD});
    main[0] = in_layout(cache.layout, n, q_heads, queries, 64, type);
    main[1] = in_layout(cache.cache_layout, pages, kv_heads, page, 64, stored);
    main[2] = in_layout(cache.cache_layout, pages, kv_heads, page, 64, stored);
    main[3] = in_layout(cache.layout, n, q_heads, queries, 64, type);
    cache.lengths = tensor({n}, int32);
    if (paged) cache.table = tensor({n, 3}, int32);
    if (in_8_bits) cache.k_scales = tensor({pages, kv_heads}, f32), cache.v_scales = tensor({pages, kv_heads}, f32);
    if (one_in(2)) {
      cache.new_k = in_layout(cache.layout, n, kv_heads, queries, 64, type);
      cache.new_v = in_layout(cache.layout, n, kv_heads, queries, 64, type);
      if (one_in(2)) cache.cosines = tensor({48, 32}, f32), cache.sines = tensor({48, 32}, f32);
    }
    one_of({[&] { cache.soft_cap = 30; }, [&] { cache.window_left = 9; }, [&] { cache.starts = tensor({n}, int32); },
            [&] { cache.sinks = tensor({q_heads}, f32); }, [&] { cache.lse = tensor({n, q_heads, queries}, f32); },
            [&] { cache.tree = tensor({n, queries}, int64); }, [] {}, [] {}});
  }

  void draw_linear() {
    const int64_t n = 1 + below(2), heads = 1 + below(2), tokens = pick<int64_t>({5, 40, 0}), width = 32;
    const DLDataType type = pick({f32, bf16});
    linear.causal = static_cast<int>(below(2));
    main[0] = tensor({n, heads, tokens, width}, type);
    main[1] = tensor({n, heads, tokens, width}, type);
    main[2] = tensor({n, heads, tokens, 2 * width}, type);
    main[3] = tensor({n, heads, tokens, 2 * width}, type);
    one_of({[&] { linear.gate = tensor({heads}, f32); }, [&] { linear.gate = tensor({n, heads, tokens}, f32); },
            [&] { linear.initial_state = tensor({n, heads, width, 2 * width}, f32); },
            [&] { linear.final_state = tensor({n, heads, width, 2 * width}, f32); }, [&] { linear.normalised = 1; },
            [] {}});
    linear.feature = pick<const char*>({nullptr, "elu1", "relu"});
  }

  void draw_rope() {
    const int64_t n = 1 + below(2), tokens = pick<int64_t>({1, 5, 0});
    const DLDataType type = pick({f32, bf16});
    const bool both = one_in(2), in_place = one_in(2);
    main[0] = tensor({n, 2, tokens, 64}, type);
    if (both) main[1] = tensor({n, 1, tokens, 64}, type);
    main[2] = in_place ? main[0] : tensor({n, 2, tokens, 64}, type);
    if (both) main[3] = tensor({n, 1, tokens, 64}, type);
    if (one_in(2)) rope.offsets = tensor({n}, int32);
    if (one_in(3)) rope.scaling = pick({ATTN_ROPE_LINEAR, ATTN_ROPE_YARN, ATTN_ROPE_LLAMA3}), rope.factor = 2;
  }

  /// Changes one argument, mostly to one that is not allowed.
  void spoil() {
    Described& some = tensors_[static_cast<size_t>(below(static_cast<int64_t>(tensors_.size())))];
    const size_t axis = static_cast<size_t>(below(some.ndim));
    one_of({[&] { some.sizes[axis] = pick<int64_t>({0, 1, 3, 16, 64, 65536, -1}); },
            [&] { some.steps[axis] = pick<int64_t>({0, 1, 3, 64, 2048, int64_t{1} << 57}); },
            [&] { some.dtype = pick({f32, f16, bf16, f64, int8, int32, e4m3, boolean}); },
            [&] { some.device.device_type = static_cast<decltype(some.device.device_type)>(1 + below(3)); },
            [&] { some.byte_offset += pick<uint64_t>({1, 2, 16}); }, [&] { some.ndim -= some.ndim > 1; },
            [&] { main[below(operation == ATTN_ROPE ? 2 : 3)] = nullptr; },
            [&] { some.data = tensors_.front().data, some.byte_offset = tensors_.front().byte_offset; },
            [&] { spoil_option(); }, [&] { spoil_option(); }});
  }

  void spoil_option() {
    const auto scale = pick<double>({NAN, 1e-200, INFINITY, 0.5});
    const auto count = pick<int64_t>({-2, 3, 7, 12, std::numeric_limits<int64_t>::max()});
    const auto size = pick<size_t>({0, 16, 1000});
    const auto layout = pick({ATTN_BSHD, ATTN_BHSD, static_cast<attn_layout>(7)});
    one_of({[&] { flash.scale = cache.scale = linear.scale = scale, rope.theta = scale; },
            [&] { flash.soft_cap = cache.soft_cap = 1e4 * scale; },
            [&] { flash.window_left = cache.window_left = count, rope.rotary_dim = count; },
            [&] { flash.prefix = count, cache.tree = tensor({1, 1}, int64), linear.feature = "gelu"; },
            [&] { flash.global_tokens = count, cache.new_v = nullptr, linear.gate = nullptr, rope.factor = scale; },
            [&] {
              flash.alibi_slopes = flash.lengths, cache.table = nullptr,
              rope.scaling = static_cast<attn_rope_scaling>(9);
            },
            [&] { flash.layout = cache.layout = linear.layout = rope.layout = layout; },
            [&] { flash.struct_bytes = cache.struct_bytes = linear.struct_bytes = rope.struct_bytes = size; }});
  }

  std::mt19937& random_;
  const DeviceInfo& device_;
  const BufferDevice* const buffers_;
  std::byte* memory_;
  std::deque<Described> tensors_;
};

class DeviceWhyNotTest : public testing::Test {
 protected:
  void SetUp() override {
    const attn_open_options options{sizeof options, ATTN_TEST_KERNELS, nullptr, nullptr, nullptr};
    const attn_status status = attn_open(test::test_device.c_str(), &options, &engine_);
    if (status == ATTN_NO_DEVICE) GTEST_SKIP() << attn_message();
    ASSERT_EQ(status, ATTN_OK) << attn_message();
    device_ = Device::open_for_caller(test::test_device);
  }
  void TearDown() override { attn_close(engine_); }

  attn_engine* engine_ = nullptr;
  std::unique_ptr<Device> device_;
};

TEST_F(DeviceWhyNotTest, SaysWhatTheCallSays) {
  std::mt19937 random(1);
  const std::vector<std::byte> zeros(Arguments::most_tensors * Arguments::bytes_of_tensor);
  const Buffer memory = uploaded(*device_, zeros);
  int served[5] = {}, refused[5] = {};
  for (int i = 0; i < 500; ++i) {
    Arguments arguments(random, *device_, memory);
    SCOPED_TRACE(fmt::format("call {}, operation {}", i, static_cast<int>(arguments.operation)));
    const size_t prepared = attn_prepared(engine_);
    const std::string without_engine = arguments.why_not(nullptr), why = arguments.why_not(engine_);
    ASSERT_EQ(attn_prepared(engine_), prepared) << "a question prepares no launch";
    const attn_status status = arguments.call(engine_);
    const std::string said = status == ATTN_OK ? "" : attn_message();
    ASSERT_EQ(status, why.empty() ? ATTN_OK : ATTN_BAD_INPUT) << said << why;
    ASSERT_EQ(why, said);
    ++(why.empty() ? served : refused)[arguments.operation];
    arguments.describe_alone();
    if (why.empty()) {
      const std::string described = arguments.why_not(engine_);
      ASSERT_EQ(described, "") << "without addresses and outputs";
      if (device_->info().dlpack_type <= 2) {
        ASSERT_EQ(without_engine, "");
      }
    }
    // Outputs such as -infinity would be inputs of the next call, which Metal's fast mathematics does not take.
    device_->upload(memory.data(), zeros.data(), arguments.bytes());
  }
  for (int i = 0; i < 5; ++i) {
    EXPECT_GT(served[i], 20) << i;
    EXPECT_GT(refused[i], 20) << i;
  }
}

TEST_F(DeviceWhyNotTest, NamesWhatAnOperationDoesNotTake) {
  int64_t shape[] = {1, 2, 3, 64};
  DLTensor q{};
  // Without an engine only the cpu and CUDA are known.
  const int own = device_->info().dlpack_type <= 2 ? device_->info().dlpack_type : 1;
  q.device.device_type = static_cast<decltype(q.device.device_type)>(own);
  q.ndim = 4;
  q.dtype = f32;
  q.shape = shape;
  EXPECT_EQ(attn_why_not(nullptr, ATTN_FLASH, &q, &q, &q, nullptr, nullptr), nullptr);
  const auto says = [&](const char* part, attn_operation operation, const DLTensor* first) {
    const char* const why = attn_why_not(nullptr, operation, first, &q, &q, nullptr, nullptr);
    ASSERT_NE(why, nullptr) << part;
    EXPECT_NE(std::string(why).find(part), std::string::npos) << why;
  };
  says("q is missing", ATTN_FLASH, nullptr);
  says("operation 17", static_cast<attn_operation>(17), &q);
  says("lengths are missing", ATTN_DECODE, &q);
  DLTensor other = q;
  other.device.device_type = static_cast<decltype(q.device.device_type)>(8);
  says("device type 8", ATTN_FLASH, &other);
  shape[3] = 60;
  says("width 60 is not allowed; it must be a multiple of 8", ATTN_FLASH, &q);
}

}  // namespace
}  // namespace attn
