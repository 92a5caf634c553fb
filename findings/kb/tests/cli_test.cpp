// Tests kb as a user runs it: its output, the input that kb refuses, and the database after kb is killed.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <thread>
#include <tuple>

#include "common/base/json.h"
#include "common/base/text_table.h"
#include "common/records/recorded.h"
#include "findings/kb/sqlite.h"
#include "findings/kb/tests/support.h"

namespace attn::kb {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class KbCliTest : public KbTest {
 protected:
  /// Writes a file with two findings and a measurement.
  void SetUp() override {
    setenv("KB_DB", path("kb.sqlite").c_str(), 1);
    write("records.jsonl", {finding(1.5), finding(1.1, "r2"), measurement(shape(64), 1e-3)});
  }
  void ingest() const { ASSERT_EQ(run_line("ingest records.jsonl").status, 0); }

  static std::vector<Json> json_lines(const std::string& text) {
    std::vector<Json> all;
    for (const std::string& line : lines_of(text)) all.push_back(parse_json(line));
    return all;
  }
  /// Compresses a file with gzip into NAME.gz, and returns this name.
  std::string gzip(const std::string& name) const {
    EXPECT_EQ(std::system(fmt::format("gzip -9nkf '{}'", path(name).string()).c_str()), 0);
    return name + ".gz";
  }
  /// The number of records that kb has.
  size_t count() const { return lines_of(run_line("list").out).size(); }
  std::string pipe() const {
    mkfifo(path("pipe").c_str(), 0600);
    return path("pipe");
  }
  /// Expects exit status 2, no output, and one line of error with `part`.
  static void expect_refused(const Outcome& outcome, const std::string& part = "") {
    EXPECT_EQ(outcome.status, 2) << part;
    EXPECT_EQ(outcome.out, "") << part;
    EXPECT_EQ(lines_of(outcome.err).size(), 1u) << outcome.err;
    expect_has(outcome.err, {"kb: ", part});
  }
};

/// Returns `count` different findings as lines. Another seed gives other findings.
std::string many_records(int count, const std::string& seed) {
  std::string text;
  Json record = finding(1.5);
  for (int i = 0; i < count; ++i) {
    record["data"]["run"] = fmt::format("{}-{}", seed, i);
    text += with_id(record).dump() + "\n";
  }
  return text;
}

TEST_F(KbCliTest, IngestsFilesAndStdinOnce) {
  write_text("more.jsonl", many_records(400, "more"));
  write_text("none.jsonl", "");
  gzip("records.jsonl"), gzip("more.jsonl"), gzip("none.jsonl");
  // kb recognizes gzip by the bytes, not by the name. Two files of gzip, one after the other, are a file of gzip.
  write_text("renamed.jsonl", text_of(path("records.jsonl.gz")));
  write_text("joined.jsonl.gz", text_of(path("records.jsonl.gz")) + text_of(path("more.jsonl.gz")));
  expect_has(run_line("ingest records.jsonl").out, {"3 added, 0 known already, 0 bad, of 3 lines"});
  for (const auto& [line, in, added, known] : {std::tuple{"ingest --json", "records.jsonl", 0, 3},
                                               {"ingest - --json", "records.jsonl.gz", 0, 3},
                                               {"ingest records.jsonl.gz --json", "/dev/null", 0, 3},
                                               {"ingest renamed.jsonl --json", "/dev/null", 0, 3},
                                               {"ingest joined.jsonl.gz --json", "/dev/null", 400, 3},
                                               {"ingest none.jsonl.gz --json", "/dev/null", 0, 0}}) {
    const Json report = parse_json(run_line(line, in).out);
    EXPECT_EQ(report["added"], added) << line;
    EXPECT_EQ(report["known"], known) << line;
  }
  EXPECT_EQ(count(), 403u);
  EXPECT_EQ(run_line("export").out, text_of(path("records.jsonl")) + text_of(path("more.jsonl")));
  for (const char* line : {"verify records.jsonl.gz", "compare records.jsonl.gz records.jsonl"})
    EXPECT_EQ(run_line(line).status, 0) << line;
}

TEST_F(KbCliTest, NothingIsKeptOfDamagedGzip) {
  ingest();
  write_text("whole.jsonl", many_records(40, "whole"));
  const std::string whole = text_of(path(gzip("whole.jsonl")));
  std::string flipped = whole;
  flipped[whole.size() - 6] ^= 1;
  for (const std::string& bytes :
       {whole.substr(0, whole.size() / 2), whole.substr(0, whole.size() - 1), whole.substr(0, 2), flipped,
        whole + "more", std::string(), std::string("{}\n")}) {  // a file whose name ends in .gz must be gzip
    write_text("damaged.jsonl.gz", bytes);
    for (const char* line :
         {"ingest damaged.jsonl.gz", "verify damaged.jsonl.gz", "compare records.jsonl damaged.jsonl.gz"})
      expect_refused(run_line(line), "damaged.jsonl.gz: is damaged gzip: ");
    if (bytes.size() > 3) expect_refused(run_line("ingest -", "damaged.jsonl.gz"), "stdin: is damaged gzip: ");
    EXPECT_EQ(count(), 3u) << bytes.size();
  }
}

TEST_F(KbCliTest, ReportsBadLinesByNumberAndKeepsTheRest) {
  write_text("bad.jsonl", "oops\n" + finding(1.7).dump() + "\n{\"schema\":\"finding/2\"}\n\n{");
  for (const std::string& file : {std::string("bad.jsonl"), gzip("bad.jsonl")}) {
    const Outcome outcome = run({"ingest", file, "--json"});
    EXPECT_EQ(outcome.status, 1);
    expect_has(outcome.err, {"line 1: no JSON", "line 3: domain: is missing (and", "line 5: torn"});
    EXPECT_EQ(parse_json(outcome.out)["bad"][1]["line"], 3);
    EXPECT_EQ(count(), 1u);
  }
}

TEST_F(KbCliTest, InputThatIsNoFileOfRecordsIsRefused) {
  std::string noise;
  for (int line = 0; line < 100'400; ++line) noise += "\x01\n";
  write_text("noise", noise);
  write_text("less", noise.substr(0, 2000));
  expect_has(run_line("ingest less").err, {"line 1: no JSON", "and 990 more bad lines"});
  fs::create_directory(path("empty"));
  for (const auto& [file, part] : {std::pair{"/dev/zero", "has a line of more than 64 MiB"},
                                   {"noise", "has more than 100000 bad lines"},
                                   {"empty", "empty: "},  // "is a folder", "has no record files"
                                   {"none", "cannot be read: No such file or directory"}}) {
    expect_refused(run({"ingest", file}), part);
    expect_refused(run({"compare", file, "records.jsonl"}), part);
  }
}

TEST_F(KbCliTest, TwoIngestersAtOnceLoseNothing) {
  // The knowledge base does not exist yet, so that both processes want to create it.
  const std::string a = write_text("a.jsonl", many_records(200, "a") + many_records(50, "shared"));
  const std::string b = write_text("b.jsonl", many_records(50, "shared") + many_records(200, "b"));
  for (int round = 0; round < 5; ++round) {
    const std::string db = path(fmt::format("both{}.sqlite", round));
    const pid_t first = start({"--db", db, "ingest", a}, "first"), second = start({"--db", db, "ingest", b}, "second");
    for (const Outcome& outcome : {finish(first, "first"), finish(second, "second")})
      EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(parse_json(run({"--db", db, "stats", "--json"}).out)["records"]["finding"], 450);
    EXPECT_EQ(run({"--db", db, "verify"}).status, 0);
  }
}

TEST_F(KbCliTest, AKillInMidIngestLeavesTheDatabaseWhole) {
  ingest();
  const std::string large = write_text("large.jsonl", many_records(2000, "large"));
  int killed = 0;
  for (int delay_ms = 5; delay_ms < 800; delay_ms += delay_ms) {
    const pid_t child = start({"ingest", large}, "killed");
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    kill(child, SIGKILL);
    const Outcome outcome = finish(child, "killed");
    killed += outcome.status == 128 + SIGKILL;
    // The knowledge base has all records of the file or none.
    const size_t records = count();
    EXPECT_TRUE(records == 3 || records == 2003) << records << " after " << delay_ms << " ms";
    if (outcome.status == 0) break;
  }
  EXPECT_GT(killed, 0);
  EXPECT_EQ(run({"verify"}).status, 0);
  EXPECT_EQ(run({"ingest", large}).status, 0);
  EXPECT_EQ(lines_of(run({"search", "tile", "--json"}).out).size(), 2002u);
}

TEST_F(KbCliTest, InterruptedKeepsNothingOfTheFileAndReadersDoNotWait) {
  ingest();
  for (const char* step : {"before the pipe has a writer", "before the first record", "among the records", "never"}) {
    const std::string name = step;
    const pid_t child = start({"ingest", pipe()}, "pipe");
    const auto before = signal(SIGPIPE, SIG_IGN);  // the reader may end before the writer
    std::ofstream writer;
    if (!name.starts_with("before the pipe")) writer.open(pipe());
    if (!name.starts_with("before")) writer << many_records(500, "first") << std::flush;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_EQ(count(), 3u) << "readers must not see uncommitted records, nor wait for them";
    if (name != "never") kill(child, SIGINT);
    if (name == "among the records") writer << many_records(1000, "second");
    const bool ends_by_itself = name == "never" || name == "among the records";
    if (ends_by_itself) writer.close();
    const Outcome outcome = finish(child, "pipe");
    signal(SIGPIPE, before);
    EXPECT_EQ(outcome.status, name == "never" ? 0 : 130) << step << outcome.err;
    EXPECT_EQ(count(), name == "never" ? 503u : 3u) << step;
  }
}

TEST_F(KbCliTest, SearchesAndListsWithFilters) {
  ingest();
  for (const auto& [line, hits] : {std::pair{"search bf16 --limit 1", 1u},
                                   {"search --max-wrong 0 bf16", 0u},
                                   {"search bf16 --device 'a cpu'", 2u},
                                   {"search bf16 --proto proto2", 0u},
                                   {"search [d64,bf16]", 2u},  // CLI11 would take [d64,bf16] for a list
                                   {"search elephants", 0u},
                                   {"list --kind finding", 2u},
                                   {"list --proto proto1 --device cpu --limit 2", 2u},
                                   {"list --device %", 0u},
                                   {"list --proto proto_", 0u},
                                   {"list --kind finding --max-wrong 0.5", 2u}}) {
    const Outcome outcome = run_line(line + std::string(" --json"));
    EXPECT_EQ(outcome.status, 0) << line;
    EXPECT_EQ(lines_of(outcome.out).size(), hits) << line;
  }
  expect_has(run_line("search d64").out, {"The worst flash attention tile takes 1.50 times the best (A CPU, 2 units)"});
  EXPECT_NE(run_line("search elephants").err, "");
}

TEST_F(KbCliTest, EveryCommandPrintsJson) {
  ingest();
  write("other.jsonl", {measurement(shape(64), 0.9e-3)});
  const std::string id = finding(1.5)["id"];
  for (const std::string& command :
       Words{"ingest records.jsonl", "search tile", "show " + id, "list", "stats", "verify records.jsonl",
             "check records.jsonl", "pool records.jsonl", "decisions records.jsonl", "fit --out - records.jsonl",
             "export", "compare records.jsonl other.jsonl"}) {
    const Outcome outcome = run_line(command + " --json");
    EXPECT_EQ(outcome.status, 0) << command << ": " << outcome.err;
    EXPECT_FALSE(run_line("--json " + command).out.empty()) << command;
    for (const std::string& told : lines_of(outcome.out)) EXPECT_TRUE(Json::accept(told)) << command << told;
    EXPECT_FALSE(run_line(command).out.empty()) << command;
  }
  EXPECT_EQ(run({"show", id.substr(0, 8), "--json"}).out, finding(1.5).dump() + "\n");
  const Json stats = parse_json(run_line("stats --json").out);
  EXPECT_EQ(stats["records"], parse_json(R"({"finding": 2, "measurement": 1})"));
  EXPECT_EQ(stats["findings"]["by_verdict"], parse_json(R"({"refuted": 1, "supported": 1})"));
}

TEST_F(KbCliTest, ExportsAndTakesInAgain) {
  const Json record = changed(finding(1.5), {{"/unknown", "kept"}});
  const Json quoted = changed(finding(1.1, "r2"), {{"/title", "a \"quoted\", claim\nof two lines"}});
  ASSERT_EQ(run({"ingest", write("two.jsonl", {record, quoted, measurement(shape(64), 1e-3)})}).status, 0);
  const std::string exported = write_text("exported.jsonl", run({"export"}).out);
  expect_has(text_of(exported), {"\"unknown\":\"kept\""});
  EXPECT_EQ(run({"--db", path("again.sqlite"), "ingest", exported}).status, 0);
  EXPECT_EQ(run({"--db", path("again.sqlite"), "export"}).out, text_of(exported));
  EXPECT_EQ(lines_of(run({"export", "--kind", "finding"}).out).size(), 2u);

  const std::string csv = run({"export", "--format", "csv"}).out;
  expect_has(csv, {"\"a \"\"quoted\"\", claim\nof two lines\""});
  EXPECT_EQ(std::ranges::count(csv, '\r'), 4) << "a head and three records";
  const Json& estimate = record["data"]["estimate"];
  expect_has(run({"export", "--format", "md"}).out,
             {"## proto1\\_flash: worst\\_tile",
              fmt::format("(supported, {:.4g} [{:.4g}, {:.4g}], wrong with probability {:.2g})",
                          estimate["value"].get<double>(), estimate["ci_lo"].get<double>(),
                          estimate["ci_hi"].get<double>(), record["wrong"].get<double>())});
  EXPECT_TRUE(schema_accepts({"exported.jsonl"}));
  const std::string full = fmt::format("'{}/kb' export > /dev/full 2> '{}'", ATTN_BINARY_DIR, path("err").string());
  const int ended = std::system(full.c_str());
  EXPECT_EQ(WEXITSTATUS(ended), 1);
  expect_has(text_of(path("err")), {"stdout"});
}

// The study is the published work whose claims this project tests. The exported commands add findings to the study's
// knowledge base. Here a script takes the place of the study's program and prints its arguments.
TEST_F(KbCliTest, TheExportForTheStudyIsSafeInAShell) {
  std::vector<Json> records = {header(), finding(1.5), exact_finding(2)};
  const Words hostile = {"it's $(touch harmed) `touch harmed`",
                         "a\n; touch harmed #",
                         "-n",
                         "*",
                         "\\",
                         "\"; touch harmed; \"",
                         "x\ty\x1b[2J",
                         "!!",
                         "~",
                         "a|b & c > harmed"};
  for (const std::string& text : hostile) {
    Json record = finding(1.5);
    record["title"] = record["content"] = record["source"] = record["tags"][0] = text;
    records.push_back(with_id(record));
  }
  ASSERT_EQ(run({"ingest", write("hostile.jsonl", records)}).status, 0);
  write_text("add.sh", run({"export", "--format", "gpu-forge"}).out);
  fs::permissions(write_text("kb", "#!/bin/sh\nprintf '%s\\n' \"$@\"\n"), fs::perms::owner_all);
  const std::string command = fmt::format("cd '{0}' && PATH='{0}':$PATH sh -e add.sh > words", path("").string());
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_FALSE(fs::exists(path("harmed")));
  const Words words = lines_of(text_of(path("words")));
  ASSERT_EQ(words.size(), 10 * (2 + hostile.size())) << "ten words for each finding";
  EXPECT_EQ(Words(words.begin(), words.begin() + 3), (Words{"add", "gpu-perf", "proto1_flash/worst_tile"}));
  expect_has(words[4], {"wrong with probability 0.0", "commit 0123456789ab", "replay: proto1_flash --seed 1"});
  EXPECT_EQ(words[8], "verified");
  EXPECT_EQ(words[9], "flash_attention,d64,worst_tile,bf16");
  EXPECT_EQ(words[18], "verified") << "of the exact finding";
  for (size_t i = 0; i < hostile.size(); ++i) {
    std::string text = hostile[i];
    std::ranges::replace_if(text, [](unsigned char c) { return c < 0x20; }, ' ');
    EXPECT_EQ(words[10 * (2 + i) + 3], text + " (supported; A CPU, 2 units)");
    EXPECT_EQ(words[10 * (2 + i) + 9], text + ",d64,worst_tile,bf16");
  }
}

TEST_F(KbCliTest, VerifyFailsForProblemsAndWithStrictAlsoForContradictions) {
  std::vector<Json> many = {finding(1.1, "far")};
  for (int i = 0; i < 20; ++i) many.push_back(finding(1.5 + 0.001 * i, fmt::format("r{}", i)));
  write("opposed", many);
  const Json wrong = changed(finding(1.5, "r9"), {{"/wrong", 0.95}, {"/title", "Another"}});
  write("wrong", {wrong});
  write("three", {header(), wrong, changed(header(), {{"/schema", "run/7"}})});
  write_text("torn", "{");
  for (const auto& [line, status, part] :
       {std::tuple{"verify records.jsonl", 0, "1 explained by the spread between runs"},
        {"verify --strict records.jsonl", 0, "0 contradictions"},
        {"verify opposed", 0, "CONTRADICTION  proto1_flash/worst_tile/"},
        {"verify --strict opposed", 1, "1 contradictions"},
        {"verify wrong", 1, "wrong: is 0.95, computed again 0.0"},
        {"verify torn", 1, "0 records"},
        {"check records.jsonl", 0, "3 of 3 records are sound"},
        {"check three", 1, "title: is 'Another'"},
        {"check three", 1, "1 of 3 records are sound"}}) {
    const Outcome outcome = run_line(line);
    EXPECT_EQ(outcome.status, status) << line;
    expect_has(outcome.out, {part});
  }
  EXPECT_EQ(lines_of(run_line("check three").out).size(), 2u) << "one line for a record, and one for all";
  expect_has(run_line("check three").err, {"line 3: run/7 is not known"});
  ASSERT_EQ(run_line("ingest wrong").status, 0) << "ingest must take a finding with a wrong probability";
  EXPECT_EQ(run_line("verify").status, 1);
}

TEST_F(KbCliTest, ComparesFilesFoldersDevicesAndCommits) {
  for (const char* folder : {"before", "after/deep", "none"}) fs::create_directories(path(folder));
  write("before/findings.jsonl", {header("r1")});
  write("before/measurements.jsonl", {measurement(shape(64), 1e-3), measurement(shape(128), 1e-3)});
  write("after/deep/measurements.jsonl", {measurement(shape(64), 1.98e-3, "A CPU, 2 units", "r2"),
                                          measurement(shape(128), 0.25e-3, "A CPU, 2 units", "r2")});
  write_text("after/deep/measurements.samples.jsonl", "{");
  write_text("after/notes.txt", "no record");
  write("other.jsonl", {measurement(shape(64), 1e-3), measurement(shape(32), 1e-3)});
  write_text("empty.jsonl", "");
  const Json later = changed(header("r2"), {{"/env/git/commit", "fedcba9876543210"}});
  // The finding is about two devices. Its `device` is the name of no device.
  write("devices.jsonl", {measurement(shape(64), 9e-3, "Another CPU, 4 units", "r2"), later,
                          finding(1.5, "r1", "A CPU, 2 units to Another CPU, 4 units")});
  ASSERT_EQ(run_line("ingest before/findings.jsonl before/measurements.jsonl devices.jsonl").status, 0);
  for (const auto& [line, status, part] : {std::tuple{"before after", 1, "SLOWER 1.98 ["},
                                           {"before after", 1, "FASTER 0.25 ["},
                                           {"before after --floor 99", 0, ""},
                                           {"before other.jsonl", 0, "only A has this configuration"},
                                           {"before other.jsonl", 0, "only B has this configuration"},
                                           {"before before/measurements.jsonl", 0, ""},
                                           {"--by device 'a cpu,' another", 1, "SLOWER"},
                                           {"--by device another 'A CPU, 2 units'", 0, "FASTER"},
                                           {"--by commit 0123456 fedcba9", 1, "SLOWER"}}) {
    const Outcome outcome = run_line(fmt::format("compare {}", line));
    EXPECT_EQ(outcome.status, status) << line << outcome.out << outcome.err;
    expect_has(outcome.out, {part});
    for (const std::string& shown : lines_of(outcome.out)) EXPECT_LE(shown.size(), output_width()) << shown;
  }
  const Json first = json_lines(run_line("compare --json before after").out).at(0);
  EXPECT_EQ(first["change"], "SLOWER") << "a regression must come first";
  EXPECT_EQ(first["b"]["runs"], 1);
  for (const auto& [line, part] : {std::pair{"before none.jsonl", "none.jsonl"},
                                   {"before empty.jsonl", "no measurements"},
                                   {"before none", "has no record files"},
                                   {"--by device cpu 'a cpu'", "several devices"},
                                   {"--by device '' 'a cpu'", ""},
                                   {"--by commit 0123456 0000000", "0000000"}}) {
    expect_refused(run_line(fmt::format("compare {}", line)), part);
  }
}

TEST_F(KbCliTest, SaysThatTwoMachinesHaveOneName) {
  for (const char* machine : {"m1", "m2"}) {
    write(machine,
          {changed(measurement(shape(64), 1e-3), {{"/rate/pct_copy_ceiling", 50}, {"/run/machine", machine}})});
  }
  expect_has(run_line("compare --json m1 m2").err, {"two machines with the name A CPU, 2 units", "GB/s of a copy"});
  EXPECT_EQ(run_line("compare m1 m1").out.find("two machines"), std::string::npos);
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
    ASSERT_EQ(run({"--db", database, "ingest", "records.jsonl"}).status, 0);
    fs::permissions(database, of_file);
    fs::permissions(path(folder), of_folder);
    const auto status_of = [&](const std::string& command) {
      const int ended = std::system(fmt::format("{}'{}/kb' --db '{}' {} > '{}' 2>&1", prefix, ATTN_BINARY_DIR, database,
                                                command, path("said").string())
                                        .c_str());
      return WEXITSTATUS(ended);
    };
    EXPECT_EQ(status_of("list"), 0) << folder;
    EXPECT_EQ(lines_of(text_of(path("said"))).size(), 3u) << folder;
    EXPECT_EQ(status_of(fmt::format("ingest '{}'", path("records.jsonl").string())), 2) << folder;
    EXPECT_EQ(lines_of(text_of(path("said"))).size(), 1u);
    expect_has(text_of(path("said")), {"must be writable"});
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
    for (const Json& record : json_lines(run({"--db", file, "list", "--json"}).out)) EXPECT_EQ(record["ts"], "later");
    for (const char* log : {"-wal", "-shm"}) EXPECT_FALSE(fs::exists(file + log)) << file << log;
  }
}

TEST_F(KbCliTest, FindsItsDatabase) {
  unsetenv("KB_DB");
  ingest();
  EXPECT_TRUE(fs::exists(path("data/attention-proto/kb.sqlite")));
  unsetenv("XDG_DATA_HOME");
  setenv("HOME", path("home").c_str(), 1);
  ingest();
  EXPECT_TRUE(fs::exists(path("home/.local/share/attention-proto/kb.sqlite")));
  unsetenv("HOME");
  expect_refused(run({"list"}), "HOME");
  setenv("KB_DB", path("named.sqlite").c_str(), 1);
  expect_refused(run({"list"}), "named.sqlite");
  const fs::path before = fs::current_path();
  fs::current_path(path("."));
  for (const char* name : {"./file:x?mode=memory", "a b \u00fc.sqlite", "%20?#"}) {  // any name is the name of a file
    EXPECT_EQ(run({"--db", name, "ingest", "records.jsonl"}).status, 0) << name;
    EXPECT_EQ(lines_of(run({"--db", name, "list"}).out).size(), 3u) << name;
    EXPECT_TRUE(fs::exists(name)) << name;
  }
  fs::current_path(before);
  EXPECT_FALSE(fs::exists(path("named.sqlite")));
}

// SQLite would keep nothing of a knowledge base with a special name, or would keep it under another name.
TEST_F(KbCliTest, AFileThatIsNoSoundDatabaseIsRefused) {
  ingest();
  const std::string whole = text_of(path("kb.sqlite"));
  Database(path("foreign"), SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, 0).execute("CREATE TABLE precious(x)");
  fs::copy_file(path("kb.sqlite"), path("later"));
  Database(path("later"), SQLITE_OPEN_READWRITE, 0).execute("PRAGMA user_version = 99");
  for (const auto& [file, part] : std::map<std::string, std::string>{
           {write_text("head", whole.substr(0, 10)), "is no knowledge base"},
           {write_text("part", whole.substr(0, 5000)), "is damaged: ingest the record files into a new one"},
           {write_text("most", whole.substr(0, whole.size() - 5000)), "is damaged: ingest the record files"},
           {path("records.jsonl"), "is no knowledge base"},
           {path("foreign"), "is no knowledge base"},
           {path("later"), "has layout 99"},
           {path("."), "is a folder"},
           {pipe(), "is no plain file"},
           {":memory:", ":memory:"},
           {"file::memory:", "file::memory:"},
           {"file:kb.sqlite?mode=memory", "mode=memory"}}) {
    expect_refused(run({"--db", file, "list"}), part);
    expect_refused(run({"--db", file, "ingest", "records.jsonl"}), part);
  }
}

TEST_F(KbCliTest, ShowsARecordAndTheRunOfAFinding) {
  const Json told = finding({1.5, 1.51}), exact = exact_finding(2), measured = measurement(shape(64), 1e-3);
  const std::string id = told["id"];
  ASSERT_EQ(run({"ingest", write("told.jsonl", {told, exact, measured})}).status, 0);
  expect_has(run({"show", id}).out, {"r1; its header (run/1) is not in the knowledge base"});
  ASSERT_EQ(run({"ingest", write("header.jsonl", {header()})}).status, 0);
  const std::string shown = run({"show", id}).out;
  expect_has(shown, {"proto1_flash --profile quick", "0123456789abcdef0123", "A CPU, 2 units", "next run [",
                     "variant=naive head_dim=64", "replay", "flash_attention d64"});
  EXPECT_EQ(run({"show", told["claim_key"]}).out, shown);
  expect_has(run({"show", exact["id"]}).out, {"exact"});
  expect_has(run({"show", measured["id"]}).out, {"variant=tuned head_dim=64", "0.001 s [0.000995, 0.001005]"});
  expect_has(run({"show", header()["id"]}).out, {"clang 19", "A CPU, 2 units"});
  expect_has(run({"list"}).out, {"exact", "r1: proto1_flash --profile quick", "variant=tuned head_dim=64"});
  EXPECT_EQ(json_lines(run({"list", "--json", "--kind", "run"}).out).at(0)["run"], "r1");
  expect_has(run({"export", "--format", "md"}).out, {"wrong with probability exact"});
}

// Pages name records by ids that are in findings/recorded, and not in a user's knowledge base.
TEST_F(KbCliTest, ShowsARecordOfThePages) {
  const std::string run_of = recorded_files(ATTN_SOURCE_DIR).front();
  ASSERT_EQ(run({"--db", path("one.sqlite"), "ingest", run_of}).status, 0);
  const std::string id =
      json_lines(run({"--db", path("one.sqlite"), "list", "--json", "--kind", "finding"}).out).at(0)["id"];
  for (const bool without_file : {true, false}) {
    const Outcome outcome = run({"show", id});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    expect_has(outcome.out, {id, "replay"});
    expect_refused(run({"show", "0123456789abcdef"}), "findings/recorded has no such record");
    if (without_file) ingest();
  }
}

TEST_F(KbCliTest, IntervalAnswersEachLine) {
  const std::string asked =
      write_text("asked", "{\"count\": 5, \"total\": 10}\n{\"probability\": 0.975, \"freedom\": 4}\n");
  for (const Outcome& outcome : {run({"interval"}, asked), run({"interval", asked})}) {
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const std::vector<Json> answers = json_lines(outcome.out);
    ASSERT_EQ(answers.size(), 2u);
    EXPECT_NEAR(answers[0]["ci_lo"].get<double>(), 0.187086, 1e-6);
    EXPECT_NEAR(answers[0]["ci_hi"].get<double>(), 0.812914, 1e-6);
    EXPECT_NEAR(answers[1]["quantile"].get<double>(), 2.776445, 1e-6);
  }
  for (const char* text : {"{", "3", "{}", "{\"count\": 3}", "{\"count\": 3, \"total\": 2}",
                           "{\"count\": 0, \"total\": 0}", "{\"count\": \"3\", \"total\": 5}",
                           "{\"probability\": 1, \"freedom\": 4}", "{\"probability\": 0.9, \"freedom\": 0}"}) {
    expect_refused(run({"interval"}, write_text("refused", text)), "line 1: ");
  }
}

TEST_F(KbCliTest, BadInputGivesOneLineAndStatusTwo) {
  ingest();
  for (const char* line : {"",
                           "frobnicate",
                           "search",
                           "show",
                           "show nothex",
                           "show 0000000000000000",
                           "list --limit 0",
                           "list --max-wrong nan",
                           "list --kind rumour",
                           "interval a b",
                           "list extra",
                           "export --format xml",
                           "export --format csv --json",
                           "fit records.jsonl",
                           "fit --out . records.jsonl",
                           "fit --out " ATTN_SOURCE_DIR "/findings/spread.json records.jsonl",
                           "fit --out records.jsonl records.jsonl",
                           "compare a",
                           "compare a b --by mood",
                           "compare records.jsonl records.jsonl --floor -1",
                           "ingest none.jsonl",
                           "verify none.jsonl",
                           "check none.jsonl",
                           "--db none.sqlite list",
                           "--db /proc/none/kb.sqlite ingest records.jsonl",
                           "--db '' list"}) {
    SCOPED_TRACE(line);
    expect_refused(run_line(line));
  }
  expect_has(run_line("--help").out, {"ingest", "search", "interval", "compare", "KB_DB", "EXIT STATUS"});
  expect_has(run_line("export --help").out, {"gpu-forge", "--kind"});
}

}  // namespace
}  // namespace attn::kb
