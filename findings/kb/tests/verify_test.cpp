#include "findings/kb/verify.h"

#include <fmt/format.h>

#include "common/source/kernel_source.h"
#include "findings/kb/tests/support.h"

namespace attn::kb {
namespace {

Store store_of(const std::vector<Json>& records) {
  Store store = Store::open(":memory:", Store::Mode::write);
  std::stringstream lines;
  for (const Json& record : records) lines << record.dump() << "\n";
  const Ingested result = store.ingest(lines);
  EXPECT_TRUE(result.bad.empty()) << result.bad.front().problem;
  return store;
}

std::vector<std::string> problems_of(const Json& record) {
  std::vector<std::string> texts;
  for (const Problem& problem : verify(store_of({record})).problems) texts.push_back(problem.text);
  return texts;
}

TEST(Verify, RecordedRunsAreSound) {
  Store store = Store::open(":memory:", Store::Mode::write);
  std::stringstream lines;
  for (const std::string& line : recorded_lines()) lines << line << "\n";
  for (const BadLine& bad : store.ingest(lines).bad) ADD_FAILURE() << "line " << bad.line << ": " << bad.problem;
  const Verification result = verify(store);
  EXPECT_GT(result.records, 100);
  for (const Problem& problem : result.problems) ADD_FAILURE() << problem.id << ": " << problem.text;
  EXPECT_TRUE(result.contradictions.empty());
  EXPECT_GT(result.explained_by(Opposition::spread), 0);
  EXPECT_GT(result.explained_by(Opposition::changed), 0);
  EXPECT_GT(result.fresh + static_cast<int64_t>(result.stale.size()), 0) << "no finding names recorded measurements";
}

struct Tamper {
  std::string pointer;
  Json value;
  std::string seen;  // the beginning of a problem that verify() reports
};

TEST(Verify, TheIdIsTheHashOfTheOtherFields) {
  Json record = finding(1.5);
  record["remark"] = "added later";
  auto problems = problems_of(record);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].find("id: is "), 0u);
  // Blanks between the JSON tokens of a line, as other programs write them, do not change the record.
  std::stringstream lines(finding(1.5).dump(1));
  std::string line;
  for (std::string part; std::getline(lines, part);) line += part + " ";
  std::stringstream one(line + "\n");
  Store store = Store::open(":memory:", Store::Mode::write);
  ASSERT_EQ(store.ingest(one).added, 1);
  EXPECT_TRUE(verify(store).problems.empty());
}

TEST(Verify, RatesFollowFromWorkAndTime) {
  ASSERT_EQ(problems_of(measurement(shape(64), 1e-3)), std::vector<std::string>{});
  for (const auto& [pointer, value] : std::vector<std::pair<std::string, Json>>{
           {"/rate/tflops", 1.01}, {"/work/bytes", 4.1e6}, {"/time/0/median_s", 1.001e-3}}) {
    Json record = measurement(shape(64), 1e-3);
    record[Json::json_pointer(pointer)] = value;
    EXPECT_FALSE(problems_of(with_id(record)).empty()) << pointer;
  }
}

