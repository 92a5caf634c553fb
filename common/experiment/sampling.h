// Samplers of a problem. A sampler takes one sample. measure_interleaved() of common/records/timing.h calls several
// samplers in turn.
#pragma once

#include "common/experiment/ceilings.h"
#include "common/experiment/experiment.h"

namespace attn {

/// Encodes a flush if one is given, a timestamp, the plan's launches `launches` times, and a timestamp.
CommandEncoder encode_launches(const Problem& problem, int launches, const CacheFlush* flush = nullptr);

/// Device seconds and host seconds of one launch, both from the same submit of `launches` launches.
Sampler hot_sampler(Device& device, const Problem& problem, int launches);
/// Device seconds of one launch after a flush.
Sampler cold_sampler(Device& device, const Problem& problem, const CacheFlush& flush);
/// Device seconds of each launch of the plan, in the plan's order; after a flush if one is given.
Sampler phase_sampler(Device& device, const Problem& problem, const CacheFlush* flush);

/// The number of launches of one sample: more than one for launches so short that the time of a timestamp would matter.
int launches_per_sample(Device& device, const Problem& problem);

}  // namespace attn
