#include "common/records/case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <sstream>

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

/// The values of an axis, or the message with which the text is refused.
std::string parsed(const std::string& text) {
  try {
    std::string joined;
    for (const AxisValue& value : parse_axis(text, known).values)
      joined += (joined.empty() ? "" : " ") + to_string(value);
    return joined;
  } catch (const BadInput& error) {
    return std::string("refused: ") + error.what();
  }
}

TEST(ParseAxis, TakesListsAndRanges) {
  EXPECT_EQ(parse_axis("head_dim=64", known).name, "head_dim");
  for (const auto& [text, values] : {
           std::pair{"head_dim=64", "64"},
           {"head_dim=128,64,128,64", "128 64"},  // each value once, in the order of the list
           {"variant=tuned,naive", "tuned naive"},
           {"q_len=1024:65536:pow2", "1024 2048 4096 8192 16384 32768 65536"},
           {"q_len=3:20:pow2", "3 6 12"},
           {"q_len=7:7:pow2", "7"},
           {"head_dim=64:256:64", "64 128 192 256"},
           {"head_dim=64:250:64", "64 128 192"},
           {"head_dim=8,64:128:64,96", "8 64 128 96"},
           {"offset=-4:4:4", "-4 0 4"},
           // The largest integer ends a range.
           {"q_len=4611686018427387904:9223372036854775807:pow2", "4611686018427387904"},
           {"q_len=9223372036854775806:9223372036854775807:9", "9223372036854775806"},
           {"offset=-9223372036854775808:9223372036854775807:9223372036854775807",
            "-9223372036854775808 -1 9223372036854775806"},
           // A message says what is allowed.
           {"hed_dim=64",
            "refused: unknown axis 'hed_dim' (did you mean head_dim?); known: batch, q_len, kv_len, head_dim, causal, "
            "offset, variant"},
           {"head_dim=12", "refused: axis head_dim: '12' is not allowed; a multiple of 8 from 8 to 256"},
           {"causal=2", "refused: axis causal: '2' is not allowed; an integer from 0 to 1"},
           {"variant=fast", "refused: axis variant: 'fast' is not allowed; one of naive, tuned"},
           {"q_len=1:10001:1", "refused: axis q_len: more than 10000 values; narrow the range"},
       }) {
    EXPECT_EQ(parsed(text), values) << text;
  }
  EXPECT_EQ(parse_axis("q_len=1:10000:1", known).values.size(), 10000u);
}

TEST(ParseAxis, RefusesOddInput) {
  const std::string words =
      "= head_dim =64 head_dim= head_dim=64, head_dim=,64 head_dim=64,,128 head_dim=0 head_dim=264 head_dim=-64 "
      "head_dim=64x head_dim=+64 head_dim=6.4 head_dim=0x40 batch=99999999999999999999 batch=65 variant= variant=Tuned "
      "variant=naive, variant=naive:tuned:1 head_dim=128:64:8 head_dim=64:128 head_dim=64:128:8:8 head_dim=64:128: "
      "head_dim=:128:8 head_dim=64:128:0 head_dim=64:128:-8 head_dim=64:128:pow3 head_dim=64:320:64 head_dim=60:128:8 "
      "head_dim=64:99999999999999999999:8 offset=0:8:pow2 offset=-1:8:pow2 q_len=1:9223372036854775807:1";
  std::istringstream all(words);
  std::vector<std::string> texts = {"", "head_dim= 64"};
  for (std::string text; all >> text;) texts.push_back(text);
  for (const std::string& text : texts) {
    EXPECT_TRUE(parsed(text).starts_with("refused: ")) << text;
    EXPECT_EQ(parsed(text).find('\n'), std::string::npos) << text;
  }
}

Case make_case(const std::vector<std::pair<std::string, AxisValue>>& axes) {
  Case config;
  for (const auto& [axis, value] : axes) config.set(axis, value);
  return config;
}

TEST(Case, HoldsIntegersAndTexts) {
  Case config = make_case({{"variant", "tuned"}, {"head_dim", 64}, {"causal", 1}});
  EXPECT_EQ(config.integer("head_dim"), 64);
  EXPECT_EQ(config.text("variant"), "tuned");
  EXPECT_FALSE(config.has("vari"));
  for (const char* axis : {"q_len", "variant"}) EXPECT_THROW(config.integer(axis), std::out_of_range);
  for (const char* axis : {"q_len", "head_dim"}) EXPECT_THROW(config.text(axis), std::out_of_range);
  config.set("variant", AxisValue("naive"));
  EXPECT_EQ(config.key(), "variant=naive head_dim=64 causal=1") << "an axis must keep its place";
  EXPECT_EQ(config.key({"causal", "variant", "missing"}), "causal=1 variant=naive");
  EXPECT_EQ(config.key(std::vector<std::string>{}), "");
  EXPECT_EQ(config, make_case({{"causal", 1}, {"variant", "naive"}, {"head_dim", 64}})) << "in any order";
  EXPECT_NE(config, make_case({{"causal", 64}, {"variant", "naive"}, {"head_dim", 1}}));
  EXPECT_NE(config, make_case({{"causal", 1}, {"variant", "naive"}}));
  EXPECT_NE(config, make_case({{"head_dim", 64}, {"variant", "naive"}, {"layout", 1}}));
}

