// Tests kb as a user runs it: for example, its output, the input that kb refuses, and the database after kb is killed.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <thread>
#include <tuple>

#include "common/base/json.h"
#include "findings/kb/tests/support.h"

namespace attn::kb {
namespace {

namespace fs = std::filesystem;

class KbCliTest : public KbTest {
 protected:
  std::string records_ = {};

  /// Writes a file with two findings and a measurement.
  void SetUp() override {
    KbTest::SetUp();
    setenv("KB_DB", path("kb.sqlite").c_str(), 1);
    records_ = write("records.jsonl", {finding(1.5), finding(1.1, "r2"), measurement(shape(64), 1e-3)});
  }
  void ingest() const { ASSERT_EQ(run({"ingest", records_}).status, 0); }

  static std::vector<Json> json_lines(const std::string& text) {
    std::vector<Json> all;
    for (const std::string& line : lines_of(text)) all.push_back(parse_json(line));
    return all;
  }
  /// Compresses a file with gzip into a new file, and returns the new file's path.
  static std::string gzip(const std::string& file) {
    EXPECT_EQ(std::system(fmt::format("gzip -9nkf '{}'", file).c_str()), 0);
    return file + ".gz";
  }
  std::set<std::string> ids() const {
    std::set<std::string> all;
    for (const Json& one : json_lines(run({"list", "--json"}).out)) all.insert(one["id"]);
    return all;
  }
};

/// The figure of a finding with its interval, as kb prints them.
std::string figure_of(const Json& finding) {
  const Json& estimate = finding["data"]["estimate"];
  return fmt::format("{:.4g} [{:.4g}, {:.4g}]", estimate["value"].get<double>(), estimate["ci_lo"].get<double>(),
                     estimate["ci_hi"].get<double>());
}

/// Returns `count` different records. Another seed gives other records.
std::string many_records(int count, const std::string& seed) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += to_json(Note{.domain = "attention_kernels",
                         .topic = "load",
                         .claim = fmt::format("claim {} of {}", i, seed),
                         .evidence = std::string(300, 'e'),
                         .url = "",
                         .title = "",
                         .type = "",
                         .tags = {}})
                .dump() +
            "\n";
  }
  return text;
}

TEST_F(KbCliTest, IngestsFilesAndStdinOnce) {
  Outcome outcome = run({"ingest", records_});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("3 added, 0 known already, 0 bad, of 3 lines"), std::string::npos) << outcome.out;
  outcome = run({"ingest", "-", "--json"}, records_);
  EXPECT_EQ(outcome.status, 0);
  const Json report = parse_json(outcome.out);
  EXPECT_EQ(report["added"], 0);
  EXPECT_EQ(report["known"], 3);
  EXPECT_EQ(run({"ingest"}, records_).status, 0) << "stdin must be the default";
  EXPECT_EQ(ids().size(), 3u);
}

TEST_F(KbCliTest, GzipIsReadAsItsText) {
  const std::string packed = gzip(records_);
  EXPECT_NE(run({"ingest", packed}).out.find("3 added, 0 known already, 0 bad, of 3 lines"), std::string::npos);
  EXPECT_EQ(run({"export"}).out, text_of(records_)) << "the export must equal the file byte for byte";
  // kb recognizes gzip by the bytes, not by the name.
  const std::string renamed = write_text("renamed.jsonl", text_of(packed));
  EXPECT_EQ(parse_json(run({"ingest", renamed, "--json"}).out)["known"], 3);
  EXPECT_EQ(parse_json(run({"ingest", "-", "--json"}, packed).out)["known"], 3);
  const std::string more = gzip(write_text("more.jsonl", many_records(2000, "more")));
  const std::string joined = write_text("joined.jsonl.gz", text_of(packed) + text_of(more));
  EXPECT_NE(run({"ingest", joined}).out.find("2000 added, 3 known already, 0 bad, of 2003 lines"), std::string::npos);
  EXPECT_EQ(run({"verify", packed}).status, 0);
  EXPECT_EQ(run({"compare", packed, records_}).status, 0);

  const Outcome none = run({"ingest", gzip(write_text("none.jsonl", ""))});
  EXPECT_EQ(none.status, 0) << none.err;
  EXPECT_NE(none.out.find("of 0 lines"), std::string::npos) << none.out;
  const Outcome bad = run({"ingest", gzip(write_text("bad.jsonl", finding(1.7).dump() + "\noops\n{"))});
  EXPECT_EQ(bad.status, 1);
  EXPECT_NE(bad.err.find("line 2: no JSON"), std::string::npos) << bad.err;
  EXPECT_NE(bad.err.find("line 3: torn"), std::string::npos) << bad.err;
}

TEST_F(KbCliTest, NothingIsKeptOfDamagedGzip) {
  ingest();
  const std::string whole = text_of(gzip(write_text("whole.jsonl", many_records(200, "whole"))));
  std::string flipped = whole;
  flipped[whole.size() / 2] ^= 0x55;
  std::string other_sum = whole;
  other_sum[whole.size() - 6] ^= 1;
  for (const auto& [what, bytes] : std::map<std::string, std::string>{{"half", whole.substr(0, whole.size() / 2)},
                                                                      {"no length", whole.substr(0, whole.size() - 1)},
                                                                      {"no sum", whole.substr(0, whole.size() - 8)},
                                                                      {"head", whole.substr(0, 10)},
                                                                      {"two bytes", whole.substr(0, 2)},
                                                                      {"flipped", flipped},
                                                                      {"other sum", other_sum},
                                                                      {"more", whole + "more"}}) {
    const std::string file = write_text("damaged.jsonl.gz", bytes);
    for (const auto& [outcome, name] :
         {std::pair(run({"ingest", file}), file), std::pair(run({"ingest", "-"}, file), std::string("stdin"))}) {
      EXPECT_EQ(outcome.status, 2) << what;
      EXPECT_EQ(outcome.out, "") << what;
      EXPECT_EQ(outcome.err.find("kb: " + name + ": is damaged gzip: "), 0u) << what << ": " << outcome.err;
      EXPECT_EQ(lines_of(outcome.err).size(), 1u) << what << ": " << outcome.err;
    }
    EXPECT_EQ(run({"verify", file}).status, 2) << what;
    EXPECT_EQ(run({"compare", records_, file}).status, 2) << what;
    EXPECT_EQ(ids().size(), 3u) << what;
  }
  // A file whose name ends in .gz must be gzip.
  for (const char* bytes : {"", "\x1f", "{}\n"}) {
    const Outcome outcome = run({"ingest", write_text("empty.jsonl.gz", bytes)});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_NE(outcome.err.find("empty.jsonl.gz: is damaged gzip: "), std::string::npos) << outcome.err;
  }
}

