// Which results carry over from one device to another. Pure functions of the records of two devices.
#pragma once

#include <vector>

#include "common/records/claim.h"

namespace attn {

/// The records of one device, in the files that --measurements and --out name.
struct DeviceRecords {
  std::vector<Measurement> measurements;
  std::vector<Json> findings;
};

/// The claims about pairs of devices.
std::vector<Claim> transfer_claims();

/// Conclusions of both claims. A claim for which the records have nothing in common gives no conclusion.
/// tile_transfers, for each head_dim at which both devices ran at least three equal tiles: only these tiles count. The
/// figure is the time on `to` of the tile that is best on `from`, over the time on `to` of the tile that is best on
/// `to`. The two sweeps may differ in dtype: the sweep of each device uses the dtype that the device is made for.
/// verdicts_transfer: the share of hypotheses with equal verdicts on both devices, of all that both devices decide. The
/// verdict of a device on a hypothesis is the verdict of most of its decided findings.
std::vector<Conclusion> transfer_conclusions(const DeviceRecords& from, const DeviceRecords& to);

}  // namespace attn
