#include "common/experiment/sampling.h"

#include <algorithm>
#include <cmath>

#include "common/base/stopwatch.h"

namespace attn {
namespace {

// A sample takes several launches if a launch is shorter than short_launch_s, because a timestamp costs about 0.1 us.
constexpr double short_launch_s = 20e-6;
constexpr double sample_s = 100e-6;  // length of a sample of several launches

}  // namespace

CommandEncoder encode_launches(const Problem& problem, int launches, const CacheFlush* flush) {
  CommandEncoder encoder;
  if (flush) flush->encode(encoder);
  encoder.timestamp();
  for (int i = 0; i < launches; ++i) problem.encode(encoder);
  encoder.timestamp();
  return encoder;
}

Sampler hot_sampler(Device& device, const Problem& problem, int launches) {
  return [&device, launches, encoder = encode_launches(problem, launches)]() -> std::vector<double> {
    const Stopwatch host;
    const double device_s = device.submit(encoder).at(0);
    return {device_s / launches, host.seconds() / launches};
  };
}

Sampler cold_sampler(Device& device, const Problem& problem, const CacheFlush& flush) {
  return [&device, encoder = encode_launches(problem, 1, &flush)]() -> std::vector<double> {
    return {device.submit(encoder).at(0)};
  };
}

Sampler phase_sampler(Device& device, const Problem& problem, const CacheFlush* flush) {
  CommandEncoder launches, encoder;
  problem.encode(launches);
  if (flush) flush->encode(encoder);
  encoder.timestamp();
  for (const CommandEncoder::Command& command : launches.commands()) {
    encoder.add(command);
    if (std::holds_alternative<CommandEncoder::Dispatch>(command)) encoder.timestamp();
  }
  return [&device, encoder] { return device.submit(encoder); };
}

int launches_per_sample(Device& device, const Problem& problem) {
  // The shortest of several launches, because other programs may slow a launch. The first launch is a warm-up too: the
  // launch that was checked ran with cold caches and new pages.
  constexpr int launches = 3;
  const CommandEncoder encoder = encode_launches(problem, 1);
  double launch_s = device.submit(encoder).at(0);
  for (int i = 1; i < launches; ++i) launch_s = std::min(launch_s, device.submit(encoder).at(0));
  return launch_s >= short_launch_s ? 1 : static_cast<int>(std::ceil(sample_s / std::max(launch_s, 1e-7)));
}

}  // namespace attn
