#include "common/records/spread.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "common/base/json.h"

namespace attn {
namespace {

TEST(Spread, TakesTheEntryThatFitsBest) {
  const Json fitted = parse_json(R"({
    "A CPU": {"proto1_flash": {"ratio": {"scale": 0.02, "freedom": 3, "pairs": 40}},
              "*": {"ratio": {"scale": 0.03, "freedom": 4}}},
    "NVIDIA X": {"*": {"share": {"scale": 0.004, "freedom": 2}}},
    "cpu": {"*": {"share": {"scale": 0.06, "freedom": 1}}}})");
  using enum FigureKind;
  for (const auto& [device, experiment, kind, scale, freedom] :
       std::vector<std::tuple<const char*, const char*, FigureKind, double, double>>{
           {"A CPU, 2 units", "proto1_flash", ratio, 0.02, 3},
           {"A CPU", "proto1_flash", ratio, 0.02, 3},
           // The entry of the device. An entry of experiment * counts with at most 2 degrees of freedom.
           {"A CPU, 2 units", "proto3_paged", ratio, 0.03, 2},
           {"A CPU, 2 units", "proto1_flash", share, 0.06, 1},  // the entry of the kind of device
           {"Another CPU, 2 units", "proto1_flash", share, 0.06, 1},
           {"NVIDIA X, 132 units", "proto1_flash", share, 0.004, 2},
           {"Another CPU, 2 units", "proto1_flash", ratio, 0.05, 2},  // no entry: the default of a CPU, of a GPU
           {"NVIDIA X, 132 units", "proto1_flash", ratio, 0.01, 2}}) {
    const Spread spread = spread_in(fitted, device, experiment, kind);
    EXPECT_EQ(spread.scale, scale) << device << experiment << name(kind);
    EXPECT_EQ(spread.freedom, freedom) << device << experiment << name(kind);
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
