#include "common/records/spread.h"

#include <gtest/gtest.h>

#include "common/base/json.h"

namespace attn {
namespace {

TEST(Spread, TakesTheEntryThatFitsBest) {
  const Json fitted = parse_json(R"({
    "A CPU": {"proto1_flash": {"ratio": {"scale": 0.02, "freedom": 3, "pairs": 40}},
              "*": {"ratio": {"scale": 0.03, "freedom": 4}}},
    "NVIDIA X": {"*": {"share": {"scale": 0.004, "freedom": 2}}},
    "cpu": {"*": {"share": {"scale": 0.06, "freedom": 1}}}})");
  const auto scale = [&](const char* device, const char* experiment, FigureKind kind) {
    return spread_in(fitted, device, experiment, kind).scale;
  };
  EXPECT_EQ(scale("A CPU, 2 units", "proto1_flash", FigureKind::ratio), 0.02);
  EXPECT_EQ(spread_in(fitted, "A CPU", "proto1_flash", FigureKind::ratio).freedom, 3);
  EXPECT_EQ(scale("A CPU, 2 units", "proto3_paged", FigureKind::ratio), 0.03) << "not the entry of the device";
  EXPECT_EQ(scale("A CPU, 2 units", "proto1_flash", FigureKind::share), 0.06) << "not the entry of the kind of device";
  EXPECT_EQ(scale("Another CPU, 2 units", "proto1_flash", FigureKind::share), 0.06);
  EXPECT_EQ(scale("Another CPU, 2 units", "proto1_flash", FigureKind::ratio), 0.05)
      << "without an entry: not the default of a CPU";
  EXPECT_EQ(scale("NVIDIA X, 132 units", "proto1_flash", FigureKind::share), 0.004);
  EXPECT_EQ(scale("NVIDIA X, 132 units", "proto1_flash", FigureKind::ratio), 0.01)
      << "without an entry: not the default of an NVIDIA GPU";
  EXPECT_EQ(spread_in(Json::object(), "NVIDIA Y", "p", FigureKind::ratio).freedom, 2);
  EXPECT_EQ(spread_in(fitted, "A CPU", "proto3_paged", FigureKind::ratio).freedom, 2)
      << "an entry of experiment * must count with at most 2 degrees of freedom";
  EXPECT_EQ(spread_in(fitted, "Another CPU", "p", FigureKind::share).freedom, 1);
}

TEST(Spread, KindsOfFigures) {
  EXPECT_EQ(kind_of(true, "us a call, attn_flash - AttentionLaunch"), FigureKind::absolute);
  EXPECT_EQ(kind_of(true, "time causal / time full"), FigureKind::ratio);
  EXPECT_EQ(kind_of(false, "ms per variant, reading, checking and loading"), FigureKind::absolute);
  EXPECT_EQ(kind_of(false, "% of the ceiling measured in the same rounds"), FigureKind::share);
  EXPECT_EQ(kind_of(false, "seconds of copies and scan / seconds in all"), FigureKind::share);
}

TEST(Spread, DeviceNames) {
  EXPECT_EQ(without_units("NVIDIA H200, 132 units"), "NVIDIA H200");
  EXPECT_EQ(without_units("AMD EPYC (znver4)"), "AMD EPYC (znver4)");
  EXPECT_EQ(without_units("A, B"), "A, B");
  EXPECT_EQ(with_one_unit("X, 1 units to Y, 11 units"), "X, 1 unit to Y, 11 units");
  EXPECT_EQ(with_one_unit("X, 1 units"), "X, 1 unit");
  EXPECT_EQ(with_one_unit("X, 1 unit, 2 units"), "X, 1 unit, 2 units");
}

TEST(Spread, TheEntriesOfTheSourceTreeAreWithinBounds) {
  for (const char* device : {"NVIDIA H200, 132 units", "AMD EPYC (znver4), 2 units", "nothing"}) {
    for (const FigureKind kind : {FigureKind::ratio, FigureKind::share}) {
      const Spread spread = spread_of(device, "proto1_flash", kind);
      EXPECT_GE(spread.scale, 1e-4) << device;
      EXPECT_LT(spread.scale, 0.5) << device;
      EXPECT_GE(spread.freedom, 1) << device;
      EXPECT_LE(spread.freedom, 30) << device;
    }
  }
}

}  // namespace
}  // namespace attn
