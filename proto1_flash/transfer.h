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
/// - tile_transfers is about tiles of the kernel `tuned` without a causal mask. Of each device and head_dim it takes
/// the
///   shape with the most measured tiles, so the two devices may have other lengths and dtypes. There is a conclusion
///   for each head_dim with at least three tiles that both devices have measured. The best tile of a device is the
///   fastest of these tiles. The figure compares two times on the device `to`: the time of the best tile of `from`,
///   divided by the time of the best tile of `to`.
/// - verdicts_transfer compares verdicts. The verdict of a device on a hypothesis is the verdict of most of the
/// device's
///   decided findings; if supported and refuted findings are equally many, the device has no verdict. There is a
///   conclusion if both devices have a verdict on some hypothesis. The figure is the number of hypotheses with equal
///   verdicts, divided by the number of hypotheses on which both devices have a verdict.
std::vector<Conclusion> transfer_conclusions(const DeviceRecords& from, const DeviceRecords& to);

}  // namespace attn
