// Readings of the device's clocks, power and temperature over the rounds of a measurement.
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "common/base/stopwatch.h"
#include "common/device/device.h"
#include "common/records/measurement.h"

namespace attn {

class ClockLog {
 public:
  explicit ClockLog(const Device& device) : device_(device) {}

  /// For a call after each round. Reads the clocks at most once in interval_s.
  void read() {
    if (!readings_.empty() && since_last_.seconds() < interval_s) return;
    readings_.push_back(device_.clocks());
    since_last_ = Stopwatch();
  }

  Json json() const {
    std::set<std::string> reasons;
    for (const Clocks& clocks : readings_) {
      reasons.insert(clocks.throttle_reasons.begin(), clocks.throttle_reasons.end());
    }
    const std::vector<double> core = known(&Clocks::core_mhz);
    return {{"core_mhz", median_or_null(core)},
            {"core_min_mhz", core.empty() ? Json(nullptr) : Json(*std::min_element(core.begin(), core.end()))},
            {"memory_mhz", median_or_null(known(&Clocks::memory_mhz))},
            {"power_w", median_or_null(known(&Clocks::power_w))},
            {"temperature_c", median_or_null(known(&Clocks::temperature_c))},
            {"throttle_reasons", reasons},
            {"readings", readings_.size()}};
  }

 private:
  static constexpr double interval_s = 20e-3;  // a reading takes up to 1 ms, so shorter intervals would cost much time

  std::vector<double> known(double Clocks::* field) const {
    std::vector<double> values;
    for (const Clocks& clocks : readings_) {
      if (clocks.*field >= 0) values.push_back(clocks.*field);
    }
    return values;
  }
  static Json median_or_null(const std::vector<double>& values) {
    return values.empty() ? Json(nullptr) : Json(median(values));
  }

  const Device& device_;
  std::vector<Clocks> readings_;
  Stopwatch since_last_;
};

}  // namespace attn
