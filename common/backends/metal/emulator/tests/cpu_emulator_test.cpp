// Tests of the emulator: its checks, its arithmetic, and the rewriting of Metal's texts as C++. Each faulty kernel has
// one fault, which the emulator must name. Kernels without a fault must run in six orders of threads without a message.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "common/backends/metal/emulator/emulator.h"
#include "common/backends/metal/emulator/rewrite.h"
#include "common/base/error.h"

namespace attn {
namespace {

constexpr uint32_t orders = 6;

struct Case {
  std::string text;  // of the kernel `k`, without its #include
  uint32_t threads = 32, groups = 1;
  std::vector<float> in = {};  // buffer 0; by default 0, 1, 2, ...
  size_t out = 64;             // floats of buffer 1
  size_t threadgroup_bytes = 0;
  bool fast_math = true;
  std::map<std::string, double> constants = {};
  int language = msl::newest_language;
};

const msl::Compiler& compiler() {
  static const msl::Compiler one;
  return one;
}

// Runs a kernel in all orders. Returns buffer 1; throws what the emulator throws.
std::vector<float> run(const Case& test) {
  msl::Source source{.path = "k.metal",
                     .function = "k",
                     .constants = test.constants,
                     .language = test.language,
                     .fast_math = test.fast_math};
  source.texts["k.metal"] = "#include <metal_stdlib>\nusing namespace metal;\n#line 1\n" + test.text;
  const msl::Kernel kernel(compiler().compile(source));
  std::vector<float> in = test.in, first;
  for (size_t i = in.size(); i < 64 && test.in.empty(); ++i) in.push_back(static_cast<float>(i));
  for (uint32_t order = 0; order < orders; ++order) {
    std::vector<float> out(test.out + 64, 0.0f);
    msl::Run launch{.grid = {test.groups}, .threads = {test.threads}, .order = order};
    launch.buffers = {{0, in.data()}, {1, out.data()}};
    launch.memory = {{"buffer 0", in.data(), in.size() * 4}, {"buffer 1", out.data(), test.out * 4}};
    if (test.threadgroup_bytes > 0) launch.threadgroup_bytes[0] = test.threadgroup_bytes;
    kernel.run(launch);
    if (order == 0) first = out;
    EXPECT_EQ(std::memcmp(first.data(), out.data(), out.size() * 4), 0)
        << "other results in order " << order << " than in order 0";
  }
  return first;
}

std::string fault(const Case& test) {
  try {
    run(test);
  } catch (const DeviceFault& found) {
    return found.what();
  } catch (const CompileError& found) {
    return found.what();
  }
  return "no fault";
}

#define EXPECT_FAULT(test, kind, part)                           \
  do {                                                           \
    const std::string of_case = fault(test);                     \
    EXPECT_TRUE(of_case.starts_with(kind)) << of_case;           \
    EXPECT_NE(of_case.find(part), std::string::npos) << of_case; \
  } while (false)

const std::string head =
    "kernel void k(const device float* in [[buffer(0)]], device float* out [[buffer(1)]],\n"
    "              uint t [[thread_index_in_threadgroup]], uint g [[threadgroup_position_in_grid]]) {\n";

// The last threadgroup that arrives adds the numbers that all four threadgroups wrote through pointers of type `part`.
std::string join(const std::string& part) {
  return head + "  " + part +
         "* const parts = out;\n  threadgroup uint before;\n  if (t == 0) parts[g] = in[g] + 1;\n" +
         "  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);\n"
         "  threadgroup_barrier(mem_flags::mem_device);\n"
         "  if (t == 0) before = atomic_fetch_add_explicit((device atomic_uint*)(out + 40), 1u, "
         "memory_order_relaxed);\n"
         "  threadgroup_barrier(mem_flags::mem_threadgroup);\n  if (before != 3) return;\n"
         "  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);\n"
         "  if (t == 0) out[50] = parts[0] + parts[1] + parts[2] + parts[3];\n}\n";
}

TEST(MetalEmulatorTest, RightKernelsRaiseNoAlarm) {
  // A sum over a threadgroup, by way of threadgroup memory.
  const std::string sum = head +
                          "  threadgroup float parts[2];\n  float x = simd_sum(in[t]);\n"
                          "  if (t % 32 == 0) parts[t / 32] = x;\n  threadgroup_barrier(mem_flags::mem_threadgroup);\n"
                          "  out[t] = parts[0] + parts[1];\n}\n";
  EXPECT_EQ(run({.text = sum, .threads = 64})[5], 63 * 64 / 2);
  // A simdgroup's own barrier orders its lanes.
  const std::string turned = head +
                             "  threadgroup float x[32];\n  x[t] = in[t];\n"
                             "  simdgroup_barrier(mem_flags::mem_threadgroup);\n  out[t] = x[31 - t];\n}\n";
  EXPECT_EQ(run({.text = turned})[3], 28);
  // Atomic operations need no order.
  const std::string atomics =
      head + "  atomic_fetch_add_explicit((device atomic_uint*)out, 2u, memory_order_relaxed);\n}\n";
  const float counted = run({.text = atomics, .threads = 64, .groups = 3})[0];
  uint32_t bits;
  std::memcpy(&bits, &counted, 4);
  EXPECT_EQ(bits, 2u * 64 * 3);
  for (const char* part : {"coherent(device) device float", "device coherent float"}) {
    EXPECT_EQ(run({.text = join(part), .groups = 4})[50], 10) << part;
  }
}

// A threadgroup of 6 threads has a quad of 2 threads.
TEST(MetalEmulatorTest, ReductionsCountTheLanesThatExist) {
  const std::vector<float> out =
      run({.text = head + "  out[t] = quad_sum(in[t]);\n  out[8 + t] = simd_sum(in[t]);\n}\n", .threads = 6});
  for (int t = 0; t < 6; ++t) {
    EXPECT_EQ(out[t], t < 4 ? 0 + 1 + 2 + 3 : 4 + 5) << t;
    EXPECT_EQ(out[8 + t], 15) << t;
  }
}

TEST(MetalEmulatorTest, MatricesHaveApplesLayout) {
  const std::string product = head +
                              "  threadgroup float x[64];\n  for (uint i = t; i < 64; i += 32) x[i] = in[i];\n"
                              "  simdgroup_barrier(mem_flags::mem_threadgroup);\n"
                              "  simdgroup_float8x8 a, b, d;\n  simdgroup_load(a, x, 8);\n"
                              "  simdgroup_load(b, x, 8, ulong2(0, 0), true);\n  simdgroup_multiply(d, a, b);\n"
                              "  simdgroup_store(d, out, 8);\n  simdgroup_barrier(mem_flags::mem_device);\n"
                              "  if (t == 9) out[64] = a.thread_elements()[1];\n}\n";
  const std::vector<float> out = run({.text = product, .out = 65});
  float expected = 0;
  for (int k = 0; k < 8; ++k) expected += static_cast<float>((2 * 8 + k) * (5 * 8 + k));
  EXPECT_EQ(out[2 * 8 + 5], expected);
  EXPECT_EQ(out[64], 0 * 8 + 7);  // lane 9 holds row 0, columns 6 and 7
}

TEST(MetalEmulatorTest, NumbersAreRounded) {
  const std::string text = head +
                           "  if (t > 0) return;\n  out[0] = half(in[0]) * half(in[1]);\n"
                           "  out[1] = bfloat(in[0]) + bfloat(in[1]);\n  out[2] = float(half(in[2]));\n"
                           "  half4 v = half4(float4(in[0], in[1], float2(in[2])));\n  out[3] = v.w;\n"
                           "  for (int i = 4; i < 8; ++i) out[i] = bfloat(in[i - 1]);\n}\n";
  const std::vector<float> out = run({.text = text,
                                      .in = {1.0009765625f, 1.0009765625f, 0.1f, 1.00390625f, 1.01171875f, 0x1p-130f,
                                             -std::numeric_limits<float>::max()},
                                      .out = 8});
  EXPECT_EQ(out[0], 1.001953125f);  // the product, rounded to the 11 bits of a half
  EXPECT_EQ(out[1], 2.0f);
  EXPECT_EQ(out[2], 0.0999755859375f);
  EXPECT_EQ(out[3], out[2]);
  EXPECT_EQ(out[4], 1);          // a tie goes to the even number
  EXPECT_EQ(out[5], 1.015625f);  // here the even number is the larger one
  EXPECT_EQ(out[6], 0x1p-130f);
  EXPECT_EQ(out[7], -std::numeric_limits<float>::infinity());
}

// The constructs of llama.cpp's kernels: parameters without locations, casts between vectors and between matrices, also
// to types of templates, matrices in device and threadgroup memory, and packed vectors.
TEST(MetalEmulatorTest, CastsMatricesAndPackedVectors) {
  const std::string text = R"(
#define BASE 300
constant half power [[function_constant(BASE + 1)]];
struct Block { half scale; char values[8]; };
template <typename M>
void read(device const half4x4* from, thread M& to) { to = (M)(*from); }
template <typename M, typename V, void (*get)(device const half4x4*, thread M&)>
void tile(device const half4x4* from, threadgroup M* to, uint t) {
  M m;
  get(from + t, m);
  m[3] = V(m[0]) + (V)from[t][1];
  to[t] = m;
}
kernel void k(device const half4x4* in, threadgroup float* memory, uint t [[thread_index_in_threadgroup]],
              device float* out) {
  threadgroup float4x4* const tiles = (threadgroup float4x4*)memory;
  if (t < 2) tile<float4x4, float4, read>(in, tiles, t);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = tiles[t / 16][t / 4 % 4][t % 4];
  if (t > 0) return;
  device const Block* const block = (device const Block*)(in + 2);
  device const packed_char4* const values = (device const packed_char4*)block->values;
  device float4* const rows = (device float4*)(out + 32);
  for (int i = 0; i < 2; ++i) rows[i] = float4(values[i]) * float(block->scale);
  rows[2] = (float4)(int4)(rows[1] * 0.3f);
  rows[3] = float4(half2(static_cast<bfloat2>(rows[1].xw)) * 3.0h, pow(2.0f, power), precise::tanh(float2(9, -0.5f)).y);
})";
  constexpr int halfs = 32, bytes = 8;
  constexpr signed char values[bytes] = {-128, 5, -7, 127, 100, -50, 33, -9};
  std::vector<float> in(halfs / 2 + 3), expected;
  for (int i = 0; i < halfs; ++i) {
    const auto half = static_cast<_Float16>(static_cast<float>(i) - 10.5f);
    std::memcpy(reinterpret_cast<char*>(in.data()) + 2 * i, &half, 2);
    const int row = i % 4, first = i / 16 * 16;
    expected.push_back(i % 16 < 12 ? static_cast<float>(half) : static_cast<float>(2 * (first + row) + 4 - 21));
  }
  const auto scale = static_cast<_Float16>(0.25f);
  std::memcpy(in.data() + halfs / 2, &scale, 2);
  std::memcpy(reinterpret_cast<char*>(in.data() + halfs / 2) + 2, values, bytes);
  for (const signed char value : values) expected.push_back(0.25f * static_cast<float>(value));
  for (const float value : {7, -3, 2, 0}) expected.push_back(value);
  for (const float value : {75.0f, -6.75f, 8.0f, std::tanh(-0.5f)}) expected.push_back(value);
  std::vector<float> out =
      run({.text = text, .in = in, .out = expected.size(), .threadgroup_bytes = 128, .constants = {{"power", 3}}});
  out.resize(expected.size());
  EXPECT_EQ(out, expected);
}

// A matrix's elements stand column by column, so that float3x2(0, 1, 2, 3, 4, 5) has the columns (0, 1), (2, 3), (4,
// 5).
TEST(MetalEmulatorTest, OperatorsOfSmallMatrices) {
  const std::string text = head + R"(  if (t > 0) return;
  const float3x2 a(in[0], in[1], in[2], in[3], in[4], in[5]);
  float2x2 p = a * float2x3(float3(1, 2, 3), float3(4, 5, 6));
  device float2x2* const kept = (device float2x2*)out;
  kept[0] = p;
  *(device float2*)(out + 4) = kept[0] * float2(1, -1);
  const float3 row = float2(1, 2) * a;
  for (int i = 0; i < 3; ++i) out[6 + i] = row[i];
  p += float2x2(3);
  p *= 2;
  kept[3] = p - transpose(kept[0]) * 0.5f;
  out[16] = determinant(float3x3(2, 0, 1, float2(1, 3), 0, 0, 1, 4));
  const float4x4 four(float4(1, 2, 0, 0), float4(0, 1, 0, 0), float4(0, 3, 1, 1), float4(1, 1, 1, 2));
  out[17] = determinant(float4x4(2.0f) * four);
  out[18] = (half2x2(half(0.1f)) * 3)[1][1];
})";
  std::vector<float> out = run({.text = text, .out = 19});
  out.resize(19);
  const float half = static_cast<float>(static_cast<_Float16>(0.1f));
  EXPECT_EQ(out, (std::vector<float>{16, 22, 34, 49, -18, -27, 2, 8, 14, 0, 0, 0, 30, 27, 57, 79.5f, 25, 16,
                                     static_cast<float>(static_cast<_Float16>(half * 3))}));
}