TEST(Case, RoundTripsThroughJson) {
  const Case config = make_case({{"variant", "tuned"}, {"offset", INT64_MIN}, {"q_len", INT64_MAX}});
  EXPECT_EQ(config.json().dump(), R"({"variant":"tuned","offset":-9223372036854775808,"q_len":9223372036854775807})");
  EXPECT_EQ(Case::from_json(parse_json(config.json().dump())), config);
  for (const char* text : {R"({"a":1.5})", R"({"a":null})", R"([1])", "null"})
    EXPECT_THROW(Case::from_json(parse_json(text)), BadInput) << text;
}

std::vector<std::string> keys_of(const Sweep& sweep, const std::function<void(Case&)>& complete = {}) {
  std::vector<std::string> keys;
  for (const Case& config : expand(sweep, known, complete)) keys.push_back(config.key());
  return keys;
}

TEST(Expand, IsTheProductInOrder) {
  Sweep sweep{{{integers("q_len", {1, 2, 3}), integers("causal", {0, 1})}, {integers("causal", {1})}}};
  override_axis(sweep, parse_axis("q_len=7,8", known));  // replaces or adds the axis in each block
  EXPECT_EQ(keys_of(sweep),
            (std::vector<std::string>{"q_len=7 causal=0", "q_len=7 causal=1", "q_len=8 causal=0", "q_len=8 causal=1"}));
}

TEST(Expand, CompletesBeforeItDropsDuplicates) {
  // The second block sets kv_len; in the first block kv_len equals q_len. q_len=2 is the same case in both blocks.
  const Sweep sweep{{{integers("q_len", {1, 2})}, {integers("kv_len", {2}), integers("q_len", {2, 3})}}};
  const auto complete = [](Case& c) {
    c.set("batch", AxisValue(int64_t{1}));
    c.set_default("kv_len", c.integer("q_len"));
  };
  EXPECT_EQ(keys_of(sweep, complete), (std::vector<std::string>{"batch=1 q_len=1 kv_len=1", "batch=1 q_len=2 kv_len=2",
                                                                "batch=1 q_len=3 kv_len=2"}));
}

TEST(Expand, TakesEmptySweepsAndRefusesUnknownAxesAndTooManyCases) {
  EXPECT_TRUE(expand({}, known, {}).empty());
  EXPECT_TRUE(expand({{{{"q_len", {}}}}}, known, {}).empty());
  EXPECT_THROW(expand({{{integers("qlen", {1})}}}, known, {}), std::logic_error);
  const std::vector<AxisValue> many = parse_axis("q_len=1:10000:1", known).values;
  EXPECT_THROW(expand({{{{"q_len", many}, {"kv_len", many}}}}, known, {}), BadInput);
}

std::vector<Case> some_cases() {
  const Sweep sweep{{{integers("q_len", {1, 2, 3, 4, 5}),
                      {"variant", {AxisValue("naive"), AxisValue("tuned")}},
                      integers("head_dim", {64, 128})}}};
  return expand(sweep, known, {});
}

TEST(Group, GathersTheCasesOfAComparison) {
  const auto groups = group(some_cases(), {"variant"});
  std::set<std::string> shapes;
  for (const auto& cases : groups) {
    ASSERT_EQ(cases.size(), 2u);
    EXPECT_EQ(cases[0].key_without({"variant"}), cases[1].key_without({"variant"}));
    EXPECT_EQ(cases[0].text("variant"), "naive") << "the cases of a group must keep their order";
    shapes.insert(cases[0].key_without({"variant"}));
  }
  EXPECT_EQ(shapes.size(), 10u);
  EXPECT_EQ(groups.size(), 10u);
  EXPECT_EQ(group(some_cases(), {}).size(), 20u);
  EXPECT_EQ(group(some_cases(), {"q_len", "variant", "head_dim"}).size(), 1u);
}

TEST(Shard, PartsAreDisjointCompleteAndOfOneSize) {
  const auto groups = group(some_cases(), {"variant"});
  for (const size_t n : {1, 2, 3, 10, 13}) {
    std::multiset<std::string> seen, all;
    for (const auto& cases : groups) all.insert(cases.front().key());
    for (size_t i = 1; i <= n; ++i) {
      const auto part = shard(groups, static_cast<int>(i), static_cast<int>(n));
      EXPECT_TRUE(part.size() == groups.size() / n || part.size() == groups.size() / n + 1) << n;
      for (const auto& cases : part) seen.insert(cases.front().key());
    }
    EXPECT_EQ(seen, all) << n;
  }
  for (const auto& [part, parts] : {std::pair{0, 2}, {3, 2}, {1, 0}})
    EXPECT_THROW(shard(groups, part, parts), BadInput);
}

}  // namespace
}  // namespace attn
