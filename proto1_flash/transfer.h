// Which results of one device hold on another device?
#pragma once

#include <vector>

#include "common/records/claim.h"

namespace attn {

/// The records of one device.
struct DeviceRecords {
  std::vector<Measurement> measurements;  // of measurements.jsonl
  std::vector<Json> findings;             // of findings.jsonl
};

/// The claims about pairs of devices: tile_transfers and verdicts_transfer.
std::vector<Claim> transfer_claims();

/// Returns the conclusions of transfer_claims().
///
/// tile_transfers compares two times on the device `to`: the time of the tile that is best on `from`, divided by the
/// time of the tile that is best on `to`. The best tile of a device is its fastest tile of the kernel `tuned` without a
/// causal mask, among the tiles that both devices have measured. There is a conclusion for each head_dim with at least
/// three such tiles. At each head_dim a device counts with the shape that has the most measured tiles, so the two
/// devices may have other lengths and dtypes.
///
/// verdicts_transfer compares verdicts. The verdict of a device on a hypothesis is the verdict of most of its decided
/// findings; with as many supported as refuted findings there is none. The figure is the number of hypotheses with
/// equal verdicts, divided by the number of hypotheses on which both devices have a verdict. Without such a hypothesis
/// there is no conclusion.
std::vector<Conclusion> transfer_conclusions(const DeviceRecords& from, const DeviceRecords& to);

}  // namespace attn
