// For tests that run programs of the build as a user runs them.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/base/json.h"
#include "common/base/temporary_folder.h"
#include "common/device/device.h"

namespace attn::test {

/// Options of a run with the fewest samples with which a claim may be decided. The budget is so large that no machine
/// uses it up.
inline const std::string few_samples = " --budget 600 --samples 6 ";

/// Returns the options for values of axes: " --axis q_len=64 --axis causal=1" for "q_len=64 causal=1".
inline std::string axes_of(const std::string& values) {
  std::string line;
  std::istringstream words(values);
  for (std::string axis; words >> axis;) line += " --axis " + axis;
  return line + " ";
}

struct Outcome {
  int status = -1;  // exit status, or 128 + signal
  std::string out, err;
};

/// A test of one program, which runs in a folder of its own. All tests share a cache of compiled kernels.
class ProgramTest : public testing::Test {
 protected:
  explicit ProgramTest(const std::string& program) : program_(std::filesystem::path(ATTN_BINARY_DIR) / program) {
    setenv("ATTENTION_PROTO_CACHE", ATTN_TEST_KERNELS, 1);
  }

  /// Makes the test's programs compile all kernels again, into the cache path("cache").
  void own_cache() const { setenv("ATTENTION_PROTO_CACHE", path("cache").c_str(), 1); }

  std::filesystem::path path(const std::string& name) const { return folder_.path() / name; }
  static std::string text_of(const std::filesystem::path& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  std::string write_text(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  std::vector<Json> records(const std::string& name) const {
    std::vector<Json> all;
    std::ifstream stream(path(name));
    for (std::string line; std::getline(stream, line);) all.push_back(parse_json(line));
    return all;
  }

  /// Returns the findings in findings.jsonl. Expects the header of a finding's run before the finding.
  std::vector<Json> findings() const {
    std::vector<Json> all;
    std::set<std::string> runs;
    for (Json& record : records("findings.jsonl")) {
      if (record["schema"] == "run/1") {
        runs.insert(record["run"]["id"].get<std::string>());
        continue;
      }
      EXPECT_EQ(record["schema"], "finding/2");
      EXPECT_TRUE(runs.contains(record["data"]["run"].get<std::string>())) << record["data"]["run"];
      all.push_back(std::move(record));
    }
    return all;
  }

  /// Starts the program. Its stdin is the file `in`; its stdout and stderr go to the files NAME.out and NAME.err.
  pid_t start(const std::vector<std::string>& arguments, const std::string& name = "run",
              const std::string& in = "/dev/null") const {
    const pid_t child = fork();
    if (child != 0) return child;
    if (chdir(folder_.path().c_str()) != 0) _exit(127);
    const int input = open(in.c_str(), O_RDONLY);
    if (input < 0 || dup2(input, 0) < 0) _exit(127);
    for (const auto& [descriptor, suffix] : {std::pair{1, ".out"}, {2, ".err"}}) {
      const int file = open((name + suffix).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      if (file < 0 || dup2(file, descriptor) < 0) _exit(127);
    }
    std::vector<std::string> all = {program_};
    all.insert(all.end(), arguments.begin(), arguments.end());
    std::vector<char*> raw;
    for (std::string& argument : all) raw.push_back(argument.data());
    raw.push_back(nullptr);
    execv(raw[0], raw.data());
    _exit(127);
  }
  Outcome finish(pid_t child, const std::string& name = "run") const {
    int status = 0;
    waitpid(child, &status, 0);
    return outcome(status, name);
  }
  Outcome run(const std::vector<std::string>& arguments, const std::string& in = "/dev/null") const {
    return finish(start(arguments, "run", in));
  }
  /// Runs the program with the arguments of `line`, separated by blanks. Single quotes hold an argument that is empty
  /// or has blanks.
  Outcome run_line(const std::string& line, const std::string& in = "/dev/null") const {
    std::vector<std::string> arguments;
    std::istringstream words(line);
    for (std::string word; words >> std::quoted(word, '\'');) arguments.push_back(word);
    return run(arguments, in);
  }

  /// Runs the program in a shell, with the redirections of `line`; `before` are commands that the shell runs first.
  Outcome run_shell(const std::string& line, const std::string& before = "") const {
    const std::string command = "cd " + folder_.path().string() + " && exec </dev/null >run.out 2>run.err; " + before +
                                "exec " + program_.string() + " " + line;
    return outcome(std::system(command.c_str()), "run");
  }

  /// Returns false if the schema refuses a record of the files. Without python3-jsonschema prints that nothing is
  /// checked, and returns true.
  bool schema_accepts(const std::vector<std::string>& files) const {
    std::string command = ATTN_SOURCE_DIR "/findings/validate";
    for (const std::string& file : files) command += " " + path(file).string();
    const int ended = std::system(command.c_str()), status = WEXITSTATUS(ended);
    if (status == 77) std::puts("python3-jsonschema is not installed: records are not checked against the schema");
    return status == 0 || status == 77;
  }

  const std::filesystem::path program_;
  TemporaryFolder folder_;

 private:
  /// `err` lacks the lines that qemu adds when a signal ends a process.
  Outcome outcome(int status, const std::string& name) const {
    Outcome found{WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), text_of(path(name + ".out")), ""};
    std::ifstream errors(path(name + ".err"), std::ios::binary);
    for (std::string line; std::getline(errors, line);) {
      if (!line.starts_with("qemu: uncaught target signal ")) found.err += errors.eof() ? line : line + "\n";
    }
    return found;
  }
};

/// A test of a program that runs on the cpu device; skipped in a build without this device.
class CpuProgramTest : public ProgramTest {
 protected:
  using ProgramTest::ProgramTest;
  void SetUp() override {
    if (!Device::is_built("cpu")) GTEST_SKIP() << "this build has no cpu device";
  }
};

}  // namespace attn::test
