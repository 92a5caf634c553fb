// What carries over from one device to another: pure functions of two devices' records.
#pragma once

#include <vector>

#include "common/records/claim.h"

namespace attn {

/// One device's records, as --measurements and --out wrote them.
struct DeviceRecords {
  std::vector<Measurement> measurements;
  std::vector<Json> findings;
};

/// The claims about pairs of devices.
std::vector<Claim> transfer_claims();

/// tile_transfers, for each head_dim that both have a tile sweep of and in both directions: of the tiles that both ran,
/// the time on the second of the first's best, over the time of its own best. The sweeps may differ in dtype, as each
/// device is swept in the one it is made for.
/// verdicts_transfer: the share of hypotheses, judged on both, that most findings of both support or refute.
/// Nothing where the records have nothing in common.
std::vector<Conclusion> transfer_conclusions(const DeviceRecords& from, const DeviceRecords& to);

}  // namespace attn
