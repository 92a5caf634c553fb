// Engine and attn.h on the cpu: results, refused calls and their messages, prepared launches, threads, forks,
// archives. Also WithAttention and the program attn_example.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "common/api/attn.h"
#include "common/api/engine.h"
#include "common/api/framework.h"
#include "common/api/tests/device_engine.h"
#include "common/base/error.h"
#include "common/base/temporary_folder.h"
#include "common/cases/reference.h"
#include "common/data/tensor.h"
#include "common/testing/forks.h"
#include "common/testing/messages.h"
#include "common/testing/mutated_sources.h"
#include "common/testing/program.h"

namespace attn {
namespace {

TensorView view_of(Tensor& tensor) {
  return {tensor.data.data(), tensor.dtype, tensor.batch, tensor.heads, tensor.seq, tensor.dim, tensor.strides()};
}

/// Q, K, V and O on the host.
struct QKVO {
  QKVO(int64_t heads, int64_t kv_heads, int64_t rows, int64_t keys, DType dtype = DType::f32,
       Layout layout = Layout::bhsd)
      : q(random_tensor(2, heads, rows, 64, dtype, layout, 1, 0)),
        k(random_tensor(2, kv_heads, keys, 64, dtype, layout, 1, 1)),
        v(random_tensor(2, kv_heads, keys, 64, dtype, layout, 1, 2)),
        o(Tensor::zeros(2, heads, rows, 64, dtype, layout)) {}

  FlashCall call() { return {.q = view_of(q), .k = view_of(k), .v = view_of(v), .o = view_of(o)}; }
  /// Returns the largest difference of the outputs from the oracle's outputs.
  double error(bool causal = false) const {
    const AttentionShape shape{2, q.heads, k.heads, q.seq, k.seq, 64, causal};
    const ReferenceRows want = reference_attention(shape, q, k, v, all_rows(shape));
    const Tensor got = convert(o, DType::f32, Layout::bhsd);
    return test::largest_difference({reinterpret_cast<const float*>(got.data.data()), want.o.size()}, want.o);
  }

  Tensor q, k, v, o;
};

TEST(EngineTest, ServesShapesTypesAndLayouts) {
  Engine engine("cpu:threads=2");
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const Layout layout : {Layout::bhsd, Layout::bshd}) {
      for (const auto& [heads, kv_heads, rows, keys] :
           {std::tuple{4, 2, 40, 40}, {4, 4, 1, 300}, {8, 2, 16, 90}, {2, 1, 70, 9}}) {
        for (const bool causal : {false, true}) {
          QKVO tensors(heads, kv_heads, rows, keys, dtype, layout);
          FlashCall call = tensors.call();
          call.causal = causal;
          engine.flash(call);
          EXPECT_LT(tensors.error(causal), dtype == DType::f32 ? 1e-5 : 2e-2) << rows << " on " << keys;
        }
      }
    }
  }
}

TEST(EngineTest, SeveralThreadsShareAnEngine) {
  Engine engine("cpu:threads=2");
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int turn = 0; turn < 20; ++turn) {
        QKVO tensors(2, 1, 20 + 7 * ((i + turn) % 3), 50);
        engine.flash(tensors.call());
        wrong += tensors.error() > 1e-5;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(engine.prepared(), 3u);
}

TEST(EngineTest, AForkedProcessComputesOrCloses) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not follow a fork of several threads";
#endif
  auto engine = std::make_unique<Engine>("cpu:threads=2");
  QKVO tensors(4, 4, 100, 100);
  engine->flash(tensors.call());
  test::expect_in_a_fork([&] {
    std::memset(tensors.o.data.data(), 0xFF, tensors.o.bytes());
    engine->flash(tensors.call());
    return tensors.error() < 1e-5;
  });
  test::expect_in_a_fork([&] {
    engine.reset();
    return true;
  });
  EXPECT_THROW(Engine("gpu"), BadInput);
  EXPECT_THROW(Engine("cpu", {.archive = "/no/such/file"}), BadInput);
}