TEST(MetalEmulatorTest, FunctionConstants) {
  const std::string text = "constant uint many [[function_constant(3)]];\nconstant uint twice = many * 2;\n" + head +
                           "  if (t == 0) out[0] = many + twice;\n}\n";
  EXPECT_EQ(run({.text = text, .constants = {{"many", 5}}})[0], 15);
  EXPECT_EQ(run({.text = text, .constants = {{"3", 6}}})[0], 18);
  EXPECT_NE(fault({.text = text, .constants = {{"few", 5}}}).find("no function constant few"), std::string::npos);
  EXPECT_NE(fault({.text = text}).find("function constant many (3) has no value"), std::string::npos);
  // A constant that the kernel does not use needs no value.
  EXPECT_EQ(fault({.text = "constant uint other [[function_constant(1)]];\n" + head + "}\n"}), "no fault");
}

TEST(MetalEmulatorTest, Races) {
  EXPECT_FAULT((Case{.text = head + "  threadgroup float x[64];\n  x[t] = in[t];\n  x[t ^ 1] = 0;\n}\n"}), "race",
               "of x, which thread");
  const std::string lost = head +
                           "  threadgroup float x[64];\n  x[t] = in[t];\n"
                           "  simdgroup_barrier(mem_flags::mem_threadgroup);\n  out[t] = x[t < 32 ? t + 32 : t];\n}\n";
  // A barrier of the simdgroup is not enough. In order 0, thread 0 is the first to read another thread's word.
  EXPECT_FAULT(
      (Case{.text = lost, .threads = 64}), "race",
      "thread 0 (simdgroup 0, lane 0) reads word 32 (byte 128) of x, which thread 32 (simdgroup 1, lane 0) wrote");
  EXPECT_FAULT((Case{.text = head + "  out[t / 2] = t;\n}\n"}), "race", "word 0 (byte 0) of buffer 1");
  EXPECT_FAULT((Case{.text = head + "  if (t == 0) out[0] = g;\n}\n", .groups = 2}), "race", "of threadgroup (");
  // A barrier of device memory does not order threadgroup memory.
  const std::string wrong = head +
                            "  threadgroup float x[32];\n  x[t] = 0;\n  threadgroup_barrier(mem_flags::mem_device);\n"
                            "  out[t] = x[31 - t];\n}\n";
  EXPECT_FAULT((Case{.text = wrong}), "race", "k.metal:6");
  // Several threads read a word; then a thread writes the word, and no barrier lies between.
  const std::string read = head + "  out[t + 1] = in[t];\n  float x = out[0];\n  if (t == 7) out[0] = x + 1;\n}\n";
  EXPECT_FAULT((Case{.text = read}), "race", "word 0 (byte 0) of buffer 1");
  // A threadgroup reads what another threadgroup wrote, without a fence.
  const std::string unfenced = head +
                               "  if (t > 0) return;\n  out[g] = g;\n"
                               "  uint n = atomic_fetch_add_explicit((device atomic_uint*)(out + 40), 1u, "
                               "memory_order_relaxed);\n  if (n == 1) out[50] = out[0] + out[1];\n}\n";
  EXPECT_FAULT((Case{.text = unfenced, .groups = 2}), "race", "which thread 0 (simdgroup 0, lane 0) of threadgroup");
}

