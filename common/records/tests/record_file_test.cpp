#include "common/records/record_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "common/base/error.h"
#include "common/base/sha256.h"
#include "common/base/temporary_folder.h"
#include "common/testing/captured_log.h"
#include "common/testing/flock.h"

namespace attn {
namespace {

std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_text(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

TEST(RecordId, IsTheHashOfTheLineWithoutTheId) {
  const Json record = {{"schema", "note/1"}, {"id", "x"}, {"n", 1}};
  EXPECT_EQ(record_id(record), sha256(R"({"schema":"note/1","n":1})").substr(0, 16));
  Json other = record;
  other["id"] = "y";
  EXPECT_EQ(record_id(other), record_id(record));
  other["n"] = 2;
  EXPECT_NE(record_id(other), record_id(record));
}

TEST(RecordFile, AppendsWholeLines) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "r.jsonl";
  {
    RecordFile(path).append({{"n", 1}});
  }
  RecordFile file(path);
  file.append({{"text", "two\nlines"}});
  EXPECT_EQ(contents(path), "{\"n\":1}\n{\"text\":\"two\\nlines\"}\n")
      << "lines must be visible before the file is closed";
  file.append({{"text", "\xff"}});
  std::vector<std::string> problems;
  EXPECT_EQ(read_records(path, problems).size(), 3u) << "bytes that are no UTF-8 must not end the run";
  EXPECT_TRUE(problems.empty());
}

TEST(RecordFile, EndsATornLine) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "r.jsonl";
  write_text(path, "{\"n\":1}\n{\"n\":");
  RecordFile file(path);
  file.append({{"n", 3}});
  file.append({{"n", 4}});
  EXPECT_EQ(contents(path), "{\"n\":1}\n{\"n\":\n{\"n\":3}\n{\"n\":4}\n");
  std::vector<std::string> problems;
  EXPECT_EQ(read_records(path, problems).size(), 3u);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].substr(0, 7), "line 2:");
}

TEST(RecordFile, ReportsAFileThatCannotBeWritten) {
  EXPECT_THROW(RecordFile("/no/such/folder/r.jsonl"), BadInput);
  EXPECT_THROW(RecordFile("/"), BadInput);
  RecordFile full("/dev/full");
  try {
    full.append({{"n", 1}});
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(std::string(error.what()), "cannot append to '/dev/full': No space left on device");
  }
}

TEST(RecordFile, APipeWithoutAReaderIsReported) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const auto message = [](const auto& step) -> std::string {
    try {
      step();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message([&] { const RecordFile file(path); }),
            "cannot append to '" + path + "': nobody reads this pipe; name a file that can be written");
  const int reader = open(path.c_str(), O_RDONLY | O_NONBLOCK);
  RecordFile file(path);
  file.append({{"n", 1}});
  char line[9] = {};
  EXPECT_EQ(read(reader, line, sizeof line - 1), 8);
  EXPECT_STREQ(line, "{\"n\":1}\n");
  std::vector<std::string> problems;
  EXPECT_TRUE(read_records(path, problems).empty()) << "read_records() must not wait for the end of a pipe";
  close(reader);
  const auto before = signal(SIGPIPE, SIG_IGN);
  EXPECT_EQ(message([&] { file.append({{"n", 2}}); }), "cannot append to '" + path + "': Broken pipe");
  signal(SIGPIPE, before);
}

TEST(RecordFile, CutsOffALineThatDidNotFit) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "r.jsonl";
  const pid_t child = fork();  // the limit holds for a process, so a child sets it
  ASSERT_GE(child, 0);
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100, 100};
    setrlimit(RLIMIT_FSIZE, &limit);
    RecordFile file(path);
    file.append({{"n", 1}});
    int thrown = 0;
    for (int i = 0; i < 2; ++i) {
      try {
        file.append({{"text", std::string(200, 'x')}});
      } catch (const std::runtime_error&) {
        ++thrown;
      }
    }
    file.append({{"n", 2}});
    _exit(thrown == 2 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(contents(path), "{\"n\":1}\n{\"n\":2}\n");
}

// On a file system without locks, another process may have written after the torn line, so the torn line stays.
TEST(RecordFile, WarnsOnceWithoutLocksAndCutsOffNothing) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "r.jsonl";
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    test::lock_error = ENOLCK;
    const test::CapturedLog log;
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100, 100};
    setrlimit(RLIMIT_FSIZE, &limit);
    RecordFile file(path);
    file.append({{"n", 1}});
    file.append({{"n", 2}});
    std::string thrown;
    try {
      file.append({{"text", std::string(200, 'x')}});
    } catch (const std::runtime_error& error) {
      thrown = error.what();
    }
    const bool warned = log.lines() == 1 && log.text().find("r.jsonl' cannot be locked (No locks") != std::string::npos;
    _exit(warned && thrown.ends_with("File too large; its last line is torn") ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  std::vector<std::string> problems;
  EXPECT_EQ(read_records(path, problems).size(), 2u);
  EXPECT_EQ(std::filesystem::file_size(path), 100u);
}

TEST(RecordFile, TwoProcessesLoseNothing) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "r.jsonl";
  write_text(path, "{\"torn");
  constexpr int lines = 1000;
  pid_t children[2];
  for (int process = 0; process < 2; ++process) {
    children[process] = fork();
    ASSERT_GE(children[process], 0);
    if (children[process] == 0) {
      RecordFile file(path);
      for (int i = 0; i < lines; ++i) {
        file.append({{"process", process}, {"i", i}, {"text", std::string(i % 97 * 50, 'x')}});
      }
      _exit(0);
    }
  }
  for (const pid_t child : children) {
    int status = 1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  std::vector<std::string> problems;
  std::set<std::pair<int, int>> seen;
  for (const Json& record : read_records(path, problems))
    seen.emplace(record["process"].get<int>(), record["i"].get<int>());
  EXPECT_EQ(seen.size(), 2u * lines);
  EXPECT_EQ(problems.size(), 1u) << "another line than the torn line is broken";
  EXPECT_EQ(contents(path).find("\n\n"), std::string::npos);
}

TEST(ReadRecords, SkipsLinesThatAreNoRecords) {
  const TemporaryFolder folder;
  std::vector<std::string> problems;
  EXPECT_TRUE(read_records(folder.path() / "missing.jsonl", problems).empty());
  EXPECT_TRUE(problems.empty());

  const std::string path = folder.path() / "r.jsonl";
  write_text(path, "{\"n\":1}\r\n\n[1]\n{\"n\":2} {\"n\":3}\nnonsense\n{\"n\":4}\n{\"schema\":5}\n{\"n\":");
  const std::vector<Json> records = read_records(path, problems);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1]["n"], 4);
  EXPECT_EQ(problems,
            (std::vector<std::string>{"line 3: no JSON object, skipped", "line 4: no JSON object, skipped",
                                      "line 5: no JSON object, skipped", "line 7: schema or id is no text, skipped",
                                      "line 8: torn (the run ended before it had written the whole line), skipped"}));
  write_text(path, "{\"n\":1}");
  EXPECT_EQ(read_records(path, problems).size(), 1u) << "skipped a whole line without an end of line";
  EXPECT_THROW(read_records("/", problems), BadInput);
}

}  // namespace
}  // namespace attn