TEST_F(KbCliTest, AFileWithoutRecordsGivesAFewLinesOfErrors) {
  std::string noise;
  for (int line = 0; line < 1000; ++line) noise += "\x01noise\n";
  const Outcome outcome = run({"ingest", write_text("noise.jsonl", noise)});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 11) << outcome.err;
  EXPECT_NE(outcome.err.find("and 990 more bad lines"), std::string::npos) << outcome.err;
}

TEST_F(KbCliTest, InputThatIsNoFileOfRecordsGivesOneLineOfError) {
  std::string noise;
  for (int line = 0; line < 100'400; ++line) noise += "x\n";
  fs::create_directory(path("empty"));
  for (const auto& [file, words] :
       std::map<std::string, std::string>{{"/dev/zero", "/dev/zero: has a line of more than 64 MiB"},
                                          {write_text("noise", noise), "noise: has more than 100000 bad lines"},
                                          {path("empty"), "empty: "},  // "is a folder", "has no record files"
                                          {path("none"), "none: cannot be read: No such file or directory"}}) {
    for (const std::vector<std::string>& command :
         std::vector<std::vector<std::string>>{{"ingest", file}, {"compare", file, records_}}) {
      const Outcome outcome = run(command);
      EXPECT_EQ(outcome.status, 2) << file;
      EXPECT_EQ(lines_of(outcome.err).size(), 1u) << outcome.err;
      EXPECT_NE(outcome.err.find(words), std::string::npos) << outcome.err;
    }
  }
}

// kb waits for the writer of a pipe. A signal ends the wait.
TEST_F(KbCliTest, AWaitForAPipeIsInterrupted) {
  const std::string pipe = path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const bool opened : {false, true}) {
    const pid_t child = start({"ingest", pipe}, "interrupted");
    const int writer = opened ? open(pipe.c_str(), O_WRONLY) : -1;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    kill(child, SIGINT);
    const Outcome outcome = finish(child, "interrupted");
    EXPECT_EQ(outcome.status, 130) << outcome.err;
    EXPECT_EQ(lines_of(outcome.err).size(), 1u) << outcome.err;
    if (opened) close(writer);
  }
}

