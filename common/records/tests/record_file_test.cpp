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
#include <functional>
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
  const Json record = {{"schema", "run/1"}, {"id", "x"}, {"n", 1}};
  EXPECT_EQ(record_id(record), sha256(R"({"schema":"run/1","n":1})").substr(0, 16));
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

/// The message of the exception that `step` throws.
std::string message_of(const std::function<void()>& step) {
  try {
    step();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(RecordFile, ReportsAFileThatCannotBeWrittenAndAPipeWithoutAReader) {
  for (const char* path : {"/no/such/folder/r.jsonl", "/"}) EXPECT_THROW(RecordFile{path}, BadInput);
  EXPECT_NE(message_of([] { RecordFile("/dev/full").append({{"n", 1}}); }).find("No space left"), std::string::npos);
  const TemporaryFolder folder;
  const std::string path = folder.path() / "pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_NE(message_of([&] { const RecordFile file(path); }).find("nobody reads this pipe"), std::string::npos);
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
  EXPECT_NE(message_of([&] { file.append({{"n", 2}}); }).find("Broken pipe"), std::string::npos);
  signal(SIGPIPE, before);
}

/// Writes records until the file has 100 bytes, in a child process, for which the limit holds. Returns whether `check`
/// holds for the message of the record that did not fit.
bool fills_file(const std::string& path, const std::function<bool(const std::string& thrown)>& check) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100, 100};
    setrlimit(RLIMIT_FSIZE, &limit);
    RecordFile file(path);
    file.append({{"n", 1}});
    std::string thrown;
    for (int i = 0; i < 2; ++i) {
      try {
        file.append({{"text", std::string(200, 'x')}});
      } catch (const std::runtime_error& error) {
        thrown = error.what();
      }
    }
    try {
      file.append({{"n", 2}});
    } catch (const std::runtime_error&) {  // the file is full
    }
    _exit(check(thrown) ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  return status == 0;
}

TEST(RecordFile, CutsOffALineThatDidNotFit) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "r.jsonl";
  EXPECT_TRUE(fills_file(path, [](const std::string& thrown) { return thrown.ends_with("File too large"); }));
  EXPECT_EQ(contents(path), "{\"n\":1}\n{\"n\":2}\n");
}

// On a file system without locks, another process may have written after the torn line, so the torn line stays.
TEST(RecordFile, WarnsOnceWithoutLocksAndCutsOffNothing) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "r.jsonl";
  test::lock_error = ENOLCK;
  const test::CapturedLog log;
  EXPECT_TRUE(fills_file(path, [&](const std::string& thrown) {
    return thrown.ends_with("its last line is torn") && log.lines() == 1 &&
           log.text().find("r.jsonl' cannot be locked (No locks") != std::string::npos;
  }));
  test::lock_error = 0;
  std::vector<std::string> problems;
  EXPECT_EQ(read_records(path, problems).size(), 1u);
  EXPECT_EQ(std::filesystem::file_size(path), 100u);
}

TEST(RecordFile, TwoProcessesLoseNothing) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "r.jsonl";
  write_text(path, "{\"torn");  // the first append() ends this line
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
  std::vector<std::string> numbers;
  for (const std::string& problem : problems) numbers.push_back(problem.substr(0, 7));
  EXPECT_EQ(numbers, (std::vector<std::string>{"line 3:", "line 4:", "line 5:", "line 7:", "line 8:"}));
  EXPECT_NE(problems[4].find("torn"), std::string::npos) << problems[4];
  write_text(path, "{\"n\":1}");
  EXPECT_EQ(read_records(path, problems).size(), 1u) << "skipped a whole line without an end of line";
  EXPECT_THROW(read_records("/", problems), BadInput);
}

}  // namespace
}  // namespace attn
