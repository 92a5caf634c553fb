// Pure functions that compare the records of two devices. They say which results of one device hold on the other
// device.
#pragma once

#include <vector>

#include "common/records/claim.h"

namespace attn {

/// The records of one device.
struct DeviceRecords {
  std::vector<Measurement> measurements;  // of measurements.jsonl
  std::vector<Json> findings;             // of findings.jsonl
};

/// Returns the two claims about pairs of devices: tile_transfers and verdicts_transfer.
std::vector<Claim> transfer_claims();

/// Returns the conclusions of the two claims.
/// - tile_transfers has a conclusion for each head_dim at which at least three tiles ran on both devices. Only tiles
///   that ran on both devices count. The figure is the time on `to` of the tile that is best on `from`, divided by the
///   time on `to` of the tile that is best on `to`. The sweeps of the two devices may differ in dtype: the quick
///   profile runs the tiles in the default dtype of the device (SweepSpan::dtype).
/// - verdicts_transfer has a conclusion if there is a hypothesis that both devices decide. The figure is the number of
///   hypotheses with equal verdicts on both devices, divided by the number of hypotheses that both devices decide. The
///   verdict of a device on a hypothesis is the verdict of most of the device's decided findings on the hypothesis.
std::vector<Conclusion> transfer_conclusions(const DeviceRecords& from, const DeviceRecords& to);

}  // namespace attn
