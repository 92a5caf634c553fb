// Tests every experiment on the reverse device (common/testing/reverse) and on a device without kernels, and the engine
// on the reverse device. One test compares the reverse device with docs/recipes/backend.diff, the recipe that makes it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "common/api/engine.h"
#include "common/base/error.h"
#include "common/base/json.h"
#include "common/data/tensor.h"
#include "common/testing/program.h"

namespace attn {
namespace {

namespace fs = std::filesystem;
using test::Outcome;

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

std::string file_text(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST(RecipeTest, TheRecipeMakesTheReverseDevice) {
  const std::string here = "common/testing/reverse/", there = "common/backends/reverse/";
  std::map<std::string, std::string> recipe, device;
  std::istringstream diff(file_text(ATTN_SOURCE_DIR "/docs/recipes/backend.diff"));
  std::string* added = nullptr;
  size_t created = 0;
  for (std::string line; std::getline(diff, line);) {
    if (line.starts_with("diff ")) {
      added = nullptr;
    } else if (line.starts_with("new file")) {
      ++created;
    }
    if (const std::string file = "+++ b/" + there; line.starts_with(file)) {
      added = &recipe[line.substr(file.size())];
    } else if (added && line.starts_with("+")) {
      *added += line.substr(1) + "\n";
    }
  }
  const fs::path folder = fs::path(ATTN_SOURCE_DIR) / here;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    device[fs::relative(entry.path(), folder)] = replaced(file_text(entry.path()), here, there);
  }
  EXPECT_FALSE(recipe.empty());
  EXPECT_EQ(recipe, device);
  EXPECT_EQ(created, device.size());  // the recipe creates only the files of the device
}

bool is_honest(const std::string& reason) {
  const bool whole = !reason.ends_with(' ');  // a list of kernels at the end of a reason must not be empty
  return (whole && reason.starts_with("this device has no kernel for ")) ||
         reason == "path torch: this build has no PyTorch";
}

/// Returns the number of a run's cases by status. Expects that each case is ok, or is skipped for an honest reason.
std::map<std::string, size_t> expect_honest(const std::vector<Json>& records) {
  std::map<std::string, size_t> count;
  for (const Json& record : records) {
    const std::string status = record["status"];
    EXPECT_TRUE(status == "ok" || (status == "skipped" && is_honest(record["reason"]))) << record;
    ++count[status];
  }
  return count;
}

/// `narrowed` leaves out cases, because one thread would take too long for a whole sweep.
struct Program {
  const char *name, *narrowed;
  bool runs;  // whether some of the program's cases can run
};

void PrintTo(const Program& program, std::ostream* out) { *out << program.name; }

class ReverseTest : public test::ProgramTest, public testing::WithParamInterface<Program> {
 protected:
  ReverseTest() : ProgramTest(std::string(GetParam().name) + "_reverse") {}
};

TEST_P(ReverseTest, EveryCaseThatDoesNotRunSaysWhy) {
  for (const char* device : {"reverse", "bare"}) {
    for (const char* profile : {"quick", "full"}) {
      const Outcome outcome = run_line(fmt::format("--device {} --dry-run --json --profile {}", device, profile));
      ASSERT_EQ(outcome.status, 0) << outcome.err;
      std::istringstream lines(outcome.out);
      size_t cases = 0, run = 0;
      for (std::string line; std::getline(lines, line); ++cases) {
        const Json one = parse_json(line);
        EXPECT_TRUE(one["runs"] || is_honest(one["reason"])) << line;
        run += one["runs"].get<bool>();
      }
      EXPECT_GT(cases, 0u);
      if (device == std::string("bare")) {
        EXPECT_EQ(run, 0u);
      }
    }
  }
}

TEST_P(ReverseTest, EveryCaseThatRunsIsRight) {
  const Outcome outcome = run_line(std::string("--device reverse --only verify --quiet ") + GetParam().narrowed);
  ASSERT_EQ(outcome.status, GetParam().runs ? 0 : 4) << outcome.err;
  std::map<std::string, size_t> count = expect_honest(records("measurements.jsonl"));
  EXPECT_EQ(count["ok"] > 0, GetParam().runs);
  EXPECT_GT(count["skipped"], 0u);
}

INSTANTIATE_TEST_SUITE_P(Programs, ReverseTest,
                         testing::Values(Program{"proto1_flash", "--axis q_len=100", true},
                                         Program{"proto2_stitching", "", false}, Program{"proto3_paged", "", false},
                                         Program{"proto4_constants", "", true}, Program{"proto5_codegen", "", false},
                                         Program{"proto6_linear", "--axis q_len=100", true},
                                         Program{"proto7_variants", "--axis variant=naive --axis q_len=100", true},
                                         Program{"proto8_extension", "", false}),
                         [](const auto& test) { return std::string(test.param.name); });

class FlashReverseTest : public test::ProgramTest {
 protected:
  FlashReverseTest() : ProgramTest("proto1_flash_reverse") {}
};

TEST_F(FlashReverseTest, MeasuresAgainstItsCeilings) {
  const Outcome outcome = run_line(
      "--device reverse --axis variant=naive --axis q_len=33 --axis head_dim=64 --axis causal=1 --axis dtype=f32 "
      "--axis layout=bhsd --quiet" +
      test::few_samples);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::vector<Json> all = records("measurements.jsonl");
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0]["status"], "ok") << all[0];
  for (const char* share : {"pct_matrix_ceiling", "pct_copy_ceiling"}) {
    EXPECT_GT(all[0]["rate"][share], 0) << all[0]["rate"];
  }
  EXPECT_TRUE(schema_accepts({"measurements.jsonl"}));
}

