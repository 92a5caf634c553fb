// Tests of the answers to the statements of published studies (findings/kb/published.h).
#include "findings/kb/published.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/base/json.h"
#include "common/base/temporary_folder.h"

namespace attn::kb {
namespace {

/// A figure with the interval of the next run.
struct Figure {
  double value, next_lo, next_hi;
  bool exact = false, warm = false, correct = true;
  double floor = 0;
};

Conclusion conclusion(const Figure& figure) {
  Conclusion result;
  result.parts = {{.process = 1, .value = figure.value, .error = 0, .rounds = 50}};
  result.estimate.value = figure.value;
  result.estimate.next_lo = figure.next_lo;
  result.estimate.next_hi = figure.next_hi;
  result.relative = figure.value > 0;
  result.exact = figure.exact, result.warm = figure.warm, result.correct = figure.correct, result.floor = figure.floor;
  return result;
}

struct Answered {
  const char *range, *better;
  Figure figure;
  const char* answer;
};

TEST(PublishedAnswer, SaysOnWhichSideOfTheRangeTheNextRunLies) {
  for (const auto& [range, better, figure, answer] :
       std::vector<Answered>{// "2 to 17 us"
                             {"[2, 17]", "lower", {5, 4, 6}, "within"},
                             {"[2, 17]", "lower", {83, 80, 86}, "worse"},
                             {"[2, 17]", "lower", {1.2, 1.1, 1.3}, "better"},
                             {"[2, 17]", "lower", {16, 14, 18}, "undecided"},
                             {"[2, 17]", "lower", {2.1, 1.9, 2.3}, "undecided"},
                             {"[2, 17]", "lower", {9, 1, 80}, "undecided"},
                             {"[2, 17]", "lower", {2.5, 2, 17}, "within"},  // an end belongs to the range
                                                                            // a rate
                             {"[0.063, 0.103]", "higher", {3, 2.9, 3.1}, "better"},
                             {"[0.063, 0.103]", "higher", {0.01, 0.009, 0.011}, "worse"},
                             // exponents: "linear", and "the same time at any length", where the figure may be below 0
                             {"[0.95, 1.05]", "lower", {0.71, 0.68, 0.74}, "better"},
                             {"[-0.05, 0.05]", "lower", {0.01, -0.02, 0.04}, "within"},
                             {"[-0.05, 0.05]", "lower", {-0.2, -0.3, -0.1}, "better"},
                             {"[-0.05, 0.05]", "lower", {0.3, 0.2, 0.4}, "worse"},
                             // percentages: "39 %", "at least 39 %", "less than 1 %", "0.04 to 0.09 %"
                             {"[1.385, 1.395]", "lower", {1.39, 1.387, 1.393}, "within"},
                             {"[1.39, null]", "lower", {4, 3.9, 4.1}, "within"},
                             {"[1.39, null]", "lower", {1.1, 1.09, 1.11}, "better"},
                             {"[1.39, null]", "lower", {1.4, 1.38, 1.42}, "undecided"},
                             {"[null, 1.01]", "lower", {0.99, 0.98, 1}, "within"},
                             {"[null, 1.01]", "lower", {1.2, 1.1, 1.3}, "worse"},
                             {"[0.0004, 0.0009]", "lower", {0.0018, 0.0017, 0.0019}, "worse"},
                             {"[null, 10]", "higher", {100, 90, 110}, "better"},
                             // exact figures
                             {"[1, null]", "lower", {1, 1, 1, true}, "within"},
                             {"[1, null]", "lower", {0.99, 0.99, 0.99, true}, "better"},
                             {"[null, 1]", "lower", {1.01, 1.01, 1.01, true}, "worse"},
                             // figures that judge() leaves open
                             {"[2, 17]", "lower", {83, 80, 86, false, true}, "undecided"},
                             {"[2, 17]", "lower", {83, 80, 86, false, false, false}, "undecided"},
                             {"[2, 17]", "lower", {83, 80, 86, true, false, false}, "undecided"},
                             {"[2, 17]", "lower", {17.5, 17.1, 18, false, false, true, 0.1}, "undecided"}}) {
    const Json statement = {{"range", Json::parse(range)}, {"better", better}};
    EXPECT_EQ(published_answer(statement, conclusion(figure)), answer)
        << range << " " << better << " " << figure.value << " [" << figure.next_lo << ", " << figure.next_hi << "]";
  }
}

TEST(PublishedStatements, AreAnsweredByTheHypothesesThatTheyName) {
  const TemporaryFolder tree;
  EXPECT_TRUE(published_statements(tree.path()).empty());
  std::filesystem::create_directories(std::filesystem::path(tree.path()) / "findings/published");
  const std::string file = std::filesystem::path(tree.path()) / "findings/published/s.json";
  std::ofstream(file) << R"({"where": {"dtype": "f32", "n": [16, 32]}, "claims": [
      {"id": "1a", "experiment": "p", "hypothesis": "h", "range": [1, 2], "better": "lower"},
      {"id": "1b", "experiment": "p", "hypothesis": "h", "range": [3, null], "better": "lower"},
      {"id": "1c", "experiment": "p", "hypothesis": "h", "where": {"m": 0}, "range": [1, 2], "better": "lower"},
      {"id": "1d", "experiment": "p", "hypothesis": "h", "where": {"m": 2, "n": null}, "range": [1, 2],
       "better": "lower"},
      {"id": "1e", "experiment": "p", "hypothesis": "h", "where": {"n": [8, 16], "dtype": "bf16"}, "range": [1, 2],
       "better": "lower"},
      {"id": "2", "experiment": "q", "hypothesis": "h", "range": [1, 2], "better": "lower"},
      {"id": "3", "experiment": "p", "why_not": "no figure"}]})";
  const Conclusion figure = conclusion({1.5, 1.4, 1.6});
  const auto answered = [&](const std::string& hypothesis, const char* cases) {
    std::string ids;
    const auto answers =
        published_answers(published_statements(tree.path()), "p", hypothesis, parse_json(cases), figure);
    for (const auto& [id, answer] : answers.items()) ids += fmt::format("{} {}, ", id, answer.get<std::string>());
    return ids;
  };
  const std::string both = "s/1a within, s/1b better, ";
  EXPECT_EQ(answered("h", R"([{"dtype": "f32", "m": 2, "n": 16}])"), both + "s/1d within, ");
  EXPECT_EQ(answered("h", R"([{"dtype": "f32", "m": 0, "n": 0}])"), both + "s/1c within, ") << "n=0: without a size";
  EXPECT_EQ(answered("h", R"([{"m": 1}])"), both + "s/1e within, ");
  EXPECT_EQ(answered("h", R"([{"dtype": "f32", "m": 2, "n": 64}])"), "s/1d within, ") << "another n than the study's";
  EXPECT_EQ(answered("h", R"([{"dtype": "bf16", "m": 1, "n": 8}])"), "s/1e within, ");
  EXPECT_EQ(answered("h", R"([{"m": 1, "n": 16}, {"m": 1, "n": 64}])"), "") << "one of the cases is not the study's";
  EXPECT_EQ(answered("other", R"([{"n": 16}])"), "");
  std::ofstream(file) << "{";
  EXPECT_THROW(published_statements(tree.path()), BadInput);
}

}  // namespace
}  // namespace attn::kb
