// An attention problem whose kernel calls a score function in one of several forms. Kernels and tensors are those of
// proto1_flash.
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

/// The typed values of a case.
struct StitchConfig {
  std::string form;   // see kernels/forms.h
  std::string grain;  // "element", "row" or "tile": how many scores a call takes
  std::string function;
  int64_t work = 0;
  FlashConfig flash;

  /// A case without a variant gets default_variant(). Throws BadInput for a case that no device can run.
  static StitchConfig from(const Case& config, const DeviceInfo& device);
};

/// `monolithic` comes first.
std::vector<std::string> score_forms();
bool form_runs_on(const std::string& form, const DeviceInfo& device);
/// The kernels that are measured: `tuned` on the cpu and on Metal, `mma_sync` and `wgmma` on an NVIDIA GPU.
std::vector<std::string> stitch_variants(const DeviceInfo& device);
/// The first of stitch_variants(), or "tuned" if the device has none.
std::string default_variant(const DeviceInfo& device);
/// Whether the optimiser sees the function together with the kernel, so that the machine code may have no call.
bool form_is_inlined(const std::string& form);

/// Returns why the kernel cannot call the function in this form at this grain, or nothing if it can. The reason does
/// not depend on the shape.
std::optional<std::string> call_skip_reason(const StitchConfig& config, const DeviceInfo& device);

/// Calls of the score function in a launch. On a GPU the threads of a warp make one call together.
struct CallCount {
  int64_t calls = 0;
  int64_t calls_per_tile = 0;  // calls for a full tile of block_r x block_c scores, without a mask
};
/// For `monolithic`, which makes no calls: the calls that another form would make.
CallCount count_calls(const StitchConfig& config, const DeviceInfo& device);

/// The option that names a file of the user. A case names the file by UserFunction::text_name().
inline constexpr const char* function_option = "--score-function";

std::vector<std::string> built_in_functions();
/// `work` is the number of multiply-adds of `chain`. Throws BadInput for an unknown name.
UserFunction built_in_function(const std::string& name, int64_t work);
/// Returns the function that a case names. `file` is the value of `--score-function`. Throws BadInput if there is no
/// such function, or if the file has not the text that the case names.
UserFunction function_of(const StitchConfig& config, const std::string& file);

/// Returns the hooks through which the kernel reaches the function, without what needs an open device: the oracle's
/// function (`reference`), and for the form `std_function` its `data`.
AttentionHooks stitch_hook(const StitchConfig& config, const DeviceInfo& device, const UserFunction& function);

/// Returns the plan of one launch. If the launch cannot run, the plan's `unable` is the reason.
Plan stitch_plan(const StitchConfig& config, const DeviceInfo& device, const UserFunction& function);

struct StitchCase {
  StitchConfig config;
  UserFunction function;
};
/// Returns the case's plan, with its StitchCase.
CasePlan stitch_case_plan(const Case& config, const Setting& setting);

/// The tensors of one shape, and the outputs of `monolithic` that are known so far. Cases of one shape share them.
struct StitchInputs {
  std::shared_ptr<FlashInputs> flash;
  std::map<std::string, Tensor> monolithic;  // the output of the form `monolithic`, by the function's id
};

class StitchProblem : public Problem {
 public:
  /// `plan` must be made from `config` and `function`.
  StitchProblem(Device& device, PipelineCache& pipelines, std::shared_ptr<StitchInputs> inputs, StitchConfig config,
                const UserFunction& function, const Plan& plan);

  void encode(CommandEncoder& encoder) const override { flash_->encode(encoder); }
  void poison() override { flash_->poison(); }
  /// Checks the output against the oracle. On the cpu, also checks that the output has the bits of `monolithic`.
  Check check() override;
  void dump(const std::string& path) const override { flash_->dump(path); }
  Json values() const override;

  Tensor output() const { return flash_->output(); }
  /// Returns how many elements of the last output differ in bits from the output of `monolithic`.
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

/// Cases of one shape share their tensors. Cases of one shape and one function also share the oracle's answer.
std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const CasePlan&)> stitch_problems();

}  // namespace attn
