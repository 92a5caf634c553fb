// Samplers of a problem. A sampler takes one sample. measure_interleaved() of common/records/timing.h lets several
// samplers take turns.
#pragma once

#include "common/experiment/ceilings.h"
#include "common/experiment/experiment.h"

namespace attn {

/// Encodes a flush if one is given, a timestamp, the plan's launches `launches` times, and a timestamp.
CommandEncoder encode_launches(const Problem& problem, int launches, const CacheFlush* flush = nullptr);

/// Samples the device seconds and the host seconds of a submit of `launches` launches, each divided by `launches`.
Sampler hot_sampler(Device& device, const Problem& problem, int launches);
/// Samples the device seconds of one launch after a flush.
Sampler cold_sampler(Device& device, const Problem& problem, const CacheFlush& flush);
/// Samples the device seconds of each launch of the plan, in the plan's order. If `flush` is given, the caches are
/// flushed once, before the first launch.
Sampler phase_sampler(Device& device, const Problem& problem, const CacheFlush* flush);

/// Returns the number of launches of one sample. The number is more than one if a launch is so short that the time of a
/// timestamp would matter.
int launches_per_sample(Device& device, const Problem& problem);

}  // namespace attn