TEST_F(KbCliTest, ReportsBadLinesByNumberAndKeepsTheRest) {
  const std::string file =
      write_text("mixed.jsonl", "oops\n" + finding(1.5).dump() + "\n{\"schema\":\"finding/2\"}\n\n");
  const Outcome outcome = run({"ingest", file, "--json"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("line 1: no JSON"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("line 3: domain: is missing (and"), std::string::npos) << outcome.err;
  const Json report = parse_json(outcome.out);
  EXPECT_EQ(report["bad"].size(), 2u);
  EXPECT_EQ(report["bad"][1]["line"], 3);
  EXPECT_EQ(ids().size(), 1u);
}

TEST_F(KbCliTest, TwoIngestersAtOnceLoseNothing) {
  // The knowledge base does not exist yet, so that both processes want to create it.
  for (int round = 0; round < 5; ++round) {
    const std::string db = path(fmt::format("both{}.sqlite", round));
    const std::string a = write_text("a.jsonl", many_records(400, "a") + many_records(100, "shared"));
    const std::string b = write_text("b.jsonl", many_records(100, "shared") + many_records(400, "b"));
    const pid_t first = start({"--db", db, "ingest", a}, "first"), second = start({"--db", db, "ingest", b}, "second");
    const Outcome one = finish(first, "first"), other = finish(second, "second");
    EXPECT_EQ(one.status, 0) << one.err;
    EXPECT_EQ(other.status, 0) << other.err;
    const Json stats = parse_json(run({"--db", db, "stats", "--json"}).out);
    EXPECT_EQ(stats["records"]["note"], 900);
    EXPECT_EQ(run({"--db", db, "verify"}).status, 0);
  }
}

TEST_F(KbCliTest, AKillInMidIngestLeavesTheDatabaseWhole) {
  ingest();
  const std::string large = write_text("large.jsonl", many_records(5000, "large"));
  int killed = 0;
  for (int delay_ms = 5; delay_ms < 400; delay_ms += delay_ms) {
    const pid_t child = start({"ingest", large}, "killed");
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    kill(child, SIGKILL);
    const Outcome outcome = finish(child, "killed");
    killed += outcome.status == 128 + SIGKILL;
    // The knowledge base has all records of the file or none.
    const int64_t notes = parse_json(run({"stats", "--json"}).out)["records"].value("note", 0);
    EXPECT_TRUE(notes == 0 || notes == 5000) << notes << " after " << delay_ms << " ms";
    if (outcome.status == 0) break;
  }
  EXPECT_GT(killed, 0);
  EXPECT_EQ(run({"verify"}).status, 0);
  EXPECT_EQ(run({"ingest", large}).status, 0);
  EXPECT_EQ(parse_json(run({"stats", "--json"}).out)["records"]["note"], 5000);
  EXPECT_EQ(lines_of(run({"search", "large", "--json"}).out).size(), 5000u);
}

TEST_F(KbCliTest, InterruptedKeepsNothingOfTheFile) {
  ingest();
  const std::string pipe = path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const pid_t child = start({"ingest", pipe}, "interrupted");
  const auto before = signal(SIGPIPE, SIG_IGN);  // the reader may end before the writer
  {
    std::ofstream writer(pipe);
    writer << many_records(1000, "first") << std::flush;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    kill(child, SIGINT);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    writer << many_records(1000, "second");
  }
  signal(SIGPIPE, before);
  const Outcome outcome = finish(child, "interrupted");
  EXPECT_EQ(outcome.status, 130) << outcome.err;
  EXPECT_EQ(ids().size(), 3u);
}

TEST_F(KbCliTest, SearchesWithFilters) {
  ingest();
  ASSERT_EQ(run({"add", "attention_kernels", "notes", "bf16 needs more digits", "evidence", "", "", "", "0.2"}).status,
            0);
  EXPECT_EQ(json_lines(run({"search", "bf16", "--json"}).out).size(), 3u);
  EXPECT_EQ(json_lines(run({"search", "bf16", "--json", "--limit", "1"}).out).size(), 1u);
  EXPECT_EQ(json_lines(run({"search", "--min-confidence", "0.5", "bf16", "--json"}).out).size(), 2u);
  EXPECT_EQ(json_lines(run({"search", "bf16", "--json", "--device", "a cpu"}).out).size(), 2u);
  EXPECT_EQ(json_lines(run({"search", "bf16", "--json", "--proto", "proto2"}).out).size(), 0u);
  EXPECT_EQ(json_lines(run({"search", "flash_attention", "d64", "--json"}).out).size(), 2u);
  const Outcome outcome = run({"search", "d64"});
  EXPECT_NE(outcome.out.find("The worst flash attention tile takes 1.50 times the best (A CPU, 2 units)"),
            std::string::npos)
      << outcome.out;
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(json_lines(run({"search", "[d64]", "--json"}).out).size(), 2u) << "CLI11 would take [d64] for a list";
  EXPECT_EQ(json_lines(run({"search", "[d64,bf16]", "--json"}).out).size(), 2u);
  for (const char* query : {"[", "{}", "[]]", "'", "[[d64]"}) EXPECT_EQ(run({"search", query}).status, 0) << query;
  const Outcome nothing = run({"search", "elephants"});
  EXPECT_EQ(nothing.status, 0);
  EXPECT_EQ(nothing.out, "");
  EXPECT_NE(nothing.err, "");
}

TEST_F(KbCliTest, EveryCommandPrintsJson) {
  ingest();
  const std::string id = finding(1.5)["id"];
  const std::string other = write("other.jsonl", {measurement(shape(64), 0.9e-3)});
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"ingest", records_},
                                             {"add", "domain", "topic", "claim"},
                                             {"search", "tile"},
                                             {"show", id},
                                             {"list"},
                                             {"stats"},
                                             {"topics"},
                                             {"verify"},
                                             {"verify", records_},
                                             {"check", records_},
                                             {"advice"},
                                             {"fit", "--out", "-", records_},
                                             {"dedup"},
                                             {"dedup", "--apply"},
                                             {"export"},
                                             {"cite", id},
                                             {"compare", records_, other}}) {
    std::vector<std::string> before = {"--json"}, after = command;
    before.insert(before.end(), command.begin(), command.end());
    after.emplace_back("--json");
    for (const auto& arguments : {before, after}) {
      const Outcome outcome = run(arguments);
      EXPECT_EQ(outcome.status, 0) << command[0] << ": " << outcome.err;
      for (const std::string& line : lines_of(outcome.out))
        EXPECT_TRUE(Json::accept(line)) << command[0] << ": " << line;
      EXPECT_TRUE(command[0] == "dedup" || command[0] == "advice" || !outcome.out.empty()) << command[0];
    }
    const Outcome text = run(command);
    EXPECT_EQ(text.status, 0) << command[0] << ": " << text.err;
    EXPECT_FALSE(text.out.empty()) << command[0];
  }
  EXPECT_EQ(run({"show", id.substr(0, 8), "--json"}).out, finding(1.5).dump() + "\n");
}

TEST_F(KbCliTest, ExportsAndTakesInAgain) {
  Json record = finding(1.5);
  record["unknown"] = "kept";
  record = with_id(record);
  ASSERT_EQ(run({"ingest", write("one.jsonl", {record, measurement(shape(64), 1e-3)})}).status, 0);
  ASSERT_EQ(run({"add", "domain", "topic", "a \"quoted\", claim\nof two lines", "=1+1"}).status, 0);
  const std::string exported = write_text("exported.jsonl", run({"export"}).out);
  EXPECT_NE(text_of(exported).find("\"unknown\":\"kept\""), std::string::npos);
  EXPECT_EQ(run({"--db", path("again.sqlite"), "ingest", exported}).status, 0);
  EXPECT_EQ(run({"--db", path("again.sqlite"), "export"}).out, text_of(exported));
  EXPECT_EQ(lines_of(run({"export", "--kind", "finding"}).out).size(), 1u);

  const std::string csv = run({"export", "--format", "csv"}).out;
  EXPECT_NE(csv.find("\"a \"\"quoted\"\", claim\nof two lines\""), std::string::npos) << csv;
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\r'), 4) << "a head and three records";
  const std::string markdown = run({"export", "--format", "md"}).out;
  EXPECT_NE(markdown.find("## proto1\\_flash: worst\\_tile"), std::string::npos) << markdown;
  EXPECT_NE(markdown.find("(supported, " + figure_of(record) + ", confidence 0.8)"), std::string::npos) << markdown;
  const std::string command = fmt::format("{}/findings/validate {}", ATTN_SOURCE_DIR, exported);
  const int status = WEXITSTATUS(std::system(command.c_str()));
  EXPECT_TRUE(status == 0 || status == 77) << status << "; 77: python3-jsonschema is not installed";
}