// ---- attn.h

DLTensor described(Tensor& tensor, int64_t (&shape)[4]) {
  const bool bhsd = tensor.layout == Layout::bhsd;
  const int64_t sizes[] = {tensor.batch, bhsd ? tensor.heads : tensor.seq, bhsd ? tensor.seq : tensor.heads,
                           tensor.dim};
  std::copy_n(sizes, 4, shape);
  DLTensor described{};
  described.data = tensor.data.data();
  described.device = {1, 0};
  described.ndim = 4;
  described.dtype = {2, 32, 1};
  described.shape = shape;
  return described;
}

class AttnTest : public testing::Test {
 protected:
  AttnTest() { EXPECT_EQ(attn_open("cpu:threads=1", nullptr, &engine_), ATTN_OK) << attn_message(); }
  void TearDown() override { attn_close(engine_); }

  attn_status flash(const attn_flash_options* options = nullptr, attn_engine* engine = nullptr) {
    return attn_flash(engine ? engine : engine_, nullptr, &q_, &k_, &v_, &o_, options);
  }
  static void refused(const char* part, attn_status status, attn_status wanted = ATTN_BAD_INPUT) {
    EXPECT_EQ(status, wanted) << part;
    test::expect_words(attn_message(), {part});
  }

  QKVO tensors_{4, 2, 40, 40};
  int64_t shapes_[4][4];
  DLTensor q_ = described(tensors_.q, shapes_[0]), k_ = described(tensors_.k, shapes_[1]),
           v_ = described(tensors_.v, shapes_[2]), o_ = described(tensors_.o, shapes_[3]);
  attn_engine* engine_ = nullptr;
};

TEST_F(AttnTest, CallsTheKernelOnDescribedTensors) {
  EXPECT_EQ(attn_abi_version(), ATTN_ABI_VERSION);
  EXPECT_EQ(attn_has_backend("cpu"), 1);
  EXPECT_EQ(attn_has_backend("vulkan"), 0);
  attn_flash_options options = ATTN_FLASH_OPTIONS;
  options.causal = 1;
  ASSERT_EQ(flash(&options), ATTN_OK) << attn_message();
  EXPECT_LT(tensors_.error(true), 1e-5);
  ASSERT_EQ(attn_empty(engine_, nullptr), ATTN_OK) << attn_message();
  EXPECT_EQ(attn_prepared(engine_), 2u);
}

TEST_F(AttnTest, TakesOptions) {
  attn_flash_options options = ATTN_FLASH_OPTIONS;
  options.struct_bytes = offsetof(attn_flash_options, scale);  // options beyond this size do not count
  options.scale = 17;
  ASSERT_EQ(flash(&options), ATTN_OK) << attn_message();
  EXPECT_LT(tensors_.error(), 1e-5);
  options.struct_bytes = sizeof options + 8;
  refused("", flash(&options));
}

TEST_F(AttnTest, SaysWhatIsWrong) {
  const auto flash_of = [&](const DLTensor* q) { return attn_flash(engine_, nullptr, q, &k_, &v_, &o_, nullptr); };
  refused("q is missing", flash_of(nullptr));
  refused("no engine", attn_flash(nullptr, nullptr, &q_, &k_, &v_, &o_, nullptr));
  int64_t strides[] = {1, 1, 1, 2}, no_strides[] = {0, 0, 0, 0};  // as NumPy gives them for an empty array
  const auto refused_with = [&](const char* part, auto change) {
    DLTensor bad = q_;
    change(bad);
    refused(part, flash_of(&bad));
  };
  refused_with("[2, 4, 40]", [](DLTensor& bad) { bad.ndim = 3; });
  refused_with("device 2:0", [](DLTensor& bad) { bad.device = {2, 0}; });
  refused_with("float64", [](DLTensor& bad) { bad.dtype.bits = 64; });
  refused_with("a stride of 2", [&](DLTensor& bad) { bad.strides = strides; });
  refused_with("", [&](DLTensor& bad) { bad.strides = no_strides; });
  for (const int axis : {0, 1, 2}) {
    int64_t shape[] = {2, 4, 40, 64};
    shape[axis] = 0;
    DLTensor none = q_;
    none.shape = shape;
    none.strides = no_strides;
    EXPECT_EQ(attn_flash(engine_, nullptr, &none, &none, &none, &none, nullptr), ATTN_OK) << axis << attn_message();
  }
  attn_engine* none = nullptr;
  refused("unknown device", attn_open("gpu", nullptr, &none));
  refused("", attn_open("cuda:99", nullptr, &none), ATTN_NO_DEVICE);
  refused("k and k_out", attn_rope(engine_, nullptr, &k_, &k_, &o_, nullptr, nullptr));
  shapes_[0][2] = -40;
  refused("-40", flash());
}