// A fence orders the touches of two threadgroups, but does not make their memory coherent.
TEST(MetalEmulatorTest, Coherence) {
  EXPECT_FAULT((Case{.text = join("device float"), .groups = 4}), "coherence",
               "of threadgroup (0, 0, 0) wrote at k.metal:5, and the access is not through a pointer with coherent");
  EXPECT_FAULT((Case{.text = join("volatile device float"), .groups = 4}), "coherence", "reads word 0 (byte 0)");
  // One of the two pointers is coherent.
  std::string writer = join("coherent(device) device float"), reader = join("device float");
  writer.replace(writer.find("parts[0] +"), 8, "out[0]");
  EXPECT_FAULT((Case{.text = writer, .groups = 4}), "coherence", "and the access is not");
  reader.replace(reader.find("parts[0] +"), 8, "((coherent(device) device float*)out)[0]");
  EXPECT_FAULT((Case{.text = reader, .groups = 4}), "coherence", "and the earlier access is not");
}

TEST(MetalEmulatorTest, ConstantMemoryHasConstantExpressions) {
  const std::string text =
      "constant uint N = 4, M = N * 2;\nconstant float weights[3] = {1, 2.5f, 3};\n"
      "struct Tile { int rows; float scale; };\nconstant Tile tile = {7, 1.5f};\nconstant bool flag = true;\n"
      "constant float scale = 0.5f;\ntemplate <int X>\nstruct Next { static constant int value = X + 1; };\n" +
      head +
      "  float x[M], y[tile.rows], z[weights[1] > 2 && flag ? 2 : -1];\n  x[0] = Next<N>::value;\n"
      "  y[0] = weights[t % 3] * scale;\n  z[0] = sizeof x + sizeof y + sizeof z;\n  out[t] = x[0] + y[0] + z[0];\n}\n";
  EXPECT_EQ(run({.text = text})[1], 5 + 1.25f + 4 * (8 + 7 + 2));
}