// The study is the published work whose claims this project tests. The exported commands add findings to the study's
// knowledge base.
TEST_F(KbCliTest, TheStudysKnowledgeBaseTakesTheExport) {
  if (std::system("python3 -c 'import sqlite3' 2> /dev/null") != 0) GTEST_SKIP() << "python3 is not installed";
  ingest();
  const std::vector<std::string> hostile = {"it's $(touch harmed) `touch harmed`",
                                            "a\n; touch harmed #",
                                            "-n",
                                            "*",
                                            "\\",
                                            "\"; touch harmed; \"",
                                            "'; DROP TABLE findings; --",
                                            "x\ty\x1b[2J",
                                            "!!",
                                            "~",
                                            "a|b & c > harmed"};
  for (const std::string& text : hostile) {
    ASSERT_EQ(
        run({"add", "--", "attention_kernels", text, text, text, text, text, "blog_post", "verified", text}).status, 0);
  }
  const std::string script = write_text("add.sh", run({"export", "--format", "gpu-forge"}).out);
  EXPECT_EQ(lines_of(text_of(script)).size(), 2 + hostile.size()) << "a line for each finding and note";
  std::filesystem::create_directory(path("bin"));
  std::filesystem::create_symlink(ATTN_SOURCE_DIR "/findings/kb/tests/gpu_forge_standin", path("bin/kb"));
  const std::string command = fmt::format(
      "cd '{0}' && GPU_FORGE_DB='{0}/study.sqlite' PATH='{0}/bin':$PATH sh -e add.sh", folder_.path().string());
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_FALSE(std::filesystem::exists(path("harmed")));

  const Database study(path("study.sqlite"), SQLITE_OPEN_READONLY, 0);
  Statement rows = study.prepare(
      "SELECT skills.name, topic, claim, evidence, source_url, source_title, source_type, confidence, tags "
      "FROM findings JOIN skills ON skills.id = skill_id ORDER BY findings.id");
  ASSERT_TRUE(rows.step());
  EXPECT_EQ(rows.text(0), "gpu-perf");
  EXPECT_EQ(rows.text(1), "proto1_flash/worst_tile");
  EXPECT_EQ(rows.text(2), "The worst flash attention tile takes 1.50 times the best (supported; A CPU, 2 units)");
  EXPECT_NE(rows.text(3).find(figure_of(finding(1.5))), std::string::npos) << rows.text(3);
  EXPECT_EQ(rows.text(4), "attention-proto/proto1_flash#" + finding(1.5)["id"].get<std::string>());
  EXPECT_EQ(rows.text(6), "benchmark");
  EXPECT_EQ(rows.text(7), "high");
  EXPECT_EQ(rows.text(8), "flash_attention,d64,worst_tile,bf16");
  ASSERT_TRUE(rows.step());
  for (std::string text : hostile) {
    ASSERT_TRUE(rows.step()) << text;
    for (char& c : text) c = static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    for (const int column : {1, 2, 3, 4, 5}) EXPECT_EQ(rows.text(column), text);
    EXPECT_EQ(rows.text(6), "blog_post");
    EXPECT_EQ(rows.text(7), "high") << "the study's knowledge base has no verified blog posts";
  }
  EXPECT_FALSE(rows.step());
}

TEST_F(KbCliTest, KbAddReadsTheExport) {
  ingest();
  write_text("add.sh", run({"export", "--format", "gpu-forge"}).out);
  const std::string command = fmt::format("cd '{0}' && KB_DB='{0}/copy.sqlite' PATH='{1}':$PATH sh -e add.sh > ids",
                                          folder_.path().string(), ATTN_BINARY_DIR);
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(
      lines_of(run({"--db", path("copy.sqlite"), "list", "--kind", "note", "--min-confidence", "0.8"}).out).size(), 2u);
}

TEST_F(KbCliTest, AddsNotesOnce) {
  const std::vector<std::string> note = {
      "add",   "attention_kernels", "softmax", "Claim",  "Evidence", "https://example.org",
      "Title", "academic_paper",    "high",    "a, b,,a"};
  const Outcome outcome = run(note);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::string id = lines_of(outcome.out).at(0);
  EXPECT_EQ(run(note).out, id + ", known already\n");
  const Json record = parse_json(run({"show", id, "--json"}).out);
  EXPECT_EQ(record["tags"], parse_json(R"(["a", "b"])"));
  EXPECT_EQ(record["confidence"], 0.8);
  EXPECT_EQ(record["source"], "Title");
  EXPECT_EQ(run({"verify"}).status, 0);
  EXPECT_EQ(run({"add", "d", "search", "list"}).status, 0) << "a topic and a claim may be names of commands";
  EXPECT_EQ(run({"add", "d", "t", "c", "", "", "", "", "1.5"}).status, 2);
  EXPECT_EQ(run({"add", "d", "t", "c", "", "", "", "", "sure"}).status, 2);
  EXPECT_EQ(run({"add", "d", "t", ""}).status, 2);
  EXPECT_EQ(run({"add", "d", "t", "\xff"}).status, 2) << "not valid UTF-8";
}

TEST_F(KbCliTest, VerifyFailsForProblemsAndWithStrictAlsoForContradictions) {
  ingest();
  Outcome outcome = run({"verify"});
  EXPECT_EQ(outcome.status, 0) << outcome.out;
  EXPECT_NE(outcome.out.find("refuted findings: 1 explained by the spread between runs, 0 explained by other code or "
                             "conditions, 0 contradictions"),
            std::string::npos)
      << outcome.out;
  EXPECT_EQ(run({"verify", "--strict"}).status, 0);
  std::vector<Json> many = {finding(1.1, "far")};
  for (int i = 0; i < 20; ++i) many.push_back(finding(1.5 + 0.001 * i, fmt::format("r{}", i)));
  const std::string opposed = write("opposed.jsonl", many);
  outcome = run({"verify", opposed});
  EXPECT_EQ(outcome.status, 0) << outcome.out;
  EXPECT_NE(outcome.out.find("CONTRADICTION  proto1_flash/worst_tile/"), std::string::npos) << outcome.out;
  EXPECT_EQ(run({"verify", "--strict", opposed}).status, 1);
  Json record = finding(1.5, "r9");
  record["confidence"] = 0.95;
  const std::string file = write("tampered.jsonl", {with_id(record)});
  outcome = run({"verify", file});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.out.find("confidence: is 0.95, computed again 0.8"), std::string::npos) << outcome.out;
  ASSERT_EQ(run({"ingest", file}).status, 0) << "ingest must take a finding with a wrong confidence";
  EXPECT_EQ(run({"verify"}).status, 1);
  EXPECT_EQ(run({"verify", write_text("torn.jsonl", "{")}).status, 1);
}

