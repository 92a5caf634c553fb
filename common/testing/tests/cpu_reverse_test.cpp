// Tests every experiment on the reverse device (common/testing/reverse) and on a device without kernels, and the engine
// on the reverse device.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "common/api/engine.h"
#include "common/base/error.h"
#include "common/base/json.h"
#include "common/data/tensor.h"
#include "common/testing/messages.h"
#include "common/testing/program.h"

namespace attn {
namespace {

using test::Outcome;

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

/// The experiments of which some cases can run on the reverse device, and axes that leave out cases, because one thread
/// would take too long for a whole sweep.
const std::map<std::string, std::string> some_cases = {{"proto1_flash", "--axis q_len=100"},
                                                       {"proto4_constants", ""},
                                                       {"proto6_linear", "--axis q_len=100"},
                                                       {"proto7_variants", "--axis variant=naive --axis q_len=100"}};

std::vector<std::string> experiments() {
  std::istringstream names(ATTN_EXPERIMENTS);
  return {std::istream_iterator<std::string>(names), {}};
}

/// The program has all experiments, and takes the experiment's name before its options.
class ReverseExperiments : public test::ProgramTest {
 protected:
  ReverseExperiments() : ProgramTest("reverse_experiments") {}
};
class ReverseTest : public ReverseExperiments, public testing::WithParamInterface<std::string> {};

TEST_P(ReverseTest, EveryCaseThatDoesNotRunSaysWhy) {
  for (const std::string options : {"reverse --profile quick", "reverse --profile full", "bare --profile quick"}) {
    const Outcome outcome = run_line(fmt::format("{} --dry-run --json --device {}", GetParam(), options));
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    std::istringstream lines(outcome.out);
    size_t cases = 0;
    for (std::string line; std::getline(lines, line); ++cases) {
      const Json one = parse_json(line);
      EXPECT_TRUE(one["runs"] || is_honest(one["reason"])) << line;
      EXPECT_FALSE(one["runs"] && options.starts_with("bare")) << line;
    }
    EXPECT_GT(cases, 0u);
  }
}

TEST_P(ReverseTest, EveryCaseThatRunsIsRight) {
  const bool runs = some_cases.contains(GetParam());
  const Outcome outcome = run_line(
      fmt::format("{} --device reverse --only verify --quiet {}", GetParam(), runs ? some_cases.at(GetParam()) : ""));
  ASSERT_EQ(outcome.status, runs ? 0 : 4) << outcome.err;
  std::map<std::string, size_t> count = expect_honest(records("measurements.jsonl"));
  EXPECT_EQ(count["ok"] > 0, runs);
  EXPECT_GT(count["skipped"], 0u);
}

INSTANTIATE_TEST_SUITE_P(Programs, ReverseTest, testing::ValuesIn(experiments()),
                         [](const auto& test) { return test.param; });

TEST_F(ReverseExperiments, MeasuresAgainstItsCeilings) {
  const Outcome outcome = run_line(
      "proto1_flash --device reverse --axis variant=naive --axis q_len=33 --axis head_dim=64 --axis causal=1 --axis "
      "dtype=f32 "
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

TEST_F(ReverseExperiments, DevicesThatAreRefused) {
  const Outcome options = run_line("proto1_flash --device reverse:2 --quiet");
  EXPECT_EQ(options.status, 2);
  test::expect_words(options.err, {"'reverse:2'", "takes no options"});
  const Outcome bare = run_line("proto1_flash --device bare --quiet");
  EXPECT_EQ(bare.status, 4);
  test::expect_words(bare.err, {"this device has no kernel for attention"});
}

TEST_F(ReverseExperiments, ASweepComparesTheVariantsOfTheDevice) {
  const Outcome outcome = run_line("proto1_flash --device reverse --profile full --dry-run --json");
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

TEST_F(ReverseExperiments, NewProcessesKnowTheDevice) {
  const Outcome outcome = run_line(
      "proto4_constants --device reverse --only verify --quiet --axis task=start_compile,start_disk,start_archive "
      "--axis kernel=naive "
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

class FunctionReverseTest : public ReverseExperiments, public testing::WithParamInterface<Function> {};

TEST_P(FunctionReverseTest, RunsOrSaysWhatIsMissing) {
  const Function& function = GetParam();
  const std::string file = write_text("function.cpp", function.text);
  const Outcome outcome = run_line(fmt::format("{} --device reverse --only verify --quiet --axis q_len=40 {} {} {}",
                                               function.program, function.option, file, function.narrowed));
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

TEST(ReverseEngineTest, SaysWhatTheDeviceLacks) {
  const auto view_of = [](Tensor& tensor) {
    return TensorView{tensor.data.data(), tensor.dtype, tensor.batch,    tensor.heads,
                      tensor.seq,         tensor.dim,   tensor.strides()};
  };
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
    test::expect_error<BadInput>([&] { engine.flash(flash); }, {"no kernel for variant tuned"});
    const int length = 64;
    CacheCall decode;
    fill(decode);
    decode.lengths = &length;
    test::expect_error<BadInput>([&] { engine.decode(decode); }, {"no kernel for decoding"});
  }
  // Without tokens the engine only copies the state, with the kernel that copies a caller's tables.
  Tensor none = Tensor::zeros(1, 1, 0, 8, DType::f32, Layout::bhsd);
  std::vector<float> before(64), after(64);
  LinearCall call;
  call.q = call.k = call.v = call.o = view_of(none);
  call.initial_state = before.data();
  call.final_state = after.data();
  test::expect_error<BadInput>([&] { engine.linear(call); }, {"no kernel for copying tables"});
}

}  // namespace
}  // namespace attn