TEST_F(FlashReverseTest, ADeviceWithoutOptionsTakesNone) {
  const Outcome outcome = run_line("--device reverse:2 --quiet");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.err, "proto1_flash: device 'reverse:2' is not allowed; reverse takes no options\n");
}

TEST_F(FlashReverseTest, WithoutKernelsNothingIsMeasured) {
  const Outcome outcome = run_line("--device bare --quiet");
  EXPECT_EQ(outcome.status, 4);
  EXPECT_NE(outcome.err.find("this device has no kernel for attention\n"), std::string::npos) << outcome.err;
}

TEST_F(FlashReverseTest, ASweepComparesTheVariantsOfTheDevice) {
  const Outcome outcome = run_line("--device reverse --profile full --dry-run --json");
  std::istringstream lines(outcome.out);
  std::map<std::string, size_t> count;
  for (std::string line; std::getline(lines, line);) {
    const Json one = parse_json(line);
    EXPECT_EQ(one["runs"], one["case"]["variant"] == "naive") << line;
    ++count[one["case"]["variant"]];
  }
  EXPECT_EQ(count.size(), 2u);
  EXPECT_GT(count["naive"], 0u);
  EXPECT_GT(count["tuned"], 0u);  // the blocks of the sweep that set no variant take `tuned`
}

class ConstantsReverseTest : public test::ProgramTest {
 protected:
  ConstantsReverseTest() : ProgramTest("proto4_constants_reverse") {}
};

TEST_F(ConstantsReverseTest, NewProcessesKnowTheDevice) {
  const Outcome outcome = run_line(
      "--device reverse --only verify --quiet --axis task=start_compile,start_disk,start_archive --axis kernel=naive "
      "--axis variants=2");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(expect_honest(records("measurements.jsonl")), (std::map<std::string, size_t>{{"ok", 3}}));
}

/// A user's function. The reverse device has no kernel that evaluates a function alone, as a mask function needs; for a
/// score function, the oracle then evaluates the function in double on the cpu.
struct Function {
  const char *program, *option, *text, *narrowed;
  const char* reason;  // why no case with the function runs; empty: some of these cases run
};

void PrintTo(const Function& function, std::ostream* out) { *out << function.option << " " << function.narrowed; }

class FunctionReverseTest : public test::ProgramTest, public testing::WithParamInterface<Function> {
 protected:
  FunctionReverseTest() : ProgramTest(std::string(GetParam().program) + "_reverse") {}
};