TEST_F(KbCliTest, DedupKeepsTheHighestConfidence) {
  Json cleaned = finding(1.5);
  cleaned["remark"] = "cleaned";
  cleaned = with_id(cleaned);
  ASSERT_EQ(run({"ingest", write("f.jsonl", {finding(1.5), cleaned, finding(1.5, "r2")})}).status, 0);
  ASSERT_EQ(run({"add", "d", "t", "One  claim", "", "", "", "", "0.9"}).status, 0);
  ASSERT_EQ(run({"add", "d", "t", "one claim", "", "", "", "", "0.2"}).status, 0);
  ASSERT_EQ(run({"add", "d", "t", "one claim", "other evidence", "", "", "", "0.2"}).status, 0);
  ASSERT_EQ(run({"add", "d", "t", "one claim", "", "https://other", "", "", "0.2"}).status, 0);
  EXPECT_NE(run({"dedup"}).out.find("2 records could be removed"), std::string::npos);
  EXPECT_EQ(ids().size(), 7u) << "nothing may be removed without --apply";
  EXPECT_NE(run({"dedup", "--apply"}).out.find("2 records removed"), std::string::npos);
  EXPECT_EQ(ids().size(), 5u) << "other evidence, and evidence from another place, is no duplicate";
  EXPECT_EQ(ids().count(cleaned["id"]), 1u) << "of two records with equal confidence, the later one must stay";
  EXPECT_EQ(json_lines(run({"search", "one", "claim", "--json"}).out).at(0)["confidence"], 0.9);
  EXPECT_NE(run({"dedup"}).out.find("0 records could be removed"), std::string::npos);
}

