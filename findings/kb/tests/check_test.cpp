#include "findings/kb/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "common/base/file.h"
#include "common/base/json.h"
#include "findings/kb/schema.h"
#include "findings/kb/tests/support.h"

namespace attn::kb {
namespace {

/// Breaks a sound record in ways that the JSON schema forbids, and expects check_schema() to report each.
class SchemaWalk {
 public:
  explicit SchemaWalk(Json record) : record_(std::move(record)) {
    schema_ = parse_json(read_file(ATTN_SOURCE_DIR "/findings/record.schema.json").value());
  }

  std::vector<Json> walk(const std::string& definition) {
    EXPECT_EQ(check_schema(record_), std::vector<std::string>{}) << record_;
    visit(schema_["$defs"][definition], "");
    return broken_;
  }

 private:
  void expect_bad(const Json& record, const std::string& what) {
    broken_.push_back(record);
    EXPECT_FALSE(check_schema(record).empty()) << what << " passes";
  }

  void replace(const std::string& pointer, const Json& value) {
    Json copy = record_;
    copy[Json::json_pointer(pointer)] = value;
    expect_bad(copy, fmt::format("{} = {}", pointer, value.dump()));
  }

  void visit(const Json& given, const std::string& pointer) {
    if (given.contains("$ref")) {
      return visit(schema_["$defs"][given["$ref"].get<std::string>().substr(std::string("#/$defs/").size())], pointer);
    }
    const Json& value = pointer.empty() ? record_ : record_.at(Json::json_pointer(pointer));
    if (given.contains("anyOf")) {
      for (const Json& choice : given["anyOf"]) {
        if (!(choice.contains("type") && choice["type"] == "null")) visit(choice, pointer);
      }
      return;
    }
    for (const Json& part : given.value("allOf", Json::array())) visit(part, pointer);
    if (given.contains("enum") || given.contains("const")) {
      replace(pointer, "bogus");
      replace(pointer, 0.123);
    }
    const auto is = [&](const char* type) {
      const Json& types = given.value("type", Json::array());
      return types == type || (types.is_array() && std::find(types.begin(), types.end(), type) != types.end());
    };
    if (is("string")) replace(pointer, 1);
    if (is("boolean")) replace(pointer, "true");
    if (is("number") || is("integer")) replace(pointer, "1");
    if (is("integer")) replace(pointer, 1.5);
    if (is("array") || (is("object") && !pointer.empty())) replace(pointer, "text");
    if (given.contains("minLength")) replace(pointer, "");
    if (given.contains("pattern")) replace(pointer, "no");
    if (given.contains("minimum")) replace(pointer, given["minimum"].get<int>() - 1);
    if (given.contains("exclusiveMinimum")) replace(pointer, given["exclusiveMinimum"]);
    if (given.contains("maximum")) replace(pointer, given["maximum"].get<double>() + 1);
    if (given.contains("uniqueItems")) replace(pointer, {"a", "a"});
    if (given.contains("minItems")) replace(pointer, Json::array());
    if (given.contains("minProperties")) replace(pointer, Json::object());
    for (const Json& key : given.value("required", Json::array())) {
      Json copy = record_;
      copy[Json::json_pointer(pointer)].erase(key.get<std::string>());
      expect_bad(copy, fmt::format("{} without {}", pointer, key.dump()));
    }
    const Json properties = given.value("properties", Json::object());
    for (const auto& [key, child] : properties.items()) {
      if (value.contains(key) && !value[key].is_null()) visit(child, pointer + "/" + key);
    }
    if (given.contains("items") && !value.empty()) visit(given["items"], pointer + "/0");
  }