TEST(MetalEmulatorTest, RefusesWhatTheLanguageLacks) {
  const std::string fence =
      head + "  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);\n}\n";
  const std::string coherent = head + "  coherent(device) device float* p = out;\n  p[t] = 1;\n}\n";
  const std::string narrow = head + "  bfloat x = in[t];\n  out[t] = x;\n}\n";
  for (const auto& [text, least] : {std::pair{fence, 320}, {coherent, 320}, {narrow, 310}}) {
    EXPECT_EQ(fault({.text = text, .language = least}), "no fault");
    const std::string found = fault({.text = text, .language = least - 10});
    EXPECT_NE(found.find(least == 320 ? "needs Metal 3.2" : "needs Metal 3.1"), std::string::npos) << found;
  }
  // Text that the preprocessor leaves out is not refused.
  EXPECT_EQ(
      fault({.text = "#if __METAL_VERSION__ >= 320\n" + fence + "#else\n" + head + "}\n#endif\n", .language = 310}),
      "no fault");
  for (const char* line :
       {"double x = 1;", "long long x = 1;", "goto end; end: out[t] = 1;", "struct A { virtual void f() {} };",
        "int* x = new int;", "static thread_local int x;", "throw 1;", "int n = typeid(in);"}) {
    const std::string found = fault({.text = head + line + "\n}\n"});
    EXPECT_NE(found.find("error: Metal has no"), std::string::npos) << found;
  }
  EXPECT_NE(fault({.text = "template <class T>\nconcept All = true;\n" + head + "}\n"}).find("error: "),
            std::string::npos);
}

