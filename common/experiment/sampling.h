// Samplers of a problem. A sampler takes one sample. measure_interleaved() of common/records/timing.h lets several
// samplers take turns.
#pragma once

#include "common/experiment/ceilings.h"
#include "common/experiment/experiment.h"

namespace attn {

/// Encodes a flush (if `flush` is given), a timestamp, then the plan `launches` times, then a second timestamp.
CommandEncoder encode_launches(const Problem& problem, int launches, const CacheFlush* flush = nullptr);

/// Samples the device seconds and the host seconds of one submit that runs the plan `launches` times. Both times are
/// divided by `launches`.
Sampler hot_sampler(Device& device, const Problem& problem, int launches);
/// Samples the device seconds of one run of the plan after a flush.
Sampler cold_sampler(Device& device, const Problem& problem, const CacheFlush& flush);
/// Samples the device seconds of each launch of the plan, in the plan's order. If `flush` is given, the caches are
/// flushed once, before the first launch.
Sampler phase_sampler(Device& device, const Problem& problem, const CacheFlush* flush);

/// Returns how often one sample runs the plan: more than once if the plan is so short that the time of a timestamp
/// would matter.
int launches_per_sample(Device& device, const Problem& problem);

}  // namespace attn
