// msl_check as a user calls it.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "common/base/file.h"
#include "common/source/kernel_source.h"
#include "common/testing/program.h"

namespace attn {
namespace {

const std::string sum = R"(#include <metal_stdlib>
using namespace metal;
kernel void sum(const device float* in [[buffer(0)]], device float* out [[buffer(1)]],
                uint thread_number [[thread_index_in_threadgroup]]) {
  threadgroup float all[64];
  all[thread_number] = in[thread_number];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_number == 0) {
    float total = 0;
    for (uint i = 0; i < 64; ++i) total += all[i];
    out[0] = total;
  }
}
)";
const std::string buffers = " --threads 64 --buffer 0=f32:random:64 --buffer 1=f32:nan:1 ";

class MslCheckCliTest : public test::ProgramTest {
 protected:
  MslCheckCliTest() : ProgramTest("msl_check") {}
  void SetUp() override { write_text("sum.metal", sum); }
  /// Runs msl_check. Expects the exit status `status`, and one line on stderr, which contains `words`.
  void expect(const std::string& line, int status, const std::string& words) {
    SCOPED_TRACE(line);
    const test::Outcome outcome = run_line(line);
    EXPECT_EQ(outcome.status, status) << outcome.err;
    EXPECT_NE(outcome.err.find(words), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
};

TEST_F(MslCheckCliTest, OneLineSaysWhetherAKernelHasAFault) {
  expect("sum.metal sum" + buffers, 0, "sum.metal: sum has no fault, and the same results in 6 orders");
  std::string without = sum;
  const std::string barrier = "threadgroup_barrier(mem_flags::mem_threadgroup);";
  without.replace(without.find(barrier), barrier.size(), "");
  write_text("without.metal", without);
  expect("without.metal sum" + buffers, 1, "without.metal: race: thread 0");
  write_text("mark.metal", "\xEF\xBB\xBF" + sum);
  expect("mark.metal sum" + buffers, 0, "no fault");
}

// The example of docs/metal.md: a message leads to each of the three faults of attention.metal.
TEST_F(MslCheckCliTest, FindsTheFaultsOfAttention) {
  std::string text = *read_file(source_root() + "/common/backends/metal/emulator/tests/attention.metal");
  const auto mend = [&](const std::string& from, const std::string& to) {
    ASSERT_NE(text.find(from), std::string::npos) << from;
    text.replace(text.find(from), from.size(), to);
  };
  // All weights are equal, so that O has the means of V's rows.
  const std::string line =
      "attention.metal attention --grid 3 --threads 256 --buffer 0=f16:random:1280 --buffer 1=f16:zero:1280 "
      "--buffer 2=f16:index:1280 --buffer 3=f16:nan:1280 --buffer 4=u32:40,32+f32:0.125";
  write_text("attention.metal", text);
  expect(line, 1,
         "limits: attention: a threadgroup needs 33792 bytes of threadgroup memory; at most 32768 are allowed");
  mend("TILE_KV = 64", "TILE_KV = 32");
  write_text("attention.metal", text);
  expect(line, 1, "has infinity or NaN in a comparison; fast mathematics assumes finite numbers; attention.metal:27");
  mend("= -INFINITY", "= -1.0e30f");
  write_text("attention.metal", text);
  expect(line, 1, "race: thread 0 (simdgroup 0, lane 0) writes word 0 (byte 0) of k, which another thread read");
  mend("    }\n  }\n  for (uint i = 0; i < rows &&",
       "    }\n    threadgroup_barrier(mem_flags::mem_threadgroup);\n  }\n  for (uint i = 0; i < rows &&");
  write_text("attention.metal", text);
  const test::Outcome outcome = run_line(line + " --print 3=f16");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  std::istringstream printed(outcome.out);
  double value = 0;
  int count = 0;
  for (; printed >> value; ++count) EXPECT_EQ(value, 16 * (count / 32) + count % 32);
  EXPECT_EQ(count, 1280);
}

// The kernel prints which element of a matrix lane 9 has, and a product whose operands TF32 cannot hold.
TEST_F(MslCheckCliTest, OtherGpusShowWhatAKernelRestsOn) {
  write_text("matrix.metal", R"(#include <metal_stdlib>
using namespace metal;
kernel void matrix(const device float* in [[buffer(0)]], device float* out [[buffer(1)]],
                   uint lane [[thread_index_in_simdgroup]]) {
  simdgroup_float8x8 m, product, one = make_filled_simdgroup_matrix<float, 8, 8>(1.000244140625f);
  simdgroup_load(m, in, 8);
  simdgroup_multiply(product, one, one);
  if (lane == 9) {
    out[0] = m.thread_elements()[0];
    out[1] = product.thread_elements()[0];
  }
})");
  const std::string line = "matrix.metal matrix --buffer 0=f32:index:64 --buffer 1=f32:nan:2 --print 1=f32 --gpu ";
  const std::pair<std::string, std::string> expected[] = {
      {"m1", "6\n8.003906\n"}, {"other_fragments", "18\n8.003906\n"}, {"tf32", "6\n8\n"}};
  for (const auto& [gpu, printed] : expected) EXPECT_EQ(run_line(line + gpu).out, printed) << gpu;
  expect(line + "m9", 2, "allowed are m1, other_fragments, tf32");
}

TEST_F(MslCheckCliTest, OneLineReportsAnEndlessLoopOrRecursion) {
  write_text("endless.metal", R"(#include <metal_stdlib>
    kernel void loop(device float* o [[buffer(0)]]) { for (;;) o[0] += 1; }
    void again(device float* o, int n) { o[0] = n; again(o, n + 1); o[0] += n; }
    kernel void recursion(device float* o [[buffer(0)]]) { again(o, 0); })");
  expect("endless.metal loop --threads 1 --buffer 0=f32:zero:1 --seconds 2", 1, "loop takes more than 2 s");
  if (*ATTN_SANITIZE) GTEST_SKIP() << "the sanitizer, not msl_check, reports the stack overflow";
  expect("endless.metal recursion --threads 1 --buffer 0=f32:zero:1", 1, "recursion was ended by signal 11");
}

TEST_F(MslCheckCliTest, BadInputGivesStatus2AndOneLineWithoutMessages) {
  write_text("empty.metal", "");
  write_text("noise.metal", sum + "\n)))}}}) $ @ ` error int float float;;((\n");
  for (const auto& [line, words] :
       {std::pair<std::string, std::string>{"", "FILE"},
        {"sum.metal", "FUNCTION"},
        {"sum.metal sum --nosuch", "--nosuch"},
        {"nosuch.metal sum" + buffers, "nosuch.metal cannot be read"},
        {". sum" + buffers, ". is no regular file"},
        {"/dev/zero sum" + buffers, "/dev/zero is no regular file"},
        {"empty.metal sum" + buffers, "empty.metal has no kernel sum"},
        {"sum.metal other" + buffers, "sum.metal has no kernel other"},
        {"noise.metal sum" + buffers, "noise.metal does not compile: noise.metal:"},
        {"sum.metal sum --orders 0" + buffers, "--orders"},
        {"sum.metal sum --language 2.4" + buffers, "--language 2.4: not allowed; allowed are 3.0, 3.1, 3.2"},
        {"sum.metal sum --seconds 0" + buffers, "--seconds"},
        {"sum.metal sum --buffer 1=f32:zero:1" + buffers, "--buffer 1 is given twice"},
        {"sum.metal sum --grid x" + buffers, "--grid x: not allowed; an integer from 0 to 4294967295"}}) {
    expect(line, 2, words);
  }
  // With --messages, msl_check prints all lines of the compiler.
  const test::Outcome outcome = run_line("noise.metal sum --messages" + buffers);
  EXPECT_GT(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 2) << outcome.err;
}

TEST_F(MslCheckCliTest, HelpIsNoError) {
  const test::Outcome outcome = run_line("--help");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_NE(outcome.out.find("--buffer"), std::string::npos);
}

}  // namespace
}  // namespace attn
