// Samplers of a problem: what takes one sample of it, as common/records/timing.h takes its turns.
#pragma once

#include "common/experiment/ceilings.h"
#include "common/experiment/experiment.h"

namespace attn {

/// Timestamp, launches, timestamp; after a flush where one is given.
CommandEncoder encode_launches(const Problem& problem, int launches, const CacheFlush* flush = nullptr);

/// Device and host seconds of one launch, both of the same submit, which makes `launches` of them.
Sampler hot_sampler(Device& device, const Problem& problem, int launches);
/// Device seconds of one launch after a flush.
Sampler cold_sampler(Device& device, const Problem& problem, const CacheFlush& flush);
/// Device seconds of each launch of the plan, in its order; after a flush where one is given.
Sampler phase_sampler(Device& device, const Problem& problem, const CacheFlush* flush);

/// How many launches make one sample: more than one where a timestamp would weigh.
int launches_per_sample(Device& device, const Problem& problem);

}  // namespace attn