TEST(Verify, ReportsEachFieldThatContradictsTheOtherFields) {
  ASSERT_EQ(problems_of(finding({1.5, 1.53})), std::vector<std::string>{});
  ASSERT_EQ(problems_of(finding(1.5)), std::vector<std::string>{});
  ASSERT_EQ(problems_of(finding({1.24, 1.26, 1.25})), std::vector<std::string>{}) << "inconclusive";
  ASSERT_EQ(problems_of(exact_finding(2)), std::vector<std::string>{});
  for (const Tamper& tamper : std::vector<Tamper>{
           {"/title", "The worst flash attention tile takes 1.59 times the best", "title:"},
           {"/content", "At block_r 128 the next run takes 1.4 to 1.6.", "content:"},
           {"/data/values/block_r", 64, "content:"},
           {"/data/template/content", "{values.gone}", "content: its template cannot be rendered"},
           {"/data/template/title", "{estimate", "title: its template cannot be rendered"},
           {"/data/verdict/state", "refuted", "verdict: is 'refuted', computed again 'supported'"},
           {"/data/correct", false, "verdict: is 'supported', computed again 'inconclusive'"},
           {"/data/verdict/reason", "because", "verdict.reason:"},
           {"/confidence", 0.79, "confidence: is 0.79, computed again 0.8"},
           {"/data/estimate/unlike_throttling", true, "confidence: is 0.8, computed again 0.6"},
           {"/data/estimate/warm", true, "verdict: is 'supported', computed again 'inconclusive'"},
           {"/claim_key", "proto1_flash/worst_tile/A CPU, 2 units/head_dim=64 dtype=bf16", "claim_key:"},
           {"/data/hypothesis/metric", "another figure", "claim_key:"},
           {"/data/estimate/ci_lo", 1.4, "estimate.ci_lo:"},
           {"/data/estimate/ci_hi", 1.6, "estimate.ci_hi:"},
           {"/data/estimate/tau", 0.2, "estimate.tau:"},
           {"/data/estimate/processes", 3, "estimate.processes:"},
           {"/data/estimate/sessions", 2, "estimate.sessions:"},
           {"/data/compare/ratio", 1.6, "compare.ratio:"},
           {"/data/compare/ci_lo", 1.4, "compare.ci_lo:"},
           {"/data/compare/aa_floor", 0.02, "compare.aa_floor:"},
           {"/data/compare/parts/1/aa_floor", 0.02, "compare.parts.1.aa_floor:"},
           {"/data/compare/parts/1/ci_lo", 1.6, "compare.parts.1: the interval"},
           {"/data/compare/parts/0/time/0/min_s", 1.0, "compare.parts.0.time.0: min_s"}}) {
    Json record = finding({1.5, 1.53});
    record[Json::json_pointer(tamper.pointer)] = tamper.value;
    const auto problems = problems_of(with_id(record));
    ASSERT_FALSE(problems.empty()) << tamper.pointer;
    EXPECT_TRUE(std::ranges::any_of(problems, [&](const std::string& one) { return one.starts_with(tamper.seen); }))
        << tamper.pointer << ": " << problems[0];
  }
  Json record = finding({1.5, 1.53});
  record["data"]["parts"][1]["value"] = 1.6;
  EXPECT_GE(problems_of(with_id(record)).size(), 5u) << "value, ci_lo, ci_hi, next_lo, next_hi";
  record = finding({1.5, 1.53});
  record["data"]["estimate"]["prior"]["scale"] = 0.05;
  EXPECT_GE(problems_of(with_id(record)).size(), 4u) << "ci_lo, ci_hi, next_lo, next_hi";
  record = finding({1.5, 1.53});
  record["data"]["parts"][0]["value"] = 0;
  EXPECT_FALSE(problems_of(with_id(record)).empty()) << "0 has no logarithm";
  record = finding({1.5, 1.53});
  record["data"]["parts"] = Json::array();
  EXPECT_FALSE(problems_of(with_id(record)).empty());
  record = exact_finding(2);
  record["data"]["estimate"]["next_hi"] = 2.5;
  EXPECT_EQ(problems_of(with_id(record)), std::vector<std::string>{"estimate.next_hi: is 2.5, computed again 2"});
  record = exact_finding(2);
  record["confidence"] = 0.8;
  EXPECT_EQ(problems_of(with_id(record)), std::vector<std::string>{"confidence: is 0.8, computed again 1"});
  record = finding(1.25);
  ASSERT_EQ(record["data"]["verdict"]["state"], "inconclusive");
  record["data"]["advice"] = "Choose the tile by measuring.";
  EXPECT_EQ(problems_of(with_id(record)).size(), 1u) << "an inconclusive verdict must give no advice";
}