TEST(MetalEmulatorTest, Divergence) {
  EXPECT_FAULT((Case{.text = head + "  if (t < 20) threadgroup_barrier(mem_flags::mem_none);\n}\n"}), "divergence",
               "threads 0-19 wait at a barrier");
  EXPECT_FAULT((Case{.text = head + "  if (t == 3) return;\n  out[t] = simd_sum(in[t]);\n}\n"}), "divergence",
               "thread 3 (simdgroup 0, lane 3) has returned");
  const std::string branches =
      head + "  if (t < 16)\n    out[t] = simd_sum(in[t]);\n  else\n    out[t] = simd_sum(in[t]);\n}\n";
  EXPECT_FAULT((Case{.text = branches}), "divergence", "k.metal:4");
  EXPECT_FAULT((Case{.text = head + "  out[t] = simd_shuffle(in[t], 32);\n}\n"}), "divergence", "lane 32");
}

TEST(MetalEmulatorTest, UnwrittenAndBounds) {
  EXPECT_FAULT((Case{.text = head + "  threadgroup float x[64];\n  x[t] = 1;\n  out[t] = x[t + 32];\n}\n"}),
               "unwritten", "word 32 (byte 128) of x");
  EXPECT_FAULT((Case{.text = head + "  threadgroup float x[32];\n  x[t + 1] = 1;\n}\n"}), "bounds",
               "of x, which has 128");
  EXPECT_FAULT((Case{.text = head + "  threadgroup float tileE[32];\n  tileE[t + 1] = 1;\n}\n"}), "bounds",
               "of tileE, which has 128");
  EXPECT_FAULT((Case{.text = head + "  out[t * 4] = 1;\n}\n"}), "bounds",
               "word 64 (byte 256) of buffer 1, which has 256 bytes");
  EXPECT_FAULT((Case{.text = head + "  out[t] = *(in - 1 - t);\n}\n"}), "bounds", "word -1 (byte -4) of buffer 0");
  EXPECT_FAULT((Case{.text = head + "  out[t] = ((const device float4*)(in + 1))[0].x;\n}\n"}), "alignment",
               "no multiple of 16");
}