TEST_P(FunctionReverseTest, RunsOrSaysWhatIsMissing) {
  const Function& function = GetParam();
  const std::string file = write_text("function.cpp", function.text);
  const Outcome outcome = run_line(fmt::format("--device reverse --only verify --quiet --axis q_len=40 {} {} {}",
                                               function.option, file, function.narrowed));
  const std::vector<Json> all = records("measurements.jsonl");
  const bool some_ran = std::ranges::any_of(all, [](const Json& record) { return record["status"] == "ok"; });
  ASSERT_EQ(outcome.status, some_ran ? 0 : 4) << outcome.err;
  size_t with_function = 0, run = 0;
  for (const Json& record : all) {
    if (record["case"].dump().find("file-") == std::string::npos) continue;
    ++with_function;
    run += record["status"] == "ok";
    if (*function.reason != '\0') {
      EXPECT_TRUE(std::string(record["reason"]).starts_with(function.reason)) << record;
    }
  }
  expect_honest(all);
  EXPECT_GT(with_function, 0u);
  EXPECT_EQ(run > 0, *function.reason == '\0');
}

constexpr const char* halves = "float score(float s, int, int, const ScoreContext&) { return 0.5f * s; }\n";
constexpr const char* hides = "bool visible(int q, int k) { return (q + k) % 3 != 0; }\n";
constexpr const char* squares = "float feature(float x) { return x * x; }\n";
INSTANTIATE_TEST_SUITE_P(
    Functions, FunctionReverseTest,
    testing::Values(Function{"proto2_stitching", "--score-function", halves, "",
                             "this device has no kernel for variant tuned that calls a score function"},
                    Function{"proto6_linear", "--feature-function", squares, "",
                             "this device has no kernel for linear attention"},
                    Function{"proto7_variants", "--score-function", halves, "",
                             "this device has no kernel for variant tuned; it has naive"},
                    Function{"proto7_variants", "--score-function", halves, "--axis variant=naive", ""},
                    Function{"proto7_variants", "--mask-function", hides, "--axis variant=naive",
                             "this device has no kernel for evaluating a mask function alone, as the oracle does"}),
    [](const auto& test) { return fmt::format("{}_{}", test.index, test.param.program); });

class ReverseEngineTest : public testing::Test {
 protected:
  static std::string message_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const BadInput& error) {
      return error.what();
    }
    return "served";
  }
  static TensorView view_of(Tensor& tensor) {
    return {tensor.data.data(), tensor.dtype, tensor.batch, tensor.heads, tensor.seq, tensor.dim, tensor.strides()};
  }
};

TEST_F(ReverseEngineTest, SaysWhatTheDeviceLacks) {
  Engine engine("reverse");
  for (const int64_t rows : {64, 1}) {
    Tensor q = Tensor::zeros(1, 2, rows, 64, DType::f32, Layout::bhsd), o = q;
    Tensor k = Tensor::zeros(1, 2, 64, 64, DType::f32, Layout::bhsd), v = k;
    const auto fill = [&](auto& call) {
      call.q = view_of(q);
      call.k = view_of(k);
      call.v = view_of(v);
      call.o = view_of(o);
    };
    FlashCall flash;
    fill(flash);
    EXPECT_EQ(message_of([&] { engine.flash(flash); }), "this device has no kernel for variant tuned; it has naive");
    const int length = 64;
    CacheCall decode;
    fill(decode);
    decode.lengths = &length;
    EXPECT_EQ(message_of([&] { engine.decode(decode); }), "this device has no kernel for decoding");
  }
  // Without tokens the engine only copies the state, with the kernel that copies a caller's tables.
  Tensor none = Tensor::zeros(1, 1, 0, 8, DType::f32, Layout::bhsd);
  std::vector<float> before(64), after(64);
  LinearCall call;
  call.q = call.k = call.v = call.o = view_of(none);
  call.initial_state = before.data();
  call.final_state = after.data();
  EXPECT_EQ(message_of([&] { engine.linear(call); }), "this device has no kernel for copying tables of a caller");
}

}  // namespace
}  // namespace attn
