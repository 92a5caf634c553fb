// Metal's forms (how the kernel reaches the score function).
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "common/testing/devices.h"
#include "common/testing/metal_runs.h"
#include "common/testing/user_texts.h"
#include "proto2_stitching/problem.h"

namespace attn::test {

INSTANTIATE_TEST_SUITE_P(
    Metal, MetalRuns,
    testing::ValuesIn(runs_of("proto2_stitching",
                              {{"EachForm", 7,
                                "form=monolithic,inline,noinline,switch,pointer,stitched,stitched_nolto grain=element "
                                "function=alibi batch=1 q_heads=2 kv_heads=1 q_len=19 "
                                "kv_len=37 head_dim=40 causal=1 dtype=f16 layout=bhsd block_r=16 block_c=16"}})),
    run_name);

INSTANTIATE_TEST_SUITE_P(MetalFull, MetalRuns,
                         testing::ValuesIn(runs_of(
                             "proto2_stitching",
                             {{"EachFunction", 8,
                               "form=inline,switch grain=element function=scale,alibi,soft_cap,chain work=16 batch=1 "
                               "q_heads=2 kv_heads=2 q_len=45 kv_len=70 head_dim=64 causal=0 dtype=f32 layout=bhsd"}})),
                         run_name);

class MetalStitchTest : public MetalProgramTest {
 protected:
  MetalStitchTest() : MetalProgramTest("proto2_stitching") {}
};

TEST_F(MetalStitchTest, NamesInAUsersFileChangeNothing) {
  std::string text = "float score(float s, int q, int k) { return s - 0.25f * fabsf(q - k); }\n";
  for (const std::string& line : lines_with_kernels_names) text += line + "\n";
  write_text("f.cpp", text);
  const std::string axes =
      " --axis form=monolithic,noinline --axis grain=element --axis q_len=19 --axis head_dim=40 --axis block_r=16 "
      "--axis block_c=16";
  const Outcome outcome = run_line("--device metal:emulated --only verify --score-function f.cpp" + axes);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE((outcome.out + outcome.err).find("2 ok, 0 wrong, 0 skipped"), std::string::npos) << outcome.err;
}

// `device` and `constant` are words of Metal.
TEST_F(MetalStitchTest, ATextThatIsWrongInMetalOnlyIsBadInput) {
  for (const char* parameter : {"int device", "int constant"}) {
    write_text("f.cpp", fmt::format("\nfloat score(float s, {}, int k) {{ return s; }}\n", parameter));
    const Outcome outcome = run_line("--device metal:emulated --only verify --score-function f.cpp");
    EXPECT_EQ(outcome.status, 2) << parameter << outcome.out;
    EXPECT_NE(outcome.err.find("f.cpp:2:"), std::string::npos) << outcome.err;
  }
}

TEST(MetalFormsTest, NeedFeaturesOfTheGpu) {
  for (const auto& [form, feature] : {std::pair("pointer", "metal.tables"),
                                      {"stitched_nolto", "metal.libraries"},
                                      {"stitched_graph", "metal.graphs"}}) {
    StitchConfig config{.form = form, .grain = "element", .function = "alibi", .work = 0, .flash = {}};
    config.flash.variant = "tuned";
    DeviceInfo device = metal();
    EXPECT_EQ(call_skip_reason(config, device), std::nullopt);
    std::erase(device.features, feature);
    EXPECT_EQ(call_skip_reason(config, device).value_or("").find(std::string("form ") + form), 0u);
  }
}

// A simdgroup has 8 rows, and works on 8 keys at a time. Four lanes share a row: each lane has an even key and the next
// key. For each 8 keys the simdgroup makes one call for the even keys, and one call for the odd keys. The simdgroup
// leaves a call out if no row sees a key of the call.
TEST(MetalCallsTest, CountsCallsOfSimdgroups) {
  for (const bool causal : {false, true}) {
    StitchConfig config{.form = "noinline", .grain = "element", .function = "alibi", .work = 0, .flash = {}};
    config.flash.variant = "tuned";
    config.flash.shape = {.batch = 2, .q_heads = 3, .kv_heads = 1, .q_len = 21, .kv_len = 37, .head_dim = 64};
    config.flash.shape.causal = causal;
    config.flash.block_r = config.flash.block_c = 16;
    std::set<std::pair<int, int>> calls;  // of one head: {simdgroup, number of its call}
    for (int query = 0; query < 21; ++query) {
      for (int key = 0; key < 37 && (!causal || key <= query + 16); ++key) {
        calls.emplace(query / 8, key / 8 * 2 + key % 2);
      }
    }
    const CallCount count = count_calls(config, metal());
    EXPECT_EQ(count.calls, std::ssize(calls) * 6) << "causal " << causal;  // 2 sequences of 3 heads
    // Simdgroups of the tile * blocks of 8 keys * keys of a lane.
    EXPECT_EQ(count.calls_per_tile, 2 * 2 * 2) << "causal " << causal;
  }
}

}  // namespace attn::test