TEST(MetalEmulatorTest, FastMathematicsAllowsNoInfinityOrNan) {
  const std::string mask =
      head + "  float x = t < 8 ? in[t] : -INFINITY;\n  float m = simd_max(x);\n  out[t] = exp(x - m);\n}\n";
  EXPECT_FAULT((Case{.text = mask}), "number", "has infinity or NaN in a comparison");
  EXPECT_EQ(run({.text = mask, .fast_math = false})[9], 0);
  EXPECT_FAULT((Case{.text = head + "  out[t] = in[t] / in[0];\n}\n"}), "number", "a division");
  EXPECT_FAULT((Case{.text = head + "  out[t] = in[t] == -INFINITY ? 0 : 1;\n}\n"}), "number", "k.metal:3");
  // A branch that is not taken computes nothing, so it divides nothing by zero.
  EXPECT_EQ(fault({.text = head + "  out[t] = in[t] == 0 ? 0 : 1 / in[t];\n}\n"}), "no fault");
}

TEST(MetalEmulatorTest, DivisionsOfIntegers) {
  EXPECT_FAULT((Case{.text = head + "  out[t] = 7 / (int(in[t]) - 3);\n}\n"}), "number",
               "thread 3 (simdgroup 0, lane 3) divides an integer by zero");
  EXPECT_FAULT((Case{.text = head + "  out[t] = 7u % uint(in[t]);\n}\n", .fast_math = false}), "number", "by zero");
  EXPECT_FAULT((Case{.text = head + "  int2 x = int2(t) / int2(1, int(in[t]) - 5);\n  out[t] = x.y;\n}\n"}), "number",
               "thread 5 ");
  EXPECT_FAULT((Case{.text = head + "  int x = int(0x80000000u);\n  out[t] = x / (int(in[t]) - 1);\n}\n"}), "number",
               "thread 0 (simdgroup 0, lane 0) divides");
  EXPECT_EQ(run({.text = head + "  out[t] = 100 / (int(in[t]) + 1);\n}\n"})[3], 25);
}

TEST(MetalEmulatorTest, Limits) {
  EXPECT_FAULT((Case{.text = head + "  threadgroup float x[8448];\n  x[t] = 0;\n  out[t] = x[t];\n}\n"}), "limits",
               "needs 33792 bytes");
  EXPECT_FAULT((Case{.text = head + "}\n", .threads = 1056}), "limits", "1056 threads");
}

TEST(MetalEmulatorTest, AddressSpaces) {
  const auto refused = [](const std::string& line, const std::string& why) {
    const std::string found = fault({.text = head + line + "}\n"});
    EXPECT_NE(found.find("does not compile"), std::string::npos) << found;
    EXPECT_NE(found.find(why), std::string::npos) << found;
  };
  refused("  threadgroup float* x = out;\n", "device float *");
  refused("  thread float* x = out;\n", "device float *");
  EXPECT_FAULT((Case{.text = head + "  threadgroup float x[32];\n  *(device float*)(ulong)(x + t) = 1;\n}\n"}),
               "bounds", "at an address of x, which is threadgroup memory");
  refused("  out[t] = *(threadgroup float*)(in + t);\n", "a cast from device to threadgroup memory");
}