  Json schema_, record_;
  std::vector<Json> broken_;
};

class CheckSchemaTest : public KbTest {};

TEST_F(CheckSchemaTest, AgreesWithAnotherValidator) {
  Json measured = measurement(shape(64), 1e-3);
  measured["pipeline"]["registers"] = 128;
  measured["pipeline"]["code_bytes"] = 4096;
  measured["pipeline"]["hooks"] = Json::array({{{"file", "score.h"}, {"text", ""}}});
  measured["values"] = {{"calls", 3}};
  measured["clocks"] = {{"core_mhz", 1.0},       {"core_min_mhz", 1.0},           {"memory_mhz", 1.0}, {"power_w", 1.0},
                        {"temperature_c", 60.0}, {"throttle_reasons", {"power"}}, {"readings", 3}};
  std::vector<Json> broken = SchemaWalk(measured).walk("measurement");
  EXPECT_GT(broken.size(), 100u);
  for (const auto& [definition, record, least] :
       {std::tuple{"finding", finding({1.5, 1.52}, "r1", "A CPU", {"0123456789abcdef"}), 200u},
        {"finding", exact_finding(2), 60u},
        {"run", header(), 30u}}) {
    const std::vector<Json> more = SchemaWalk(record).walk(definition);
    EXPECT_GT(more.size(), least) << definition;
    broken.insert(broken.end(), more.begin(), more.end());
  }
  const std::string command =
      fmt::format("{}/findings/validate {} > {}", ATTN_SOURCE_DIR, write("broken.jsonl", broken), path("out").string());
  const int status = WEXITSTATUS(std::system(command.c_str()));
  if (status == 77) GTEST_SKIP() << "python3-jsonschema is not installed";
  EXPECT_EQ(status, 1);
  EXPECT_EQ(lines_of(text_of(path("out"))).back(), fmt::format("0 of {} records are valid", broken.size()));
}

// An emulated device says only whether results are right.
TEST(CheckEmulated, NoTimesAndNoFindings) {
  EXPECT_TRUE(is_emulated("emulated, 1 units"));
  EXPECT_FALSE(is_emulated("A CPU, 2 units"));
  Json record = measurement(shape(64), 1e-3, "emulated, 1 units");
  EXPECT_EQ(check_schema(record).size(), 4u) << "time, rate, clocks, pipeline.compile_s";
  record["time"] = Json::array();
  record["rate"] = record["clocks"] = record["pipeline"]["compile_s"] = nullptr;
  EXPECT_EQ(check_schema(record), std::vector<std::string>{});
  // No pooled claim, spread or advice may come from an emulated device.
  EXPECT_EQ(check_schema(finding(1.5, "r1", "emulated, 1 units")).size(), 1u);
  EXPECT_EQ(check_schema(finding(1.5)), std::vector<std::string>{});
}

// Each row changes some fields of a sound record.
TEST(CheckSchema, AProblemNamesThePathAndWhatIsAllowed) {
  const Json measured = measurement(shape(64), 1e-3), found = finding(1.5), head = header();
  Json skipped = measured;
  skipped.update({{"status", "skipped"}, {"reason", "too large"}, {"rate", nullptr}});
  const Json bad_check = {{"ok", false}, {"max_abs", 1}, {"max_rel", 1}, {"rows_checked", 1}, {"worst", ""}};
  for (const Json& sound : {measured, found, head, skipped}) EXPECT_EQ(check_schema(sound), std::vector<std::string>{});
  for (const auto& [record, pointer, value, problem] : std::vector<std::tuple<Json, const char*, Json, const char*>>{
           {found, "/data/verdict/state", "maybe", "one of supported, refuted, inconclusive"},
           {found, "/domain", "d", "must be attention_kernels"},
           {found, "/confidence", 1.5, "must be at most 1"},
           {found, "/id", "12ab", "must be 16 hex digits"},
           {head, "/run/ts", "today", "must be like 2025-01-31T12:00:00Z"},
           {head, "/run/argv", Json::array(), "must not be empty"},
           {found, "/data/compare/baseline/Head", 1, "must be a name of an axis"},
           {found, "/data/compare/contender/d", 0.5, "must be an integer or a text"},
           {found, "/data/compare/contender/d", 64.0, "written without a fraction"},
           {measured, "/case/head_dim", 64.0, "written without a fraction"},
           {found, "/data/compare", "no", "must be an object or null"},
           {found, "/data/correct", 1, "must be true or false"},
           {found, "/tags", {"a", "a"}, "must not have an element twice"},
           {measured, "/time/0/median_s", 0, "must be above 0"},
           {measured, "/time/0/n", 1.5, "must be an integer"},
           {measured, "/pipeline/instructions/HGMMA", 0, "must be at least 1"},
           {measured, "/phases", {1}, "must have at least 2 elements"},
           {measured, "/run/commit", 3, "must be a text or null"},
           {measured, "/run/machine", 3, "must be a text or null"},
           {measured, "/check", nullptr, "must be an object where the status is ok"},
           {skipped, "/reason", "", "must not be empty where the status is not ok"},
           {skipped, "/rate", measured["rate"], "must be null where the status is not ok"}}) {
    Json changed = record;
    changed[Json::json_pointer(pointer)] = value;
    std::string path = std::string(pointer).substr(1);
    std::ranges::replace(path, '/', '.');
    ASSERT_FALSE(check_schema(changed).empty()) << pointer;
    expect_has(check_schema(changed).front(), {path + ": ", problem});
  }
  Json wrong = measured;
  wrong["check"] = bad_check;
  EXPECT_EQ(check_schema(wrong).size(), 2u) << "check.ok must be true, and check.worst must not be empty";
  for (const char* text :
       {"1", "null", "[]", "\"finding/2\"", "{}", R"({"schema":null})", R"({"schema":"finding/3"})",
        R"({"schema":"note/1"})", R"({"schema":["finding/2"]})", R"({"schema":"finding/2","data":[]})",
        R"({"schema":"measurement/1","case":3,"time":{},"check":"no"})"}) {
    EXPECT_FALSE(check_schema(parse_json(text)).empty()) << text;
  }
}

TEST(CheckSchema, ASchemaWithAnUnknownKeywordOrReferenceIsRefused) {
  for (const char* text : {R"({"maxLength": 3})", R"({"properties": {"a": {"items": {"format": "date"}}}})",
                           R"({"$ref": "#/$defs/nowhere"})", R"({"$ref": "other.json"})", R"({"pattern": "("})"}) {
    EXPECT_ANY_THROW(Schema{parse_json(text)}) << text;
  }
  EXPECT_EQ(Schema(parse_json(R"({"minLength": 3})")).problems("\u00e4\u00f6"),
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
