// What the tests of kb share: sound records, a folder of their own, and the program run as a user runs it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "common/finding.h"
#include "findings/kb/store.h"

namespace attn::kb {

struct Outcome {
  int status = -1;  // exit status, or 128 + signal
  std::string out, err;
};

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// All lines that the project's own runs left.
inline std::vector<std::string> recorded_lines() {
  std::vector<std::string> lines;
  for (const auto& folder : std::filesystem::directory_iterator(ATTN_SOURCE_DIR "/findings/recorded")) {
    for (const char* name : {"findings.jsonl", "measurements.jsonl"}) {
      std::ifstream file(folder.path() / name);
      for (std::string line; std::getline(file, line);) lines.push_back(line);
    }
  }
  return lines;
}

inline Timing timing(Scope scope, double median_s, double half_width = 0.005) {
  return {scope,          50,  10, median_s, (1 - half_width) * median_s, (1 + half_width) * median_s, 0.02,
          0.9 * median_s, "ci"};
}

inline Case shape(int64_t head_dim, const std::string& variant = "tuned") {
  Case config;
  config.set("variant", variant);
  config.set("head_dim", head_dim);
  config.set("dtype", std::string("bf16"));
  return config;
}

inline Json measurement(const Case& config, double median_s, const std::string& device = "A CPU, 2 units",
                        const std::string& run = "r1", double half_width = 0.005) {
  Measurement m;
  m.run_id = run;
  m.experiment = "proto1_flash";
  m.device = device;
  m.config = config;
  m.check = Check{true, 1e-6, 1e-4, 128, ""};
  m.work = Work{.flops = 1e9, .bytes = 4e6};
  m.time = {timing(Scope::device_hot, median_s, half_width), timing(Scope::host, 1.5 * median_s)};
  m.dtype = DType::bf16;
  m.matrix_pct = Estimate{50, 49, 51};
  m.pipeline = {{"key", "flash_forward[HEAD_DIM=64]"},
                {"source_sha256", std::string(64, 'a')},
                {"code_sha256", std::string(64, 'b')},
                {"registers", nullptr},
                {"spill_bytes", 0},
                {"threadgroup_bytes", 1024},
                {"instructions", {{"HGMMA", 16}}},
                {"compile_s", 0.1},
                {"cache", "compiled"}};
  m.clocks = {{"core_mhz", 3000.5}, {"throttle_reasons", Json::array()}};
  Json record = to_json(m, {.copy_gbps = 1e6, .f32_tflops = 1e6, .f16_tflops = 1e6, .bf16_tflops = 1e6});
  record["run"] = {{"ts", "2026-01-31T12:00:00Z"}};
  record["id"] = record_id(record);
  return record;
}

/// `ratio` against a threshold of 1.25: above it supported, below refuted.
inline Json finding(double ratio, const std::string& run = "r1", const std::string& device = "A CPU, 2 units",
                    const std::vector<std::string>& measurements = {}, double aa_floor = 0.01) {
  Conclusion conclusion;
  conclusion.hypothesis = "worst_tile";
  conclusion.subject = "head_dim=64 dtype=bf16";
  conclusion.title = "The worst flash attention tile takes {estimate.value:.2f} times the best";
  conclusion.content =
      "At block_r {values.block_r} it takes {estimate.value:.3f} ({estimate.ci_lo:.3f} to {estimate.ci_hi:.3f}).";
  conclusion.tags = {"flash_attention", "d64", "worst_tile", "bf16"};
  conclusion.estimate = {ratio, ratio - 0.01, ratio + 0.01};
  conclusion.aa_floor = aa_floor;
  conclusion.cv = 0.02;
  conclusion.values = {{"block_r", 128}};
  conclusion.measurements = measurements;
  conclusion.compare = Comparison{.hypothesis = "worst_tile",
                                  .baseline = shape(64),
                                  .contender = shape(64, "naive"),
                                  .ratio = conclusion.estimate,
                                  .aa = {1, 1 - aa_floor, 1 + aa_floor / 2},
                                  .cv = 0.02,
                                  .time = {timing(Scope::device_hot, 1e-3), timing(Scope::device_hot, 1e-3 * ratio)}};
  const Hypothesis hypothesis{
      "worst_tile", "The choice of tile matters.", "time of the worst / time of the best", ">=", 1.25, "expectation"};
  Json record = make_finding("proto1_flash", device, hypothesis, conclusion, false,
                             {{"id", run},
                              {"ts", "2026-01-31T12:00:00Z"},
                              {"argv", {"proto1_flash"}},
                              {"seed", 1},
                              {"replay", "proto1_flash --seed 1"}},
                             {{"git", {{"commit", "0123456789abcdef0123"}, {"dirty", false}}}});
  record["data"]["cases"] = {shape(64).json(), shape(64, "naive").json()};
  record["id"] = record_id(record);
  return record;
}

/// A record that was changed by hand, with the id that fits it.
inline Json with_id(Json record) {
  record["id"] = record_id(record);
  return record;
}

class KbTest : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/attn-kb-XXXXXX";
    folder_ = mkdtemp(pattern);
    unsetenv("KB_DB");
    setenv("XDG_DATA_HOME", (folder_ / "data").c_str(), 1);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path path(const std::string& name) const { return folder_ / name; }
  static std::string text_of(const std::filesystem::path& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  std::string write(const std::string& name, const std::vector<Json>& records) const {
    std::ofstream file(path(name));
    for (const Json& record : records) file << record.dump() << "\n";
    return path(name);
  }
  std::string write_text(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }

  /// In the test's folder; stdin is the file `in`, stdout and stderr go to NAME.out and NAME.err.
  pid_t start(const std::vector<std::string>& arguments, const std::string& name = "run",
              const std::string& in = "/dev/null") const {
    const pid_t child = fork();
    if (child != 0) return child;
    if (chdir(folder_.c_str()) != 0) _exit(127);
    const int input = open(in.c_str(), O_RDONLY);
    if (input < 0 || dup2(input, 0) < 0) _exit(127);
    for (const auto& [descriptor, suffix] : {std::pair{1, ".out"}, {2, ".err"}}) {
      const int file = open((name + suffix).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      if (file < 0 || dup2(file, descriptor) < 0) _exit(127);
    }
    std::vector<std::string> all = {ATTN_BINARY_DIR "/kb"};
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
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), text_of(path(name + ".out")),
            text_of(path(name + ".err"))};
  }
  Outcome run(const std::vector<std::string>& arguments, const std::string& in = "/dev/null") const {
    return finish(start(arguments, "run", in));
  }

  std::filesystem::path folder_;
};

}  // namespace attn::kb