TEST(MetalEmulatorTest, TextsBecomeCxx) {
  EXPECT_EQ(msl::as_cxx("f(device int* a [[buffer(N + 1)]], uint b [[thread_index_in_simdgroup]]);"),
            "f(device int* a [[clang::annotate(\"buffer\", N + 1)]], "
            "uint b [[clang::annotate(\"thread_index_in_simdgroup\")]]);");
  EXPECT_EQ(msl::as_cxx("threadgroup T<a*b> x[n * 2], y;"), "static threadgroup T<a*b> x[n * 2], y;");
  EXPECT_EQ(msl::as_cxx("f(x [[buffer(1), function_constant(has)]]);"), "f(x [[clang::annotate(\"buffer\", 1), ]]);");
  EXPECT_EQ(
      msl::as_cxx("kernel void f(S<A, B*> a, device int* b, constant int& c [[buffer(N)]], threadgroup S<A>* d);"),
      "kernel void f(S<A, B*> a, [[clang::annotate(\"buffer\", -1)]] device int* b, "
      "constant int& c [[clang::annotate(\"buffer\", N)]], "
      "[[clang::annotate(\"threadgroup\", -1)]] threadgroup S<A>* d);");
  EXPECT_EQ(msl::as_cxx("template <class T> T f(float4 v) { return T(v) + (T)g(v)[1]->x * -(half4)(int4)v.xy; }"),
            "template <class T> T f(float4 v) { return msl_cast<T>(v) + msl_cast<T>(g(v)[1]->x) * "
            "-msl_cast<half4>(msl_cast<int4>(v.xy)); }");
  EXPECT_EQ(msl::as_cxx("using V = int2; x = static_cast<V>(y) + vec<int, 2>(z) + (V)as_type<int2>(w) + (V)1e-3f;"),
            "using V = int2; x = msl_cast<V>(y) + msl_cast<vec<int, 2>>(z) + msl_cast<V>(as_type<int2>(w)) + "
            "msl_cast<V>(1e-3f);");
  EXPECT_EQ(msl::as_cxx("struct S {\n  int f() const thread { return 1; }\n  S(int a)\n      device : x(a) { f(); }\n"
                        "#define Y 1\n  int g(int a) const threadgroup { return a; }\n  int x;\n};"),
            "struct S {\n  int f() const thread { return 1; }\n  \n\n#define Y 1\n\n  int x;\n};");
  EXPECT_EQ(msl::as_cxx("int f(constant const int64_t a[2], int b[3]);"),
            "int f(constant const int64_t * a, int b[3]);");
  EXPECT_EQ(
      msl::as_cxx("constant int n [[function_constant(0)]]; constant float x = 1, y[] = {n, x}, *z;"),
      "constant int n [[clang::annotate(\"function_constant\", 0)]]; const constant float x = 1, y[] = {n, x}, *z;");
  EXPECT_EQ(msl::as_cxx("constant A a = {x}; constant B b{2}; static constant B c[2] = {b.d, {.e = 3}};"),
            "const constant A a = {x}; constexpr constant B b{2}; static constexpr constant B c[2] = {b.d, {.e = 3}};");
  EXPECT_EQ(msl::as_cxx("coherent(device) device int* volatile a; int coherent = b + coherent(c);"),
            "msl_coherent device int*  a; int coherent = b + coherent(c);");
  EXPECT_EQ(msl::as_cxx("x = 1.0h + 0x1h + y.h + 16.h;"), "x = 1.0f16 + 0x1h + y.h + 16.f16;");
  EXPECT_EQ(msl::as_cxx("template [[host_name(\"f\")]] [[kernel]] decltype(f<1>) f<1>;"),
            "template  decltype(f<1>) f<1>;");
  for (const char* same : {"threadgroup float* const x = y;", "f(threadgroup T& x)", "(threadgroup float*)x",
                           "constexpr constant int n = 3;", "constant T* f(constant int* p) {}",
                           "remove<constant T> x = y;", "typename T, f(T) + (half4*)x + sizeof(float4) * (a)-float4(b)",
                           "// threadgroup float x[3];", "[[maybe_unused]] int x;", "\"threadgroup float x;\""}) {
    EXPECT_EQ(msl::as_cxx(same), same);
  }
}

}  // namespace
}  // namespace attn