TEST_F(AttnTest, ChecksTables) {
  const int values[] = {16, 9}, pages[] = {0, 3, 1, -1};
  int64_t sizes[3][2] = {{2}, {2, 2}, {-1, 2}};
  DLTensor lengths{}, table{};
  lengths.device = {1, 0};
  lengths.ndim = 1;
  lengths.dtype = {0, 32, 1};
  lengths.shape = sizes[0];
  attn_flash_options options = ATTN_FLASH_OPTIONS;
  options.lengths = &lengths;
  refused("lengths has no data", flash(&options));
  lengths.data = const_cast<int*>(values);
  table = lengths;
  table.data = const_cast<int*>(pages);
  table.ndim = 2;
  table.shape = sizes[2];
  options = ATTN_FLASH_OPTIONS;
  options.documents = &table;
  refused("documents: a shape of [-1, 2]", flash(&options));

  Tensor pool = random_tensor(4, 2, 8, 64, DType::f32, Layout::bhsd, 1, 1);
  QKVO tensors(4, 2, 1, 1);
  int64_t shapes[3][4];
  const DLTensor k = described(pool, shapes[0]), q = described(tensors.q, shapes[1]),
                 o = described(tensors.o, shapes[2]);
  attn_cache_options cache = ATTN_CACHE_OPTIONS;
  const auto decode = [&] { return attn_decode(engine_, nullptr, &q, &k, &k, &o, &cache); };
  refused("lengths is missing", attn_check_cache(engine_, nullptr, &k, &cache));
  cache.lengths = &lengths;
  sizes[2][0] = 2, sizes[2][1] = 0;
  cache.table = &table;  // a table without columns; the cache is still paged
  refused("no room for a token", decode());
  table.shape = sizes[1];
  refused("row 1, column 1: page -1", attn_check_cache(engine_, nullptr, &k, &cache));
  refused("row 1, column 1: page -1", decode());
  sizes[0][0] = 1, sizes[1][0] = 1, shapes[1][0] = shapes[2][0] = 1;  // the first sequence alone
  EXPECT_EQ(attn_check_cache(engine_, nullptr, &k, &cache), ATTN_OK) << attn_message();
  EXPECT_EQ(decode(), ATTN_OK) << attn_message();
  cache.sines = &lengths;
  refused("cosines and sines", decode());
  cache.sines = nullptr;
  cache.new_k = &q;
  refused("new_k and new_v", decode());
}

TEST_F(AttnTest, RunsOnTheProgramsThreads) {
  int calls = 0;
  attn_open_options options{};
  options.struct_bytes = sizeof options;
  options.run_pieces = [](void* context, size_t pieces, void (*piece)(void*, size_t), void* work) {
    if (!context) throw std::bad_alloc();
    ++*static_cast<int*>(context);
    while (pieces-- > 0) piece(work, pieces);
  };
  attn_engine* engine = nullptr;
  ASSERT_EQ(attn_open("cpu:threads=4", &options, &engine), ATTN_OK) << attn_message();
  refused("no memory", flash(nullptr, engine), ATTN_OUT_OF_MEMORY);
  attn_close(engine);
  options.run_context = &calls;
  ASSERT_EQ(attn_open("cpu:threads=4", &options, &engine), ATTN_OK) << attn_message();
  ASSERT_EQ(flash(nullptr, engine), ATTN_OK) << attn_message();
  EXPECT_LT(tensors_.error(), 1e-5);
  EXPECT_GT(calls, 0);
  test::expect_in_a_fork([&] {  // the program's threads are not in the child
    const int before = calls;
    return flash(nullptr, engine) == ATTN_OK && calls == before && tensors_.error() < 1e-5;
  });
  attn_close(engine);
}

