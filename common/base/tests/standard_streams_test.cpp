#include "common/base/standard_streams.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <string>

#include "common/testing/forks.h"

namespace attn {
namespace {

// A program's signal handler calls wait_for_readers(false), so that a full pipe does not delay the end of the process.
TEST(StandardStreams, APipeThatNobodyReadsIsGivenUp) {
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(pipe(pipe_ends.data()), 0);
  test::expect_in_a_fork([&] {
    dup2(pipe_ends[1], STDOUT_FILENO);
    dup2(pipe_ends[1], STDERR_FILENO);
    wait_for_readers(false);
    const std::string text(size_t{1} << 20, 'x');
    to_stderr(text);
    const bool before = stdout_lost();
    to_stdout(text);
    return !before && stdout_lost();
  });
  for (const int end : pipe_ends) close(end);
}

TEST(StandardStreams, ATextForAClosedStreamIsLost) {
  for (const bool by_name : {false, true}) {
    SCOPED_TRACE(by_name ? "a write to /dev/stdout" : "to_stdout()");
    test::expect_in_a_fork([&] {
      for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(stream);
      keep_standard_streams();
      if (!by_name) to_stdout("text");
      const int file = open(by_name ? "/dev/stdout" : "/dev/null", O_RDWR);
      const bool lost = by_name ? write(file, "text", 4) < 0 : stdout_lost();
      char byte = 0;
      return lost && file > STDERR_FILENO && read(STDIN_FILENO, &byte, 1) == 0;
    });
  }
}

TEST(StandardStreams, ALongTextArrivesWhole) {
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(pipe(pipe_ends.data()), 0);
  const std::string text(size_t{1} << 20, 'x');
  const pid_t child = test::start_fork([&] {
    dup2(pipe_ends[1], STDOUT_FILENO);
    to_stdout(text);
    return !stdout_lost();
  });
  close(pipe_ends[1]);
  std::string read_text;
  std::array<char, 4096> part{};
  for (ssize_t bytes; (bytes = read(pipe_ends[0], part.data(), part.size())) > 0;) {
    read_text.append(part.data(), static_cast<size_t>(bytes));
  }
  close(pipe_ends[0]);
  test::expect_success(child);
  EXPECT_EQ(read_text, text);
}

}  // namespace
}  // namespace attn