TEST(Verify, AFigureThatIsNotPooledInLogarithmsIsCheckedWithItsUnit) {
  Conclusion conclusion;
  conclusion.hypothesis = "worst_tile";
  conclusion.title = "t", conclusion.content = "c";
  conclusion.parts = {{.process = 1, .value = 1.9, .error = 0.01, .rounds = 10},
                      {.process = 2, .value = 2.0, .error = 0.02, .rounds = 10}};
  conclusion.prior = {.scale = 0.01, .freedom = 3};
  conclusion.relative = false;
  conclusion.unit = 2.5;
  conclusion.estimate = pool({&conclusion.parts, 1}, conclusion.prior, false, conclusion.unit);
  Json record = make_finding("proto1_flash", "A CPU", worst_tile(), conclusion, "r1");
  EXPECT_EQ(problems_of(record), std::vector<std::string>{});
  record["data"]["estimate"]["unit"] = 2.4;
  EXPECT_EQ(problems_of(with_id(record)).size(), 4u) << "ci_lo, ci_hi, next_lo, next_hi";
}

TEST(Verify, TellsSpreadFromContradiction) {
  // The interval for the next run after these two runs is wide, and contains the figures of both.
  Verification result = verify(store_of({finding(1.5, "r1"), finding(1.1, "r2"), finding(1.5, "r3", "Another CPU")}));
  EXPECT_TRUE(result.problems.empty());
  EXPECT_TRUE(result.contradictions.empty());
  ASSERT_EQ(result.explained.size(), 1u);
  EXPECT_EQ(result.explained[0].why, Opposition::spread);
  EXPECT_EQ(result.explained[0].findings.size(), 2u);
  EXPECT_EQ(result.explained_by(Opposition::spread), 1);
  EXPECT_EQ(result.explained_by(Opposition::changed), 0);
  // Twenty runs agree, and the figure of one run lies far from the others.
  std::vector<Json> many = {finding(1.1, "far"), finding(1.25, "open")};
  for (int i = 0; i < 20; ++i) many.push_back(finding(1.5 + 0.001 * i, fmt::format("r{}", i)));
  result = verify(store_of(many));
  ASSERT_EQ(result.contradictions.size(), 1u);
  EXPECT_EQ(result.contradictions[0].findings.size(), 22u) << "the inconclusive finding must be listed too";
  EXPECT_TRUE(verify(store_of({finding(1.5, "r1"), finding(1.6, "r2"), finding(1.25, "r3")})).explained.empty());
}

