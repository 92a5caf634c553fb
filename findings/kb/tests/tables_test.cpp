// Tests of the tables of decisions that follow from records (findings/kb/tables.h).
#include "findings/kb/tables.h"

#include <gtest/gtest.h>

#include <fstream>
#include <tuple>

#include "common/source/kernel_source.h"
#include "findings/kb/pooled_claims.h"
#include "findings/kb/tests/support.h"

namespace attn::kb {
namespace {

std::vector<Json> tables_of(const std::vector<Json>& lines) {
  const std::vector<Record> records = records_of(lines);
  return decision_tables(records, pooled_claims(records));
}

Json tile(int64_t rows, double seconds, const std::vector<std::pair<std::string, Json>>& more = {},
          const std::string& device = "A CPU, 2 units", const std::string& run = "r1") {
  std::vector<std::pair<std::string, Json>> values = {{"/case/block_r", rows}, {"/case/block_c", 64}};
  values.insert(values.end(), more.begin(), more.end());
  return changed(measurement(shape(64), seconds, device, run), values);
}

/// Three tiles on each of two devices; on the second another one is the fastest.
std::vector<Json> tiles_of_two_devices() {
  const std::string other = "B CPU, 2 units";
  return {
      tile(16, 1e-3),           tile(32, 2e-3), tile(48, 3e-3), tile(16, 2e-3, {}, other), tile(32, 1e-3, {}, other),
      tile(48, 3e-3, {}, other)};
}

TEST(DecisionTables, EachDeviceHasATableForEachQuestion) {
  std::vector<Json> lines = tiles_of_two_devices();
  lines.insert(lines.end(), {header(), finding(1.5)});
  const std::vector<Json> tables = tables_of(lines);
  ASSERT_EQ(tables.size(), 16u);
  for (const auto& [place, device, take] :
       {std::tuple{size_t{0}, "A CPU, 2 units", "16x64"}, {size_t{8}, "B CPU, 2 units", "32x64"}}) {
    EXPECT_EQ(tables[place]["question"], "tile");
    EXPECT_EQ(tables[place]["device"], device);
    ASSERT_EQ(tables[place]["rows"].size(), 1u);
    EXPECT_EQ(tables[place]["rows"][0]["take"], take);
    EXPECT_TRUE(tables[place + 1]["rows"].empty()) << "no run measured this question";
  }
}

TEST_F(KbTest, ARunOnALoadedMachineHasNoRow) {
  std::vector<Json> lines = {changed(header(), {{"/session/loaded", "other programs used 0.9 of 2 cores"}}),
                             finding(1.5)};
  for (const Json& line : tiles_of_two_devices()) lines.push_back(line);
  for (const Json& table : tables_of(lines)) {
    EXPECT_TRUE(table["rows"].empty());
    EXPECT_EQ(table["left_out"], table["question"] == "tile" ? 3 : 0);
  }
  const std::string file = write("records", lines);
  expect_has(run({"decisions", file}).out, {"A CPU, 2 units: nothing", "scattered samples: 3 measurements"});
  expect_has(run({"pool", "--loaded", "--decisions", path("tables.jsonl"), file}).err, {"--decisions", "--loaded"});
}

TEST(DecisionTables, ARowOfChangedKernelsAndItsRunSayThat) {
  const KernelSource source{.path = "common/attention/kernels/naive.cpu.cpp",
                            .entry = "flash_forward",
                            .constants = {{"HEAD_DIM", 64}},
                            .includes = {}};
  const std::vector<std::pair<std::string, Json>> today = {{"/pipeline/key", source.key()},
                                                           {"/pipeline/source_sha256", source_sha256(source)}};
  for (const auto& [other, is_of_today] : {std::pair{today, true}, {{{"/pipeline/key", source.key()}}, false}}) {
    const Json table = tables_of({tile(16, 1e-3, today), tile(32, 2e-3, today), tile(48, 3e-3, other)})[0];
    ASSERT_EQ(table["rows"].size(), 1u);
    EXPECT_EQ(table["rows"][0]["today"], is_of_today);
    EXPECT_EQ(table["older"], is_of_today ? Json::array() : Json{"r1"});
  }
}

TEST(DecisionTables, ABusyMachineDoesNotCount) {
  const Json busy = tile(32, 1e-4, {{"/busy", "the machine was busy"}});
  const Json table = tables_of({tile(16, 1e-3), tile(24, 2e-3), tile(48, 3e-3), busy})[0];
  ASSERT_EQ(table["rows"].size(), 1u);
  EXPECT_EQ(table["rows"][0]["take"], "16x64");
  EXPECT_EQ(table["left_out"], 1);
}

TEST_F(KbTest, DecisionsOfOneDevice) {
  const std::string file = write("records", tiles_of_two_devices());
  const std::string out = run({"decisions", "--device", "b cpu", "--proto", "proto1", file}).out;
  expect_has(out, {"B CPU, 2 units: Which tile", "take 32x64 of 3; 16x64 2.00x [", "48x64 3.00x ["});
  EXPECT_EQ(out.find("A CPU"), std::string::npos);
  const std::string tables = path("tables.jsonl");
  ASSERT_EQ(run({"pool", "--decisions", tables, file}).status, 0);
  std::ifstream written(tables);
  std::string first;
  std::getline(written, first);
  EXPECT_EQ(parse_json(first), parse_json(lines_of(run({"--json", "decisions", file}).out).at(0)));
}

}  // namespace
}  // namespace attn::kb