TEST_F(KbCliTest, ComparesFilesDevicesAndCommits) {
  const std::string a = write("a.jsonl", {measurement(shape(64), 1e-3), measurement(shape(128), 1e-3)});
  const std::string slower = write("b.jsonl", {measurement(shape(64), 1.98e-3), measurement(shape(128), 0.25e-3)});
  Outcome outcome = run({"compare", a, slower});
  EXPECT_EQ(outcome.status, 1);
  const std::vector<std::string> shown = lines_of(outcome.out);
  ASSERT_GE(shown.size(), 5u) << outcome.out;
  EXPECT_NE(shown[3].find("SLOWER 1.98 ["), std::string::npos) << "a regression must come first: " << outcome.out;
  EXPECT_NE(shown[4].find("FASTER 0.25 ["), std::string::npos) << outcome.out;
  outcome = run({"compare", a, write("c.jsonl", {measurement(shape(64), 1e-3), measurement(shape(32), 1e-3)})});
  for (const char* side : {"A", "B"}) {
    const std::string told = fmt::format("\n1 not compared: only {} has this configuration\n", side);
    EXPECT_NE(outcome.out.find(told), std::string::npos) << outcome.out;
  }
  EXPECT_EQ(run({"compare", a, a}).status, 0);
  EXPECT_EQ(run({"compare", a, slower, "--floor", "99"}).status, 0);
  EXPECT_EQ(json_lines(run({"compare", "--json", a, slower}).out).size(), 2u);
  EXPECT_EQ(run({"compare", a, path("none.jsonl")}).status, 2);
  EXPECT_EQ(run({"compare", a, write_text("empty.jsonl", "")}).status, 2);

  Json later = header("r2");
  later["env"]["git"]["commit"] = "fedcba9876543210";
  ASSERT_EQ(
      run({"ingest", a,
           write("c.jsonl", {measurement(shape(64), 9e-3, "Another CPU, 4 units", "r2"), header(), with_id(later)})})
          .status,
      0);
  EXPECT_EQ(run({"compare", "--by", "device", "a cpu", "another"}).status, 1);
  EXPECT_EQ(run({"compare", "--by", "device", "another", "a cpu"}).status, 0);
  outcome = run({"compare", "--by", "device", "cpu", "a cpu"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(
      outcome.err,
      "kb: cpu: several devices have this text in their names: 'A CPU, 2 units', 'Another CPU, 4 units'; give more "
      "of the name\n");
  EXPECT_EQ(run({"compare", "--by", "commit", "0123456", "fedcba9"}).status, 1);
  EXPECT_EQ(run({"compare", "--by", "commit", "0123456", "0000000"}).status, 2);
}

TEST_F(KbCliTest, ComparesFolders) {
  for (const char* folder : {"before", "after/deep", "none"}) std::filesystem::create_directories(path(folder));
  write("before/findings.jsonl", {header("r1")});
  write("before/measurements.jsonl", {measurement(shape(64), 1e-3)});
  write("after/deep/measurements.jsonl", {measurement(shape(64), 4e-3, "A CPU, 2 units", "r2")});
  write_text("after/deep/measurements.samples.jsonl", "{");
  write_text("after/notes.txt", "no record");
  const Outcome slower = run({"compare", path("before"), path("after"), "--json"});
  EXPECT_EQ(slower.status, 1) << slower.err;
  EXPECT_EQ(json_lines(slower.out).at(0)["change"], "SLOWER");
  EXPECT_EQ(json_lines(slower.out).at(0)["b"]["runs"], 1);
  EXPECT_EQ(run({"compare", path("after"), path("before")}).status, 0);
  const Outcome none = run({"compare", path("before"), path("none")});
  EXPECT_EQ(none.status, 2);
  EXPECT_EQ(none.err, "kb: " + path("none").string() + ": has no record files (.jsonl or .jsonl.gz)\n");
}

// SQLite would keep nothing of a knowledge base with such a name, or would keep it under another name.
TEST_F(KbCliTest, RefusesTheSpecialNamesOfSQLite) {
  for (const char* name : {":memory:", "file::memory:", "file:kb.sqlite?mode=memory"}) {
    for (const std::vector<std::string>& command : {std::vector<std::string>{"ingest", records_}, {"stats"}}) {
      std::vector<std::string> words = {"--db", name};
      words.insert(words.end(), command.begin(), command.end());
      const Outcome outcome = run(words);
      EXPECT_EQ(outcome.status, 2) << name;
      EXPECT_EQ(outcome.out, "");
      EXPECT_EQ(lines_of(outcome.err).size(), 1u) << outcome.err;
      EXPECT_NE(outcome.err.find(name), std::string::npos) << outcome.err;
      setenv("KB_DB", name, 1);
      EXPECT_EQ(run(command).status, 2) << name;
      unsetenv("KB_DB");
    }
  }
  EXPECT_EQ(run({"--db", "", "ingest", records_}).status, 2);
}

TEST_F(KbCliTest, AFindingAboutTwoDevicesDoesNotMakeANameAmbiguous) {
  ASSERT_EQ(run({"ingest", write("a.jsonl", {measurement(shape(64), 1e-3, "X, 2 units"),
                                             measurement(shape(64), 2e-3, "Y, 2 units"),
                                             finding(1.5, "r1", "X, 2 units to Y, 2 units")})})
                .status,
            0);
  EXPECT_EQ(run({"compare", "--by", "device", "y,", "x,"}).status, 0);
  EXPECT_EQ(run({"compare", "--by", "device", "", "x,"}).status, 2);
}

TEST_F(KbCliTest, SaysThatTwoMachinesHaveOneName) {
  const auto on = [](const std::string& machine, double percent_of_f32, double percent_of_copy) {
    Json record = measurement(shape(64), 1e-3);
    record["dtype"] = "f32";
    record["rate"]["tflops"] = 0.4;
    record["rate"]["gbps"] = 20;
    record["rate"]["pct_matrix_best"] = percent_of_f32;
    record["rate"]["pct_copy_ceiling"] = percent_of_copy;
    record["run"]["machine"] = machine;
    return with_id(record);
  };
  const std::string a = write("a.jsonl", {on("m1", 80, 50)}), b = write("b.jsonl", {on("m2", 50, 25)});
  const std::string told =
      "A and B were measured on two machines with the name A CPU, 2 units (or on one machine before and after a "
      "restart); ceilings of A and B: 40 and 80 GB/s of a copy, 0.5 and 0.8 TFLOP/s of f32\n";
  const std::string shown = wrapped(told.substr(0, told.size() - 1), output_width(), 2);
  EXPECT_NE(run({"compare", a, b}).out.find(shown), std::string::npos) << run({"compare", a, b}).out;
  EXPECT_EQ(run({"compare", "--json", a, b}).err, told);
  EXPECT_EQ(run({"compare", a, a}).out.find("two machines"), std::string::npos);
}

TEST_F(KbCliTest, TheExamplesInThePageCompareTheRecordedRuns) {
  std::vector<std::string> ingest = {"ingest"};
  for (const std::string& file : recorded_files(ATTN_SOURCE_DIR)) {  // one experiment's runs are enough to compare
    if (file.find("proto5_codegen") != std::string::npos) ingest.push_back(file);
  }
  ASSERT_EQ(run(ingest).status, 0);
  int examples = 0;
  for (const std::string& line : lines_of(text_of(ATTN_SOURCE_DIR "/docs/records.md"))) {
    if (!line.starts_with("    kb compare --by")) continue;
    ++examples;
    const Outcome outcome = run_line(line.substr(7, line.find('#') - 7));
    EXPECT_LE(outcome.status, 1) << line << outcome.err;
    EXPECT_NE(outcome.out.find("B ("), std::string::npos) << line << outcome.out;
    for (const std::string& shown : lines_of(outcome.out)) EXPECT_LE(shown.size(), output_width()) << shown;
  }
  EXPECT_EQ(examples, 2);
}

// If a reader left files of the write-ahead log, they would belong to another user, and the database's owner could not
// write.
TEST_F(KbCliTest, ADatabaseThatCannotBeWrittenIsReadAndNotChanged) {
  // root may write everywhere unless it gives up the capability dac_override.
  const std::string prefix = geteuid() == 0 ? "setpriv --bounding-set=-dac_override " : "";
  if (std::system((prefix + "true").c_str()) != 0) GTEST_SKIP() << "root cannot give up its rights without setpriv";
  using fs::perms;
  const perms read = perms::owner_read | perms::owner_exec;
  for (const auto& [folder, of_folder, of_file] :
       {std::tuple{"read?only", read, perms::owner_all}, std::tuple{"file", perms::owner_all, perms::owner_read},
        std::tuple{"both", read, perms::owner_read}}) {
    fs::create_directory(path(folder));
    const std::string database = path(folder) / "kb.sqlite";
    ASSERT_EQ(run({"--db", database, "ingest", records_}).status, 0);
    fs::permissions(database, of_file);
    fs::permissions(path(folder), of_folder);
    const auto status_of = [&](const std::string& command) {
      return WEXITSTATUS(std::system(fmt::format("{}'{}/kb' --db '{}' {} > '{}' 2>&1", prefix, ATTN_BINARY_DIR,
                                                 database, command, path("said").string())
                                         .c_str()));
    };
    EXPECT_EQ(status_of("list"), 0) << folder;
    EXPECT_EQ(lines_of(text_of(path("said"))).size(), 3u) << folder;
    EXPECT_EQ(status_of(fmt::format("ingest '{}'", records_)), 2) << folder;
    const std::string said = text_of(path("said"));
    EXPECT_EQ(lines_of(said).size(), 1u) << said;
    EXPECT_NE(said.find("their folder must be writable; --db or KB_DB names another file"), std::string::npos) << said;
    fs::permissions(path(folder), perms::owner_all);
    for (const char* left : {"-wal", "-shm"}) EXPECT_FALSE(fs::exists(database + left)) << folder << left;
  }
}

TEST_F(KbCliTest, ReadersLeaveNoLogAndRemoveALogThatWasLeft) {
  ingest();
  const std::string database = path("kb.sqlite"), left = path("left.sqlite");
  {
    const Database open(database, SQLITE_OPEN_READWRITE, 0);  // a process that is killed leaves its log
    open.execute("UPDATE records SET ts = 'later'");
    for (const char* part : {"", "-wal", "-shm"}) fs::copy_file(database + part, left + part);
  }
  ASSERT_GT(fs::file_size(left + "-wal"), 0u);
  for (const std::string& file : {database, left}) {
    const Outcome outcome = run({"--db", file, "list", "--json"});
    for (const Json& record : json_lines(outcome.out)) EXPECT_EQ(record["ts"], "later");
    for (const char* log : {"-wal", "-shm"}) EXPECT_FALSE(fs::exists(file + log)) << file << log;
  }
}

TEST_F(KbCliTest, AFileThatIsNoSoundDatabaseGivesOneLineOfError) {
  ingest();
  const std::string whole = text_of(path("kb.sqlite"));
  const std::string pipe = path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const auto& [file, words] : std::map<std::string, std::string>{
           {write_text("head", whole.substr(0, 10)), "is no knowledge base"},
           {write_text("part", whole.substr(0, 5000)), "is damaged: ingest the record files into a new one"},
           {write_text("most", whole.substr(0, whole.size() - 5000)), "is damaged: ingest the record files"},
           {records_, "is no knowledge base"},
           {path("."), "is a folder"},
           {pipe, "is no plain file"}}) {
    for (const std::vector<std::string>& command : {std::vector<std::string>{"list"}, {"ingest", records_}}) {
      std::vector<std::string> words_of_line = {"--db", file};
      words_of_line.insert(words_of_line.end(), command.begin(), command.end());
      const Outcome outcome = run(words_of_line);
      EXPECT_EQ(outcome.status, 2) << file;
      EXPECT_EQ(lines_of(outcome.err).size(), 1u) << outcome.err;
      EXPECT_NE(outcome.err.find(words), std::string::npos) << outcome.err;
    }
  }
}

TEST_F(KbCliTest, AnyNameIsTheNameOfAFile) {
  const fs::path before = fs::current_path();
  fs::current_path(path("."));
  for (const char* name : {"./file:x?mode=memory", "a b \u00fc.sqlite", "%20?#"}) {
    EXPECT_EQ(run({"--db", name, "ingest", records_}).status, 0) << name;
    EXPECT_TRUE(fs::exists(name)) << name;
    EXPECT_EQ(lines_of(run({"--db", name, "list"}).out).size(), 3u) << name;
  }
  fs::current_path(before);
}

TEST_F(KbCliTest, CitesAndShows) {
  ingest();
  ASSERT_EQ(run({"ingest", write("header.jsonl", {header()})}).status, 0);
  const std::string id = finding(1.5)["id"], measured = measurement(shape(64), 1e-3)["id"];
  const Outcome outcome = run({"cite", id.substr(0, 8), measured});
  EXPECT_EQ(outcome.status, 0);
  ASSERT_EQ(lines_of(outcome.out).size(), 2u);
  const std::vector<std::string> parts = {
      "takes 1.50 times the best",    figure_of(finding(1.5)), "confidence 0.8", "A CPU, 2 units", "0123456789ab",
      "replay: proto1_flash --seed 1"};
  for (const std::string& part : parts) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part;
  }
  EXPECT_NE(run({"show", id}).out.find("replay"), std::string::npos);
  EXPECT_NE(run({"show", measured}).out.find("1000.0 us [995.0, 1005.0]"), std::string::npos);
  const Outcome none = run({"cite", id, "0000000000000000"});
  EXPECT_EQ(none.status, 2);
  EXPECT_EQ(none.out, "");
}

