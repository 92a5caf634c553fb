#include "common/ceilings.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/kernel/ceiling.h"
#include "common/timing.h"

namespace attn {
namespace {

// Long against a launch, short against a time slice: on a machine that is shared, many short repetitions meet a quiet
// moment, and few long ones do not.
constexpr double repetition_s = 2e-3;
constexpr int min_repetitions = 5, max_repetitions = 1000;
constexpr int copy_slices = 8;  // a repetition copies one of them; by its next turn the others have evicted it
constexpr size_t mebibyte = size_t{1} << 20;
constexpr double min_flush_effect = 1.2;

/// Two registers hold the operands. 12 chains cover a latency of 4 on two pipes, 24 are three times that.
int accumulators(const DeviceInfo& info) { return info.vector_registers >= 32 ? 24 : 12; }

const Kernel& ceiling_kernel(const Device& device, PipelineCache& pipelines, const std::string& entry,
                             bool non_temporal = false) {
  const DeviceInfo& info = device.info();
  return *pipelines
              .get({.path = "common/kernels/ceiling.cpu.cpp",
                    .entry = entry,
                    .constants = {{"VECTOR_WIDTH", info.simd_width},
                                  {"ACCUMULATORS", accumulators(info)},
                                  {"NON_TEMPORAL", non_temporal}},
                    .includes = {}})
              .kernel;
}

template <typename Parameters>
CommandEncoder timed(const Kernel& kernel, uint32_t groups, const Parameters& parameters,
                     const CacheFlush* flush = nullptr) {
  CommandEncoder encoder;
  if (flush) flush->encode(encoder);
  encoder.timestamp();
  encoder.dispatch(kernel, {groups}, 1, 0, parameters);
  encoder.timestamp();
  return encoder;
}

double run_once(Device& device, const CommandEncoder& encoder) { return device.submit(encoder).at(0); }

/// Seconds of the fastest repetition; the encoders take turns.
double best_time(Device& device, const std::vector<CommandEncoder>& encoders, double budget_s) {
  const auto start = std::chrono::steady_clock::now();
  const auto spent = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() >= budget_s;
  };
  double best = run_once(device, encoders.front());
  for (int i = 1; i < max_repetitions && (i < min_repetitions || !spent()); ++i) {
    best = std::min(best, run_once(device, encoders[i % encoders.size()]));
  }
  return best;
}

/// Parts small enough that a unit which starts late or loses its core does not hold up the others for long.
uint32_t parts(const DeviceInfo& info) { return 8 * info.units; }

size_t copy_size(const DeviceInfo& info, size_t bytes) {
  const size_t step = size_t{256} * parts(info);  // see CopyParams
  return std::max<size_t>(bytes / step, 1) * step;
}

double copy_gbps(Device& device, PipelineCache& pipelines, double budget_s) {
  const DeviceInfo& info = device.info();
  size_t bytes = std::max(4 * info.last_level_cache_bytes, 64 * mebibyte);
  if (info.backend == "cpu") bytes = std::min(bytes, 128 * mebibyte);
  const size_t slice = copy_size(info, bytes / copy_slices);
  Buffer source(device, copy_slices * slice), target(device, copy_slices * slice);
  double best = 0;
  for (const bool non_temporal : {false, true}) {
    const Kernel& kernel = ceiling_kernel(device, pipelines, "ceiling_copy", non_temporal);
    std::vector<CommandEncoder> encoders;
    for (int i = 0; i < copy_slices; ++i) {
      const auto at = [&](const Buffer& buffer) { return static_cast<std::byte*>(buffer.data()) + i * slice; };
      encoders.push_back(timed(kernel, parts(info), CopyParams{at(source), at(target), slice}));
    }
    best = std::max(best, 2.0 * slice / best_time(device, encoders, budget_s / 2) * 1e-9);
  }
  return best;
}

/// `per_lane`: flops an iteration does per lane and accumulator.
double arithmetic_tflops(Device& device, PipelineCache& pipelines, const std::string& entry, double per_lane,
                         double budget_s) {
  const DeviceInfo& info = device.info();
  const Kernel& kernel = ceiling_kernel(device, pipelines, entry);
  const Buffer result(device, parts(info) * info.simd_width * sizeof(float));
  const auto encode = [&](long long iterations) {
    return timed(kernel, parts(info),
                 ArithmeticParams{static_cast<float*>(result.data()), iterations, 0.5f, 1.0f});  // sums tend to 2
  };
  // Double until a launch is long enough to tell its rate from its overhead, then scale to the wanted length.
  long long iterations = 1024;
  double seconds = run_once(device, encode(iterations));
  while (seconds < repetition_s / 4 && iterations < (1ll << 40)) {
    iterations *= 2;
    seconds = run_once(device, encode(iterations));
  }
  iterations = std::max(1ll, static_cast<long long>(iterations * repetition_s / seconds));
  const double flops = per_lane * info.simd_width * accumulators(info) * iterations * parts(info);
  return flops / best_time(device, {encode(iterations)}, budget_s) * 1e-12;
}

}  // namespace

Ceilings measure_ceilings(Device& device, PipelineCache& pipelines, double budget_s) {
  const bool dot_products = device.info().has("avx512bf16");
  const double share = budget_s / (dot_products ? 3 : 2);
  Ceilings ceilings;
  ceilings.copy_gbps = copy_gbps(device, pipelines, share);
  ceilings.f32_tflops = arithmetic_tflops(device, pipelines, "ceiling_fma", 2, share);
  ceilings.f16_tflops = ceilings.bf16_tflops = ceilings.f32_tflops;
  if (dot_products) {  // which some cores run more slowly than f32 multiply-adds
    ceilings.bf16_tflops =
        std::max(ceilings.bf16_tflops, arithmetic_tflops(device, pipelines, "ceiling_bf16", 4, share));
  }
  return ceilings;
}

Ceilings max(const Ceilings& a, const Ceilings& b) {
  return {.copy_gbps = std::max(a.copy_gbps, b.copy_gbps),
          .f32_tflops = std::max(a.f32_tflops, b.f32_tflops),
          .f16_tflops = std::max(a.f16_tflops, b.f16_tflops),
          .bf16_tflops = std::max(a.bf16_tflops, b.bf16_tflops)};
}

CacheFlush::CacheFlush(Device& device) : buffer_(device, 2 * device.info().last_level_cache_bytes) {}

nlohmann::ordered_json FlushTest::json() const { return {{"hot_s", hot_s}, {"cold_s", cold_s}, {"ok", ok}}; }

FlushTest test_flush(Device& device, PipelineCache& pipelines, const CacheFlush& flush) {
  constexpr int samples = 5;
  const DeviceInfo& info = device.info();
  const size_t bytes = copy_size(info, info.last_level_cache_bytes / 4);  // source and target together: half
  const Buffer source(device, bytes), target(device, bytes);
  const Kernel& kernel = ceiling_kernel(device, pipelines, "ceiling_copy");
  const CopyParams parameters{source.data(), target.data(), bytes};
  const CommandEncoder hot = timed(kernel, parts(info), parameters);
  const CommandEncoder cold = timed(kernel, parts(info), parameters, &flush);

  std::vector<double> hot_s, cold_s;
  run_once(device, hot);
  for (int i = 0; i < samples; ++i) hot_s.push_back(run_once(device, hot));
  for (int i = 0; i < samples; ++i) cold_s.push_back(run_once(device, cold));
  FlushTest test{.hot_s = median(hot_s), .cold_s = median(cold_s)};
  test.ok = test.cold_s >= min_flush_effect * test.hot_s;
  return test;
}

}  // namespace attn
