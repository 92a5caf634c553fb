// Tests of workers that end badly, and of the process that watches them.
#include "common/experiment/watch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "common/base/json.h"
#include "common/base/stopwatch.h"
#include "common/base/temporary_folder.h"

namespace attn {
namespace {

using Arguments = std::vector<std::string>;

const Json notes = {
    {"resume", {"program", "\xff", "--resume"}}, {"run", "abc"}, {"resumed", false}, {"cases", {"one", "two"}}};

/// A worker's exit statuses in these tests.
enum Status { as_expected = 17, not_expected = 18 };
int expected(bool ok) { return ok ? as_expected : not_expected; }

void end_by(int signal) {
  std::signal(signal, SIG_DFL);
  raise(signal);
}

TEST(WatchTest, TheStatusOfAWorkerIsTheStatusOfTheRun) {
  EXPECT_EQ(watch("program", {"program"}, [](const Arguments&, const Worker&) { return 4; }), 4);
}

TEST(WatchTest, TheNextWorkerKnowsTheCaseThatEndedTheLastWorker) {
  const int status = watch("program", {"program"}, [](const Arguments& arguments, const Worker& worker) {
    const Before& before = worker.before;
    if (before.run_id.empty()) {
      worker.activity.note(notes);
      worker.activity.at(1);
      end_by(SIGSEGV);
    }
    return expected(before.lost == "two" && before.status == "failed" &&
                    before.reason.find("signal 11") != std::string::npos && before.run_id == "abc" && !before.resumed &&
                    arguments == Arguments{"program", "\xff", "--resume"});
  });
  EXPECT_EQ(status, as_expected);
}

TEST(WatchTest, AfterAnEndWhileCompilingAheadTheNextWorkerDoesNotCompileAhead) {
  const int status = watch("program", {"program"}, [](const Arguments&, const Worker& worker) {
    if (worker.before.compile_ahead) {
      worker.activity.note(notes);
      end_by(SIGSEGV);
    }
    return expected(worker.before.lost.is_null());
  });
  EXPECT_EQ(status, as_expected);
}

// A function of the user may overwrite the heap. The worker may then crash at any later time.
TEST(WatchTest, AfterCodeOfTheUserAnEndBetweenCasesFailsTheLastCase) {
  const int status = watch("program", {"program"}, [](const Arguments&, const Worker& worker) {
    const Before& before = worker.before;
    if (!before.lost.is_null()) return expected(before.lost == "two" && before.reason == "vector::reserve");
    Json of_user = notes;
    of_user["users_code"] = true;
    worker.activity.note(of_user);
    worker.activity.at(1);
    of_user["cases"] = {"three"};
    worker.activity.note(of_user);
    if (before.compile_ahead) worker.activity.end_case("failed", "vector::reserve");
    of_user["cases"] = Json::array();
    worker.activity.note(of_user);
    worker.activity.end_case("failed", "vector::reserve");
  });
  EXPECT_EQ(status, as_expected);
}

TEST(WatchTest, ACompilationThatTakesTooLongOrTooMuchMemoryIsAFailedCase) {
  for (const auto& [seconds, bytes, says] : {std::tuple{0.01, 1e18, " s"}, {1e6, -1e18, " of memory"}}) {
    const int status = watch("program", {"program"}, [&](const Arguments&, const Worker& worker) {
      const Before& before = worker.before;
      if (!before.lost.is_null()) {
        return expected(before.lost == "two" && before.reason.starts_with("the compiler takes more than ") &&
                        before.reason.ends_with(says));
      }
      worker.activity.note(notes);
      worker.activity.at(1);
      const CompilationLimit limit(worker.activity, seconds, bytes);
      for (;;) pause();
    });
    EXPECT_EQ(status, as_expected);
  }
  const auto in_time = [](const Arguments&, const Worker& worker) {
    const CompilationLimit limit(worker.activity);
    return 4;
  };
  EXPECT_EQ(watch("program", {"program"}, in_time), 4);
}

TEST(WatchTest, AWorkerThatMakesNoProgressIsAFailedCase) {
  for (const bool stopped : {true, false}) {
    const int status = watch("program", {"program"}, [&](const Arguments&, const Worker& worker) {
      const Before& before = worker.before;
      if (!before.lost.is_null()) {
        return expected(before.lost == "two" && before.status == "failed" &&
                        before.reason == "the process of the run made no progress for 0.1 s, and was ended");
      }
      worker.activity.note(notes);
      worker.activity.end_if_silent_for(0.1);
      worker.activity.at(1);
      if (stopped) raise(SIGSTOP);
      for (volatile int turns = 0;;) turns = turns + 1;
    });
    EXPECT_EQ(status, as_expected);
  }
}

TEST(WatchTest, AWorkerThatMakesProgressIsNotEnded) {
  const int status = watch("program", {"program"}, [](const Arguments&, const Worker& worker) {
    worker.activity.end_if_silent_for(3);
    const Stopwatch stopwatch;
    while (stopwatch.seconds() < 4) {
      worker.activity.progress();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return 4;
  });
  EXPECT_EQ(status, 4);
}

// A user may leave the output in a pager for an hour.
TEST(WatchTest, AWorkerWhoseOutputNobodyReadsIsNotEnded) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  fcntl(ends[1], F_SETFL, O_NONBLOCK);
  const std::string text(4096, '.');
  while (write(ends[1], text.data(), text.size()) > 0) {
  }
  const pid_t watcher = fork();
  if (watcher == 0) {
    dup2(ends[1], STDOUT_FILENO);
    _exit(watch("program", {"program"}, [&](const Arguments&, const Worker& worker) {
      if (!worker.before.lost.is_null()) return expected(worker.before.lost == "two");
      worker.activity.note(notes);
      worker.activity.end_if_silent_for(0.05);
      worker.activity.at(1);
      for (;;) pause();
    }));
  }
  close(ends[1]);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  int status = 0;
  EXPECT_EQ(waitpid(watcher, &status, WNOHANG), 0) << "the watcher must not end while nobody reads";
  std::array<char, 4096> part{};
  while (read(ends[0], part.data(), part.size()) > 0) {
  }
  close(ends[0]);
  waitpid(watcher, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), as_expected);
}

TEST(WatchTest, AnEndBetweenCasesIsReportedInOneLine) {
  testing::internal::CaptureStderr();
  const int status = watch("program", {"program"}, [](const Arguments&, const Worker& worker) {
    worker.activity.note({{"doing", "while it compiled f.cpp"}, {"status", 2}});
    end_by(SIGSEGV);
    return 0;
  });
  const std::string err = testing::internal::GetCapturedStderr();
  EXPECT_EQ(status, 2);
  EXPECT_NE(err.find("while it compiled f.cpp"), std::string::npos) << err;
  EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
}

TEST(WatchTest, AWorkerMayGiveTheReasonForItsEnd) {
  const int status = watch("program", {"program"}, [](const Arguments&, const Worker& worker) {
    const Before& before = worker.before;
    if (before.run_id.empty()) {
      worker.activity.note(notes);
      worker.activity.at(0);
      worker.activity.end_case("timeout", "no end");
    }
    return expected(before.lost == "one" && before.status == "timeout" && before.reason == "no end");
  });
  EXPECT_EQ(status, as_expected);
}

TEST(WatchTest, AWorkerThatLostItsDeviceIsFollowedByAnother) {
  const int status = watch("program", {"program"}, [](const Arguments&, const Worker& worker) {
    if (worker.before.run_id.empty()) {
      worker.activity.note(notes);
      worker.activity.at(0);
      worker.activity.go_on_in_another();
    }
    return expected(worker.before.lost.is_null());
  });
  EXPECT_EQ(status, as_expected);
}

// A worker that does not react to a signal is ended, and another worker shows what was measured.
TEST(WatchTest, ASignalEndsAWorkerThatIgnoresSignals) {
  const TemporaryFolder folder;
  const auto runs = folder.path() / "runs", shown = folder.path() / "shown";
  const pid_t watcher = fork();
  if (watcher == 0) {
    _exit(watch("program", {"program"}, [&](const Arguments&, const Worker& worker) {
      if (worker.before.interrupted) {
        std::ofstream(shown) << "shown";
        return 130;
      }
      std::signal(SIGTERM, SIG_IGN);
      worker.activity.note(notes);
      std::ofstream(runs) << "runs";
      for (;;) pause();
    }));
  }
  while (!std::filesystem::exists(runs)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  kill(watcher, SIGTERM);
  int status = 0;
  waitpid(watcher, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  EXPECT_TRUE(std::filesystem::exists(shown));
}

}  // namespace
}  // namespace attn