// Pages name records by ids that are in findings/recorded, and not in a user's knowledge base.
TEST_F(KbCliTest, ShowsARecordOfThePages) {
  const std::string id = "6ad13edb0ee6c287";  // a finding about the default tile
  for (const bool without_file : {true, false}) {
    const Outcome outcome = run({"show", id});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_NE(outcome.out.find(id), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("proto"), std::string::npos) << "the run of the finding must be shown: " << outcome.out;
    EXPECT_NE(run({"cite", id}).out.find("proto"), std::string::npos);
    EXPECT_EQ(run({"show", "0123456789abcdef"}).status, 2);
    if (without_file) ingest();
  }
}

TEST_F(KbCliTest, SuggestsTheCommandAndTheOption) {
  EXPECT_EQ(run({"serch", "x"}).err,
            "kb: serch: no such command (did you mean search?); --help shows what is allowed\n");
  EXPECT_EQ(run({"list", "--limt", "3"}).err,
            "kb: --limt: no such option (did you mean --limit?); --help shows what is allowed\n");
  EXPECT_EQ(run({"stats", "x", "y"}).err, "kb: x: no argument is allowed here; --help shows what is allowed\n");
}

TEST_F(KbCliTest, ShowsTheRunOfAFinding) {
  const Json told = finding({1.5, 1.51}), exact = exact_finding(2);
  const std::string id = told["id"];
  ASSERT_EQ(run({"ingest", write("told.jsonl", {told, exact})}).status, 0);
  EXPECT_NE(run({"show", id}).out.find("r1; its header (run/1) is not in the knowledge base"), std::string::npos);
  EXPECT_NE(run({"cite", id}).out.find("commit unknown"), std::string::npos);
  ASSERT_EQ(run({"ingest", write("header.jsonl", {header()})}).status, 0);
  const std::string shown = run({"show", id}).out;
  for (const char* part : {"proto1_flash --profile quick", "0123456789abcdef0123", "A CPU, 2 units", "next run ["}) {
    EXPECT_NE(shown.find(part), std::string::npos) << part << " in " << shown;
  }
  EXPECT_NE(run({"cite", id}).out.find("commit 0123456789ab"), std::string::npos);
  EXPECT_NE(run({"show", exact["id"]}).out.find("exact"), std::string::npos);
  EXPECT_NE(run({"list"}).out.find("exact"), std::string::npos);
  EXPECT_EQ(json_lines(run({"list", "--json", "--min-confidence", "1"}).out).at(0)["confidence"], 1);
  EXPECT_NE(run({"export", "--format", "md"}).out.find("confidence exact"), std::string::npos);
  EXPECT_EQ(json_lines(run({"list", "--json", "--kind", "run"}).out).at(0)["run"], "r1");
  EXPECT_NE(run({"show", header()["id"]}).out.find("clang 19"), std::string::npos);
  EXPECT_EQ(lines_of(run({"export"}).out).size(), 3u);
  EXPECT_EQ(run({"verify"}).status, 0) << run({"verify"}).out;
  EXPECT_EQ(run({"show", told["claim_key"]}).out, shown);
}

