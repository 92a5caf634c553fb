#include "findings/kb/verify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>

#include "common/records/recorded.h"
#include "common/source/kernel_source.h"
#include "findings/kb/tests/support.h"

namespace attn::kb {
namespace {

std::vector<std::string> problems_of(const Json& record) {
  std::vector<std::string> texts;
  for (const Problem& problem : verify(store_of({record})).problems) texts.push_back(problem.text);
  return texts;
}

TEST(Verify, RecordedRunsAreSound) {
  Store store = Store::open(":memory:", Store::Mode::write);
  for (const std::string& name : recorded_files(ATTN_SOURCE_DIR)) {
    RecordInput file(name);
    for (const BadLine& bad : store.ingest(file).bad) ADD_FAILURE() << name << bad.line << ": " << bad.problem;
  }
  const Verification result = verify(store);
  EXPECT_GT(result.records, 100);
  for (const Problem& problem : result.problems) ADD_FAILURE() << problem.id << ": " << problem.text;
  EXPECT_EQ(result.count(Opposition::contradiction), 0);
  EXPECT_GT(result.count(Opposition::spread), 0);
  EXPECT_GT(result.count(Opposition::changed), 0);
  EXPECT_GT(result.fresh + static_cast<int64_t>(result.stale.size()), 0) << "no finding names recorded measurements";
}

TEST(Verify, TheIdIsTheHashOfTheOtherFields) {
  Json record = finding(1.5);
  record["remark"] = "added later";
  const auto problems = problems_of(record);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].find("id: is "), 0u);
  // Blanks between the JSON tokens of a line, as other programs write them, do not change the record.
  std::string line = finding(1.5).dump(1);
  std::ranges::replace(line, '\n', ' ');
  std::stringstream one(line);
  Store store = Store::open(":memory:", Store::Mode::write);
  ASSERT_EQ(store.ingest(one).added, 1);
  EXPECT_TRUE(verify(store).problems.empty());
}

/// A figure that is not pooled in logarithms.
Json linear_finding() {
  Conclusion conclusion;
  conclusion.hypothesis = "worst_tile";
  conclusion.title = "t", conclusion.content = "c";
  conclusion.parts = {{.process = 1, .value = 1.9, .error = 0.01, .rounds = 10},
                      {.process = 2, .value = 2.0, .error = 0.02, .rounds = 10}};
  conclusion.prior = {.scale = 0.01, .freedom = 3};
  conclusion.relative = false;
  conclusion.unit = 2.5;
  conclusion.estimate = pool({&conclusion.parts, 1}, conclusion.prior, false, conclusion.unit);
  return make_finding("proto1_flash", "A CPU", worst_tile(), conclusion, "r1");
}

