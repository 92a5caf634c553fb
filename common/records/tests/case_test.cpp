#include "common/records/case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "common/base/error.h"
#include "common/base/json.h"

namespace attn {
namespace {

const std::vector<AxisInfo> known{
    {.name = "batch", .min = 1, .max = 64},
    {.name = "q_len", .min = 1, .max = INT64_MAX},
    {.name = "kv_len", .min = 1, .max = INT64_MAX},
    {.name = "head_dim", .min = 8, .max = 256, .multiple_of = 8},
    {.name = "causal", .min = 0, .max = 1},
    {.name = "offset", .min = INT64_MIN, .max = INT64_MAX},
    {.name = "variant", .choices = {"naive", "tuned"}},
};

std::string values_of(const std::string& text) {
  std::string joined;
  for (const AxisValue& value : parse_axis(text, known).values)
    joined += (joined.empty() ? "" : " ") + to_string(value);
  return joined;
}

std::string message_of(const std::string& text) {
  try {
    parse_axis(text, known);
  } catch (const BadInput& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ParseAxis, TakesListsAndRanges) {
  EXPECT_EQ(parse_axis("head_dim=64", known).name, "head_dim");
  EXPECT_EQ(values_of("head_dim=64"), "64");
  EXPECT_EQ(values_of("head_dim=128,64,128,64"), "128 64") << "not each value once, in the order of the list";
  EXPECT_EQ(values_of("causal=0,1"), "0 1");
  EXPECT_EQ(values_of("variant=tuned,naive"), "tuned naive");
  EXPECT_EQ(values_of("q_len=1024:65536:pow2"), "1024 2048 4096 8192 16384 32768 65536");
  EXPECT_EQ(values_of("q_len=3:20:pow2"), "3 6 12") << "no value may exceed the end of the range";
  EXPECT_EQ(values_of("q_len=7:7:pow2"), "7");
  EXPECT_EQ(values_of("head_dim=64:256:64"), "64 128 192 256");
  EXPECT_EQ(values_of("head_dim=64:250:64"), "64 128 192");
  EXPECT_EQ(values_of("head_dim=8,64:128:64,96"), "8 64 128 96") << "ranges within a list";
  EXPECT_EQ(values_of("offset=-4:4:4"), "-4 0 4");
}

TEST(ParseAxis, EndsAtTheLargestInteger) {
  EXPECT_EQ(values_of("q_len=4611686018427387904:9223372036854775807:pow2"), "4611686018427387904");
  EXPECT_EQ(values_of("q_len=9223372036854775806:9223372036854775807:9"), "9223372036854775806");
  EXPECT_EQ(values_of("offset=-9223372036854775808:9223372036854775807:9223372036854775807"),
            "-9223372036854775808 -1 9223372036854775806");
}

TEST(ParseAxis, SaysWhatIsAllowed) {
  EXPECT_EQ(message_of("hed_dim=64"),
            "unknown axis 'hed_dim' (did you mean head_dim?); known: batch, q_len, kv_len, head_dim, causal, offset, "
            "variant");
  EXPECT_EQ(message_of("head_dim=12"), "axis head_dim: '12' is not allowed; a multiple of 8 from 8 to 256");
  EXPECT_EQ(message_of("causal=2"), "axis causal: '2' is not allowed; an integer from 0 to 1");
  EXPECT_EQ(message_of("variant=fast"), "axis variant: 'fast' is not allowed; one of naive, tuned");
}

TEST(ParseAxis, RefusesOddInput) {
  for (const char* text : {"",
                           "=",
                           "head_dim",
                           "=64",
                           "head_dim=",
                           "head_dim=64,",
                           "head_dim=,64",
                           "head_dim=64,,128",
                           "head_dim=0",
                           "head_dim=264",
                           "head_dim=-64",
                           "head_dim=64x",
                           "head_dim= 64",
                           "head_dim=+64",
                           "head_dim=6.4",
                           "head_dim=0x40",
                           "batch=99999999999999999999",
                           "batch=65",
                           "variant=",
                           "variant=Tuned",
                           "variant=naive,",
                           "variant=naive:tuned:1",
                           "head_dim=128:64:8",
                           "head_dim=64:128",
                           "head_dim=64:128:8:8",
                           "head_dim=64:128:",
                           "head_dim=:128:8",
                           "head_dim=64:128:0",
                           "head_dim=64:128:-8",
                           "head_dim=64:128:pow3",
                           "head_dim=64:320:64",
                           "head_dim=60:128:8",
                           "head_dim=64:99999999999999999999:8",
                           "offset=0:8:pow2",
                           "offset=-1:8:pow2"}) {
    const std::string message = message_of(text);
    EXPECT_NE(message, "accepted") << text;
    EXPECT_EQ(message.find('\n'), message.npos) << text;
  }
}

TEST(ParseAxis, CapsTheNumberOfValues) {
  EXPECT_EQ(parse_axis("q_len=1:10000:1", known).values.size(), 10000u);
  EXPECT_EQ(message_of("q_len=1:10001:1"), "axis q_len: more than 10000 values; narrow the range");
  EXPECT_NE(message_of("q_len=1:9223372036854775807:1"), "accepted");
}

Case make_case(const std::vector<std::pair<std::string, AxisValue>>& axes) {
  Case config;
  for (const auto& [axis, value] : axes) config.set(axis, value);
  return config;
}

TEST(Case, HoldsIntegersAndTexts) {
  Case config = make_case({{"variant", "tuned"}, {"head_dim", 64}});
  EXPECT_EQ(config.integer("head_dim"), 64);
  EXPECT_EQ(config.text("variant"), "tuned");
  EXPECT_TRUE(config.has("variant"));
  EXPECT_FALSE(config.has("vari"));
  EXPECT_THROW(config.integer("q_len"), std::out_of_range);
  EXPECT_THROW(config.text("q_len"), std::out_of_range);
  EXPECT_THROW(config.integer("variant"), std::out_of_range);
  EXPECT_THROW(config.text("head_dim"), std::out_of_range);
  config.set("variant", AxisValue("naive"));
  EXPECT_EQ(config.key(), "variant=naive head_dim=64") << "an axis must keep its place";
}

TEST(Case, KeySelectsAndOrders) {
  const Case config = make_case({{"variant", "tuned"}, {"head_dim", 64}, {"causal", 1}});
  EXPECT_EQ(config.key({"causal", "variant", "missing"}), "causal=1 variant=tuned");
  EXPECT_EQ(config.key(std::vector<std::string>{}), "");
  EXPECT_EQ(Case().key(), "");
}

TEST(Case, IsEqualWhateverTheOrderOfItsAxes) {
  const Case config = make_case({{"variant", "tuned"}, {"head_dim", 64}, {"causal", 1}});
  EXPECT_EQ(config, make_case({{"causal", 1}, {"variant", "tuned"}, {"head_dim", 64}}));
  EXPECT_NE(config, make_case({{"causal", 64}, {"variant", "tuned"}, {"head_dim", 1}}));
  EXPECT_NE(config, make_case({{"causal", 1}, {"variant", "tuned"}}));
  EXPECT_NE(config, make_case({{"head_dim", 64}, {"variant", "tuned"}, {"layout", 1}}));
}

TEST(Case, RoundTripsThroughJson) {
  const Case config = make_case({{"variant", "tuned"}, {"offset", INT64_MIN}, {"q_len", INT64_MAX}});
  EXPECT_EQ(Case::from_json(parse_json(config.json().dump())), config);
  EXPECT_EQ(config.json().dump(), R"({"variant":"tuned","offset":-9223372036854775808,"q_len":9223372036854775807})");
  EXPECT_EQ(Case().json().dump(), "{}");
  for (const char* text : {R"({"a":1.5})", R"({"a":null})", R"({"a":true})", R"([1])", "null"}) {
    EXPECT_THROW(Case::from_json(parse_json(text)), BadInput) << text;
  }
}

TEST(Expand, IsTheProductInOrder) {
  const Sweep sweep{{{integers("q_len", {1, 2}), integers("causal", {0, 1})}}};
  std::vector<std::string> keys;
  for (const Case& config : expand(sweep, known, {})) keys.push_back(config.key());
  EXPECT_EQ(keys,
            (std::vector<std::string>{"q_len=1 causal=0", "q_len=1 causal=1", "q_len=2 causal=0", "q_len=2 causal=1"}));
}

TEST(Expand, CompletesBeforeItDropsDuplicates) {
  // The second block sets kv_len; in the first block kv_len equals q_len. q_len=2 is the same case in both blocks.
  const Sweep sweep{{{integers("q_len", {1, 2})}, {integers("kv_len", {2}), integers("q_len", {2, 3})}}};
  std::vector<std::string> keys;
  for (const Case& config : expand(sweep, known, [](Case& c) {
         c.set("batch", AxisValue(int64_t{1}));
         if (!c.has("kv_len")) c.set("kv_len", c.integer("q_len"));
       })) {
    keys.push_back(config.key());
  }
  EXPECT_EQ(keys, (std::vector<std::string>{"batch=1 q_len=1 kv_len=1", "batch=1 q_len=2 kv_len=2",
                                            "batch=1 q_len=3 kv_len=2"}));
}

TEST(Expand, TakesEmptySweepsAndRefusesUnknownAxesAndTooManyCases) {
  EXPECT_TRUE(expand({}, known, {}).empty());
  EXPECT_TRUE(expand({{{{"q_len", {}}}}}, known, {}).empty());
  EXPECT_THROW(expand({{{integers("qlen", {1})}}}, known, {}), std::logic_error);
  const std::vector<AxisValue> many = parse_axis("q_len=1:10000:1", known).values;
  EXPECT_THROW(expand({{{{"q_len", many}, {"kv_len", many}}}}, known, {}), BadInput);
}

TEST(OverrideAxis, ReplacesOrAddsInEveryBlock) {
  Sweep sweep{{{integers("q_len", {1, 2, 3}), integers("causal", {0})}, {integers("causal", {1})}}};
  override_axis(sweep, parse_axis("q_len=7,8", known));
  std::vector<std::string> keys;
  for (const Case& config : expand(sweep, known, {})) keys.push_back(config.key());
  EXPECT_EQ(keys,
            (std::vector<std::string>{"q_len=7 causal=0", "q_len=8 causal=0", "q_len=7 causal=1", "q_len=8 causal=1"}));
}

std::vector<Case> some_cases() {
  const Sweep sweep{{{integers("q_len", {1, 2, 3, 4, 5}),
                      {"variant", {AxisValue("naive"), AxisValue("tuned")}},
                      integers("head_dim", {64, 128})}}};
  return expand(sweep, known, {});
}

TEST(Group, GathersTheCasesOfAComparison) {
  const auto groups = group(some_cases(), {"variant"});
  ASSERT_EQ(groups.size(), 10u);
  size_t total = 0;
  std::set<std::string> shapes;
  for (const auto& cases : groups) {
    total += cases.size();
    ASSERT_EQ(cases.size(), 2u);
    EXPECT_EQ(cases[0].key({"q_len", "head_dim"}), cases[1].key({"q_len", "head_dim"}));
    EXPECT_EQ(cases[0].text("variant"), "naive") << "the cases of a group must keep their order";
    EXPECT_TRUE(shapes.insert(cases[0].key({"q_len", "head_dim"})).second);
  }
  EXPECT_EQ(total, some_cases().size());
  EXPECT_EQ(groups[0][0], some_cases()[0]);
  EXPECT_EQ(group(some_cases(), {}).size(), 20u);
  EXPECT_EQ(group(some_cases(), {"q_len", "variant", "head_dim"}).size(), 1u);
  EXPECT_TRUE(group({}, {"variant"}).empty());
}

TEST(Shard, PartsAreDisjointAndComplete) {
  const auto groups = group(some_cases(), {"variant"});
  for (int n : {1, 2, 3, 10, 13}) {
    std::multiset<std::string> seen, all;
    size_t largest = 0, smallest = groups.size();
    for (int i = 1; i <= n; ++i) {
      const auto part = shard(groups, i, n);
      largest = std::max(largest, part.size());
      smallest = std::min(smallest, part.size());
      for (const auto& cases : part) seen.insert(cases.front().key());
    }
    for (const auto& cases : groups) all.insert(cases.front().key());
    EXPECT_EQ(seen, all) << n;
    EXPECT_LE(largest - smallest, 1u) << n;
  }
  EXPECT_EQ(shard(groups, 1, 1), groups);
  EXPECT_THROW(shard(groups, 0, 2), BadInput);
  EXPECT_THROW(shard(groups, 3, 2), BadInput);
  EXPECT_THROW(shard(groups, 1, 0), BadInput);
}

}  // namespace
}  // namespace attn
