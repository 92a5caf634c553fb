#include "findings/kb/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "common/base/error.h"
#include "common/base/json.h"
#include "findings/kb/tests/support.h"

namespace attn::kb {
namespace {

class StoreTest : public KbTest {
 protected:
  Store store_ = Store::open(":memory:", Store::Mode::write);

  Ingested take(const std::string& text) {
    std::stringstream lines(text);
    return store_.ingest(lines);
  }
  Ingested take_records(const std::vector<Json>& records) {
    return take(text_of(std::filesystem::path(write("records", records))));
  }
  std::set<std::string> found(const std::string& query, const Filter& filter = {}) const {
    std::set<std::string> ids;
    for (const Match& match : store_.search(query, filter)) ids.insert(match.record.id);
    return ids;
  }
};

/// A finding with other texts. They do not follow from its template, which ingest() does not check.
Json told(const std::string& title, const std::string& content = "Content.",
          const std::vector<std::string>& tags = {}) {
  Json record = finding(1.5);
  record["title"] = title, record["content"] = content, record["tags"] = tags;
  record["data"]["cases"] = Json::array();
  record["source"] = record["data"]["device"] = record["data"]["subject"] = record["data"]["hypothesis"]["text"] =
      record["data"]["hypothesis"]["id"] = "other";
  return with_id(record);
}

TEST_F(StoreTest, IngestsARecordOnceAndKeepsItsLine) {
  Json record = finding(1.5);
  record["some_field"] = {{"deeper", {1, 2.50, "\u00e9"}}};
  record = with_id(record);
  const std::string line = record.dump();
  Ingested result = take(line + "\r\n\n  \n" + line);
  EXPECT_EQ(result.lines, 4);
  EXPECT_EQ(result.added, 1);
  EXPECT_EQ(result.known, 1);
  EXPECT_TRUE(result.bad.empty());
  EXPECT_EQ(store_.find(record["id"]).line, line);
  // A line with the same fields in another order is the same record. A line with other fields and the same id is bad.
  EXPECT_EQ(take(nlohmann::json::parse(line).dump()).known, 1);
  record["title"] = "Another";
  result = take(record.dump());
  ASSERT_EQ(result.bad.size(), 1u);
  EXPECT_EQ(store_.find(record["id"]).line, line);
}

TEST_F(StoreTest, SkipsBadLinesAndSaysWhich) {
  const std::string samples = R"({"schema":"samples/1","run":"r1","process":0,"samples_s":[0.001]})";  // skipped
  std::string deep(100'000, '[');
  Json named = measurement(shape(64), 1e-3);
  named["case"][std::string(100'000, 'a')] = 1;
  const std::string good = finding(1.5).dump();
  const Ingested result = take("not json\n" + good + "\n[]\n" + R"({"schema":"finding/2"})" + "\n" + deep +
                               "\n{\"schema\":" + std::string(5000, '[') + std::string(5000, ']') + "}\n\xff\xfe\n" +
                               measurement(shape(64), 1e-3).dump() + "\n" + named.dump() + "\n" + samples + "\n" +
                               good.substr(0, good.size() / 2));
  EXPECT_EQ(result.added, 2);
  std::vector<int64_t> numbers;
  for (const BadLine& bad : result.bad) numbers.push_back(bad.line);
  EXPECT_EQ(numbers, (std::vector<int64_t>{1, 3, 4, 5, 6, 7, 9, 11}));
  EXPECT_NE(result.bad.back().problem.find("torn"), std::string::npos);
  EXPECT_EQ(store_.list({}).size(), 2u);
}

TEST_F(StoreTest, FindsTokensAsTheyAreTyped) {
  const Json tile = finding(1.5);  // tags flash_attention d64 bf16, subject head_dim=64, "At block_r 128"
  const Json other = told("Two block rows of d640", "flash attentions, bf 16, head_dim=640", {"paged_cache"});
  take_records({tile, other});
  const std::string a = tile["id"], b = other["id"];
  for (const char* query : {"d64", "bf16", "flash_attention", "block_r", "head_dim=64", "worst_tile", "D64",
                            "block_r 128", "flash_attention d64 bf16", "dtype=bf16", "\"tile\"", "flash attention tile",
                            "A CPU, 2 units", "proto1_flash", "naive", "choice of tile"}) {
    EXPECT_EQ(found(query), std::set<std::string>{a}) << query;
  }
  for (const char* query : {"head_dim=640", "d640", "paged_cache", "paged cache", "bf 16"}) {
    EXPECT_EQ(found(query), std::set<std::string>{b}) << query;
  }
  EXPECT_EQ(found("flash*"), (std::set<std::string>{a, b}));
  EXPECT_EQ(found("d64*"), (std::set<std::string>{a, b}));
  for (const char* query : {"d6", "flash_attention d640", "rows_of", "", " ", "*", "=", "...", "\"\""}) {
    EXPECT_TRUE(found(query).empty()) << query;
  }
}

TEST_F(StoreTest, AMatchInTheTitleWeighsMore) {
  const Json title = told("Swizzle the shared memory", "Against bank conflicts.");
  take_records({told("Layouts of tiles", "A long text that ends with a swizzle."), title});
  const auto matches = store_.search("swizzle", {});
  ASSERT_EQ(matches.size(), 2u);
  EXPECT_EQ(matches[0].record.id, title["id"].get<std::string>());
  EXPECT_GT(matches[0].score, matches[1].score);
  EXPECT_NE(matches[1].snippet.find("[swizzle]"), std::string::npos) << matches[1].snippet;
}

TEST_F(StoreTest, HostileStringsAreData) {
  std::vector<std::string> hostile = {std::string("nul\0byte", 8), std::string(100'000, 'x')};
  for (const char* text : {"'; DROP TABLE records; --", "NEAR(a b", "title:", "{a b}:c", "\"\"\"", "a*b", "%s%n",
                           "$(touch x)", "a\nb", "\xe2\x80\xae evil", "日本語", "\x01\x1b[2J"}) {
    hostile.emplace_back(text);
  }
  for (const std::string& text : hostile) {
    const Json record = told(text, text, {text});
    ASSERT_EQ(take_records({record}).added, 1) << text;
    const Record kept = store_.find(record["id"]);
    EXPECT_EQ(kept.json(), record);
    EXPECT_EQ(kept.title, text);
    EXPECT_NO_THROW(store_.search(text, {.kind = text, .device = text, .experiment = text})) << text;
    EXPECT_NO_THROW(store_.list({.kind = text, .device = text, .experiment = text})) << text;
  }
  EXPECT_EQ(store_.list({}).size(), hostile.size());
  EXPECT_EQ(found("日本語").size(), 1u);
  EXPECT_EQ(found("'; DROP TABLE records; --").size(), 1u);
  // Any query is taken for words and never for syntax.
  std::mt19937 random(1);
  const std::string alphabet = "ab\"'*^:()+-{}[]<>=;,.!~&| \tORANDNOTEAR_\x80\xc3";
  for (int i = 0; i < 3000; ++i) {
    std::string query;
    for (size_t length = random() % 24; query.size() < length;) query += alphabet[random() % alphabet.size()];
    EXPECT_NO_THROW(store_.search(query, {})) << query;
  }
}

TEST_F(StoreTest, FindsByTheFirstDigitsOrTheKeyOfTheClaim) {
  const Json later = changed(header("r2"), {{"/run/ts", "2026-02-01T00:00:00Z"}});
  const Json second = finding(1.5, "r2"), first = finding(1.5, "r1");
  std::vector<Json> records = {header("r1"), later, second, first};
  for (int i = 0; i < 17; ++i) records.push_back(told(fmt::format("claim {}", i)));
  take_records(records);
  const std::string id = second["id"];
  for (const std::string& text : {id, id.substr(0, 8), first["claim_key"].get<std::string>()})
    EXPECT_EQ(store_.find(text).id, id) << text;
  for (const std::string& bad : {std::string(), std::string("xyz"), id + "0", std::string("' OR ''='"),
                                 std::string("proto1_flash/none"), std::string("ffffffff")}) {
    EXPECT_THROW(store_.find(bad), BadInput) << bad;
  }
  std::map<char, int> firsts;
  for (const Json& one : records) ++firsts[one["id"].get<std::string>()[0]];
  const auto twice = std::ranges::find_if(firsts, [](const auto& digit) { return digit.second > 1; });
  EXPECT_THROW(store_.find(std::string(1, twice->first)), BadInput) << "two of 21 ids begin with the same hex digit";
}

TEST_F(StoreTest, AFindingGetsTheHeaderOfItsRun) {
  const Json told = finding({1.5, 1.51}), run = header();
  const std::string id = told["id"];
  take_records({told});
  EXPECT_EQ(store_.find(id).header, nullptr);
  EXPECT_EQ(store_.find(id).joined(), told);
  EXPECT_EQ(store_.find(id).ts, "");
  take_records({run, finding(1.4, "r1"), finding(1.4, "r2")});  // a header may come after its findings, and before
  const Record record = store_.find(id);
  EXPECT_EQ(record.ts, "2026-01-31T12:00:00Z");
  EXPECT_EQ(record.run_id(), "r1");
  EXPECT_EQ(record.json(), told) << "the line must be kept as it came";
  EXPECT_EQ(record.joined()["data"]["run"]["replay"], "proto1_flash --seed 1");
  EXPECT_EQ(record.joined()["data"]["env"], run["env"]);
  const auto findings = store_.list({.kind = "finding"});
  EXPECT_EQ(findings.at(0).joined(), record.joined());
  EXPECT_EQ(findings.at(1).ts, "2026-01-31T12:00:00Z");
  EXPECT_EQ(findings.at(2).header, nullptr) << "a header must not join findings of another run";
  EXPECT_EQ(store_.list({.kind = "run"}).at(0).device, "A CPU, 2 units");
}

TEST_F(StoreTest, AnExactFindingPassesEveryMaxWrong) {
  take_records({exact_finding(2), finding({1.5, 1.5}), exact_finding(3)});
  EXPECT_EQ(store_.list({.max_wrong = 0}).size(), 2u);
  EXPECT_TRUE(store_.list({}).at(2).exact());
  EXPECT_TRUE(store_.list({}).at(0).exact());
  EXPECT_FALSE(store_.list({}).at(1).exact());
}

}  // namespace
}  // namespace attn::kb
