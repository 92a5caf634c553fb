#include "common/records/spread.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "common/base/json.h"

namespace attn {
namespace {

TEST(Spread, TakesTheEntryThatFitsBest) {
  const Json fitted = parse_json(R"({"spread": {
    "A CPU": {"proto1_flash/tile": {"ratio": {"scale": 0.02, "pairs": 40}}},
    "cpu": {"proto1_flash/tile": {"ratio": {"scale": 0.03}, "share": {"scale": 0.04}},
            "proto1_flash": {"ratio": {"scale": 0.05}},
            "*": {"ratio": {"scale": 0.06}}}}})");
  using enum FigureKind;
  for (const auto& [device, experiment, hypothesis, kind, scale] :
       std::vector<std::tuple<const char*, const char*, const char*, FigureKind, double>>{
           {"A CPU, 2 units", "proto1_flash", "tile", ratio, 0.02},
           {"A CPU", "proto1_flash", "tile", ratio, 0.02},
           {"Another CPU, 2 units", "proto1_flash", "tile", ratio, 0.03},
           {"A CPU, 2 units", "proto1_flash", "tile", share, 0.04},
           {"A CPU, 2 units", "proto1_flash", "layout", ratio, 0.05},
           {"A CPU, 2 units", "proto1_flash", "", ratio, 0.05},
           {"A CPU, 2 units", "proto3_paged", "tile", ratio, 0.06},
           {"A CPU, 2 units", "proto1_flash", "tile", absolute, 0.05},  // no entry: the default of a CPU, of a GPU
           {"NVIDIA X, 132 units", "proto1_flash", "tile", ratio, 0.01}}) {
    const Spread spread = spread_in(fitted, device, experiment, hypothesis, kind);
    EXPECT_EQ(spread.scale, scale) << device << experiment << hypothesis << name(kind);
    EXPECT_EQ(spread.freedom, Spread{}.freedom);
  }
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
}

}  // namespace
}  // namespace attn
