// The launches that rotate Q and K (apply RoPE) before attention (common/attention/rotary.h), and the tensors of cases
// with these launches.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/attention/rope.h"
#include "common/attention/rotary.h"
#include "common/cases/inputs.h"
#include "common/data/compare.h"
#include "common/experiment/experiment.h"

namespace attn {

/// A launch that rotates Q, K or both.
struct RotaryStep {
  RopeShape shape;
  int64_t first_position;
  std::string phase;
};
/// Returns the steps in the order of their launches. One step rotates Q and K together if launches rotate both and
/// q_len is kv_len.
std::vector<RotaryStep> rotary_steps(const Rotary& rotary, const FlashConfig& config);
/// Returns the launches of the steps, and the sum of their work.
Plan rotary_plan(const Rotary& rotary, const FlashConfig& config, const DeviceInfo& device);

/// `raw` has the tensors before the rotation. The host's tensors of `rotated` are the oracle's: Q and K are rotated in
/// double and rounded once. The launches write the device's buffers of `rotated`.
struct RotaryInputs {
  RotaryInputs(Device& device, const FlashConfig& config, uint64_t seed, const std::string& input,
               const Rotary& rotary);

  Rotary rotary;
  FlashInputs raw, rotated;
};

/// The launches that rotate Q and K from the buffers of `raw` to the buffers of `rotated`, or with Rotary::in_place
/// within the buffers of `rotated`.
class RotaryLaunches {
 public:
  /// `plan` must have the launches of rotary_plan().
  RotaryLaunches(Device& device, PipelineCache& pipelines, std::shared_ptr<RotaryInputs> inputs, Rotary rotary,
                 const Plan& plan);

  void encode(CommandEncoder& encoder) const;
  /// Fills the outputs of the launches with NaN; if the launches write in place, with the values before the rotation.
  void poison();
  /// Compares the outputs of the launches with the oracle's tensors. An element may differ by one rounding of the
  /// dtype, and by 4e-6 more. Of a large tensor, only a sample of the rows is compared. Also checks the buffers' guard
  /// bands.
  Check check();

  /// Returns the Q that the launches wrote.
  Tensor rotated_q() const;
  /// Return the buffers that attention reads.
  Buffer& q();
  Buffer& k();

 private:
  struct Step {
    RotaryStep what;
    RopeLaunch launch;
    Buffer offsets;
  };
  std::shared_ptr<RotaryInputs> inputs_;
  Rotary rotary_;
  std::vector<Step> steps_;
};

}  // namespace attn
