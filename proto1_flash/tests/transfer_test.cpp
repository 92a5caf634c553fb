#include "proto1_flash/transfer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/records/finding.h"

namespace attn {
namespace {

Measurement tile(const std::string& device, int64_t block_r, int64_t block_c, double seconds, int64_t head_dim = 64) {
  Measurement result;
  result.device = device;
  result.id = device + std::to_string(block_r) + "x" + std::to_string(block_c);
  const auto set = [&](const char* axis, int64_t value) { result.config.set(axis, AxisValue(value)); };
  for (const char* axis : {"batch", "q_heads", "kv_heads"}) set(axis, 1);
  for (const char* axis : {"q_len", "kv_len"}) set(axis, 1024);
  set("head_dim", head_dim);
  set("causal", 0);
  set("block_r", block_r);
  set("block_c", block_c);
  result.config.set("variant", AxisValue("tuned"));
  result.config.set("dtype", AxisValue("f32"));
  result.config.set("layout", AxisValue("bhsd"));
  result.check = Check{};
  result.time = {Timing{Scope::device_hot, 10, 10, seconds, seconds * 0.99, seconds * 1.01, 0.01, seconds, "ci"}};
  return result;
}

Json finding(const std::string& hypothesis, const std::string& state, const std::string& device) {
  return {{"id", hypothesis + state + device},
          {"data", {{"device", device}, {"hypothesis", {{"id", hypothesis}}}, {"verdict", {{"state", state}}}}}};
}

TEST(TransferTest, TheBestTileOfOneDeviceIsLookedUpOnTheOther) {
  // 256x128 is best on A, but B did not run it. Of the tiles that both ran, 128x128 is best on A.
  const DeviceRecords a{{tile("A", 64, 64, 3), tile("A", 64, 128, 2.5), tile("A", 128, 128, 2), tile("A", 256, 128, 1)},
                        {}};
  const DeviceRecords b{
      {tile("B", 64, 64, 1), tile("B", 64, 128, 1.1), tile("B", 128, 128, 1.5), tile("B", 192, 64, 0.5)}, {}};
  const std::vector<Conclusion> to_b = transfer_conclusions(a, b), to_a = transfer_conclusions(b, a);
  ASSERT_EQ(to_b.size(), 1u);
  EXPECT_DOUBLE_EQ(to_b[0].estimate.value, 1.5);
  ASSERT_EQ(to_b[0].parts.size(), 1u);
  EXPECT_NEAR(to_b[0].parts[0].error, 1.5 * (1.01 / 0.99 - 0.99 / 1.01) / 2 / 1.96, 1e-12);
  EXPECT_EQ(to_b[0].values["taken"], "128x128");
  EXPECT_EQ(to_b[0].values["best"], "64x64");
  EXPECT_EQ(to_b[0].values["tiles"], 3);
  EXPECT_EQ(to_b[0].measurements, (std::vector<std::string>{"A128x128", "B128x128", "B64x64"}));
  ASSERT_EQ(to_a.size(), 1u);
  EXPECT_DOUBLE_EQ(to_a[0].estimate.value, 1.5);
  EXPECT_EQ(to_a[0].values["from"], "B");
}

TEST(TransferTest, ATileThatIsBestOnBothCostsNothingAndOtherResultsAreLeftOut) {
  const DeviceRecords a{{tile("A", 64, 64, 1), tile("A", 64, 128, 2), tile("A", 128, 128, 3)}, {}};
  const std::vector<Conclusion> conclusions = transfer_conclusions(a, a);
  ASSERT_EQ(conclusions.size(), 1u);
  EXPECT_EQ(conclusions[0].estimate.value, 1);
  EXPECT_EQ(conclusions[0].measurements.size(), 2u);
  DeviceRecords b = a;
  for (Measurement& result : b.measurements) result.config.set("head_dim", AxisValue(int64_t{128}));
  EXPECT_TRUE(transfer_conclusions(a, b).empty()) << "the devices have no head_dim in common";
  b = a;
  b.measurements[0].status = "wrong";
  EXPECT_TRUE(transfer_conclusions(a, b).empty()) << "two tiles are too few";
  EXPECT_TRUE(transfer_conclusions({}, {}).empty());
}

TEST(TransferTest, ADevicesVerdictIsTheVerdictOfMostFindings) {
  DeviceRecords a, b;
  a.findings = {finding("bf16", "refuted", "A"),      finding("causal", "supported", "A"),
                finding("causal", "refuted", "A"),    finding("causal", "supported", "A"),
                finding("bc80", "inconclusive", "A"), finding("ladder", "supported", "A")};
  b.findings = {finding("bf16", "supported", "B"), finding("causal", "supported", "B"), finding("bc80", "refuted", "B"),
                finding("scaling", "refuted", "B")};
  const std::vector<Conclusion> conclusions = transfer_conclusions(a, b);
  const auto verdicts = std::ranges::find(conclusions, "verdicts_transfer", &Conclusion::hypothesis);
  ASSERT_NE(verdicts, conclusions.end());
  // Both devices decide `bf16` and `causal`. Device A does not decide `bc80`. Only one device has findings about
  // `ladder` and `scaling`.
  EXPECT_EQ(verdicts->values["judged"], 2);
  EXPECT_EQ(verdicts->values["same"], 1);
  EXPECT_EQ(verdicts->estimate.value, 0.5);
  EXPECT_TRUE(verdicts->exact);
  EXPECT_EQ(verdicts->values["flips"], "bf16 (refuted, then supported)");
  // A placeholder without a value would leave a brace in the text.
  const std::vector<Hypothesis> all = hypotheses(transfer_claims());
  const auto hypothesis = std::ranges::find(all, "verdicts_transfer", &Hypothesis::id);
  const Json made = make_finding("proto1_flash", "A to A", *hypothesis, *verdicts, "r");
  EXPECT_EQ(made["content"].get<std::string>().find('{'), std::string::npos);
}

}  // namespace
}  // namespace attn
