// One attention problem whose kernel calls a score function in one of its forms: proto1_flash's kernel and tensors,
// with a hook that says how the function is reached.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/attention/user_function.h"
#include "common/cases/problem.h"
#include "common/experiment/experiment.h"

namespace attn {

/// Everything a case of proto2_stitching says, typed.
struct StitchConfig {
  std::string form;   // see kernels/forms.h
  std::string grain;  // "element", "row" or "tile": how many scores a call takes
  std::string function;
  int64_t work = 0;
  FlashConfig flash;

  /// A case without a variant has the first of stitch_variants(). Throws BadInput for a case that makes no sense on any
  /// device.
  static StitchConfig from(const Case& config, const DeviceInfo& device);
};

/// The forms, `monolithic` first; those of the host's own are for the cpu alone.
std::vector<std::string> score_forms();
bool form_runs_on(const std::string& form, const DeviceInfo& device);
/// The kernels that are measured: `tuned` on the cpu, `mma_sync` and `wgmma` on a GPU; the first where none is named.
std::vector<std::string> stitch_variants(const DeviceInfo& device);
/// The first of them; "tuned" where there is none.
std::string default_variant(const DeviceInfo& device);
/// Whether the optimiser sees the function and the kernel at once, so that no call need be left.
bool form_is_inlined(const std::string& form);

/// Why the kernel does not take the form at that grain, whatever the shape.
std::optional<std::string> call_skip_reason(const StitchConfig& config, const DeviceInfo& device);

/// Calls of the score function in one launch, as a simdgroup makes them: by the threads of a warp at once.
struct CallCount {
  int64_t calls = 0;
  int64_t calls_per_tile = 0;  // block_r x block_c pairs, none of them masked
};
/// Of `monolithic`: the places where a call would be.
CallCount count_calls(const StitchConfig& config, const DeviceInfo& device);

/// The option that brings a file of the user's; in a case UserFunction::text_name() stands for it.
inline constexpr const char* function_option = "--score-function";

/// The functions of proto2_stitching/functions, by name.
std::vector<std::string> built_in_functions();
/// `work` is the cost of `chain`. Throws BadInput for another name.
UserFunction built_in_function(const std::string& name, int64_t work);
/// The function that a case names; `file` is what --score-function gives. Throws BadInput where there is none, or its
/// text is another one.
UserFunction function_of(const StitchConfig& config, const std::string& file);

/// How the kernel comes to the function, without what only a device can give: the oracle's function, and the address of
/// a std::function.
AttentionHooks stitch_hook(const StitchConfig& config, const DeviceInfo& device, const UserFunction& function);

/// One launch of attention with the function in its form; or why there is none.
Plan stitch_plan(const StitchConfig& config, const DeviceInfo& device, const UserFunction& function);

/// A case of proto2_stitching, with the text of its function.
struct StitchCase {
  StitchConfig config;
  UserFunction function;
};
/// The plan of a StitchCase.
CasePlan stitch_case_plan(const Case& config, const Setting& setting);

/// Tensors of one shape and what is known of their outputs; the cases of a comparison share it.
struct StitchInputs {
  std::shared_ptr<FlashInputs> flash;
  std::map<std::string, Tensor> monolithic;  // the output of that form, by the function's id
};

class StitchProblem : public Problem {
 public:
  /// Runs the plan, which is of this configuration and function.
  StitchProblem(Device& device, PipelineCache& pipelines, std::shared_ptr<StitchInputs> inputs, StitchConfig config,
                const UserFunction& function, const Plan& plan);

  void encode(CommandEncoder& encoder) const override { flash_->encode(encoder); }
  void poison() override { flash_->poison(); }
  /// The oracle's check, and on the cpu that every form gives the bits of `monolithic`.
  Check check() override;
  void dump(const std::string& path) const override { flash_->dump(path); }
  Json values() const override;

  Tensor output() const { return flash_->output(); }
  /// Elements of the last launch's output whose bits differ from those that `monolithic` gave.
  int64_t differing_elements() const;

 private:
  std::shared_ptr<StitchInputs> inputs_;
  StitchConfig config_;
  CallCount calls_;
  std::string function_id_;
  bool promises_bits_;
  std::shared_ptr<void> callable_;  // the std::function that the kernel calls
  std::unique_ptr<FlashProblem> flash_;
};

/// Makes problems of the experiment; cases of one shape share their tensors, and the oracle's answer.
std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const CasePlan&)> stitch_problems();

}  // namespace attn
