#include "findings/kb/check.h"

#include <fmt/format.h>

#include "findings/kb/tests/support.h"

namespace attn::kb {
namespace {

Json note() {
  return to_json(Note{.domain = "attention_kernels",
                      .topic = "softmax",
                      .claim = "A claim",
                      .evidence = "Evidence",
                      .url = "https://example.org",
                      .title = "A page",
                      .type = "blog_post",
                      .confidence = 0.5,
                      .tags = {"softmax"}});
}

TEST(CheckSchema, TakesWhatTheExperimentsRecorded) {
  size_t lines = 0;
  for (const std::string& line : recorded_lines()) {
    ++lines;
    const Json record = Json::parse(line);
    EXPECT_EQ(check_schema(record), std::vector<std::string>{}) << record["id"];
    EXPECT_EQ(check_units(record), std::vector<std::string>{}) << record["id"];
  }
  EXPECT_GT(lines, 100u);
}

/// Breaks a sound record in every way that the JSON schema forbids, and expects check_schema to see each.
class SchemaWalk {
 public:
  explicit SchemaWalk(Json record) : record_(std::move(record)) {
    std::ifstream file(ATTN_SOURCE_DIR "/findings/record.schema.json");
    schema_ = Json::parse(file);
  }

  int walk(const std::string& definition) {
    EXPECT_EQ(check_schema(record_), std::vector<std::string>{}) << record_;
    visit(schema_["$defs"][definition], "");
    return broken_;
  }

 private:
  void expect_bad(const Json& record, const std::string& what) {
    ++broken_;
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
  int broken_ = 0;
};

TEST(CheckSchema, AgreesWithTheJsonSchema) {
  Json measured = measurement(shape(64), 1e-3);
  measured["pipeline"]["registers"] = 128;
  measured["pipeline"]["code_bytes"] = 4096;
  measured["values"] = {{"calls", 3}};
  measured["clocks"] = {{"core_mhz", 1.0},       {"core_min_mhz", 1.0},           {"memory_mhz", 1.0}, {"power_w", 1.0},
                        {"temperature_c", 60.0}, {"throttle_reasons", {"power"}}, {"readings", 3}};
  EXPECT_GT(SchemaWalk(measured).walk("measurement"), 100);
  EXPECT_GT(SchemaWalk(finding(1.5, "r1", "A CPU", {"0123456789abcdef"})).walk("finding"), 150);
  EXPECT_GT(SchemaWalk(note()).walk("note"), 20);
}

TEST(CheckSchema, StatusDecidesWhatMustBeThere) {
  Json skipped = measurement(shape(64), 1e-3);
  skipped["status"] = "skipped";
  EXPECT_EQ(check_schema(skipped).size(), 2u) << "the reason is missing, and a rate is there";
  skipped["reason"] = "too large";
  skipped["rate"] = nullptr;
  EXPECT_EQ(check_schema(skipped), std::vector<std::string>{});
  skipped["check"] = {{"ok", false}, {"max_abs", 1}, {"max_rel", 1}, {"rows_checked", 1}, {"worst", ""}};
  EXPECT_EQ(check_schema(skipped).size(), 1u) << "the wrong element is not named";
  Json ok = measurement(shape(64), 1e-3);
  ok["check"] = nullptr;
  EXPECT_EQ(check_schema(ok).size(), 1u);
  ok["check"] = {{"ok", false}, {"max_abs", 1}, {"max_rel", 1}, {"rows_checked", 1}, {"worst", "o[1]"}};
  EXPECT_EQ(check_schema(ok).size(), 1u);
}

TEST(CheckSchema, SaysWhereAndWhatOfAnything) {
  Json record = finding(1.5);
  record["data"]["verdict"]["state"] = "maybe";
  EXPECT_EQ(check_schema(record),
            std::vector<std::string>{
                "data.verdict.state: \"maybe\" is not allowed; one of supported, refuted, inconclusive"});
  for (const char* text : {"1", "null", "[]", "\"finding/1\"", "{}", R"({"schema":null})", R"({"schema":"finding/2"})",
                           R"({"schema":["finding/1"]})", R"({"schema":"finding/1","data":[]})",
                           R"({"schema":"measurement/1","case":3,"time":{},"check":"no"})"}) {
    EXPECT_FALSE(check_schema(Json::parse(text)).empty()) << text;
  }
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