// Each row changes one field of a sound record.
TEST(Verify, ReportsEachFieldThatContradictsTheOtherFields) {
  const Json pair = finding({1.5, 1.53}), exact = exact_finding(2), open = finding(1.25), linear = linear_finding();
  const Json measured = measurement(shape(64), 1e-3);
  for (const Json& sound : {pair, exact, open, linear, measured, finding(1.5), finding({1.24, 1.26, 1.25})})
    ASSERT_EQ(problems_of(sound), std::vector<std::string>{});
  struct Tamper {
    const Json& sound;
    const char* pointer;
    Json value;
    std::string seen;  // the beginning of a problem that verify() reports
    size_t least = 1;  // the least number of problems
  };
  for (const auto& [sound, pointer, value, seen, least] : std::vector<Tamper>{
           {pair, "/title", "The worst flash attention tile takes 1.59 times the best", "title:"},
           {pair, "/content", "At block_r 128 the next run takes 1.4 to 1.6.", "content:"},
           {pair, "/data/values/block_r", 64, "content:"},
           {pair, "/data/template/content", "{values.gone}", "content: its template cannot be rendered"},
           {pair, "/data/template/title", "{estimate", "title: its template cannot be rendered"},
           {pair, "/data/verdict/state", "refuted", "verdict: is 'refuted', computed again 'supported'"},
           {pair, "/data/correct", false, "verdict: is 'supported', computed again 'inconclusive'"},
           {pair, "/data/verdict/reason", "because", "verdict.reason:"},
           {pair, "/wrong", 0.21, "wrong: is 0.21, computed again"},
           {pair, "/data/estimate/warm", true, "verdict: is 'supported', computed again 'inconclusive'"},
           {pair, "/claim_key", "proto1_flash/worst_tile/A CPU, 2 units/head_dim=64 dtype=bf16", "claim_key:"},
           {pair, "/data/hypothesis/metric", "another figure", "claim_key:"},
           {pair, "/data/estimate/value", 1.6, "estimate.value:"},
           {pair, "/data/estimate/ci_lo", 1.4, "estimate.ci_lo:"},
           {pair, "/data/estimate/ci_hi", 1.6, "estimate.ci_hi:"},
           {pair, "/data/estimate/ci_hi", 1.2, "estimate: the interval"},
           {pair, "/data/estimate/next_lo", 1.4, "estimate.next_lo:"},
           {pair, "/data/estimate/next_hi", 1.7, "estimate.next_hi:"},
           {pair, "/data/estimate/tau", 0.2, "estimate.tau:"},
           {pair, "/data/estimate/freedom", 9, "estimate.freedom:"},
           {pair, "/data/estimate/processes", 3, "estimate.processes:"},
           {pair, "/data/estimate/sessions", 2, "estimate.sessions:"},
           {pair, "/data/estimate/prior/scale", 0.05, "estimate.ci_lo", 4},  // ci_lo, ci_hi, next_lo, next_hi
           {pair, "/data/parts/1/value", 1.6, "estimate.value:", 5},
           {pair, "/data/parts/0/value", 0, "parts: pool:"},  // 0 has no logarithm
           {pair, "/data/parts", Json::array(), "parts: must not be empty"},
           {pair, "/data/compare/ratio", 1.6, "compare.ratio:"},
           {pair, "/data/compare/ci_lo", 1.4, "compare.ci_lo:"},
           {pair, "/data/compare/aa_floor", 0.02, "compare.aa_floor:"},
           {pair, "/data/compare/aa_ci_hi", 0.9, "compare (A/A): the interval"},
           {pair, "/data/compare/parts/1/aa_floor", 0.02, "compare.parts.1.aa_floor:"},
           {pair, "/data/compare/parts/1/ci_lo", 1.6, "compare.parts.1: the interval"},
           {pair, "/data/compare/parts/0/time/0/min_s", 1.0, "compare.parts.0.time.0: min_s"},
           {exact, "/data/estimate/next_hi", 2.5, "estimate.next_hi: is 2.5, computed again 2"},
           {exact, "/data/parts/0/value", 3, "parts: process 1: is 3, computed again 2"},
           {exact, "/wrong", 0.2, "wrong: is 0.2, computed again 0"},
           {linear, "/data/estimate/unit", 2.4, "estimate.ci_lo", 4},
           {measured, "/rate/tflops", 1.01, "rate.tflops:"},
           {measured, "/work/bytes", 4.1e6, "rate.gbps:"},
           {measured, "/time/0/median_s", 1.001e-3, "rate.tflops:", 2},
           {measured, "/time", Json::array(), "rate.tflops: the record has no work or no device time", 2},
           {measured, "/work", nullptr, "rate.tflops: the record has no work or no device time", 2}}) {
    const auto problems = problems_of(changed(sound, {{pointer, value}}));
    EXPECT_GE(problems.size(), least) << pointer;
    const auto starts = [&, &wanted = seen](const std::string& one) { return one.starts_with(wanted); };
    EXPECT_TRUE(std::ranges::any_of(problems, starts))
        << pointer << ": " << fmt::format("{}", fmt::join(problems, "; "));
  }
}

TEST(Verify, TellsSpreadFromContradiction) {
  // The interval for the next run after these two runs is wide, and contains the figures of both.
  Verification result = verify(store_of({finding(1.5, "r1"), finding(1.1, "r2"), finding(1.5, "r3", "Another CPU")}));
  EXPECT_TRUE(result.problems.empty());
  ASSERT_EQ(result.opposed.size(), 1u);
  EXPECT_EQ(result.opposed[0].why, Opposition::spread);
  EXPECT_EQ(result.opposed[0].findings.size(), 2u);
  // Twenty runs agree, and the figure of one run lies far from the others.
  std::vector<Json> many = {finding(1.1, "far"), finding(1.25, "open")};
  for (int i = 0; i < 20; ++i) many.push_back(finding(1.5 + 0.001 * i, fmt::format("r{}", i)));
  result = verify(store_of(many));
  ASSERT_EQ(result.count(Opposition::contradiction), 1);
  EXPECT_EQ(result.opposed[0].findings.size(), 22u) << "the inconclusive finding must be listed too";
  EXPECT_TRUE(verify(store_of({finding(1.5, "r1"), finding(1.6, "r2"), finding(1.25, "r3")})).opposed.empty());
}

