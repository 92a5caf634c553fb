#include "common/records/measurement.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/base/json.h"
#include "common/records/tests/support.h"

namespace attn {
namespace {

const Ceilings ceilings{
    .copy_gbps = 10, .f32_tflops = 2, .f16_tflops = 3, .bf16_tflops = 4, .tf32_tflops = 0, .peak_16_bit_tflops = 8};

Measurement measured() {
  Measurement m;
  m.run_id = "r1";
  m.experiment = "proto1_flash";
  m.device = "A CPU";
  m.config.set("head_dim", AxisValue(int64_t{64}));
  m.config.set("variant", AxisValue("tuned"));
  m.check = Check{true, 1e-6, 1e-4, 128, ""};
  m.work = Work{.flops = 1e9, .bytes = 4e6};
  m.time = {timing(Scope::device_hot, 1e-3), timing(Scope::host, 1.5e-3)};
  m.dtype = DType::bf16;
  m.matrix_pct = Estimate{24, 23, 25.5};
  m.pipeline = {{"key", "flash_forward[HEAD_DIM=64]"}};
  m.clocks = {{"core_mhz", 3000.5}};
  m.values = {{"peak_bytes", 5}};
  return m;
}

TEST(Measurement, RatesFollowTheScope) {
  Measurement m = measured();
  EXPECT_DOUBLE_EQ(m.tflops(), 1.0);
  EXPECT_DOUBLE_EQ(m.gbps(), 4.0);
  m.time.push_back(timing(Scope::device_cold, 2e-3));
  EXPECT_DOUBLE_EQ(m.tflops(), 1.0) << "the arithmetic rate must use the hot time";
  EXPECT_DOUBLE_EQ(m.gbps(), 2.0) << "the rate of bytes must use the cold time";
  EXPECT_EQ(m.timing(Scope::host)->median_s, 1.5e-3);
  m.time = {timing(Scope::host, 1e-3)};
  EXPECT_EQ(m.tflops(), 0) << "a host time must give no rate of the device";
  EXPECT_EQ(m.timing(Scope::device_hot), nullptr);
  m = measured();
  m.work.reset();
  EXPECT_EQ(m.gbps(), 0);
}

TEST(Measurement, JsonHasEveryField) {
  const Json json = to_json(measured(), ceilings);
  const Json expected = parse_json(R"({
    "schema": "measurement/1", "run_id": "r1", "experiment": "proto1_flash", "device": "A CPU",
    "case": {"head_dim": 64, "variant": "tuned"}, "dtype": "bf16", "status": "ok", "reason": "",
    "check": {"ok": true, "max_abs": 1e-6, "max_rel": 1e-4, "rows_checked": 128, "worst": ""},
    "work": {"flops": 1e9, "bytes": 4e6, "bound": "matrix"},
    "time": [{"scope": "device_hot", "n": 50, "rounds": 10, "median_s": 1e-3, "ci_lo_s": 9.9e-4, "ci_hi_s": 1.01e-3,
              "cv": 0.02, "min_s": 9e-4, "stop": "ci"},
             {"scope": "host", "n": 50, "rounds": 10, "median_s": 1.5e-3, "ci_lo_s": 1.485e-3, "ci_hi_s": 1.515e-3,
              "cv": 0.02, "min_s": 1.35e-3, "stop": "ci"}],
    "rate": {"tflops": 1.0, "gbps": 4.0, "pct_matrix_ceiling": 24.0, "pct_matrix_ci_lo": 23.0, "pct_matrix_ci_hi": 25.5,
             "pct_matrix_best": 25.0, "pct_matrix_peak": 12.5, "pct_copy_ceiling": 40.0},
    "pipeline": {"key": "flash_forward[HEAD_DIM=64]"}, "clocks": {"core_mhz": 3000.5},
    "values": {"peak_bytes": 5}})");
  EXPECT_EQ(json.size(), expected.size() + 1) << "the fields and the id";
  const Json leaves = expected.flatten();
  for (const auto& [key, value] : leaves.items()) {
    const Json got = json.at(Json::json_pointer(key));
    if (value.is_number_float()) {
      EXPECT_DOUBLE_EQ(got.get<double>(), value.get<double>()) << key;
    } else {
      EXPECT_EQ(got, value) << key;
    }
  }
  EXPECT_EQ(json["id"], record_id(json));
}

TEST(Measurement, RoundTrips) {
  Measurement skipped;
  skipped.run_id = "r1";
  skipped.status = "skipped";
  skipped.reason = "needs 66048 bytes of threadgroup memory; 32768 are there";
  Measurement wrong = measured();
  wrong.status = "wrong";
  wrong.check = Check{false, 0.5, 1e9, 4, "o[3]: got nan, want 1"};
  wrong.time.clear();
  for (const Measurement& m : {measured(), skipped, wrong}) {
    const Json json = to_json(m, ceilings);
    const Measurement back = measurement_from_json(parse_json(json.dump()));
    EXPECT_EQ(to_json(back, ceilings).dump(), json.dump());
    EXPECT_EQ(json["id"], back.id);
    EXPECT_EQ(back.status, m.status);
    EXPECT_EQ(back.reason, m.reason);
  }
  EXPECT_TRUE(to_json(skipped, ceilings)["check"].is_null());
  EXPECT_TRUE(to_json(skipped, ceilings)["rate"].is_null());
}

TEST(Measurement, RefusesAnotherSchemaAnUnknownScopeOrAMissingField) {
  const Json sound = to_json(measured(), ceilings);
  Json other = sound, scope = sound, missing = sound;
  other["schema"] = "measurement/2";
  scope["time"][0]["scope"] = "hot";
  missing.erase("device");
  for (const Json& wrong : {other, scope, missing}) EXPECT_THROW(measurement_from_json(wrong), std::exception) << wrong;
}

TEST(Measurement, RefusesRatesMoreThan5PercentAboveTheCeiling) {
  Measurement m = measured();
  m.work->flops = 4.15e9;  // in 1 ms: 4.15 TFLOP/s; the bf16 ceiling is 4 TFLOP/s
  EXPECT_TRUE(to_json(m, ceilings)["rate"]["pct_matrix_best"].is_null()) << "the record must have no share above 100 %";
  EXPECT_NEAR(to_json(m, ceilings)["rate"]["pct_matrix_peak"].get<double>(), 100 * 4.15 / 8, 1e-9);
  m.work->flops = 4.25e9;
  EXPECT_THROW(to_json(m, ceilings), std::runtime_error);
  m.status = "failed";
  EXPECT_TRUE(to_json(m, ceilings)["rate"].is_null()) << "only a correct result may have a rate";

  m = measured();
  m.dtype = DType::f32;
  m.work->flops = 2.2e9;
  EXPECT_THROW(to_json(m, ceilings), std::runtime_error) << "the ceiling of the dtype must count";
  EXPECT_NO_THROW(to_json(m, {})) << "refused a rate although no ceiling was measured";
  m = measured();
  m.matrix_pct.reset();
  EXPECT_TRUE(to_json(m, ceilings)["rate"]["pct_matrix_ceiling"].is_null());

  m = measured();
  m.work->bytes = 11e6;  // 11 GB/s
  EXPECT_NO_THROW(to_json(m, ceilings)) << "refused a rate of hot data, which may come from caches";
  m.time.push_back(timing(Scope::device_cold, 1e-3));
  EXPECT_THROW(to_json(m, ceilings), std::runtime_error);
}

TEST(Measurement, RefusesFiguresThatAreNotFinite) {
  Measurement m = measured();
  m.time[1] = {};  // this scope was interrupted before its first round
  EXPECT_EQ(to_json(m, ceilings)["time"].size(), 1u);
  m.clocks["core_mhz"] = std::nan("");
  EXPECT_THROW(to_json(m, ceilings), std::runtime_error);
}

TEST(Ceilings, AProductOfF32CountsAsThreeOfTf32) {
  EXPECT_EQ(ceilings.matrix_tflops(DType::f32), 2);
  EXPECT_EQ((Ceilings{.f32_tflops = 2, .tf32_tflops = 7.5}.matrix_tflops(DType::f32)), 2.5);
}

}  // namespace
}  // namespace attn