TEST_F(AttnTest, AnArchiveNeedsNoCompiler) {
  const TemporaryFolder folder;
  const std::string archive = folder.path() / "a.archive", nothing = folder.path() / "nothing";
  ASSERT_EQ(flash(), ATTN_OK);
  ASSERT_EQ(attn_save_archive(engine_, archive.c_str()), ATTN_OK) << attn_message();
  attn_engine* shipped = nullptr;
  const attn_open_options options{sizeof options, nothing.c_str(), archive.c_str(), nullptr, nullptr};
  ASSERT_EQ(attn_open("cpu:threads=1", &options, &shipped), ATTN_OK) << attn_message();
  ASSERT_EQ(flash(nullptr, shipped), ATTN_OK) << attn_message();
  attn_close(shipped);
  EXPECT_TRUE(std::filesystem::is_empty(nothing)) << "the engine compiled a kernel that the archive should have";
}

/// Runs attn_example, a program that uses the library.
class LibraryTest : public test::ProgramTest {
 protected:
  LibraryTest() : ProgramTest("attn_example") {}
};

TEST_F(LibraryTest, LeavesTheTerminalToTheProgram) {
  own_cache();
  const bool on_arm = Device::open("cpu:threads=1")->info().has("neon");
  const test::MutatedSources sources(
      on_arm ? "common/attention/kernels/neon.cpu.cpp" : "common/attention/kernels/tuned.cpu.cpp", "namespace {",
      "namespace {\nint forgotten() { return 1; }");
  const test::Outcome outcome = run({});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out.find("warning"), std::string::npos) << outcome.out;
  test::expect_words(text_of(path("cache/log.txt")), {"forgotten"});
}

// ---- WithAttention adds attention to a framework

struct HostFramework {
  using Tensor = attn::Tensor;

  explicit HostFramework(double factor) : scale_factor(factor) {}
  TensorView view(Tensor& tensor) const { return view_of(tensor); }
  Tensor empty_like(const Tensor& tensor) const {
    return Tensor::zeros(tensor.batch, tensor.heads, tensor.seq, tensor.dim, tensor.dtype, tensor.layout);
  }
  void* stream() const { return nullptr; }
  double scaled(double x) const { return scale_factor * x; }  // a member that attention does not need

  double scale_factor;
};
struct HidesTensors {
  using Tensor = int;
  Tensor empty_like(const Tensor& tensor) const { return tensor; }
  void* stream() const { return nullptr; }
};
static_assert(Framework<HostFramework> && !AttentionFramework<HostFramework>);
static_assert(AttentionFramework<WithAttention<HostFramework>> && Framework<WithAttention<HostFramework>>);
static_assert(!Framework<HidesTensors> && HasTensors<HidesTensors> && !ShowsTensors<HidesTensors> && !Framework<int>);

TEST(FrameworkTest, GetsAttentionAndKeepsItsOwnMembers) {
  Engine engine("cpu:threads=1");
  WithAttention<HostFramework> framework(engine, 2.5);
  EXPECT_EQ(framework.scaled(2), 5);
  QKVO tensors(4, 2, 40, 40);
  tensors.o = framework.attention(tensors.q, tensors.k, tensors.v, {.causal = true});
  EXPECT_LT(tensors.error(true), 1e-5);
}

}  // namespace
}  // namespace attn