TEST(Verify, OtherCodeAndOtherConditionsExplainOppositeVerdicts) {
  const Json before = measurement(shape(64), 1e-3);
  const Json after = with_other_code(measurement(shape(64), 1.1e-3));
  const auto why = [](const std::vector<Json>& records) { return verify(store_of(records)).opposed.at(0).why; };
  const Json one = finding(1.5, "r1", "A CPU, 2 units", {before["id"]});
  const Json other = finding(1.1, "r2", "A CPU, 2 units", {before["id"]});
  EXPECT_EQ(why({before, after, one, other}), Opposition::spread);
  EXPECT_EQ(why({before, after, one, finding(1.1, "r2", "A CPU, 2 units", {after["id"]})}), Opposition::changed);
  const auto of_host = [](const Json& told) { return changed(told, {{"/data/compare/time/0/scope", "host"}}); };
  for (const auto& [pointer, value, of_kernel] : std::vector<std::tuple<const char*, Json, Opposition>>{
           {"/run/profile", "full", Opposition::changed},
           {"/run/threadgroup_memory_bytes", 1024, Opposition::changed},
           {"/env/device/toolchain", "clang 20", Opposition::changed},
           {"/env/git/commit", "fedcba98", Opposition::spread}}) {  // the kernel is the same
    const Json head = changed(header("r2"), {{pointer, value}});
    EXPECT_EQ(why({header(), head, before, one, other}), of_kernel) << pointer;
    EXPECT_EQ(why({header(), head, before, of_host(one), of_host(other)}), Opposition::changed)
        << pointer << ": a commit may change the host's code";
  }
}

Json pipeline_of(const KernelSource& source) {
  Json hooks = Json::array();
  for (const SourceFile& hook : hooks_of(source)) hooks.push_back({{"file", hook.path}, {"text", hook.text}});
  return {{"key", source.key()}, {"hooks", hooks}, {"source_sha256", source_sha256(source)}};
}

TEST(Freshness, OfTheKernelsInThisTree) {
  KernelSource source{.path = "common/attention/kernels/naive.cpu.cpp",
                      .entry = "flash_forward",
                      .constants = {{"CAUSAL", 1}, {"HEAD_DIM", 64}},
                      .includes = {}};
  Json pipeline = pipeline_of(source);
  EXPECT_EQ(freshness(pipeline), Freshness::current);
  pipeline["key"] = "flash_forward[CAUSAL=1,HEAD_DIM=65]";
  EXPECT_EQ(freshness(pipeline), Freshness::changed);
  // A fragment may be a header, as the one of proto2_stitching is.
  source.fragments = {{.path = "proto2_stitching/kernels/fragment.h",
                       .entry = "score_fragment",
                       .constants = {{"A", -1}},
                       .includes = {{"proto2_stitching/kernels/choice.h", "#define SCORE_FORM FORM_STITCHED\n"},
                                    {"proto2_stitching/kernels/function.h", "float score();\n"}}}};
  for (const Linking linking : {Linking::before_optimizer, Linking::after_code_generation}) {
    source.linking = linking;
    pipeline = pipeline_of(source);
    EXPECT_EQ(freshness(pipeline), Freshness::current) << pipeline;
    pipeline["source_sha256"] = std::string(64, '0');
    EXPECT_EQ(freshness(pipeline), Freshness::changed);
  }
  for (const char* key : {"", "flash_forward", "flash_forward[", "flash_forward[A=]", "flash_forward[A=1x]", "[]",
                          "f[A=1]f[B=1]", "f[A=1]+", "f[A=1]+f", "+f[A=1]", "f[A=1]|f[B=1]]"}) {
    pipeline["key"] = key;
    EXPECT_NE(freshness(pipeline), Freshness::current) << key;
  }
}

