// Runs proto1_flash and proto1_flash_devices as a user runs them.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "common/base/json.h"
#include "common/base/platform.h"
#include "common/cases/reference.h"
#include "common/data/tensor.h"
#include "common/testing/program.h"

namespace attn {
namespace {

using test::Outcome;

class CliTest : public test::CpuProgramTest {
 protected:
  CliTest() : CpuProgramTest("proto1_flash") {}

  // Twelve quick cases: six tiles, each with and without a causal mask.
  static constexpr size_t small_cases = 12;
  static inline const std::string small_sweep =
      "--device cpu:threads=2 --axis q_len=64 --axis q_heads=2 --axis head_dim=32 --axis variant=tuned --axis "
      "dtype=f32 "
      "--axis layout=bhsd --axis causal=0,1 --axis block_r=16,32,64 --axis block_c=64,128 --budget 600 --samples 6 ";
  pid_t start_line(const std::string& line) const {
    std::istringstream words(line);
    return start({std::istream_iterator<std::string>(words), {}});
  }
};

void expect_each_case_once(const std::vector<Json>& measurements, size_t cases) {
  std::set<std::string> seen;
  for (const Json& record : measurements) {
    EXPECT_TRUE(seen.insert(record["case"].dump()).second) << "the case has two records: " << record["case"];
  }
  EXPECT_EQ(seen.size(), cases);
}

TEST_F(CliTest, ASweepIsReplayed) {
  Outcome outcome = run_line(small_sweep);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  expect_each_case_once(records("measurements.jsonl"), small_cases);
  for (const Json& record : records("measurements.jsonl")) {
    EXPECT_EQ(record["status"], "ok");
    EXPECT_GT(record["rate"]["tflops"], 0);
  }
  const std::string measurement = records("measurements.jsonl").front()["id"];
  outcome = run_line("--samples 6 --replay " + measurement);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find(measurement), std::string::npos) << outcome.out;
  const std::vector<Json> all = findings();
  for (const std::string hypothesis : {"worst_tile", "causal"}) {
    const auto finding = std::find_if(all.begin(), all.end(), [&](const Json& candidate) {
      return candidate["data"]["hypothesis"]["id"] == hypothesis;
    });
    ASSERT_NE(finding, all.end()) << hypothesis;
    outcome = run_line("--samples 6 --processes 1 --replay " + (*finding)["id"].get<std::string>());
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const Json replayed = findings().back();
    EXPECT_EQ(replayed["claim_key"], (*finding)["claim_key"]) << outcome.out;
    EXPECT_EQ(replayed["data"]["compare"]["contender"], (*finding)["data"]["compare"]["contender"]);
    EXPECT_NE(replayed["id"], (*finding)["id"]);
  }
}

TEST_F(CliTest, InterruptedAndKilledInMidSweepThenResumed) {
  for (const auto& [signal, wanted] : {std::pair{SIGINT, 1}, {SIGKILL, 7}}) {
    const pid_t child = start_line(small_sweep + "--resume");
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    const auto lines = [&] {
      const std::string text = text_of(path("measurements.jsonl"));
      return std::count(text.begin(), text.end(), '\n');
    };
    while (lines() < wanted && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    kill(child, signal);
    const Outcome outcome = finish(child);
    EXPECT_GE(lines(), wanted);
    if (signal == SIGKILL) continue;
    EXPECT_EQ(outcome.status, 130);
    EXPECT_NE(outcome.err.find("--resume"), std::string::npos) << outcome.err;
  }
  // A kill in the middle of a write leaves an incomplete line.
  std::ofstream(path("measurements.jsonl"), std::ios::app) << R"({"schema":"measurement/1","id":"0)";
  const Outcome outcome = run_line(small_sweep + "--resume");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  std::vector<Json> whole;
  int torn = 0;
  std::ifstream stream(path("measurements.jsonl"));
  for (std::string line; std::getline(stream, line);) {
    const Json record = parse_json(line, false);
    if (record.is_discarded()) {
      ++torn;
    } else if (record["time"].empty() || record["time"][0]["stop"] != "interrupted") {
      whole.push_back(record);
    }
  }
  EXPECT_EQ(torn, 1);
  EXPECT_NE(outcome.err.find("line"), std::string::npos) << outcome.err;
  expect_each_case_once(whole, small_cases);
  std::set<std::string> claims;
  for (const Json& finding : findings()) EXPECT_TRUE(claims.insert(finding["claim_key"]).second);
}

constexpr const char* one_tile =
    "--device cpu:threads=2 --axis variant=tuned --axis q_heads=1 --axis dtype=f32 --axis layout=bhsd --axis causal=0 "
    "--axis block_c=64 ";

// The launch of the second case would take about a minute. The signal comes during this launch, or while the program
// makes its inputs.
TEST_F(CliTest, ASignalEndsALongLaunchAndTheTableIsPrinted) {
  for (const int signal : {SIGINT, SIGTERM}) {
    std::filesystem::remove(path("measurements.jsonl"));
    const pid_t child = start_line(std::string(one_tile) +
                                   "--only verify --max-launch 1e6 --axis q_len=64,262144 "
                                   "--axis block_r=32 --axis head_dim=64");
    while (!text_of(path("measurements.jsonl")).ends_with('\n')) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    kill(child, signal);
    const Outcome outcome = finish(child);
    EXPECT_EQ(outcome.status, 130) << outcome.err;
    EXPECT_EQ(records("measurements.jsonl").size(), 1u);
    EXPECT_NE(outcome.out.find("max_abs"), std::string::npos) << "the table must have the first case: " << outcome.out;
    EXPECT_NE(outcome.err.find("go on with:"), std::string::npos) << outcome.err;
  }
}

// The program writes its measurements even if some of its streams are closed or full.
TEST_F(CliTest, StreamsThatCannotBeWritten) {
  const std::string one =
      one_tile + test::few_samples + "--axis head_dim=64 --axis q_len=64 --axis block_r=16,32 --processes 1 ";
  struct Streams {
    const char* redirections;
    int status;
    bool says;  // whether stderr has a line about stdout
  };
  for (const auto& [redirections, status, says] : {Streams{"2>/dev/full", 0, false},
                                                   {"2>&-", 0, false},
                                                   {"</dev/null >/dev/full", 1, true},
                                                   {"--json >/dev/full", 1, true},
                                                   {">/dev/full 2>/dev/full", 1, false},
                                                   {"<&- >&- 2>&-", 1, false}}) {
    std::filesystem::remove(path("measurements.jsonl"));
    const Outcome outcome = run_shell(one + redirections);
    EXPECT_EQ(outcome.status, status) << redirections << ": " << outcome.err;
    EXPECT_EQ(outcome.err.find("stdout cannot be written") != std::string::npos, says) << redirections << outcome.err;
    EXPECT_EQ(records("measurements.jsonl").size(), 2u) << redirections;
  }
}

// The limit on the size of a file acts like a full disk.
TEST_F(CliTest, AFullDiskFailsNoCase) {
  const Outcome outcome = run_shell(
      one_tile + test::few_samples + "--axis head_dim=64 --axis q_len=64,128,256 --axis block_r=16,32 --processes 2",
      "ulimit -f 4; ");
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  EXPECT_NE(outcome.err.find("cannot append to"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.out.find(" ok, 0 wrong, "), std::string::npos) << outcome.out;
  for (const Json& record : records("measurements.jsonl")) EXPECT_NE(record["status"], "failed");
}

TEST_F(CliTest, ASignalEndsARunWhoseOutputNobodyReads) {
  const std::string before =
      "mkfifo pipe; exec 3<>pipe; head -c 65536 /dev/zero >&3; "
      "(sleep " +
      std::string(is_emulated() ? "20" : "1") +  // in qemu it takes seconds until the program handles signals
      "; kill $$; timeout 20 tail --pid=$$ -f /dev/null || kill -KILL $$) 3>&- & ";
  for (const char* streams : {" 2>&3", " --json --quiet >&3"}) {
    EXPECT_EQ(run_shell(std::string("--budget 60") + streams, before).status, 130) << streams;
    std::filesystem::remove(path("pipe"));
  }
}

// With SIGCHLD ignored, a program cannot get the exit status of its child process, here the worker.
TEST_F(CliTest, TheParentMayIgnoreSigchld) {
  EXPECT_EQ(run_shell("--device cpu --budget nan", "trap '' CHLD; ").status, 2);
}

TEST_F(CliTest, InputAndOutputAreSafetensors) {
  const AttentionShape shape{
      .batch = 2, .q_heads = 6, .kv_heads = 3, .q_len = 19, .kv_len = 45, .head_dim = 24, .causal = true};
  const auto random = [&](int64_t heads, int64_t length, uint64_t stream) {
    return random_tensor(shape.batch, heads, length, shape.head_dim, DType::bf16, Layout::bhsd, 5, stream);
  };
  const Tensor q = random(6, 19, 0), k = random(3, 45, 1), v = random(3, 45, 2);
  const auto stored = [](const Tensor& t) { return StoredTensor{t.dtype, {t.batch, t.heads, t.seq, t.dim}, t.data}; };
  write_safetensors(path("in.safetensors").string(), {{"q", stored(q)}, {"k", stored(k)}, {"v", stored(v)}});
  for (const char* layout : {"bhsd", "bshd"}) {
    const Outcome outcome =
        run({"--input", "in.safetensors", "--axis", "causal=1", "--axis", std::string("layout=") + layout, "--axis",
             "out_dtype=f32", "--only", "verify", "--dump-output", "out.safetensors"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const auto result = read_safetensors(path("out.safetensors").string(), {"o", "lse"});
    EXPECT_EQ(result.at("o").shape, (std::vector<int64_t>{2, 6, 19, 24}));
    const ReferenceRows want = reference_attention(shape, q, k, v, all_rows(shape));
    const auto* o = reinterpret_cast<const float*>(result.at("o").data.data());
    const auto* lse = reinterpret_cast<const float*>(result.at("lse").data.data());
    for (size_t i = 0; i < want.o.size(); ++i) ASSERT_NEAR(o[i], want.o[i], 5e-3) << "element " << i << " of O";
    for (size_t i = 0; i < want.lse.size(); ++i) ASSERT_NEAR(lse[i], want.lse[i], 5e-3) << "log-sum-exp " << i;
  }
}

TEST_F(CliTest, KernelsCompileWithoutWarnings) {
  own_cache();
  const Outcome outcome = run_line(
      "--axis q_len=9 --axis head_dim=24,64 --axis causal=0,1 --axis variant=naive,tiled_scalar,tiled_vector,tuned "
      "--axis dtype=f32,f16,bf16 --axis layout=bhsd --axis block_r=16 --axis block_c=64 --only verify --quiet");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.err, "");
}

TEST_F(CliTest, TheOptionThreadgroupMemorySkipsLargeTiles) {
  const Outcome outcome = run_line(
      "--device cpu:threads=1 --axis variant=tuned --axis q_heads=3 --axis q_len=33 --axis head_dim=40 --axis causal=1 "
      "--axis dtype=f32 --axis out_dtype=f32 --axis layout=bhsd --axis batch=1 --axis block_r=16,128 "
      "--threadgroup-memory 32768 --only verify");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  std::set<std::string> states;
  for (const Json& record : records("measurements.jsonl")) {
    states.insert(record["status"]);
    if (record["status"] == "skipped") {
      EXPECT_NE(record["reason"].get<std::string>().find("32768"), std::string::npos) << record["reason"];
    }
  }
  EXPECT_EQ(states, (std::set<std::string>{"ok", "skipped"}));
}

class DevicesCliTest : public test::ProgramTest {
 protected:
  DevicesCliTest() : ProgramTest("proto1_flash_devices") {}
};

// The command that docs/howto.md shows for two devices.
TEST_F(DevicesCliTest, ComparesRecordedDevices) {
  for (const auto& [device, folder] : {std::pair<std::string, std::string>{"znver4", "here"}, {"h200", "there"}}) {
    const std::string command = fmt::format(ATTN_SOURCE_DIR "/scripts/pages/record --device {} --unpack '{}' > '{}'",
                                            device, path(folder).string(), path("unpacked").string());
    ASSERT_EQ(std::system(command.c_str()), 0);
  }
  const test::Outcome outcome = run({"here", "there"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* words : {"tile_transfers (head_dim=128)", "verdicts_transfer"}) {
    EXPECT_NE(outcome.out.find(words), std::string::npos) << outcome.out;
  }
  EXPECT_FALSE(findings().empty());
}

}  // namespace
}  // namespace attn
