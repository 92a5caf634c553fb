// Engine and attn.h on the cpu: results, refused calls and their messages, prepared launches, threads, forks,
// archives. Also WithAttention and the program attn_example.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
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
#include "common/base/error.h"
#include "common/base/temporary_folder.h"
#include "common/cases/reference.h"
#include "common/data/tensor.h"
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

  FlashCall call() {
    FlashCall call;
    call.q = view_of(q);
    call.k = view_of(k);
    call.v = view_of(v);
    call.o = view_of(o);
    return call;
  }
  /// Returns the largest difference of the outputs from the oracle's outputs.
  double error(bool causal = false) const {
    const AttentionShape shape{2, q.heads, k.heads, q.seq, k.seq, 64, causal};
    const ReferenceRows want = reference_attention(shape, q, k, v, all_rows(shape));
    double most = 0;
    for (size_t row = 0; row < want.rows.size(); ++row) {
      const auto& [batch, head, query] = want.rows[row];
      for (int64_t d = 0; d < 64; ++d) {
        const double got = o.at(batch, head, query, d);
        most = std::isnan(got) ? INFINITY : std::max(most, std::abs(got - want.o[row * 64 + static_cast<size_t>(d)]));
      }
    }
    return most;
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

TEST(EngineTest, PreparesOneLaunchForAShapeAndOneForOneQueryOverUpTo512Keys) {
  Engine engine("cpu:threads=1");
  for (int turn = 0; turn < 3; ++turn) {
    QKVO tensors(2, 2, 40, 40);
    engine.flash(tensors.call());
  }
  EXPECT_EQ(engine.prepared(), 1u);
  for (const int64_t keys : {100, 101, 400}) {
    QKVO tensors(2, 2, 1, keys);
    engine.flash(tensors.call());
    EXPECT_LT(tensors.error(), 1e-5) << keys;
  }
  EXPECT_EQ(engine.prepared(), 2u);
}

TEST(EngineTest, RefusesWhatNoKernelTakes) {
  Engine engine("cpu:threads=1");
  QKVO tensors(4, 2, 40, 40);
  const auto refused = [&](const char* part, auto change) {
    FlashCall call = tensors.call();
    change(call);
    try {
      engine.flash(call);
      FAIL() << "not refused: " << part;
    } catch (const BadInput& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  refused("do not divide", [](FlashCall& call) { call.q.heads = call.o.heads = 3; });
  refused("q has no data", [](FlashCall& call) { call.q.data = nullptr; });
  refused("widths", [](FlashCall& call) { call.k.width = 32; });
  refused("o is [2, 4, 39]", [](FlashCall& call) { call.o.tokens = 39; });
  refused("k: bf16", [](FlashCall& call) { call.k.dtype = call.v.dtype = DType::bf16; });
  refused("o: f16", [](FlashCall& call) { call.o.dtype = DType::f16; });
  refused("soft_cap", [](FlashCall& call) { call.soft_cap = 1001; });
  refused("bias", [](FlashCall& call) {
    static const float bias[6] = {};
    call.bias = bias;
    call.bias_sizes[0] = call.bias_sizes[1] = call.bias_sizes[2] = 1;
    call.bias_sizes[3] = 6;
  });
  EXPECT_THROW(Engine("gpu"), BadInput);
  EXPECT_THROW(Engine("cpu", {.archive = "/no/such/file"}), BadInput);
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

TEST(EngineTest, AForkedProcessComputesRightOutputs) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not follow a fork of several threads";
#endif
  Engine engine("cpu:threads=2");
  QKVO tensors(4, 4, 100, 100);
  engine.flash(tensors.call());
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // ends a child that hangs
    std::memset(tensors.o.data.data(), 0xFF, tensors.o.bytes());
    engine.flash(tensors.call());
    _exit(tensors.error() < 1e-5 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(EngineTest, AForkedProcessMayCloseAnEngineThatItDidNotCall) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not follow a fork of several threads";
#endif
  auto engine = std::make_unique<Engine>("cpu:threads=2");
  QKVO tensors(4, 4, 100, 100);
  engine->flash(tensors.call());
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // ends a child that hangs
    engine.reset();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
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
  ASSERT_EQ(attn_flash(engine_, nullptr, &q_, &k_, &v_, &o_, &options), ATTN_OK) << attn_message();
  EXPECT_LT(tensors_.error(true), 1e-5);
  ASSERT_EQ(attn_empty(engine_, nullptr), ATTN_OK) << attn_message();
  EXPECT_EQ(attn_prepared(engine_), 2u);
}

TEST_F(AttnTest, TakesFractionalCaps) {
  attn_flash_options options = ATTN_FLASH_OPTIONS;
  options.scale = 1;  // makes scores large, so that the cap changes them
  const auto result = [&](double cap) {
    options.soft_cap = cap;
    EXPECT_EQ(attn_flash(engine_, nullptr, &q_, &k_, &v_, &o_, &options), ATTN_OK) << attn_message();
    return tensors_.o.data;
  };
  const auto three = result(3), more = result(3.5), four = result(4);
  EXPECT_NE(three, more);
  EXPECT_NE(more, four);
  EXPECT_NE(result(1000), three);
  for (const double refused : {1001.0, -1.0}) {
    options.soft_cap = refused;
    EXPECT_EQ(attn_flash(engine_, nullptr, &q_, &k_, &v_, &o_, &options), ATTN_BAD_INPUT);
    EXPECT_NE(std::string(attn_message()).find("soft_cap"), std::string::npos) << attn_message();
  }
}

TEST_F(AttnTest, IgnoresTheStridesOfEmptyTensors) {
  int64_t strides[] = {0, 0, 0, 0};  // as NumPy gives them for an empty array
  for (const int axis : {0, 1, 2}) {
    int64_t shape[] = {2, 4, 40, 64};
    shape[axis] = 0;
    DLTensor none = q_;
    none.shape = shape;
    none.strides = strides;
    EXPECT_EQ(attn_flash(engine_, nullptr, &none, &none, &none, &none, nullptr), ATTN_OK) << axis << attn_message();
  }
  q_.strides = strides;
  EXPECT_EQ(attn_flash(engine_, nullptr, &q_, &k_, &v_, &o_, nullptr), ATTN_BAD_INPUT);
}

TEST_F(AttnTest, TakesOptionsOfAnOlderHeader) {
  attn_flash_options options = ATTN_FLASH_OPTIONS;
  options.struct_bytes = offsetof(attn_flash_options, scale);  // options beyond this size do not count
  options.scale = 17;
  ASSERT_EQ(attn_flash(engine_, nullptr, &q_, &k_, &v_, &o_, &options), ATTN_OK) << attn_message();
  EXPECT_LT(tensors_.error(), 1e-5);
  options.struct_bytes = sizeof options + 8;
  EXPECT_EQ(attn_flash(engine_, nullptr, &q_, &k_, &v_, &o_, &options), ATTN_BAD_INPUT);
}

TEST_F(AttnTest, SaysWhatIsWrong) {
  const auto refused = [&](const char* part, attn_status status, attn_status wanted = ATTN_BAD_INPUT) {
    EXPECT_EQ(status, wanted);
    EXPECT_NE(std::string(attn_message()).find(part), std::string::npos) << attn_message();
  };
  const auto flash = [&](const DLTensor* q) { return attn_flash(engine_, nullptr, q, &k_, &v_, &o_, nullptr); };
  refused("q is missing", flash(nullptr));
  refused("no engine", attn_flash(nullptr, nullptr, &q_, &k_, &v_, &o_, nullptr));
  DLTensor bad = q_;
  bad.ndim = 3;
  refused("q: a shape of [2, 4, 40] is not allowed; allowed are [batch, heads, tokens, width] and", flash(&bad));
  bad = q_;
  bad.device = {2, 0};
  refused("on device 2:0", flash(&bad));
  bad = q_;
  bad.dtype.bits = 64;
  refused("q: float64 is not allowed", flash(&bad));
  bad = q_;
  int64_t strides[] = {1, 1, 1, 2};
  bad.strides = strides;
  refused("a stride of 2", flash(&bad));
  attn_engine* none = nullptr;
  refused("unknown device", attn_open("gpu", nullptr, &none));
  refused("", attn_open("cuda:99", nullptr, &none), ATTN_NO_DEVICE);
}

/// A dense table of 32-bit numbers.
struct Table : DLTensor {
  Table(const void* values, std::vector<int64_t> sizes_of_table, bool integer)
      : DLTensor{}, sizes(std::move(sizes_of_table)) {
    data = const_cast<void*>(values);
    device = {1, 0};
    ndim = static_cast<int32_t>(sizes.size());
    dtype = {static_cast<uint8_t>(integer ? 0 : 2), 32, 1};
    shape = sizes.data();
  }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  std::vector<int64_t> sizes;
};

TEST_F(AttnTest, RefusesTablesAndOptionsThatAreNotAllowed) {
  const auto refused = [&](const char* part, const attn_flash_options& options) {
    EXPECT_EQ(attn_flash(engine_, nullptr, &q_, &k_, &v_, &o_, &options), ATTN_BAD_INPUT) << part;
    EXPECT_NE(std::string(attn_message()).find(part), std::string::npos) << attn_message();
  };
  const std::vector<float> values(4, 1);
  const Table lost(nullptr, {2}, true), slopes(values.data(), {4}, false), negative(values.data(), {-1, 2}, true);
  attn_flash_options options = ATTN_FLASH_OPTIONS;
  options.lengths = &lost;
  refused("lengths has no data", options);
  options = ATTN_FLASH_OPTIONS;
  options.alibi_slopes = &slopes;
  refused("alibi_slopes are allowed only with alibi", options);
  options = ATTN_FLASH_OPTIONS;
  options.documents = &negative;
  refused("documents: a shape of [-1, 2] is not allowed; allowed is [kv_len, 2] = [40, 2]", options);
  options = ATTN_FLASH_OPTIONS;
  options.window_left = -2;
  refused("window_left -2", options);
  options = ATTN_FLASH_OPTIONS;
  options.scale = NAN;
  refused("scale nan", options);
  shapes_[0][2] = -40;
  refused("q: a size of -40", ATTN_FLASH_OPTIONS);
  EXPECT_EQ(attn_rope(engine_, nullptr, &k_, &k_, &o_, nullptr, nullptr), ATTN_BAD_INPUT);
  EXPECT_STREQ(attn_message(), "k and k_out must both be given or both be NULL");
}

TEST_F(AttnTest, ChecksCaches) {
  Tensor pool = random_tensor(4, 2, 8, 64, DType::f32, Layout::bhsd, 1, 1);
  QKVO tensors(4, 2, 1, 1);
  int64_t shapes[3][4];
  const DLTensor k = described(pool, shapes[0]), q = described(tensors.q, shapes[1]),
                 o = described(tensors.o, shapes[2]);
  int lengths[] = {16, 3}, pages[] = {0, 3, 1, -1};
  const Table of_lengths(lengths, {2}, true), table(pages, {2, 2}, true), none(nullptr, {2, 0}, true);
  attn_cache_options options = ATTN_CACHE_OPTIONS;
  const auto said = [&](attn_status status) { return status == ATTN_OK ? std::string("well") : attn_message(); };
  const auto decode = [&] { return said(attn_decode(engine_, nullptr, &q, &k, &k, &o, &options)); };
  const auto check = [&] { return said(attn_check_cache(engine_, nullptr, &k, &options)); };
  EXPECT_EQ(check(), "lengths is missing");
  options.lengths = &of_lengths;
  options.table = &none;  // a table without columns; the cache is still paged
  EXPECT_EQ(decode(), "the cache has no room for a token");
  options.table = &table;
  EXPECT_EQ(check(), "well");
  EXPECT_EQ(decode(), "well");
  lengths[1] = 9;
  EXPECT_EQ(check(), "page table: row 1, column 1: page -1; the pool has pages 0 to 3");
  EXPECT_EQ(decode(), check());
  lengths[1] = 17;
  EXPECT_EQ(decode(), check());
  EXPECT_NE(check().find("length 17"), std::string::npos) << check();
  lengths[1] = 3;
  options.sines = &of_lengths;
  EXPECT_EQ(decode(), "cosines and sines must both be given or both be missing");
  options.sines = nullptr;
  options.new_k = &q;
  EXPECT_EQ(decode(), "new_k and new_v must both be given or both be missing");
  DLTensor flat = q;
  int64_t shape[] = {q.shape[0], q.shape[1], q.shape[2], 0};
  flat.shape = shape;
  options.new_k = options.new_v = &flat;
  EXPECT_EQ(decode(), "new_k: a last dimension of 0 is not allowed");
}

TEST_F(AttnTest, SaysThatTheHostHasNoMemory) {
  attn_open_options options{};
  options.struct_bytes = sizeof options;
  options.run_pieces = [](void*, size_t, void (*)(void*, size_t), void*) { throw std::bad_alloc(); };
  attn_engine* engine = nullptr;
  ASSERT_EQ(attn_open("cpu:threads=4", &options, &engine), ATTN_OK) << attn_message();
  EXPECT_EQ(attn_flash(engine, nullptr, &q_, &k_, &v_, &o_, nullptr), ATTN_OUT_OF_MEMORY);
  EXPECT_EQ(std::string(attn_message()), "the host has no memory left");
  attn_close(engine);
}

TEST_F(AttnTest, RunsOnTheProgramsThreads) {
  int calls = 0;
  attn_open_options options{};
  options.struct_bytes = sizeof options;
  options.run_pieces = [](void* context, size_t pieces, void (*piece)(void*, size_t), void* work) {
    ++*static_cast<int*>(context);
    while (pieces-- > 0) piece(work, pieces);
  };
  options.run_context = &calls;
  attn_engine* engine = nullptr;
  ASSERT_EQ(attn_open("cpu:threads=4", &options, &engine), ATTN_OK) << attn_message();
  ASSERT_EQ(attn_flash(engine, nullptr, &q_, &k_, &v_, &o_, nullptr), ATTN_OK) << attn_message();
  EXPECT_LT(tensors_.error(), 1e-5);
  EXPECT_GT(calls, 0);
  const pid_t child = fork();
  if (child == 0) {  // the program's threads are not in the child
    alarm(60);
    const int before = calls;
    const bool ran = attn_flash(engine, nullptr, &q_, &k_, &v_, &o_, nullptr) == ATTN_OK;
    _exit(ran && calls == before && tensors_.error() < 1e-5 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  attn_close(engine);
}

TEST_F(AttnTest, AnArchiveNeedsNoCompiler) {
  const TemporaryFolder folder;
  const std::string archive = folder.path() / "a.archive", nothing = folder.path() / "nothing";
  ASSERT_EQ(attn_flash(engine_, nullptr, &q_, &k_, &v_, &o_, nullptr), ATTN_OK);
  ASSERT_EQ(attn_save_archive(engine_, archive.c_str()), ATTN_OK) << attn_message();
  attn_engine* shipped = nullptr;
  const attn_open_options options{sizeof options, nothing.c_str(), archive.c_str(), nullptr, nullptr};
  ASSERT_EQ(attn_open("cpu:threads=1", &options, &shipped), ATTN_OK) << attn_message();
  ASSERT_EQ(attn_flash(shipped, nullptr, &q_, &k_, &v_, &o_, nullptr), ATTN_OK) << attn_message();
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
  const test::MutatedSources sources("common/attention/kernels/tuned.cpu.cpp", "namespace {",
                                     "namespace {\nint forgotten() { return 1; }");
  const test::Outcome outcome = run({});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out.find("warning"), std::string::npos) << outcome.out;
  EXPECT_NE(text_of(path("cache/log.txt")).find("unused function 'forgotten'"), std::string::npos)
      << text_of(path("cache/log.txt"));
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
