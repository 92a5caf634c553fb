#include "common/experiment/ceilings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/json.h"
#include "common/base/stopwatch.h"
#include "common/device/kernels/ceiling.h"
#include "common/records/timing.h"

namespace attn {
namespace {

// A repetition is long compared with a launch's overhead, and short compared with a time slice. On a shared machine
// some of many short repetitions usually run undisturbed by other programs.
constexpr double repetition_s = 2e-3;
constexpr int min_repetitions = 5, max_repetitions = 1000;
constexpr double min_flush_effect = 1.2;

/// Threadgroups of a launch: several for each unit, so that a unit that starts late or loses its core does not delay
/// the launch for long.
uint32_t parts(const DeviceInfo& info) { return 8 * info.units; }

/// Throws BadInput if the device has no kernels for ceilings.
const CeilingOperation& ceilings_of(const DeviceInfo& info) {
  if (!info.operations->ceilings) throw BadInput(fmt::format("{}: {}", info.spec, no_kernel_for("ceilings")));
  return *info.operations->ceilings;
}

CeilingKernels kernels_of(const DeviceInfo& info) { return ceilings_of(info).kernels(info); }

/// A constant of `changed` replaces the usual constant of the same name. The pipeline cache owns the kernel.
const Kernel* ceiling_kernel(const Device& device, PipelineCache& pipelines, std::string entry,
                             FunctionConstants changed = {}) {
  CeilingKernels kernels = kernels_of(device.info());
  changed.merge(kernels.constants);
  return pipelines
      .get(
          {.path = std::move(kernels.file), .entry = std::move(entry), .constants = std::move(changed), .includes = {}})
      .kernel.get();
}

template <typename Parameters>
CommandEncoder timed(const Kernel& kernel, uint32_t groups, uint32_t threads, const Parameters& parameters,
                     const CacheFlush* flush = nullptr) {
  CommandEncoder encoder;
  if (flush) flush->encode(encoder);
  encoder.timestamp();
  encoder.dispatch(kernel, {groups}, threads, 0, parameters);
  encoder.timestamp();
  return encoder;
}

double run_once(Device& device, const CommandEncoder& encoder) { return device.submit(encoder).at(0); }

/// Seconds of the fastest of at least min_repetitions repetitions; the encoders take turns.
double best_time(Device& device, const std::vector<CommandEncoder>& encoders, double budget_s) {
  const Stopwatch stopwatch;
  double best = run_once(device, encoders.front());
  for (int i = 1; i < max_repetitions && (i < min_repetitions || stopwatch.seconds() < budget_s); ++i) {
    best = std::min(best, run_once(device, encoders[i % encoders.size()]));
  }
  return best;
}

/// A copy or a read that is divided among threadgroups; see CopyParams and ReadParams.
struct MemoryShape {
  uint32_t groups;
  size_t part_bytes;
  size_t bytes() const { return groups * part_bytes; }
};

/// A shape of about `bytes`, in parts of `part_bytes` if not 0.
MemoryShape memory_shape(const DeviceInfo& info, size_t bytes, size_t part_bytes) {
  if (part_bytes) return {static_cast<uint32_t>(std::max<size_t>(bytes / part_bytes, 1)), part_bytes};
  return {parts(info), std::max<size_t>(bytes / parts(info) / 256, 1) * 256};
}

MemoryShape copy_shape(const DeviceInfo& info, size_t bytes) {
  return memory_shape(info, bytes, kernels_of(info).copy_part_bytes);
}

/// Encodes slice `i` of a copy between buffers of several slices.
CommandEncoder encode_copy(const Device& device, PipelineCache& pipelines, const MemoryShape& shape, bool non_temporal,
                           const Buffer& source, const Buffer& target, int i, const CacheFlush* flush = nullptr) {
  const auto at = [&](const Buffer& buffer) { return static_cast<std::byte*>(buffer.data()) + i * shape.bytes(); };
  return timed(*ceiling_kernel(device, pipelines, "ceiling_copy", {{"NON_TEMPORAL", non_temporal}}), shape.groups,
               kernels_of(device.info()).copy_threads, CopyParams{at(source), at(target), shape.part_bytes}, flush);
}

CommandEncoder encode_read(const Device& device, PipelineCache& pipelines, const MemoryShape& shape, bool non_temporal,
                           const Buffer& source, const Buffer& result, const CacheFlush& flush) {
  return timed(*ceiling_kernel(device, pipelines, "ceiling_read", {{"NON_TEMPORAL", non_temporal}}), shape.groups,
               kernels_of(device.info()).copy_threads,
               ReadParams{source.data(), static_cast<float*>(result.data()), shape.part_bytes}, &flush);
}

double copy_gbps(Device& device, PipelineCache& pipelines, double budget_s) {
  const CeilingKernels kernels = kernels_of(device.info());
  const MemoryShape shape = copy_shape(device.info(), kernels.copy_bytes / kernels.copy_slices);
  const size_t slice = shape.bytes();
  Buffer source(device, kernels.copy_slices * slice), target(device, kernels.copy_slices * slice);
  double best = 0;
  for (const bool non_temporal : {false, true}) {
    std::vector<CommandEncoder> encoders;
    for (int i = 0; i < kernels.copy_slices; ++i) {
      encoders.push_back(encode_copy(device, pipelines, shape, non_temporal, source, target, i));
    }
    const double bytes = 2.0 * static_cast<double>(slice);
    best = std::max(best, bytes / best_time(device, encoders, budget_s / 2) * 1e-9);
  }
  return best;
}

CeilingArithmetic multiply_adds(const DeviceInfo& info) { return {"ceiling_fma", kernels_of(info).fma_flops}; }

std::optional<CeilingArithmetic> products(const DeviceInfo& info, DType dtype) {
  return ceilings_of(info).products(info, dtype);
}

Buffer arithmetic_result(Device& device) {
  return {device, parts(device.info()) * static_cast<size_t>(kernels_of(device.info()).lanes) * sizeof(float)};
}

CommandEncoder encode_arithmetic(Device& device, const Kernel& kernel, const Buffer& result, long long iterations) {
  return timed(kernel, parts(device.info()), kernels_of(device.info()).threads,
               ArithmeticParams{static_cast<float*>(result.data()), iterations, 0.5f, 1.0f});  // 0.5 x + 1 tends to 2
}

double arithmetic_tflops(Device& device, PipelineCache& pipelines, const CeilingArithmetic& arithmetic,
                         double budget_s) {
  const Kernel& kernel = *ceiling_kernel(device, pipelines, arithmetic.entry, arithmetic.constants);
  const Buffer result = arithmetic_result(device);
  const auto encode = [&](long long iterations) { return encode_arithmetic(device, kernel, result, iterations); };
  // First a launch that is long enough to be timed, then scaled to repetition_s. If other programs delay all
  // repetitions of a launch, the scaled launch turns out too short, and the search goes on from it.
  constexpr int most_searches = 3;
  constexpr long long most_iterations = 1ll << 40;
  long long iterations = 1024;
  for (int searches = 1;; ++searches) {
    double seconds = best_time(device, {encode(iterations)}, 0);
    while (seconds < repetition_s / 4 && iterations < most_iterations) {
      iterations *= 2;
      seconds = best_time(device, {encode(iterations)}, 0);
    }
    iterations = std::max(1ll, static_cast<long long>(iterations * repetition_s / seconds));
    seconds = best_time(device, {encode(iterations)}, budget_s);
    if (seconds < repetition_s / 4 && iterations < most_iterations && searches < most_searches) continue;
    return arithmetic.group_flops * static_cast<double>(iterations) * parts(device.info()) / seconds * 1e-12;
  }
}

}  // namespace

Ceilings measure_ceilings(Device& device, PipelineCache& pipelines, double budget_s) {
  const DeviceInfo& info = device.info();
  const auto tf32 = products(info, DType::f32), f16 = products(info, DType::f16), bf16 = products(info, DType::bf16);
  const double share = budget_s / (2 + tf32.has_value() + f16.has_value() + bf16.has_value());
  const auto rate = [&](const std::optional<CeilingArithmetic>& arithmetic) {
    return arithmetic ? arithmetic_tflops(device, pipelines, *arithmetic, share) : 0;
  };
  Ceilings ceilings;
  ceilings.copy_gbps = copy_gbps(device, pipelines, share);
  ceilings.f32_tflops = rate(multiply_adds(info));
  // Some cores run dot products more slowly than multiply-adds.
  ceilings.f16_tflops = std::max(rate(f16), ceilings.f32_tflops);
  ceilings.bf16_tflops = std::max(rate(bf16), ceilings.f32_tflops);
  ceilings.tf32_tflops = rate(tf32);
  ceilings.peak_16_bit_tflops = info.peak_16_bit_tflops;
  return ceilings;
}

MatrixCeiling::MatrixCeiling(Device& device, PipelineCache& pipelines, DType dtype, const Ceilings& measured,
                             double launch_s)
    : device_(device), result_(arithmetic_result(device)) {
  const double tflops = measured.matrix_tflops(dtype);
  const bool by_products = tflops > measured.f32_tflops;
  const CeilingArithmetic arithmetic =
      by_products ? products(device.info(), dtype).value() : multiply_adds(device.info());
  const Kernel& kernel = *ceiling_kernel(device, pipelines, arithmetic.entry, arithmetic.constants);
  const double repeats = by_products && dtype == DType::f32 ? Ceilings::tf32_of_f32 : 1;
  const double iteration_flops = arithmetic.group_flops / repeats * parts(device.info());
  const long long iterations = std::max(1ll, std::llround(tflops * 1e12 * launch_s / iteration_flops));
  encoder_ = encode_arithmetic(device, kernel, result_, iterations);
  flops_ = iteration_flops * static_cast<double>(iterations);
}

double MatrixCeiling::sample() const { return run_once(device_, encoder_); }

MemoryCeiling::MemoryCeiling(Device& device, PipelineCache& pipelines, Access access, const CacheFlush& flush)
    : device_(device) {
  constexpr int tries = 3;
  const CeilingKernels kernels = kernels_of(device.info());
  const bool reads = access == Access::read;
  const MemoryShape shape =
      memory_shape(device.info(), kernels.copy_bytes, reads ? kernels.read_part_bytes : kernels.copy_part_bytes);
  source_ = Buffer(device, shape.bytes());
  target_ = Buffer(device, reads ? shape.groups * kernels.read_floats * sizeof(float) : shape.bytes());
  bytes_ = (reads ? 1.0 : 2.0) * static_cast<double>(shape.bytes());
  double least = std::numeric_limits<double>::infinity();
  for (const bool non_temporal : {false, true}) {
    const CommandEncoder encoder =
        reads ? encode_read(device, pipelines, shape, non_temporal, source_, target_, flush)
              : encode_copy(device, pipelines, shape, non_temporal, source_, target_, 0, &flush);
    for (int i = 0; i < tries; ++i) {
      const double seconds = run_once(device, encoder);
      if (seconds >= least) continue;
      least = seconds;
      encoder_ = encoder;
    }
  }
}

double MemoryCeiling::sample() const { return run_once(device_, encoder_); }

namespace {

/// The rates that are measured.
constexpr double Ceilings::* measured_rates[] = {&Ceilings::copy_gbps, &Ceilings::f32_tflops, &Ceilings::f16_tflops,
                                                 &Ceilings::bf16_tflops, &Ceilings::tf32_tflops};

}  // namespace

Ceilings max(const Ceilings& a, const Ceilings& b) {
  Ceilings larger = a;
  larger.peak_16_bit_tflops = std::max(a.peak_16_bit_tflops, b.peak_16_bit_tflops);
  for (double Ceilings::* const rate : measured_rates) larger.*rate = std::max(a.*rate, b.*rate);
  return larger;
}

Ceilings scaled(const Ceilings& ceilings, double factor) {
  Ceilings scaled = ceilings;
  for (double Ceilings::* const rate : measured_rates) scaled.*rate *= factor;
  return scaled;
}

CacheFlush::CacheFlush(Device& device) : buffer_(device, 2 * device.info().last_level_cache_bytes) {}

Json FlushTest::json() const { return {{"hot_s", hot_s}, {"cold_s", cold_s}, {"ok", ok}}; }

FlushTest test_flush(Device& device, PipelineCache& pipelines, const CacheFlush& flush) {
  constexpr int samples = 25;
  const DeviceInfo& info = device.info();
  const MemoryShape shape = copy_shape(info, kernels_of(info).flush_test_bytes / 2);
  const Buffer source(device, shape.bytes()), target(device, shape.bytes());
  const Kernel& kernel = *ceiling_kernel(device, pipelines, "ceiling_copy");
  const CopyParams parameters{source.data(), target.data(), shape.part_bytes};
  const uint32_t threads = kernels_of(info).copy_threads;
  const CommandEncoder hot = timed(kernel, shape.groups, threads, parameters);
  const CommandEncoder cold = timed(kernel, shape.groups, threads, parameters, &flush);

  std::vector<double> hot_s, cold_s;
  run_once(device, hot);
  for (int i = 0; i < samples; ++i) hot_s.push_back(run_once(device, hot));
  for (int i = 0; i < samples; ++i) cold_s.push_back(run_once(device, cold));
  FlushTest test{.hot_s = median(hot_s), .cold_s = median(cold_s)};
  test.ok = test.cold_s >= min_flush_effect * test.hot_s;
  return test;
}

}  // namespace attn