TEST(Verify, OtherCodeAndOtherConditionsExplainOppositeVerdicts) {
  Json before = measurement(shape(64), 1e-3), after = measurement(shape(64), 1.1e-3);
  after["pipeline"]["code_sha256"] = std::string(64, 'c');
  after = with_id(after);
  const auto why = [](const std::vector<Json>& records) {
    const Verification result = verify(store_of(records));
    return result.explained.size() == 1 ? result.explained[0].why : Opposition::contradiction;
  };
  const Json one = finding(1.5, "r1", "A CPU, 2 units", {before["id"]});
  EXPECT_EQ(why({before, after, one, finding(1.1, "r2", "A CPU, 2 units", {after["id"]})}), Opposition::changed);
  EXPECT_EQ(why({before, after, one, finding(1.1, "r2", "A CPU, 2 units", {before["id"]})}), Opposition::spread);
  const Json other = finding(1.1, "r2", "A CPU, 2 units", {before["id"]});
  const auto header_with = [](const char* pointer, const Json& value) {
    Json changed = header("r2");
    changed[Json::json_pointer(pointer)] = value;
    return with_id(changed);
  };
  for (const auto& [pointer, value] : {std::pair<const char*, Json>{"/run/profile", "full"},
                                       {"/run/threadgroup_memory_bytes", 1024},
                                       {"/env/device/toolchain", "clang 20"}}) {
    EXPECT_EQ(why({header(), header_with(pointer, value), before, one, other}), Opposition::changed) << pointer;
  }
  const Json commit = header_with("/env/git/commit", "fedcba98");
  EXPECT_EQ(why({header(), commit, before, one, other}), Opposition::spread) << "the kernel is the same";
  Json host = other, host_one = one;
  for (Json* record : {&host, &host_one}) {
    for (Json& time : (*record)["data"]["compare"]["time"]) time["scope"] = "host";
    *record = with_id(*record);
  }
  EXPECT_EQ(why({header(), commit, before, host_one, host}), Opposition::changed)
      << "a commit may change the host's code";
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
  source.fragments = {
      {.path = "common/attention/kernels/tiled.cpu.cpp", .entry = "flash_forward", .constants = {{"A", -1}}}};
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
  Json today = measurement(shape(64), 1e-3), earlier = measurement(shape(128), 1e-3);
  today["pipeline"]["key"] = earlier["pipeline"]["key"] = source.key();
  today["pipeline"]["source_sha256"] = source_sha256(source);
  earlier["pipeline"]["code_sha256"] = std::string(64, 'e');
  today = with_id(today), earlier = with_id(earlier);
  const std::string new_id = today["id"], old_id = earlier["id"];
  const Verification result =
      verify(store_of({header("r1"), header("r2"), header("r3"), today, earlier, finding(1.5, "r1", "A CPU", {new_id}),
                       finding(1.5, "r2", "A CPU", {old_id}), finding(1.5, "r3", "A CPU", {new_id, old_id}),
                       finding(1.5, "r4", "A CPU", {})}));
  EXPECT_EQ(result.fresh, 1);
  EXPECT_EQ(result.superseded, 2) << "r2 and r3: the fresh finding r1 has the same time";
  EXPECT_EQ(result.stale.size(), 0u);
  EXPECT_EQ(result.unknown, 1);
  EXPECT_TRUE(result.problems.empty());
  // A finding with a changed kernel is stale if all fresh findings of its claim are earlier, or if there are none.
  Json later = header("r2");
  later["run"]["ts"] = "2026-02-01T00:00:00Z";
  const Json old = finding(1.5, "r2", "A CPU", {old_id});
  for (const char* device : {"A CPU", "B CPU"}) {
    const Json fresh = finding(1.5, "r1", device, {new_id});
    EXPECT_EQ(verify(store_of({header("r1"), with_id(later), today, earlier, fresh, old})).stale.size(), 1u) << device;
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

  static KernelSource kernel(const std::string& hook) {
    return {.path = "a/kernels/run.cpu.cpp", .entry = "run", .includes = {{"a/kernels/score.h", hook}}};
  }
  static Json measured(const KernelSource& source, bool with_hooks = true) {
    Json record = measurement(shape(64), 1e-3);
    record["pipeline"].update(pipeline_of(source));
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
  const KernelSource source = kernel("#include \"a/kernels/cap.h\"\nint score() { return cap(); }\n");
  const Json with = measured(source), without = measured(source, false), plain = measured(kernel("int score();"));
  EXPECT_EQ(age({with, plain}), "1 fresh, 0 stale, 0 unknown");
  EXPECT_EQ(age({without}), "0 fresh, 0 stale, 1 unknown") << "the record lacks the hook's text";
  EXPECT_EQ(age({with, without}), "0 fresh, 0 stale, 1 unknown") << "all kernels of a finding must be today's";
  EXPECT_EQ(age({without, with}), "0 fresh, 0 stale, 1 unknown");
  write_text("a/kernels/cap.h", "int cap();\nint more();\n");
  EXPECT_EQ(age({plain}), "1 fresh, 0 stale, 0 unknown");
  EXPECT_EQ(age({with}), "0 fresh, 1 stale, 0 unknown") << "the hook includes the header";
  EXPECT_EQ(age({with, plain}), "0 fresh, 1 stale, 0 unknown");
}

}  // namespace
}  // namespace attn::kb
