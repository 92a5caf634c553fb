#include "proto4_constants/problem.h"

#include <map>
#include <utility>

#include "common/cases/input_pool.h"
#include "common/cases/problem.h"
#include "proto4_constants/sweep.h"

namespace attn {

CasePlan constants_plan(const Case& config, const Setting& setting) {
  const DeviceInfo& device = setting.device;
  const std::string& task = config.text("task");
  if (const std::string unable = constants_unable(config, device); !unable.empty()) return Plan{.unable = unable};
  const bool run = task == "run";
  const Variant variant = run ? run_variant(config)
                          : task == "compile_one"
                              ? compiled_variant(config)
                              : variant_grid(config.text("kernel"), parse_dtype(config.text("dtype")), device).front();
  const AttentionHooks hook = variant.hook();
  Plan plan =
      attention_plan(variant.config, device, &hook,
                     run_time_constants(run ? config.text("run_time") : "none", variant.config.variant, device));
  if (!run) {
    plan.host = true;
    plan.work = {.dtype = variant.config.dtype};
  }
  return {std::move(plan), variant};
}

std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const CasePlan&)> constants_launches() {
  return [pool = InputPool<FlashInputs>()](Experiment& lab, const Case&, const CasePlan& plan) mutable {
    const auto& variant = plan.config<Variant>();
    const auto inputs =
        pool.get([&](const FlashInputs& made) { return variant.config.same_tensors(made.config()); },
                 [&] { return std::make_shared<FlashInputs>(lab.device(), variant.config, lab.seed(), ""); });
    return std::make_unique<FlashProblem>(lab.device(), lab.pipelines(), inputs, variant.config, plan, variant.hook());
  };
}

std::function<std::unique_ptr<HostProblem>(Experiment&, const Case&, const CasePlan&)> constants_host_problems() {
  using ByKernel = std::map<std::string, std::shared_ptr<Prepared>>;  // the key has the kernel and the dtype
  return [all = std::make_shared<ByKernel>()](Experiment& lab, const Case& config, const CasePlan& plan) {
    const std::string& task = config.text("task");
    const KernelSource& planned = plan.launches.front().source;  // the source of the first variant
    if (task == "compile_one") return variants_problem(lab, config, {plan.config<Variant>()}, {planned}, nullptr);
    const DeviceInfo& info = lab.device().info();
    std::vector<Variant> grid = variant_grid(config.text("kernel"), parse_dtype(config.text("dtype")), info);
    std::shared_ptr<Prepared>& prepared = (*all)[config.key({"kernel", "dtype"})];
    if (!prepared) {
      std::vector<KernelSource> sources;
      for (const Variant& variant : grid) sources.push_back(sources.empty() ? planned : variant.source(info));
      prepared = std::make_shared<Prepared>(lab.device(), std::move(sources));
    }
    const auto count = static_cast<size_t>(config.integer("variants"));
    if (task.starts_with("start_")) return start_problem(lab, config, count, grid.front(), prepared);
    grid.erase(grid.begin() + static_cast<std::ptrdiff_t>(count), grid.end());
    return variants_problem(lab, config, std::move(grid), prepared->first(count), prepared);
  };
}

}  // namespace attn