TEST_F(KbCliTest, CheckHasOneLineForEachBadRecord) {
  Outcome outcome = run({"check", write("sound.jsonl", {header(), finding({1.5, 1.51}), finding(1.5)})});
  EXPECT_EQ(outcome.status, 0) << outcome.out;
  EXPECT_EQ(outcome.out, "3 of 3 records are sound\n");
  Json wrong = finding({1.5, 1.51});
  wrong["title"] = "Another";
  wrong["data"]["estimate"]["ci_lo"] = 1.4;
  Json unknown = header();
  unknown["schema"] = "run/7";
  outcome = run({"check", write("bad.jsonl", {header(), with_id(wrong), unknown})});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("line 3: run/7 is not known; kb knows finding/2, measurement/1"), std::string::npos)
      << outcome.err;
  ASSERT_EQ(lines_of(outcome.out).size(), 2u) << outcome.out;
  EXPECT_NE(outcome.out.find("title: is 'Another'"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("1 of 3 records are sound"), std::string::npos) << outcome.out;
  EXPECT_EQ(run({"check", path("none.jsonl")}).status, 2);
}

TEST_F(KbCliTest, BadInputGivesOneLineAndStatusTwo) {
  ingest();
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"frobnicate"},
                                             {"search"},
                                             {"show"},
                                             {"show", "nothex"},
                                             {"show", "0000000000000000"},
                                             {"list", "--limit", "0"},
                                             {"list", "--limit", "-1"},
                                             {"list", "--limit", "2x"},
                                             {"list", "--min-confidence", "1.5"},
                                             {"list", "--min-confidence", "nan"},
                                             {"list", "--kind", "rumour"},
                                             {"list", "extra"},
                                             {"export", "--format", "xml"},
                                             {"export", "--format", "csv", "--json"},
                                             {"fit", records_},
                                             {"fit", "--out", ATTN_SOURCE_DIR "/findings/spread.json", records_},
                                             {"compare", "a"},
                                             {"fit", "--out", path("."), records_},
                                             {"fit", "--out", records_, records_},
                                             {"compare", "a", "b", "--by", "mood"},
                                             {"compare", records_, records_, "--floor", "-1"},
                                             {"ingest", path("none.jsonl")},
                                             {"ingest", folder_.path()},
                                             {"verify", path("none.jsonl")},
                                             {"--db", path("none.sqlite"), "list"},
                                             {"--db", records_, "list"},
                                             {"--db", "/proc/none/kb.sqlite", "ingest", records_},
                                             {"--db", "", "list"},
                                             {"add", "d"}}) {
    const Outcome outcome = run(arguments);
    const std::string shown = fmt::format("{}", arguments.empty() ? "" : arguments[0]);
    EXPECT_EQ(outcome.status, 2) << shown << ": " << outcome.out << outcome.err;
    EXPECT_EQ(lines_of(outcome.err).size(), 1u) << shown << ": " << outcome.err;
    EXPECT_EQ(outcome.err.find("kb: "), 0u) << outcome.err;
    EXPECT_EQ(outcome.out, "") << shown;
  }
}

TEST_F(KbCliTest, HelpNamesEverything) {
  const Outcome help = run({"--help"});
  EXPECT_EQ(help.status, 0);
  for (const char* part : {"ingest", "add", "search", "show", "list", "stats", "topics", "verify", "dedup", "export",
                           "cite", "compare", "--db", "--json", "KB_DB", "EXIT STATUS", "130"}) {
    EXPECT_NE(help.out.find(part), std::string::npos) << part;
  }
  for (const char* command : {"ingest", "search", "export", "compare"}) {
    EXPECT_EQ(run({command, "--help"}).status, 0) << command;
  }
  EXPECT_NE(run({"export", "--help"}).out.find("gpu-forge"), std::string::npos);
  EXPECT_EQ(run({"--version"}).out.find("kb "), 0u);
}

TEST_F(KbCliTest, FindsItsDatabase) {
  unsetenv("KB_DB");
  ASSERT_EQ(run({"ingest", records_}).status, 0);
  EXPECT_TRUE(std::filesystem::exists(path("data/attention-proto/kb.sqlite")));
  EXPECT_EQ(ids().size(), 3u);
  setenv("KB_DB", path("named.sqlite").c_str(), 1);
  EXPECT_EQ(run({"list"}).status, 2);
  ASSERT_EQ(run({"--db", path("option.sqlite"), "ingest", records_}).status, 0);
  EXPECT_FALSE(std::filesystem::exists(path("named.sqlite")));
  unsetenv("KB_DB");
  unsetenv("XDG_DATA_HOME");
  setenv("HOME", path("home").c_str(), 1);
  ASSERT_EQ(run({"ingest", records_}).status, 0);
  EXPECT_TRUE(std::filesystem::exists(path("home/.local/share/attention-proto/kb.sqlite")));
  unsetenv("HOME");
  EXPECT_EQ(run({"list"}).status, 2);
}

TEST_F(KbCliTest, ReadersDoNotWaitForAnIngester) {
  ingest();
  const std::string pipe = path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const pid_t child = start({"ingest", pipe}, "slow");
  {
    std::ofstream writer(pipe);
    writer << many_records(500, "slow") << std::flush;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    EXPECT_EQ(ids().size(), 3u) << "readers must not see uncommitted records, nor wait for them";
  }
  EXPECT_EQ(finish(child, "slow").status, 0);
  EXPECT_EQ(ids().size(), 503u);
}

TEST_F(KbCliTest, ExportToAFullDiskIsAnError) {
  ingest();
  const Outcome outcome = run({"export", "--json"});
  ASSERT_EQ(outcome.status, 0);
  const std::string command = fmt::format("KB_DB='{}' '{}/kb' export > /dev/full 2> '{}'", path("kb.sqlite").string(),
                                          ATTN_BINARY_DIR, path("err").string());
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
  EXPECT_NE(text_of(path("err")).find("stdout"), std::string::npos);
}

}  // namespace
}  // namespace attn::kb
