#include "findings/kb/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "common/base/json.h"
#include "findings/kb/tests/support.h"

namespace attn::kb {
namespace {

/// Adds variants of a record: in each, one field within the value `at` is missing, or has another value.
void add_variants(const Json& record, const Json::json_pointer& at, std::vector<Json>& all) {
  const Json& part = record.at(at);
  for (const auto& [key, field] : part.items()) {
    all.push_back(record);
    if (part.is_object()) all.back()[at].erase(key);
    std::vector<Json> others = {"no", 0};
    if (field.is_string()) others = {"no", "", 1};
    if (field.is_number()) others = {"1", 0, -1, 0.5};
    if (field.is_array()) others = {"no", Json::array()};
    if (field.is_object()) others = {"no", Json::object()};
    for (const Json& other : others) {
      all.push_back(record);
      all.back()[at / key] = other;
    }
    if (field.is_structured()) add_variants(record, at / key, all);
  }
}

class CheckSchemaTest : public KbTest {};

TEST_F(CheckSchemaTest, RefusesWhatAnotherValidatorRefuses) {
  Json measured = measurement(shape(64), 1e-3);
  measured["pipeline"].update({{"registers", 128}, {"code_bytes", 4096}, {"hooks", {{{"file", "f"}, {"text", ""}}}}});
  measured["values"] = {{"calls", 3}};
  measured["clocks"].update({{"memory_mhz", 1.0}, {"power_w", 1.0}, {"throttle_reasons", {"power"}}, {"readings", 3}});
  std::vector<Json> all;
  for (const Json& record : {measured, finding(1.5, "r1", "A CPU", {"0123456789abcdef"}), exact_finding(2), header()}) {
    EXPECT_EQ(check_schema(record), std::vector<std::string>{});
    add_variants(record, Json::json_pointer(), all);
  }
  std::set<std::string> refused, by_other;  // "line 7"
  for (size_t i = 0; i < all.size(); ++i) {
    if (!check_schema(all[i]).empty()) refused.insert(fmt::format("line {}", i + 1));
  }
  const std::string file = write("all.jsonl", all),
                    command = fmt::format("{}/findings/validate {} > {}", ATTN_SOURCE_DIR, file, path("out").string());
  const int ended = std::system(command.c_str()), status = WEXITSTATUS(ended);
  if (status == 77) GTEST_SKIP() << "python3-jsonschema is not installed";
  for (const std::string& line : lines_of(text_of(path("out")))) {
    if (line.starts_with(file))
      by_other.insert(line.substr(file.size() + 2, line.find(':', file.size() + 2) - file.size() - 2));
  }
  EXPECT_GT(refused.size(), 500u);
  EXPECT_LT(refused.size(), all.size());
  EXPECT_EQ(refused, by_other);
}

// An emulated device says only whether results are right.
TEST(CheckEmulated, NoTimesAndNoFindings) {
  EXPECT_EQ(check_schema(measurement(shape(64), 1e-3, "emulated, 1 units")).size(), 4u)
      << "time, rate, clocks, pipeline.compile_s";
  EXPECT_EQ(check_schema(emulated_measurement()), std::vector<std::string>{});
  // No pooled claim or spread may come from an emulated device.
  EXPECT_EQ(check_schema(finding(1.5, "r1", "emulated, 1 units")).size(), 1u);
  EXPECT_EQ(check_schema(finding(1.5)), std::vector<std::string>{});
}

// Each row changes some fields of a sound record.
TEST(CheckSchema, AProblemNamesThePathAndWhatIsAllowed) {
  const Json measured = measurement(shape(64), 1e-3), found = finding(1.5), head = header();
  const Json skipped = changed(measured, {{"/status", "skipped"}, {"/reason", "too large"}, {"/rate", nullptr}});
  const Json bad_check = {{"ok", false}, {"max_abs", 1}, {"max_rel", 1}, {"rows_checked", 1}, {"worst", ""}};
  for (const Json& sound : {measured, found, head, skipped}) EXPECT_EQ(check_schema(sound), std::vector<std::string>{});
  for (const auto& [record, pointer, value, problem] : std::vector<std::tuple<Json, const char*, Json, const char*>>{
           {found, "/data/verdict/state", "maybe", "one of supported, refuted, inconclusive"},
           {found, "/domain", "d", "must be attention_kernels"},
           {found, "/id", "12ab", "must be 16 hex digits"},
           {head, "/run/ts", "today", "must be like 2025-01-31T12:00:00Z"},
           {found, "/data/compare/baseline/Head", 1, "must be a name of an axis"},
           {found, "/data/compare/contender/d", 64.0, "written without a fraction"},
           {measured, "/case/head_dim", 64.0, "written without a fraction"},
           {found, "/data/compare", "no", "must be an object or null"},
           {found, "/tags", {"a", "a"}, "must not have an element twice"},
           {measured, "/time/0/median_s", 0, "must be above 0"},
           {measured, "/pipeline/instructions/HGMMA", 0, "must be at least 1"},
           {measured, "/phases", {1}, "must have at least 2 elements"},
           {measured, "/check", nullptr, "must be an object where the status is ok"},
           {skipped, "/rate", measured["rate"], "must be null where the status is not ok"}}) {
    Json wrong = record;
    wrong[Json::json_pointer(pointer)] = value;
    const std::vector<std::string> problems = check_schema(wrong);
    std::string path = std::string(pointer).substr(1);
    std::ranges::replace(path, '/', '.');
    ASSERT_FALSE(problems.empty()) << pointer;
    expect_has(problems.front(), {path + ": ", problem});
  }
  EXPECT_EQ(check_schema(changed(measured, {{"/check", bad_check}})).size(), 2u)
      << "check.ok must be true, and check.worst must not be empty";
  for (const char* text :
       {"1", "null", "[]", "\"finding/2\"", "{}", R"({"schema":null})", R"({"schema":"finding/3"})",
        R"({"schema":"note/1"})", R"({"schema":["finding/2"]})", R"({"schema":"finding/2","data":[]})",
        R"({"schema":"measurement/1","case":3,"time":{},"check":"no"})"}) {
    EXPECT_FALSE(check_schema(parse_json(text)).empty()) << text;
  }
}

TEST(CheckSchema, CountsTheCharactersOfAText) {
  EXPECT_EQ(deviations(parse_json(R"({"minLength": 3})"), "\u00e4\u00f6"),
            std::vector<std::string>{"must have at least 3 characters"});
}

TEST(CheckUnits, AQuantityNamesItsUnit) {
  Json record = finding(1.5);
  record["data"]["values"] = {{"launch_time_s", 1}, {"time_ratio", 2.0}, {"points", 3},
                              {"memory_bytes", 5},  {"head_dim", 64},    {"times", 4}};
  EXPECT_EQ(check_units(record), std::vector<std::string>{});
  record["data"]["values"] = {{"launch_time", 1}, {"peak_memory", 2}, {"latency_ms", 3}};
  const auto problems = check_units(record);
  ASSERT_EQ(problems.size(), 2u);
  EXPECT_EQ(problems[0].find("data.values.launch_time:"), 0u) << problems[0];
  EXPECT_EQ(problems[1].find("data.values.peak_memory:"), 0u) << problems[1];
}

}  // namespace
}  // namespace attn::kb