TEST(Verify, FindingsOfChangedKernelsAreStale) {
  const KernelSource source{.path = "common/attention/kernels/naive.cpu.cpp",
                            .entry = "flash_forward",
                            .constants = {{"HEAD_DIM", 64}},
                            .includes = {}};
  const Json earlier = changed(with_other_code(measurement(shape(128), 1e-3)), {{"/pipeline/key", source.key()}});
  const Json today = changed(measurement(shape(64), 1e-3),
                             {{"/pipeline/key", source.key()}, {"/pipeline/source_sha256", source_sha256(source)}});
  const std::string new_id = today["id"], old_id = earlier["id"];
  const Verification result =
      verify(store_of({header("r1"), header("r2"), header("r3"), today, earlier, finding(1.5, "r1", "A CPU", {new_id}),
                       finding(1.5, "r2", "A CPU", {old_id}), finding(1.5, "r3", "A CPU", {new_id, old_id}),
                       finding(1.5, "r4", "A CPU", {})}));
  EXPECT_EQ(result.fresh, 1);
  EXPECT_EQ(result.superseded, 2) << "r2 and r3: the fresh finding r1 has the same time";
  EXPECT_EQ(result.stale.size(), 0u);
  EXPECT_EQ(result.unknown, 1);
  // A finding with a changed kernel is stale if all fresh findings of its claim are earlier, or if there are none.
  const Json later = changed(header("r2"), {{"/run/ts", "2026-02-01T00:00:00Z"}});
  const Json old = finding(1.5, "r2", "A CPU", {old_id});
  for (const char* device : {"A CPU", "B CPU"}) {
    const Json fresh = finding(1.5, "r1", device, {new_id});
    EXPECT_EQ(verify(store_of({header("r1"), later, today, earlier, fresh, old})).stale.size(), 1u) << device;
  }
}

/// A source tree with one kernel. A text that replaces the header a/kernels/score.h is a hook of the kernel.
class KernelTreeTest : public KbTest {
 protected:
  KernelTreeTest() {
    std::filesystem::create_directories(path("a/kernels"));
    write_text("a/kernels/run.cpu.cpp",
               "#include \"a/kernels/score.h\"\nextern \"C\" void run(int* x) { *x = score(); }\n");
    write_text("a/kernels/score.h", "int score();\n");
    write_text("a/kernels/cap.h", "int cap();\n");
    setenv("ATTENTION_PROTO_SOURCE", path("").c_str(), 1);
  }
  ~KernelTreeTest() override { unsetenv("ATTENTION_PROTO_SOURCE"); }

  static Json measured(const std::string& hook, bool with_hooks = true) {
    Json record = measurement(shape(64), 1e-3);
    record["pipeline"].update(
        pipeline_of({.path = "a/kernels/run.cpu.cpp", .entry = "run", .includes = {{"a/kernels/score.h", hook}}}));
    if (!with_hooks) record["pipeline"].erase("hooks");
    return with_id(record);
  }
  /// What `kb verify` says about a finding with these measurements.
  std::string age(std::vector<Json> records) const {
    std::vector<std::string> ids;
    for (const Json& record : records) ids.push_back(record["id"]);
    records.push_back(finding(1.5, "r1", "A CPU, 2 units", ids));
    const Outcome outcome = run({"verify", "--json", write("records.jsonl", records)});
    EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
    const Json counts = parse_json(outcome.out);
    return fmt::format("{} fresh, {} stale, {} unknown", counts["fresh"].dump(), counts["stale"].size(),
                       counts["unknown"].dump());
  }
};

TEST_F(KernelTreeTest, AHookBelongsToItsKernel) {
  const std::string hook = "#include \"a/kernels/cap.h\"\nint score() { return cap(); }\n";
  const Json with = measured(hook), without = measured(hook, false), plain = measured("int score();");
  const char *const fresh = "1 fresh, 0 stale, 0 unknown", *const stale = "0 fresh, 1 stale, 0 unknown",
                    *const unknown = "0 fresh, 0 stale, 1 unknown";
  EXPECT_EQ(age({with, plain}), fresh);
  EXPECT_EQ(age({without}), unknown) << "the record lacks the hook's text";
  EXPECT_EQ(age({with, without}), unknown) << "all kernels of a finding must be today's";
  write_text("a/kernels/cap.h", "int cap();\nint more();\n");
  EXPECT_EQ(age({plain}), fresh);
  EXPECT_EQ(age({with, plain}), stale) << "the hook includes the header";
}

}  // namespace
}  // namespace attn::kb
