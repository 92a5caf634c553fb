// The launches that turn Q and K before attention (common/attention/rotary.h), and the tensors of cases with such
// launches.
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

/// A launch that turns Q, K or both.
struct RotaryStep {
  RopeShape shape;
  int64_t first_position;
  std::string phase;
};
/// The steps in their order: one, unless Q and K begin at different positions; none where no launch turns them.
std::vector<RotaryStep> rotary_steps(const Rotary& rotary, const FlashConfig& config);
/// The launches of the steps, and their work.
Plan rotary_plan(const Rotary& rotary, const FlashConfig& config, const DeviceInfo& device);

/// Tensors before they turn, and tensors that were turned in double and rounded once: the oracle's Q and K.
struct RotaryInputs {
  RotaryInputs(Device& device, const FlashConfig& config, uint64_t seed, const std::string& input,
               const Rotary& rotary);

  Rotary rotary;
  FlashInputs raw, turned;
};

/// The steps on tensors: from `raw` to the buffers of `turned`.
class RotaryLaunches {
 public:
  /// Runs the launches of the plan's steps.
  RotaryLaunches(Device& device, PipelineCache& pipelines, std::shared_ptr<RotaryInputs> inputs, Rotary rotary,
                 const Plan& plan);

  void encode(CommandEncoder& encoder) const;
  /// Fills the outputs of the launches with NaN. Where the launches write in place, puts back the values before the
  /// turn.
  void poison();
  /// Compares the outputs of the launches with the oracle's, within the rounding of the dtype; of large tensors a
  /// sample of rows.
  Check check();

  /// Q as the last launch left it.
  Tensor turned_q() const;
  /// The buffers that attention reads.
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
